package fleet

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// noLoader refuses to fetch: a schema stands for itself.
type noLoader struct{}

// Load implements jsonschema.URLLoader.
func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s: references out of the schema are not followed", url)
}

// CompileSchema compiles a result_schema: JSON Schema 2020-12 that refers to
// nothing outside itself. That of a dispatch which was decoded compiles.
func CompileSchema(schema json.RawMessage) (*jsonschema.Schema, error) {
	const name = "urn:parley:result_schema"
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	if err := c.AddResource(name, doc); err != nil {
		return nil, err
	}
	return c.Compile(name)
}

// checkSchema checks that the result schema is one.
func (t *Task) checkSchema(p *problems) {
	const at = "/task/result_schema"
	switch s := string(t.ResultSchema); {
	case s == "true", s == "false":
		return
	case len(s) > 0 && s[0] != '{' && s != "null":
		p.invalid(at, "expected object or boolean, got %s", kindOf(t.ResultSchema))
		return
	}
	if p.object(at, &t.ResultSchema); len(t.ResultSchema) == 0 {
		return
	}
	if _, err := CompileSchema(t.ResultSchema); err != nil {
		p.add(invalid(at, "result_schema does not compile: %w", err).
			WithRemedy("give a JSON Schema (2020-12) that refers to nothing outside itself"))
	}
}
