package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Whoever throws output away has no terminal.
func TestNullIsNoTerminal(t *testing.T) {
	t.Parallel()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if isTerminal(null) || terminalWidth(null) != 0 {
		t.Errorf("%s is taken for a terminal", null.Name())
	}
}

// A table is legible on a terminal of 80 columns: no line is longer, ids are
// whole, and what is left out is said.
func TestTablesFit(t *testing.T) {
	t.Parallel()
	const id = "01a1ff14-5b0e-7283-8041-2d10fb759d9e"
	a := &app{conf: defaultConfig(func(string) string { return "" }), process: process{stdout: io.Discard, stderr: io.Discard}}
	tasks := func() *grid {
		g := a.grid("Tasks", []string{"Task", "State", "Priority", "Agent", "Attempt", "Tokens", "Age", "Reason"}, "Reason")
		g.add(id, painted("\x1b[33mblocked\x1b[0m"), "normal", "echo/jnjqbvik3rm6", 1, "1,200", "2m17s ago", "no_capable_agent: no agent could ever do it: bob, echo: no MCP server")
		g.add("letter", painted("done"), "high", "upper/aax4gir2qwar", 1, "0", "1s ago", "")
		return g
	}
	for _, tt := range []struct {
		name  string
		grid  *grid
		width int
		keeps []string
		left  []string
	}{
		{"wide enough", tasks(), 200, []string{id, "blocked", "2m17s ago", "no_capable_agent: no agent could ever d…"}, nil},
		{"prose is cut first", tasks(), 140, []string{id, "jnjqbvik3rm6", "2m17s ago", "1,200", "no_capable_agent: no ag…"}, nil},
		{"columns are left out", tasks(), 80, []string{id, "blocked", "normal", "no_capable"}, []string{"Agent", "Attempt", "Tokens", "Age"}},
		{"what says nothing goes first", func() *grid {
			g := a.grid("Sessions", []string{"Session", "Owner", "Task", "Type"})
			g.add("a2a-20261121T171100Z-7d780b7b6cc49c7deda86b508d6e1d04", "boss", "", "-")
			return g
		}(), 70, []string{"6e1d04", "boss"}, nil},
		{"prose wraps", func() *grid {
			g := a.grid("Doctor", []string{"Check", "Is", "Found", "Then"}, "Then")
			g.add("access", painted("ok"), "no credentials are asked for: whoever is on this machine may do everything", "parley auth init  makes accounts and credentials")
			return g
		}(), 80, []string{"no credentials", "everything", "parley auth init"}, nil},
		{"a card wraps", func() *grid {
			g := a.card("Task " + id)
			g.add("Brief", strings.Repeat("word ", 60)+"end")
			return g
		}(), 80, []string{"Brief", "word", "end"}, nil},
		{"too narrow for anything", tasks(), 10, []string{id, "blocked"}, []string{"Priority", "Agent", "Attempt", "Tokens", "Age", "Reason"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			before := tt.grid.t.Render()
			left := tt.grid.fit(tt.width)
			got := text.StripEscape(tt.grid.t.Render())
			for line := range strings.Lines(got) {
				if n := text.StringWidth(strings.TrimSpace(line)); n > tt.width && tt.width > 60 {
					t.Errorf("%d columns:\n%s", n, got)
				}
			}
			for _, keep := range tt.keeps {
				if !strings.Contains(got, keep) {
					t.Errorf("no %q in\n%s", keep, got)
				}
			}
			if diff := cmp.Diff(tt.left, left); diff != "" {
				t.Errorf("left out (-want +got):\n%s", diff)
			}
			if tt.width == 200 && got != text.StripEscape(before) {
				t.Errorf("changed although there is room:\n%s", got)
			}
		})
	}
}
