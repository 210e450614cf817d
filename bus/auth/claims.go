package auth

import (
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

// Permissions is what id may do in a role, as a user's claims have it.
func Permissions(role string, id subjects.AgentID) jwt.Permissions {
	publish, subscribe := subjects.Permissions(role, id)
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

// claims are the two accounts of a tenant.
func (t *tenant) claims() (workers, clients *jwt.AccountClaims) {
	workers, clients = jwt.NewAccountClaims(t.Workers), jwt.NewAccountClaims(t.Clients)
	workers.Name, clients.Name = t.Name, t.Name+"-clients"
	workers.Limits.JetStreamLimits = jwt.JetStreamLimits{
		MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit, MaxAckPending: jwt.NoLimit,
	}
	clients.Limits.DisallowBearer, workers.Limits.DisallowBearer = true, true
	for _, p := range subjects.Passages() {
		pass(p, workers, clients)
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
func pass(p subjects.Passage, workers, clients *jwt.AccountClaims) {
	from, to := workers, clients // who exports, who imports
	if !p.ServedByWorkers() {
		from, to = clients, workers
	}
	kind := jwt.Stream
	var response jwt.ResponseType
	if p.Request {
		kind, response = jwt.Service, jwt.ResponseTypeSingleton
	}
	if p.Repeated {
		response = jwt.ResponseTypeStream
	}
	subject := jwt.Subject(p.Subject)
	from.Exports.Add(&jwt.Export{Name: p.Subject, Subject: subject, Type: kind, ResponseType: response})
	to.Imports.Add(&jwt.Import{Name: p.Subject, Subject: subject, Account: from.Subject, Type: kind})
}
