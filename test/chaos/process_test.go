//go:build linux

package main

import (
	"strings"
	"testing"
)

// TestOddEnds: a process that ends by itself is told of, and one whose end is our
// doing is not.
func TestOddEnds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ script, want string }{
		{"exit 2", "0 processes: router-1: it ended by itself (exit status 2)"},
		{"exit 0", "0 processes: router-1: it ended by itself (exit status 0)"},
		{"kill -KILL $$", "0 processes: router-1: it ended by itself (signal: killed)"},
		{"exec sleep 60", ""},
	} {
		t.Run(tt.script, func(t *testing.T) {
			t.Parallel()
			p := &process{name: "router-1", dir: t.TempDir(), args: []string{"sh", "-c", tt.script}}
			if err := p.start(&world{}); err != nil {
				t.Fatal(err)
			}
			p.mu.Lock()
			done := p.done
			p.mu.Unlock()
			if tt.want == "" {
				p.retire()
			}
			<-done
			var said strings.Builder
			for _, v := range p.oddities() {
				said.WriteString(v.String())
			}
			if tt.want == "" && said.String() != "" || !strings.Contains(said.String(), tt.want) {
				t.Errorf("it says %q, want %q", said.String(), tt.want)
			}
		})
	}
}
