package mesh

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Clean removes from s what a reader does not see but a terminal or a model
// obeys: control characters other than tab and the end of a line, marks that
// change the direction of writing, invisible letters (zero-width ones, and the
// tags of Unicode, in which a whole text can hide), and bytes that are no text.
func Clean(s string) string {
	if clean(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if hidden(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}

func clean(s string) bool {
	for _, r := range s {
		if hidden(r) || r == utf8.RuneError {
			return false
		}
	}
	return true
}

func hidden(r rune) bool {
	switch {
	case r == '\n', r == '\t':
		return false
	case r < ' ', r >= 0x7f && r < 0xa0: // controls
	case r == 0xad, r == 0x61c, r == 0x180e, r == 0xfeff: // soft hyphen, marks
	case r >= 0x200b && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x206f:
	case r >= 0xfff9 && r <= 0xfffb: // interlinear notes
	case r >= 0xe0000 && r <= 0xe0fff: // tags, further variation selectors
	default:
		return false
	}
	return true
}

// CleanLine is Clean for what is to be one line.
func CleanLine(s string) string { return strings.Join(strings.Fields(Clean(s)), " ") }

// CleanJSON is Clean for every text in a JSON value.
func CleanJSON(raw []byte) ([]byte, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var b bytes.Buffer
	in := jsontext.NewDecoder(bytes.NewReader(raw), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	out := jsontext.NewEncoder(&b, jsontext.AllowDuplicateNames(true))
	for in.PeekKind() != 0 {
		t, err := in.ReadToken()
		if err != nil {
			return nil, err
		}
		if t.Kind() == '"' {
			t = jsontext.String(Clean(t.String()))
		}
		if err := out.WriteToken(t); err != nil {
			return nil, err
		}
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// Cleaned removes everything hidden from what m says, and marks it as written
// by an agent.
func (m *Message) Cleaned() error {
	m.SenderName = CleanLine(m.SenderName)
	m.Text, m.Message = Clean(m.Text), Clean(m.Message)
	if m.Error != nil {
		m.Error.Message = Clean(m.Error.Message)
	}
	m.Untrusted = true
	data, err := CleanJSON(m.Data)
	if err != nil {
		return fmt.Errorf("clean data: %w", err)
	}
	m.Data = data
	return nil
}

// Fenced puts text between two lines that it cannot contain, so that whoever
// reads it knows where it ends. seed tells the fences of a message from those
// of others.
func Fenced(text, seed string) string {
	fence := "=== " + seed + " "
	for strings.Contains(text, fence) {
		text = strings.ReplaceAll(text, fence, "")
	}
	return fence + "begins ===\n" + strings.TrimRight(text, "\n") + "\n" + fence + "ends ==="
}
