package run

import (
	"embed"

	"parley/subjects"
)

//go:embed schema/*.json
var schemaFiles embed.FS

// Schemas returns the names of the messages that have a JSON Schema.
func Schemas() []string { return []string{"task-definition", "run-record", "run-output"} }

// Schema returns the JSON Schema (2020-12) of a message; what fleet.Schema
// says of leniency holds here too.
func Schema(name string) ([]byte, error) {
	return subjects.ReadSchema(schemaFiles, Schemas(), name)
}
