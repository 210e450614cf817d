package router

import (
	"bytes"
	"context"
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

// check holds a result against what the dispatch asked for. What it refuses is
// result_invalid and says where.
func (w *Worker) check(ctx context.Context, v *view, r *fleet.Result) error {
	if !v.ev.Facts.HasSchema && v.ev.Facts.ReplySchema != fleet.ReplyJSON {
		return nil
	}
	value, err := outputValue(r.Output)
	if err != nil {
		return err
	}
	if !v.ev.Facts.HasSchema {
		return nil
	}
	dispatch, err := w.dispatchOf(ctx, v)
	if err != nil {
		return err
	}
	s, err := w.schemas.of(v.ev.Facts.PayloadHash, dispatch)
	if err != nil {
		return err
	}
	return validate(s, value)
}

// outputValue is the output as JSON: a string that holds JSON counts as what
// it holds, since agents answer in text.
func outputValue(output json.RawMessage) (any, error) {
	if len(output) == 0 {
		return nil, subjects.Errorf(subjects.CodeResultInvalid, "the result has no output").
			At("/output").WithRemedy("put the answer, as JSON, into output")
	}
	v, err := decodeJSON(output)
	if err != nil {
		return nil, subjects.Errorf(subjects.CodeResultInvalid, "output is not JSON: %w", err).At("/output")
	}
	text, ok := v.(string)
	if !ok {
		return v, nil
	}
	inner, err := decodeJSON([]byte(unfence(text)))
	if err != nil {
		return nil, subjects.Errorf(subjects.CodeResultInvalid, "output is text that is not JSON: %w", err).
			At("/output").WithRemedy("answer with JSON alone, without prose around it")
	}
	return inner, nil
}

// unfence takes JSON out of the code fence that models like to put it in.
func unfence(s string) string {
	s = strings.TrimSpace(s)
	if body, ok := strings.CutPrefix(s, "```"); ok && strings.HasSuffix(body, "```") {
		if _, rest, ok := strings.Cut(body, "\n"); ok {
			return strings.TrimSuffix(rest, "```")
		}
	}
	return s
}
