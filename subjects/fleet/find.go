package fleet

import (
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

type rawJSON = json.RawMessage

func isSyntax(err error) bool {
	_, ok := errors.AsType[*jsontext.SyntacticError](err)
	return ok
}

// FindResult finds the TASK_RESULT in prose: a JSON object that carries
// "type":"TASK_RESULT", in a fence or bare, anywhere. The last valid one wins.
// Its cost is linear in the length of prose.
func FindResult(prose string) (*Result, bool) {
	r, _ := findResult(prose)
	return r, r != nil
}

// findResult also returns what is wrong with the last candidate if none is
// valid.
func findResult(prose string) (r *Result, problem error) {
	if !strings.Contains(prose, `"`+TypeResult+`"`) || !utf8.ValidString(prose) {
		return nil, nil
	}
	s := scanner{text: prose}
	s.run()
	// Candidates may nest in one another, so what they may cost is bounded.
	budget := 4*len(prose) + 64<<10
	for i := len(s.found) - 1; i >= 0 && budget > 0; i-- {
		c := s.found[i]
		budget -= c.end - c.start
		r, err := DecodeResult([]byte(prose[c.start:c.end]))
		if err == nil {
			return r, nil
		}
		if problem == nil {
			problem = err
		}
	}
	return nil, problem
}

// span is where a candidate stands in the text.
type span struct{ start, end int }

// scanner finds JSON objects in text in one pass. An attempt to read an object
// that fails fails for all objects open at that point, whatever encloses them,
// so nothing needs to be read again.
type scanner struct {
	text  string
	pos   int
	found []span
	open  []frame
	last  int // where the last string of the attempt began
}

// frame is one open object or array.
type frame struct {
	start  int
	object bool
	result bool // has "type":"TASK_RESULT"
}

func (s *scanner) run() {
	for {
		i := strings.IndexByte(s.text[s.pos:], '{')
		if i < 0 {
			return
		}
		s.pos += i
		s.last = -1
		s.open = s.open[:0]
		if s.object() {
			continue
		}
		if s.last >= 0 {
			s.pos = s.resume()
		}
	}
}

// resume is where to look on after a failed attempt: usually where it failed.
// But the quote that closed its last string may be the one that opens the first
// name of an object, as in {"never closed {"type": "TASK_RESULT"}.
func (s *scanner) resume() int {
	inside := s.text[s.last+1 : s.pos]
	brace := strings.LastIndexByte(inside, '{')
	if brace < 0 {
		return s.pos
	}
	if rest := strings.TrimLeft(inside[brace+1:], " \t\r\n"); rest == "" || rest[0] != '"' {
		return s.pos
	}
	return s.last + 1 + brace
}

// object reads one object at pos and whatever it holds; false when it is none,
// with pos where that showed, always behind where it began.
func (s *scanner) object() bool {
	s.push('{')
	fresh := true // nothing read yet in the innermost object or array
	for len(s.open) > 0 {
		top := &s.open[len(s.open)-1]
		c := s.next()
		if c == '}' && top.object || c == ']' && !top.object {
			s.pop()
			fresh = false
			continue
		}
		if !fresh {
			if c != ',' {
				return false
			}
			s.pos++
			c = s.next()
		}
		name := ""
		if top.object {
			var ok bool
			if name, ok = s.str(); !ok || s.next() != ':' {
				return false
			}
			s.pos++
			c = s.next()
		}
		switch c {
		case '{', '[':
			s.push(c)
			fresh = true
			continue
		case '"':
			value, ok := s.str()
			if !ok {
				return false
			}
			top.result = top.result || name == "type" && value == TypeResult
		default:
			if !s.scalar() {
				return false
			}
		}
		fresh = false
	}
	return true
}

func (s *scanner) push(c byte) {
	s.open = append(s.open, frame{start: s.pos, object: c == '{'})
	s.pos++
}

func (s *scanner) pop() {
	s.pos++
	top := s.open[len(s.open)-1]
	s.open = s.open[:len(s.open)-1]
	if top.result {
		s.found = append(s.found, span{top.start, s.pos})
	}
}

// next skips white space and returns the byte there, 0 at the end.
func (s *scanner) next() byte {
	for ; s.pos < len(s.text); s.pos++ {
		switch c := s.text[s.pos]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// str reads a string and returns it as it is written, without its quotes.
func (s *scanner) str() (string, bool) {
	if s.pos >= len(s.text) || s.text[s.pos] != '"' {
		return "", false
	}
	s.last = s.pos
	for s.pos++; s.pos < len(s.text); s.pos++ {
		switch c := s.text[s.pos]; {
		case c == '\\':
			s.pos++
		case c == '"':
			s.pos++
			return s.text[s.last+1 : s.pos-1], true
		case c < ' ':
			return "", false
		}
	}
	s.pos = len(s.text)
	return "", false
}

// scalar reads a number or a word; whether it is a proper one is the decoder's
// to say.
func (s *scanner) scalar() bool {
	start := s.pos
	for ; s.pos < len(s.text); s.pos++ {
		c := s.text[s.pos] | 0x20
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && c != '+'|0x20 && s.text[s.pos] != '-' && s.text[s.pos] != '.' {
			break
		}
	}
	return s.pos > start
}
