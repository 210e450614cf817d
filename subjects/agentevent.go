package subjects

// AgentEvent is where the registry says that instance i of agent a is live,
// lost, draining or resumed.
func AgentEvent(a AgentID, i InstanceID) string { return join("fleet.agent", string(a), string(i)) }

// AgentEventPattern follows every instance of every agent.
const AgentEventPattern = "fleet.agent.*.*"
