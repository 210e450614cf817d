package fleet

import (
	"fmt"
	"reflect"
	"strings"

	"parley/subjects"
)

// Warning is what looks like a mistake in a message that was accepted.
type Warning struct {
	Pointer string `json:"pointer,omitempty"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// isLater reports whether the message is of a later 2.x than this one, and may
// have members that this version does not know.
func (h *Header) isLater() bool {
	_, minor, _ := strings.Cut(h.ProtocolVersion, ".")
	minor, _, _ = strings.Cut(minor, ".")
	return strings.Trim(minor, "0") != ""
}

// UnknownMembers notes each member at pointer that this version does not know.
// of is the struct that the members are read into. h is the message's header: a
// message of a later version may have more members.
func (p *problems) UnknownMembers(h *Header, pointer string, unknown Unknown, of any) {
	if h.isLater() {
		return
	}
	for _, name := range sortedKeys(unknown) {
		p.add(unknownMember(pointer, name, memberNames(of)))
	}
}

// unknownMember says that there is no member of that name, and which one is
// meant.
func unknownMember(pointer, name string, known []string) *subjects.Error {
	e := invalid(member(pointer, clip(name)), "%q is not known here", clip(name))
	if near := subjects.Nearest(name, known); near != "" {
		return e.WithRemedy("did you mean " + near + "?")
	}
	return e.WithRemedy("expected members: " + strings.Join(known, ", "))
}

// memberNames are the names of a struct's JSON members.
func memberNames(of any) []string {
	t := reflect.TypeOf(of)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// Warnings returns what looks like a mistake in a dispatch: members that are not
// known, and lines of the brief that are nearly hints.
func (d *Dispatch) Warnings() []Warning {
	var p problems
	if !d.isLater() {
		task := memberNames(d.Task)
		for _, name := range sortedKeys(d.Unknown) {
			e := unknownMember("", name, memberNames(d))
			if near := subjects.Nearest(name, task); near == name || near != "" && subjects.Nearest(name, memberNames(d)) == "" {
				e = e.WithRemedy("did you mean " + near + " of task? It belongs in the object task")
			} else if near := subjects.Nearest(name, memberNames(d.Requirements)); near == name {
				e = e.WithRemedy("did you mean " + near + " of requirements? It belongs in the object requirements")
			}
			p.add(e)
		}
		p.UnknownMembers(&d.Header, "/task", d.Task.Unknown, d.Task)
		p.UnknownMembers(&d.Header, "/requirements", d.Requirements.Unknown, d.Requirements)
		if d.Input != nil {
			p.UnknownMembers(&d.Header, "/input", d.Input.Unknown, d.Input)
		}
	}
	if e := nearlyHints(d.Brief); e != nil {
		p.add(e)
	}
	return p.warnings()
}

// warnings are the problems of a message that is accepted all the same.
func (p *problems) warnings() []Warning {
	if p.first == nil {
		return nil
	}
	var all []Warning
	for _, e := range append([]*subjects.Error{p.first}, p.first.Also...) {
		all = append(all, Warning{Pointer: e.Pointer, Message: e.Message, Remedy: e.Remedy})
	}
	return all
}

// nearlyHints says why the head of a text, whose lines all look like hints, is
// part of the brief.
func nearlyHints(text string) *subjects.Error {
	first, _, _ := strings.Cut(strings.TrimLeft(text, " \t\r\n"), "\n")
	if key, _, found := strings.Cut(first, ":"); !found || !subjects.ValidToken(key) {
		return nil
	}
	h := newHead()
	if h.cut(text); !h.ended || len(h.text) == 0 {
		return nil
	}
	meant := false
	for _, line := range h.text {
		key, _, found := strings.Cut(line, ":")
		if isItem(line) {
			continue
		}
		if !found || !subjects.ValidToken(key) {
			return nil
		}
		_, known := hints[key]
		meant = meant || known || subjects.Nearest(key, sortedKeys(hints)) != ""
	}
	err := h.read()
	if err == nil {
		_, err = h.dispatch()
	}
	if !meant || err == nil {
		return nil
	}
	e := *subjects.AsError(err)
	e.Also = nil
	e.Message = fmt.Sprintf("the first %d lines look like hints, but count as part of the brief: %s", len(h.text), e.Message)
	return &e
}
