package run

import (
	"encoding/json"
	"iter"
	"strconv"
	"strings"

	"parley/subjects"
	"parley/subjects/fleet"
)

// What a brief of a fan-out may quote beside nodes.
const (
	quoteItem  NodeID = "item"
	quoteIndex NodeID = "index"
)

// quote is one ${name} or ${name/json/pointer} in a text.
type quote struct {
	start, end int
	name       NodeID
	pointer    string
	escaped    bool // $${name}: the text ${name}
}

// quotes finds whatever may be a quote in a text.
func quotes(text string) iter.Seq[quote] {
	return func(yield func(quote) bool) {
		for at := 0; ; {
			i := strings.Index(text[at:], "${")
			if i < 0 {
				return
			}
			start := at + i
			at = start + 2
			head := text[at:min(at+subjects.MaxIDLen+1, len(text))]
			name := head[:max(strings.IndexAny(head, "/}"), 0)]
			if !subjects.ValidToken(name) {
				continue // it is no quote, but may hold one
			}
			n := strings.IndexByte(text[at:], '}')
			if n < 0 {
				return
			}
			pointer := text[at+len(name) : at+n]
			at += n + 1
			if !yield(quote{start, at, NodeID(name), pointer, start > 0 && text[start-1] == '$'}) {
				return
			}
		}
	}
}

// Template is a brief in which the outputs of nodes stand already, for any number
// of items.
type Template struct {
	parts []part
	text  string // behind the parts
	size  int    // of all text
	read  int    // for what is quoted, so far
}

// part is a text, and behind it what is quoted of an item.
type part struct {
	text    string
	name    NodeID // quoteItem or quoteIndex
	pointer string
}

// ParseTemplate replaces each ${node} in a brief by that node's output, and each
// ${node/a/0} by what the pointer finds in it: a text as it is, any other JSON
// as JSON, nothing where there is none. In a fan-out ${item} and ${index} are
// left to Fill. $${name} becomes ${name}, and what else looks like a quote stays. What comes to more than
// a message holds is refused, as is what takes too long to find, before it is
// made.
func ParseTemplate(brief string, outputs map[NodeID]json.RawMessage, fanOut bool) (*Template, error) {
	var t Template
	var b strings.Builder
	at := 0
	for q := range quotes(brief) {
		if q.escaped {
			t.size += q.start - at - 1
			b.WriteString(brief[at : q.start-1])
			at = q.start
			continue
		}
		hole := fanOut && (q.name == quoteItem || q.name == quoteIndex)
		v, ok := outputs[q.name]
		if !ok && !hole {
			continue
		}
		text := ""
		if !hole {
			found, cost, _ := point(v, q.pointer)
			if t.read += cost; t.read > maxRead {
				return nil, tooMuch()
			}
			text = Text(found)
		}
		if t.size += q.start - at + len(text); t.size > fleet.MaxMessage {
			return nil, tooLong()
		}
		b.WriteString(brief[at:q.start])
		b.WriteString(text)
		if at = q.end; hole {
			t.parts = append(t.parts, part{b.String(), q.name, q.pointer})
			b.Reset()
		}
	}
	if t.size += len(brief) - at; t.size > fleet.MaxMessage {
		return nil, tooLong()
	}
	b.WriteString(brief[at:])
	t.text = b.String()
	return &t, nil
}

// Fill gives the brief, in a fan-out that of an item and of where in the list it
// is. It may be called concurrently.
func (t *Template) Fill(item json.RawMessage, index int) (string, error) {
	var b strings.Builder
	size, read := t.size, t.read
	for _, p := range t.parts {
		v := item
		if p.name == quoteIndex {
			v = strconv.AppendInt(nil, int64(index), 10)
		}
		found, cost, _ := point(v, p.pointer)
		if read += cost; read > maxRead {
			return "", tooMuch()
		}
		text := Text(found)
		if size += len(text); size > fleet.MaxMessage {
			return "", tooLong()
		}
		b.WriteString(p.text)
		b.WriteString(text)
	}
	b.WriteString(t.text)
	return b.String(), nil
}

// maxRead bounds what is read for the quotes of a brief, in bytes: each pointer
// reads the whole of what it points into.
const maxRead = 256 << 20

func tooMuch() error {
	return subjects.Errorf(subjects.CodePayloadTooLarge, "more than %d bytes would be read for what the brief quotes", maxRead).
		WithRemedy("quote fewer parts of large outputs")
}

func tooLong() error {
	return subjects.Errorf(subjects.CodePayloadTooLarge, "with what it quotes the brief has more than %d bytes", fleet.MaxMessage).
		WithRemedy("quote less of it, or refer to it by a url")
}

// Text is an output as a text quotes it: a text as it is, any other JSON as
// JSON.
func Text(output json.RawMessage) string {
	var s string
	if json.Unmarshal(output, &s) == nil {
		return s // also "" for null
	}
	return string(output)
}

// Point finds what a JSON pointer points at.
func Point(doc json.RawMessage, pointer string) (json.RawMessage, bool) {
	found, _, ok := point(doc, pointer)
	return found, ok
}

// point is Point, and says how many bytes it has read.
func point(doc json.RawMessage, pointer string) (found json.RawMessage, read int, ok bool) {
	if pointer == "" {
		return doc, 0, true
	}
	for token := range strings.SplitSeq(pointer[1:], "/") {
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		var list []json.RawMessage
		var object map[string]json.RawMessage
		read += len(doc)
		if json.Unmarshal(doc, &list) == nil {
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(list) || strconv.Itoa(i) != token {
				return nil, read, false
			}
			doc = list[i]
			continue
		}
		if json.Unmarshal(doc, &object) != nil {
			return nil, read, false
		}
		v, ok := object[token]
		if !ok {
			return nil, read, false
		}
		doc = v
	}
	return doc, read, true
}

// Unfold gives the items of a fan-out, of which output is what its source has
// come to.
func (f *FanOut) Unfold(output json.RawMessage) ([]json.RawMessage, error) {
	if f.From == "" {
		return f.Items, nil
	}
	found, ok := Point(output, f.Pointer)
	if !ok {
		return nil, subjects.Errorf(subjects.CodeResultInvalid, "the output of %s has nothing at %q", f.From, f.Pointer)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(found, &list); err != nil || list == nil {
		// Agents that answer in prose give a list as text.
		var s string
		if json.Unmarshal(found, &s) != nil || json.Unmarshal([]byte(s), &list) != nil || list == nil {
			return nil, subjects.Errorf(subjects.CodeResultInvalid, "what %s gives at %q is no list", f.From, f.Pointer)
		}
	}
	if len(list) > MaxItems {
		return nil, subjects.Errorf(subjects.CodePayloadTooLarge, "the list of %s has %d items; at most %d are allowed", f.From, len(list), MaxItems)
	}
	return list, nil
}
