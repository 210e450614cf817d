package gateway

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/subjects/fleet"
)

// This file turns messages and parts of A2A into the fleet's and back. It does
// no I/O. A fleet part has the same JSON as A2A's, so that what the fleet does
// not know (a part's metadata) goes through it unharmed.

const partMetadata = "metadata"

// fleetParts are the parts of a message; the error names the first bad one.
func fleetParts(field string, in []*a2apb.Part) ([]fleet.Part, error) {
	out := make([]fleet.Part, 0, len(in))
	for i, p := range in {
		q := fleet.Part{MediaType: p.GetMediaType(), Filename: p.GetFilename()}
		at := field + "[" + strconv.Itoa(i) + "]"
		switch c := p.GetContent().(type) {
		case *a2apb.Part_Text:
			q.Text = &c.Text
		case *a2apb.Part_Raw:
			if len(c.Raw) == 0 {
				return nil, badField(at, "the raw content is empty")
			}
			q.Raw = base64.StdEncoding.EncodeToString(c.Raw)
		case *a2apb.Part_Url:
			if c.Url == "" {
				return nil, badField(at, "the url is empty")
			}
			q.URL = c.Url
		case *a2apb.Part_Data:
			data, err := structJSON(c.Data)
			if err != nil {
				return nil, badField(at, "data must be a JSON value")
			}
			q.Data = data
		default:
			return nil, badField(at, "expected exactly one of text, raw, url, data")
		}
		if p.GetMetadata() != nil {
			meta, err := structJSON(structpb.NewStructValue(p.GetMetadata()))
			if err != nil {
				return nil, badField(at, "metadata is not JSON")
			}
			q.Unknown = fleet.Unknown{partMetadata: meta}
		}
		out = append(out, q)
	}
	return out, nil
}

// structJSON is v as JSON, always with the same bytes for the same value.
func structJSON(v *structpb.Value) (json.RawMessage, error) { return json.Marshal(v.AsInterface()) }

// metadataJSON is a struct as JSON, nothing for none.
func metadataJSON(s *structpb.Struct) (json.RawMessage, error) {
	if s == nil || len(s.GetFields()) == 0 {
		return nil, nil
	}
	return structJSON(structpb.NewStructValue(s))
}

// a2aParts are a fleet's parts.
func a2aParts(in []fleet.Part) []*a2apb.Part {
	out := make([]*a2apb.Part, 0, len(in))
	for i := range in {
		p := &in[i]
		q := &a2apb.Part{MediaType: p.MediaType, Filename: p.Filename, Metadata: structOf(p.Unknown[partMetadata])}
		switch {
		case p.Text != nil:
			q.Content = &a2apb.Part_Text{Text: clean(*p.Text)}
		case p.URL != "":
			q.Content = &a2apb.Part_Url{Url: p.URL}
		case p.Raw != "":
			raw, err := base64.StdEncoding.DecodeString(p.Raw)
			if err != nil {
				q.Content = &a2apb.Part_Text{Text: clean(p.Raw)}
				break
			}
			q.Content = &a2apb.Part_Raw{Raw: raw}
		default:
			q.Content = &a2apb.Part_Data{Data: valueOf(p.Data)}
		}
		out = append(out, q)
	}
	return out
}

// clean makes text fit for a protocol buffer.
func clean(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// valueOf is JSON as a protobuf value; null where it is none.
func valueOf(data json.RawMessage) *structpb.Value {
	v := new(structpb.Value)
	if len(data) == 0 || protojson.Unmarshal(data, v) != nil {
		return structpb.NewNullValue()
	}
	return v
}

// structOf is a JSON object as a protobuf struct; nil where it is none.
func structOf(data json.RawMessage) *structpb.Struct {
	if len(data) == 0 {
		return nil
	}
	return valueOf(data).GetStructValue()
}

// toStruct is any value of JSON as a protobuf struct.
func toStruct(v any) *structpb.Struct {
	data, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return structOf(data)
}

// outputPart is what an agent puts out, as a part: text, or any JSON.
func outputPart(output json.RawMessage) *a2apb.Part {
	var text string
	if json.Unmarshal(output, &text) == nil {
		return &a2apb.Part{Content: &a2apb.Part_Text{Text: clean(text)}, MediaType: "text/plain"}
	}
	return &a2apb.Part{Content: &a2apb.Part_Data{Data: valueOf(output)}, MediaType: "application/json"}
}

// partsOf are the parts of what has parts, or a text, or both.
func partsOf(text string, parts []fleet.Part) []*a2apb.Part {
	if len(parts) > 0 {
		return a2aParts(parts)
	}
	return []*a2apb.Part{{Content: &a2apb.Part_Text{Text: clean(text)}}}
}
