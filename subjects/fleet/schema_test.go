package fleet_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"parley/subjects"
	"parley/subjects/fleet"
)

// compiled are the schemas by name.
var compiled = sync.OnceValue(func() map[string]*jsonschema.Schema {
	all := map[string]*jsonschema.Schema{}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	for _, name := range fleet.Schemas() {
		text, err := fleet.Schema(name)
		if err != nil {
			panic(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			panic(err)
		}
		if err := c.AddResource(name, doc); err != nil {
			panic(err)
		}
		all[name] = c.MustCompile(name)
	}
	return all
})

// validate checks data against a schema.
func validate(tb testing.TB, name string, data []byte) error {
	tb.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return err
	}
	return compiled()[name].Validate(doc)
}

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
