package subjects

// Where schedules are kept.
const (
	StreamTimers    = "FLEET_TIMERS"    // the timers of schedules: messages that JetStream brings out in their time
	BucketSchedules = "FLEET_SCHEDULES" // the records of schedules
)

// Timer holds the message that JetStream turns into a Tick of the schedule when
// it is due.
func Timer(from AgentID, name string) string { return join("fleet.timer", string(from), name) }

// Tick is where the schedule of from is told that it is due.
func Tick(from AgentID, name string) string { return join("fleet.tick", string(from), name) }

// SchedulesHeartbeat is where a schedules worker says that it lives.
func SchedulesHeartbeat(id InstanceID) string { return join("fleet.worker.schedules", string(id)) }

// Patterns of schedules, with one star for every variable token.
const (
	TimerPattern              = "fleet.timer.*.*"
	TickPattern               = "fleet.tick.*.*"
	SchedulesHeartbeatPattern = "fleet.worker.schedules.*"
)

// scheduleEntries are the subjects of schedules.
func scheduleEntries() []Entry {
	list := []Entry{
		{
			Pattern: "fleet.worker.schedules.<instance>", Message: "RouterHeartbeat",
			Writer: "schedules", Readers: "schedules",
			Description: "A schedules worker lives, so it owns its share of the schedules.",
		},
		{
			Pattern: "fleet.timer.<from>.<schedule>", Message: "Timer",
			Writer: "schedules", Readers: "schedules",
			Kept: "until it is due", Stream: StreamTimers,
			Description: "When a schedule is due next, as a message schedule of JetStream.",
		},
		{
			Pattern: "fleet.tick.<from>.<schedule>", Message: "Timer",
			Writer: "stream", Readers: "schedules",
			Kept: "last per schedule", Stream: StreamTimers,
			Description: "A schedule is due. It says when to look, and nothing else: what is to be done is in the schedule's record.",
		},
	}
	for _, e := range []struct{ verb, message, description string }{
		{"create", "SCHEDULE → View", "Have a task dispatched, a run started or a message sent, again and again or at a time."},
		{"get", "Ref → View", "A schedule: how it stands, and when it is due next."},
		{"list", "ListRequest → List", "The schedules of the caller; all of them for an operator."},
		{"pause", "Ref → View", "Begin nothing more by the clock."},
		{"resume", "Ref → View", "Go on, from the next time on."},
		{"run", "RunNow → RunNowReply", "Do it once now, whatever the clock says."},
		{"remove", "Ref → View", "Forget a schedule. What it has begun goes on."},
	} {
		list = append(list, Entry{
			Pattern: "fleet.api.<from>.schedule." + e.verb, Message: e.message,
			Writer: "orchestrator", Readers: "schedules", Description: e.description,
		})
	}
	return list
}
