package fleet

import (
	"embed"

	"parley/subjects"
)

//go:embed schema/*.json
var schemaFiles embed.FS

// Schemas returns the names of the messages that have a JSON Schema.
func Schemas() []string {
	return []string{
		"session-announce", "heartbeat", "task-dispatch", "task-result",
		"handshake-ack", "task-progress", "control", "task-event", "escalation",
		"webhook-delivery", "webhook-state",
	}
}

// Schema returns the JSON Schema (2020-12) of a message. Whatever a decoder
// accepts, its schema accepts. The schema is more lenient where JSON Schema
// cannot say it: a length counts characters instead of bytes; 4000.0 and 4e3
// are integers; the time in a session id, and a leap second, need not exist;
// members may be there twice, nesting has no end, and white space of other
// scripts is text.
func Schema(name string) ([]byte, error) {
	return subjects.ReadSchema(schemaFiles, Schemas(), name)
}
