package subjects

// Streams of the audit.
const (
	StreamLog   = "FLEET_LOG"   // log lines of workers, until the audit has them
	StreamAudit = "FLEET_AUDIT" // the audit: all lines, in blocks that are chained by hash
)

// Log is where a worker says what agent a did in session s; "none" stands for
// no session.
func Log(s SessionID, a AgentID) string {
	if s == "" {
		s = "none"
	}
	return join("fleet.log", string(s), string(a))
}

// Audit is the one subject of the audit's blocks.
const Audit = "fleet.audit"

// LogPattern follows the log lines of all.
const LogPattern = "fleet.log.*.*"

// Told is where log lines of a change are kept beside it, in the stream of what
// was changed; write names the write.
func Told(stream, write string) string { return join("fleet.told", stream, write) }

// ToldPattern follows the lines that are kept in a stream.
func ToldPattern(stream string) string { return join("fleet.told", stream, "*") }

// auditEntries are the subjects of the audit.
func auditEntries() []Entry {
	return []Entry{
		{
			Pattern: "fleet.log.<session>.<agent>", Message: "log line",
			Writer: "sessions, access, webhooks", Readers: "audit",
			Kept: "7 days", Stream: StreamLog,
			Description: "What happened that changed nothing that is stored: handshakes, refusals, push notifications that died while the outbox had little room. The audit takes it over.",
		},
		{
			Pattern: "fleet.told.<stream>.<write>", Message: "log lines",
			Writer: "workers", Readers: "audit",
			Kept:        "7 days, in <stream>; in that of webhooks 30, in that of sessions one",
			Description: "What was changed by a write to one of the streams of runs, schedules, alerts, webhooks, sessions, identities and agents, and by whom: stored with it in one. The audit takes it over.",
		},
		{
			Pattern: Audit, Message: "Block",
			Writer: "audit", Readers: "audit",
			Kept: "90 days", Stream: StreamAudit,
			Description: "The audit: log lines in blocks, each with the hash of the one before; written by compare-and-set.",
		},
		{
			Pattern: "fleet.api.<from>.audit.read", Message: "Read → ReadReply",
			Writer: "operator", Readers: "audit",
			Description: "Blocks of the audit, for who exports or verifies it.",
		},
	}
}
