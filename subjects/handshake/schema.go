package handshake

import (
	"embed"

	"parley/subjects"
)

//go:embed schema/*.json
var schemaFiles embed.FS

// Schemas returns the names of the messages that have a JSON Schema.
func Schemas() []string {
	return []string{
		"session", "session-handshake-init", "session-handshake-ack", "session-context-exchange",
		"session-context", "session-identity", "session-log-line",
	}
}

// Schema returns the JSON Schema (2020-12) of a message. Whatever a decoder
// accepts, its schema accepts; it is more lenient as those of package fleet are,
// and of either output or stored.
func Schema(name string) ([]byte, error) {
	return subjects.ReadSchema(schemaFiles, Schemas(), name)
}
