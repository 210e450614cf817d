package auth

import (
	"slices"
	"strings"

	"github.com/nats-io/jwt/v2"

	"parley/subjects"
)

// clientRoles are those of everybody but workers.
func clientRoles() []string {
	return []string{subjects.RoleAgent, subjects.RoleLeaf, subjects.RoleOrchestrator, subjects.RoleOperator}
}

// nameTemplate stands, in a role's permissions, for the name of the user.
const nameTemplate = "{{name()}}"

// maxSubscriptions of a client; an agent needs a handful.
const maxSubscriptions = 1000

// serviceReplies are where a request of the workers' account is answered in
// that of the clients: subjects made by the server, which it lets nobody use
// otherwise.
const serviceReplies = "_R_.>"

// Permissions is what id may do in a role, as a user's claims have it.
func Permissions(role string, id subjects.AgentID) jwt.Permissions {
	publish, subscribe := subjects.Permissions(role, id)
	if role == subjects.RoleLeaf {
		publish = slices.DeleteFunc(publish, func(s string) bool { return strings.HasPrefix(s, "_INBOX.") })
		publish = append(publish, serviceReplies)
	}
	p := jwt.Permissions{Pub: jwt.Permission{Allow: publish}, Sub: jwt.Permission{Allow: subscribe}}
	if subjects.Responds(role) {
		p.Resp = &jwt.ResponsePermission{MaxMsgs: 1, Expires: 0}
	}
	return p
}

// scope is what a role's signing key, whose public half is given, can sign.
func scope(role, key string) *jwt.UserScope {
	s := jwt.NewUserScope()
	s.Key, s.Role, s.Description = key, role, "what the catalogue lets an identity of this role do"
	s.Template.Permissions = Permissions(role, nameTemplate)
	s.Template.AllowedConnectionTypes = jwt.StringList{jwt.ConnectionTypeStandard, jwt.ConnectionTypeWebsocket}
	switch role {
	case subjects.RoleWorker:
		s.Template.AllowedConnectionTypes.Add(jwt.ConnectionTypeInProcess)
	case subjects.RoleLeaf:
		s.Template.AllowedConnectionTypes = jwt.StringList{jwt.ConnectionTypeLeafnode, jwt.ConnectionTypeLeafnodeWS}
	default:
		s.Template.Subs = maxSubscriptions
	}
	return s
}

// A passage is a subject that passes from the account of who writes it to the
// account of who reads it.
type passage struct {
	subject  string
	out      bool // from the workers to the clients
	request  bool // it is answered, or must reach one reader by his own account
	repeated bool // several answer
}

// passages are what the catalogue has clients write to workers, and workers to
// clients.
func passages() []passage {
	var list []passage
	for _, e := range subjects.Catalogue() {
		clientWrites, workerReads := anyClient(e.Writer), anyWorker(e.Readers)
		p := passage{subject: wildcards(e.Pattern)}
		switch {
		case clientWrites && workerReads:
			p.request = true // what is no request passes in the same way
		case !clientWrites && anyClient(e.Readers):
			p.out, p.request = true, strings.Contains(e.Message, "→")
		default:
			continue
		}
		list = append(list, p)
	}
	return append(list, passage{subject: "$SRV.>", request: true, repeated: true}) // nats service ls
}

func anyClient(words string) bool {
	return slices.ContainsFunc(strings.Split(words, ", "), isClient)
}

func anyWorker(words string) bool {
	return slices.ContainsFunc(strings.Split(words, ", "), func(w string) bool { return !isClient(w) })
}

func isClient(word string) bool { return slices.Contains(clientRoles(), word) }

// wildcards puts a star for every name in pattern.
func wildcards(pattern string) string {
	tokens := strings.Split(pattern, ".")
	for i, t := range tokens {
		if strings.HasPrefix(t, "<") {
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}

// claims are the two accounts of a tenant.
func (t *tenant) claims() (workers, clients *jwt.AccountClaims) {
	workers, clients = jwt.NewAccountClaims(t.Workers), jwt.NewAccountClaims(t.Clients)
	workers.Name, clients.Name = t.Name, t.Name+"-clients"
	workers.Limits.JetStreamLimits = jwt.JetStreamLimits{
		MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit, MaxAckPending: jwt.NoLimit,
	}
	clients.Limits.DisallowBearer, workers.Limits.DisallowBearer = true, true
	for _, p := range passages() {
		p.pass(workers, clients)
	}
	for role, key := range t.Signers {
		account := clients
		if role == subjects.RoleWorker {
			account = workers
		}
		account.SigningKeys.AddScopedSigner(scope(role, key))
	}
	for _, u := range t.Users {
		account := clients
		if u.Role == subjects.RoleWorker {
			account = workers
		}
		for _, k := range u.Keys {
			if !k.Revoked.IsZero() {
				account.RevokeAt(k.Public, k.Revoked)
			}
		}
	}
	return workers, clients
}

// pass lets p through: as a service of the account that reads a request, as a
// stream of the account that writes anything else.
func (p passage) pass(workers, clients *jwt.AccountClaims) {
	from, to := workers, clients // who exports, who imports
	if p.out && p.request {
		from, to = clients, workers
	}
	kind := jwt.Stream
	var response jwt.ResponseType
	if p.request {
		kind, response = jwt.Service, jwt.ResponseTypeSingleton
	}
	if p.repeated {
		response = jwt.ResponseTypeStream
	}
	subject := jwt.Subject(p.subject)
	from.Exports.Add(&jwt.Export{Name: p.subject, Subject: subject, Type: kind, ResponseType: response})
	to.Imports.Add(&jwt.Import{Name: p.subject, Subject: subject, Account: from.Subject, Type: kind})
}
