// Package secrets finds what looks like a secret (keys, tokens, passwords) in
// JSON and in text, by the rules of gitleaks. A Scanner may be used by any
// number of goroutines. What it finds it names by rule and place, never by its
// text.
package secrets

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/zricethezav/gitleaks/v8/detect"
)

// Finding is where a secret may be, and by which rule.
type Finding struct {
	Rule  string // of gitleaks, such as aws-access-token
	Place string // JSON pointer, or the offset in a text
}

// String names both.
func (f Finding) String() string { return f.Rule + " at " + f.Place }

// Scanner looks for secrets. New is required.
type Scanner struct {
	detector *detect.Detector
}

// rules loads the rules once: the library does so by way of a global. What is to
// be scanned has no say in whether it is.
var rules = sync.OnceValues(func() (*detect.Detector, error) {
	d, err := detect.NewDetectorDefaultConfig()
	if err == nil {
		d.IgnoreGitleaksAllow = true
	}
	return d, err
})

// New loads the rules.
func New() (*Scanner, error) {
	d, err := rules()
	if err != nil {
		return nil, fmt.Errorf("load the rules of the secret scanner: %w", err)
	}
	return &Scanner{detector: d}, nil
}

// match is a secret in a text.
type match struct{ rule, secret string }

// matches are those in a text; an error says that ctx ended before all of it was
// looked at.
func (s *Scanner) matches(ctx context.Context, text string) (list []match, err error) {
	for _, f := range s.detector.DetectContext(ctx, detect.Fragment{Raw: text}) { //nolint:staticcheck // what replaces it is of v9
		list = append(list, match{f.RuleID, f.Secret})
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("look for secrets: %w", err)
	}
	return list, nil
}

// window is how much of a text is looked at at a time; it overlaps with the
// next one by more than a secret takes.
const (
	window  = 1 << 20
	overlap = 8 << 10
)

// Text finds secrets in a text. An error says that ctx ended before that was done.
func (s *Scanner) Text(ctx context.Context, text string) ([]Finding, error) {
	var found []Finding
	for from := 0; from < len(text); from += window - overlap {
		part := text[from:min(from+window, len(text))]
		list, err := s.matches(ctx, part)
		if err != nil {
			return nil, err
		}
		for _, m := range list {
			f := Finding{m.rule, "byte " + strconv.Itoa(from+max(strings.Index(part, m.secret), 0))}
			if !slices.Contains(found, f) {
				found = append(found, f)
			}
		}
	}
	return found, nil
}

// JSON finds secrets in the texts and names of a JSON value, nested as they
// are, and returns the value with those in texts masked. A secret in a name
// cannot be masked; named says that there is one. What is no JSON, and what ctx
// left no time for, is an error.
func (s *Scanner) JSON(ctx context.Context, data []byte) (masked []byte, found []Finding, named bool, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, nil, false, fmt.Errorf("read JSON to scan it: %w", err)
	}
	w := walk{ctx: ctx, s: s}
	if v = w.value("", "", v); w.err != nil {
		return nil, nil, false, w.err
	}
	if len(w.found) == 0 {
		return data, nil, false, nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, nil, false, fmt.Errorf("write masked JSON: %w", err)
	}
	return b.Bytes(), w.found, w.named, nil
}

// walk is one pass over a value.
type walk struct {
	ctx   context.Context //nolint:containedctx // of this pass alone
	s     *Scanner
	found []Finding
	named bool
	err   error // why it was broken off
}

func (w *walk) matches(text string) []match {
	if w.err != nil {
		return nil
	}
	var list []match
	list, w.err = w.s.matches(w.ctx, text)
	return list
}

func (w *walk) value(pointer, name string, v any) any {
	switch x := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(x)) {
			for _, m := range w.matches(k) {
				w.named = true
				w.found = append(w.found, Finding{m.rule, "a name in " + orRoot(pointer)})
			}
			x[k] = w.value(pointer+"/"+escape(k), k, x[k])
		}
	case []any:
		for i := range x {
			x[i] = w.value(pointer+"/"+strconv.Itoa(i), name, x[i])
		}
	case string:
		return w.text(pointer, name, x)
	}
	return v
}

// text looks at a text with its name, which some rules want to see.
func (w *walk) text(pointer, name, text string) string {
	for range 2 { // what is masked may have hidden another
		list := w.matches(name + ` = "` + text + `"`)
		if len(list) == 0 {
			break
		}
		for _, m := range list {
			if !strings.Contains(text, m.secret) {
				m.secret = text // it reaches into what was put around it
			}
			w.found = append(w.found, Finding{m.rule, orRoot(pointer)})
			text = strings.ReplaceAll(text, m.secret, "[redacted: "+m.rule+"]")
		}
	}
	return text
}

func orRoot(pointer string) string {
	if pointer == "" {
		return "/"
	}
	// A name may hold a secret as well; it is not shown.
	const most = 120
	if len(pointer) > most {
		return strings.ToValidUTF8(pointer[:most], "") + "…"
	}
	return pointer
}

// escape makes a name a token of a JSON pointer.
func escape(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
