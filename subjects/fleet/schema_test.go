package fleet_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/schematest"
)

// validate holds data against a schema.
var validate = schematest.Validator(fleet.Schemas(), fleet.Schema)

func TestSchemas(t *testing.T) {
	t.Parallel()
	for typ, name := range schemaOf {
		if !slices.Contains(fleet.Schemas(), name) {
			t.Errorf("Schemas() lacks %s", name)
		}
		text, err := fleet.Schema(name)
		if err != nil {
			t.Fatal(err)
		}
		var s struct {
			Schema      string `json:"$schema"`
			ID          string `json:"$id"`
			Title       string `json:"title"`
			Description string `json:"description"`
		}
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		if s.Schema != "https://json-schema.org/draft/2020-12/schema" || s.Title != typ ||
			s.ID != "https://parley.dev/schema/"+name+".json" || s.Description == "" {
			t.Errorf("%s begins with %+v", name, s)
		}
	}
	if len(fleet.Schemas()) != len(schemaOf) {
		t.Errorf("Schemas() = %q", fleet.Schemas())
	}
	_, err := fleet.Schema("nothing")
	if subjects.CodeOf(err) != subjects.CodeNotFound || !strings.Contains(err.Error(), "task-dispatch, task-result") {
		t.Errorf("Schema(nothing) = %v, want not_found with the names", err)
	}
}
