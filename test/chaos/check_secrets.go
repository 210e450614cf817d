//go:build linux

package main

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"parley/test/rig"
)

// checkSecrets checks that nobody is told what is another's: an offer has the
// words of its task and of its session alone, and who asks for what is not his
// hears that it does not exist, or that nobody can say just now.
func (f *findings) checkSecrets() {
	sessions, words := map[string][]string{}, map[string][]string{} // by session, by task
	kept := map[string]bool{}                                       // in the context of a session
	for _, o := range f.ops {
		id := cmp.Or(o.end.ID, o.ID)
		switch o.Op {
		case "vault":
			sessions[id] = append(sessions[id], wordOf(o.Key))
			kept[wordOf(o.Key)] = true
		case "dispatch", "again":
			word := wordOf(cmp.Or(o.ID, o.Key))
			words[id] = append(words[id], word)
			sessions[o.Session] = append(sessions[o.Session], word)
		}
	}
	for _, o := range f.ops {
		if o.Op == "dispatch" && o.Session != "" {
			words[o.ID] = sessions[o.Session]
		}
	}
	for _, list := range f.notes {
		for i := range list {
			e := &list[i]
			if e.What != rig.WasOffered {
				continue
			}
			for _, w := range e.Words {
				f.counts["secrets offered"]++
				if kept[w] {
					f.counts["secrets of sessions offered"]++
				}
				if mine, known := words[e.Task]; known && !slices.Contains(mine, w) {
					f.fault("16 secrets", e.Task, "its offer to %s has %s in it", e.Agent, w)
				}
			}
		}
	}
	for _, o := range f.ops {
		if o.Op != "pry" {
			continue
		}
		f.counts["secrets asked for"]++
		switch list := strings.HasSuffix(o.Text, " list"); {
		case o.ok() && !list:
			f.fault("16 secrets", o.ID, "%s, whose it is not, was answered %s: %.200s", o.Client, o.Text, o.end.Body)
		case o.ok() && (bytes.Contains(o.end.Body, []byte(`"`+o.ID+`"`)) || bytes.Contains(o.end.Body, []byte(wordOf("")))):
			f.fault("16 secrets", o.ID, "%s has it in the answer to %s: %.200s", o.Client, o.Text, o.end.Body)
		case o.end.What == wasFail && o.end.Code != "not_found" && o.end.Code != "unavailable":
			f.fault("16 secrets", o.ID, "%s asked for %s and was told %s, not that it does not exist", o.Client, o.Text, o.end.Code)
		}
	}
}
