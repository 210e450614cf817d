// Package schematest helps tests of the contract to hold messages against their
// JSON Schemas.
package schematest

import (
	"bytes"
	"encoding/json"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// T is what it needs of a test: a testing.TB, or a property's.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Validator returns what validates data against the schema of that name, of
// names, which read reads. They are compiled once, formats asserted.
func Validator(names []string, read func(name string) ([]byte, error)) func(t T, name string, data []byte) error {
	compiled := sync.OnceValues(func() (map[string]*jsonschema.Schema, error) { return compile(names, read) })
	return func(t T, name string, data []byte) error {
		t.Helper()
		all, err := compiled()
		if err != nil {
			t.Fatalf("%v", err)
		}
		if all[name] == nil {
			t.Fatalf("there is no schema %q", name)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		if err != nil {
			return err
		}
		return all[name].Validate(doc)
	}
}

func compile(names []string, read func(name string) ([]byte, error)) (map[string]*jsonschema.Schema, error) {
	all := map[string]*jsonschema.Schema{}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	for _, name := range names {
		text, err := read(name)
		if err != nil {
			return nil, err
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		if err = c.AddResource(name, doc); err != nil {
			return nil, err
		}
		if all[name], err = c.Compile(name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Value is JSON as a Go value, to compare by meaning.
func Value(t T, data []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return v
}
