package embedded

import (
	"strings"
	"testing"
)

func TestParseRefusal(t *testing.T) {
	t.Parallel()
	bob, eve := "U"+strings.Repeat("B", 55), "U"+strings.Repeat("E", 55)
	head := func(name string) string {
		return `127.0.0.1:5 - cid:8 - "v1:go:` + name + `" - "ACC/default-clients/jwt:` + bob + `" - `
	}
	for _, c := range []struct {
		line string
		want Refusal
		ok   bool
	}{
		{head("x") + `Publish Violation - Subject "fleet.result.eve.t"`, Refusal{bob, "", "publish", "fleet.result.eve.t", "127.0.0.1:5"}, true},
		{head("x") + `Publish Violation - Reply "_R_.x"`, Refusal{bob, "", "publish", "_R_.x", "127.0.0.1:5"}, true},
		{head("x") + `Subscription Violation - Subject ">", SID 3`, Refusal{bob, "", "subscribe", ">", "127.0.0.1:5"}, true},
		{head("x") + `Subscription Violation - Subject "a", Queue: "q", SID 3`, Refusal{bob, "", "subscribe", "a", "127.0.0.1:5"}, true},
		{`127.0.0.1:5 - cid:8 - authentication error`, Refusal{"", "", "connect", "", "127.0.0.1:5"}, true},
		{`127.0.0.1:5 - cid:8 - authentication error - User "x"`, Refusal{"", "", "connect", "", "127.0.0.1:5"}, true},
		{`127.0.0.1:5 - cid:8 - "v1:go:x" - "CLIENTS/user:bob" - Publish Violation - Subject "a"`, Refusal{"", "bob", "publish", "a", "127.0.0.1:5"}, true},
		{`127.0.0.1:5 - cid:8 - "v1:go:A/user:eve" - "CLIENTS/user:bob" - Publish Violation - Subject "a"`, Refusal{"", "bob", "publish", "a", "127.0.0.1:5"}, true},
		// A client's name is its own choice.
		{head("/jwt:"+eve) + `Publish Violation - Subject "a"`, Refusal{bob, "", "publish", "a", "127.0.0.1:5"}, true},
		{head(`Publish Violation - Subject \"x\"`) + `Publish Violation - Subject "a"`, Refusal{bob, "", "publish", "a", "127.0.0.1:5"}, true},
		{head("x") + `Slow Consumer Detected`, Refusal{}, false},
		{"", Refusal{}, false},
	} {
		if got, ok := parseRefusal(c.line); got != c.want && c.ok || ok != c.ok {
			t.Errorf("%s\n got %+v, %v\nwant %+v, %v", c.line, got, ok, c.want, c.ok)
		}
	}
}

func FuzzParseRefusal(f *testing.F) {
	f.Add(`127.0.0.1:5 - cid:8 - "v1:go:x" - "A/jwt:U" - Publish Violation - Subject "a"`)
	f.Fuzz(func(t *testing.T, line string) {
		if r, ok := parseRefusal(line); ok && r.Action == "" {
			t.Errorf("%q: %+v", line, r)
		}
	})
}
