package subjects

// Streams, buckets and object stores of sessions.
const (
	StreamContext = "FLEET_CONTEXT" // the context of every session, version by version

	BucketSessions = "FLEET_SESSIONS" // session records
	BucketWorkers  = "FLEET_WORKERS"  // what workers remember together: keys
	BucketScratch  = "FLEET_SCRATCH"  // what workers write all the time, and can make anew: positions, the canary

	ObjectsOutputs = "FLEET_OUTPUTS" // large outputs of sessions, in parts
)

// Context holds the versions of the context of s.
func Context(s SessionID) string { return join("fleet.context", string(s)) }

// ContextNews is where it is heard that the context of s has a new version.
func ContextNews(s SessionID) string { return join("fleet.contextnews", string(s)) }

// Handshake is where agent a is asked for a handshake, any instance of it.
func Handshake(a AgentID) string { return join("fleet.handshake", string(a)) }

// Patterns of sessions, with one star for every variable token.
const (
	ContextPattern     = "fleet.context.*"
	ContextNewsPattern = "fleet.contextnews.*"
	HandshakePattern   = "fleet.handshake.*"
)

// sessionEntries are the subjects of sessions.
func sessionEntries() []Entry {
	list := []Entry{
		{
			Pattern: "fleet.handshake.<agent>", Message: "handshake_init → handshake_ack; context_exchange → ControlReply",
			Writer: "sessions", Readers: "agent",
			Description: "The handshake of the session protocol, passed on for somebody who asks with session handshake.",
		},
		{
			Pattern: "fleet.context.<session>", Message: "Record",
			Writer: "sessions", Readers: "sessions",
			Kept: "until its session is gone", Stream: StreamContext,
			Description: "The context of a session, one message per version, written by compare-and-set.",
		},
		{
			Pattern: "fleet.contextnews.<session>", Message: "headers only",
			Writer: "stream", Readers: "sessions",
			Description: "A context has a new version: whoever waits for it reads it now. Fleet-Task says of which task.",
		},
	}
	for _, e := range []struct{ verb, message, description string }{
		{"create", "Create → Opened", "Open a session: answers with its record and its token."},
		{"get", "Ref → View", "A session's record."},
		{"update", "Update → Opened", "Renew a session, and change what it is for: answers with a new token."},
		{"delete", "Ref → Deleted", "End a session, and drop all it holds."},
		{"list", "List → ListReply", "The sessions of the caller; all of them for an operator."},
		{"handshake", "handshake_init → handshake_ack", "Ask an agent to begin; once it accepts it gets the session's context."},
		{"append", "Append → Appended", "Add what an agent did to the context."},
		{"context", "Read → ReadReply", "The context from a version on, at once or as soon as there is news."},
		{"put", "Put → PutReply", "Store one part of a large output."},
		{"fetch", "Fetch → FetchReply", "Read one part of a large output."},
	} {
		list = append(list, Entry{
			Pattern: "fleet.api.<from>.session." + e.verb, Message: e.message,
			Writer: "orchestrator", Readers: "sessions", Description: e.description,
		})
	}
	return append(list, Entry{
		Pattern: "fleet.api.router.session.offer", Message: "OfferContext → OfferContextReply",
		Writer: "router", Readers: "sessions",
		Description: "The context that goes with an offer, bounded in size.",
	})
}
