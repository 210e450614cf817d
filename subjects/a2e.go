package subjects

// BucketA2E holds the sessions of agents that use the fleet as their
// environment.
const BucketA2E = "FLEET_A2E"

// a2eEntries are the subjects of A2E.
func a2eEntries() []Entry {
	return []Entry{
		{
			Pattern: "fleet.api.<from>.a2e.handshake", Message: "handshake/req → handshake/resp",
			Writer: "orchestrator", Readers: "a2e",
			Description: "The handshake of A2E: what the caller would like to use, and what is there.",
		},
		{
			Pattern: "fleet.api.<from>.a2e.call", Message: "call/req → call/resp",
			Writer: "orchestrator", Readers: "a2e",
			Description: "One call of an A2E session: a task, a run, the context.",
		},
	}
}
