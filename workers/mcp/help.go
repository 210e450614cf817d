package mcp

import (
	_ "embed"
	"strings"
)

//go:embed help.md
var helpText string

// manual is what is to be said of one tool: the paragraph that a model reads in
// the list of tools, and what fleet_help adds.
type manual struct{ short, more string }

// manuals reads the help, by tool.
func manuals(text string) map[string]manual {
	all := make(map[string]manual)
	for section := range strings.SplitSeq("\n"+text, "\n## ") {
		name, body, _ := strings.Cut(section, "\n")
		short, more, _ := strings.Cut(body, "\n### More\n")
		if name = strings.TrimSpace(name); name != "" {
			all[name] = manual{short: strings.TrimSpace(short), more: strings.TrimSpace(more)}
		}
	}
	return all
}

// whole is everything that is to be said of a tool.
func (m manual) whole(name string) string { return "# " + name + "\n\n" + m.short + "\n\n" + m.more }
