package identity

import (
	"embed"
	"slices"
	"strings"

	"parley/subjects"
)

//go:embed schema/*.json
var schemas embed.FS

// Schemas names what has a JSON Schema.
func Schemas() []string { return []string{"identity-proof", "identity-record"} }

// Schema returns the JSON Schema of one of them.
func Schema(name string) ([]byte, error) {
	if !slices.Contains(Schemas(), name) {
		return nil, subjects.Errorf(subjects.CodeNotFound, "there is no schema %q", name).
			WithRemedy("ask for one of " + strings.Join(Schemas(), ", "))
	}
	return schemas.ReadFile("schema/" + name + ".json")
}
