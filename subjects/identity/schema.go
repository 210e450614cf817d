package identity

import (
	"embed"

	"parley/subjects"
)

//go:embed schema/*.json
var schemaFiles embed.FS

// Schemas names what has a JSON Schema.
func Schemas() []string { return []string{"identity-proof", "identity-record"} }

// Schema returns the JSON Schema of one of them.
func Schema(name string) ([]byte, error) {
	return subjects.ReadSchema(schemaFiles, Schemas(), name)
}
