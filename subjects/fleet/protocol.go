package fleet

import (
	"strings"

	"parley/subjects"
)

// This file is what the other protocols of the fleet are read with: the same
// strictness, the same words.

// Problems collects what is wrong with a message of another protocol.
type Problems = problems

// Checker is a message of another protocol, which knows its own rules. Check
// adds every problem of the decoded message and settles its defaults.
type Checker interface{ Check(p *Problems) }

// Add notes a problem.
func (p *problems) Add(e *subjects.Error) { p.add(e) }

// Invalid notes a value that breaks the rules.
func (p *problems) Invalid(pointer, format string, args ...any) {
	p.invalid(pointer, format, args...)
}

// ID notes err, of an identifier that does not follow its grammar; nil is none.
func (p *problems) ID(pointer string, err error) { p.id(pointer, err) }

// Between notes a number that is out of bounds.
func (p *problems) Between(pointer string, v, least, most float64) {
	p.between(pointer, v, least, most)
}

// Traceparent notes a trace context that is none by W3C's rules; empty is absent.
func (p *problems) Traceparent(pointer, v string) {
	if v != "" && !ValidTraceparent(v) {
		p.add(invalid(pointer, "%q is no traceparent", clip(v)).
			WithRemedy("send version-trace-parent-flags of W3C Trace Context, or leave it out"))
	}
}

// ValidTraceparent reports whether v names a trace as W3C's Trace Context does.
func ValidTraceparent(v string) bool {
	const form = "00-00000000000000000000000000000000-0000000000000000-00"
	if len(v) != len(form) || v[:2] == "ff" || v[3:35] == form[3:35] || v[36:52] == form[36:52] {
		return false
	}
	for i := range len(v) {
		if dash := form[i] == '-'; dash != (v[i] == '-') || !dash && !strings.ContainsRune("0123456789abcdef", rune(v[i])) {
			return false
		}
	}
	return true
}

// OneOf notes a word that is not one of values; empty is absent.
func (p *problems) OneOf(pointer, v string, values ...string) { p.oneOf(pointer, v, values...) }

// DecodeMessage reads a message of another protocol, whose type is typ: one
// JSON object within the bounds of every message.
func DecodeMessage[T any, M interface {
	*T
	Checker
	header() *Header
}](data []byte, typ string,
) (*T, error) {
	if err := strict.check(data); err != nil {
		return nil, err
	}
	v := new(T)
	m := M(v)
	if err := decodeInto(data, typ, v, m.header()); err != nil {
		return nil, err
	}
	var p problems
	m.Check(&p)
	if err := p.err(); err != nil {
		return nil, err
	}
	return v, nil
}
