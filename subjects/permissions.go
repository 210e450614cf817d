package subjects

import (
	"slices"
	"strings"
)

// Roles, for Permissions. An agent may dispatch too, so it can do whatever an
// orchestrator can; so can an operator, who also reads what goes on in the
// whole fleet. Workers are the fleet's own processes. A leaf is a NATS leaf node
// that connects agents: instances of one agent, whose rights it has.
const (
	RoleAgent        = "agent"
	RoleLeaf         = "leaf"
	RoleOrchestrator = "orchestrator"
	RoleOperator     = "operator"
	RoleWorker       = "worker"
)

// InboxPrefix is the prefix of the reply subjects of id: its alone, so nobody
// reads another's replies.
func InboxPrefix(id AgentID) string { return "_INBOX_" + string(id) }

// workerReplies are where workers are answered in the clients' account: at
// subjects that the server makes.
const workerReplies = "_R_.>"

// Permissions returns the subjects that id may publish and subscribe to in a
// role, as NATS wants them; none for a role that does not exist. They follow
// from the Catalogue: id stands for itself only, so what it writes is proof of
// who wrote it. Nobody but workers reaches JetStream's API.
//
// An agent answers offers, so the server must also allow it responses
// (allow_responses): see Responds.
func Permissions(role string, id AgentID) (publish, subscribe []string) {
	switch role {
	case RoleWorker:
		return []string{">"}, []string{">"}
	case RoleAgent, RoleOrchestrator, RoleOperator:
	case RoleLeaf:
		// No server lets a leaf node have response permissions, so the leaf may
		// answer where workers are answered, whose names nobody can guess.
		publish, subscribe = Permissions(RoleAgent, id)
		for i, p := range publish {
			// A server (2.15.2) does not see that fleet.announce.*.* has to do
			// with fleet.announce.bob.*, and forwards nothing.
			if own, ok := strings.CutSuffix(p, ".*"); ok {
				publish[i] = own + ".>"
			}
		}
		return unique(append(publish, workerReplies)), subscribe
	default:
		return nil, nil
	}
	// What one role and the orchestrator in it may do.
	for _, as := range slices.Compact([]string{role, RoleOrchestrator}) {
		for _, e := range Catalogue() {
			if has(e.Writer, as) {
				publish = append(publish, own(e.Pattern, as, id))
			}
			switch {
			case !has(e.Readers, as):
			case as == RoleOperator:
				subscribe = append(subscribe, own(e.Pattern, as, ""))
			default:
				subscribe = append(subscribe, own(e.Pattern, as, id))
			}
		}
	}
	if role == RoleOperator {
		publish = append(publish, "$SRV.>") // nats service ls
	}
	subscribe = append(subscribe, InboxPrefix(id)+".>")
	return unique(publish), unique(subscribe)
}

// Responds reports whether a role answers requests (as the first reader of a
// subject that has replies), for which it needs the server's response
// permission.
func Responds(role string) bool {
	return slices.ContainsFunc(Catalogue(), func(e Entry) bool {
		return strings.Contains(e.Message, "→") && strings.Split(e.Readers, ", ")[0] == role
	})
}

func has(words, word string) bool {
	return slices.Contains(strings.Split(words, ", "), word)
}

// own puts id where a role stands for itself in pattern (everywhere a star if
// id is empty), and a star for every other name.
func own(pattern, role string, id AgentID) string {
	me := self(role)
	tokens := strings.Split(pattern, ".")
	for i, t := range tokens {
		switch {
		case t == me && id != "":
			tokens[i] = string(id)
		case strings.HasPrefix(t, "<"):
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}

// unique sorts and drops what a wider pattern of the list covers already.
func unique(list []string) []string {
	slices.Sort(list)
	list = slices.Compact(list)
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool {
		return slices.ContainsFunc(list, func(wide string) bool {
			return wide != s && covers(wide, s)
		})
	})
}

// covers reports whether every subject of narrow is one of wide.
func covers(wide, narrow string) bool {
	w, n := strings.Split(wide, "."), strings.Split(narrow, ".")
	for i, t := range w {
		switch {
		case t == ">":
			return len(n) > i
		case i >= len(n), t != "*" && t != n[i], t == "*" && n[i] == ">":
			return false
		}
	}
	return len(w) == len(n)
}
