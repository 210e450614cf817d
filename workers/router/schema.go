package router

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"parley/subjects"
	"parley/subjects/fleet"
)

// maxSchemas bounds how many compiled result schemas are kept.
const maxSchemas = 256

// schemaCache keeps compiled result schemas by the hash of their dispatch.
type schemaCache struct {
	mu   sync.Mutex
	kept map[string]*jsonschema.Schema
}

func (c *schemaCache) of(hash string, dispatch json.RawMessage) (*jsonschema.Schema, error) {
	c.mu.Lock()
	s := c.kept[hash]
	c.mu.Unlock()
	if s != nil {
		return s, nil
	}
	d, err := fleet.DecodeReply[fleet.Dispatch](dispatch)
	if err != nil {
		return nil, fmt.Errorf("decode a stored dispatch: %w", err)
	}
	if s, err = fleet.CompileSchema(d.Task.ResultSchema); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil || len(c.kept) >= maxSchemas {
		c.kept = make(map[string]*jsonschema.Schema)
	}
	c.kept[hash] = s
	return s, nil
}

// validate checks value; the error is result_invalid with the pointer of the
// first problem, the others beside it.
func validate(s *jsonschema.Schema, value any) error {
	err := s.Validate(value)
	if err == nil {
		return nil
	}
	ve, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		return fmt.Errorf("validate a result: %w", err)
	}
	var all []*subjects.Error
	leaves(ve, func(v *jsonschema.ValidationError) {
		var pointer strings.Builder
		pointer.WriteString("/output")
		for _, t := range v.InstanceLocation {
			pointer.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(t))
		}
		what := v.ErrorKind.LocalizedString(message.NewPrinter(language.English))
		all = append(all, subjects.Errorf(subjects.CodeResultInvalid, "%s", what).At(pointer.String()).
			WithRemedy("answer again in the form that the task's result_schema asks for"))
	})
	first := all[0]
	first.Also = all[1:min(len(all), 10)]
	return first
}

func leaves(v *jsonschema.ValidationError, yield func(*jsonschema.ValidationError)) {
	if len(v.Causes) == 0 {
		yield(v)
		return
	}
	for _, c := range v.Causes {
		leaves(c, yield)
	}
}

func decodeJSON(data []byte) (any, error) {
	return jsonschema.UnmarshalJSON(bytes.NewReader(data))
}
