//go:build linux

package main

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"parley/test/rig"
)

// checkReplays checks that what is captured and sent again has no effect a second
// time. Much of it is found by other checks: a second outcome, a version that is
// there twice, a document that differs.
func (f *findings) checkReplays() {
	f.checkCopies()
	f.checkMessages()
	f.checkLinks()
	f.checkLettersOnce()
	said := f.failuresSaid()
	for id, list := range f.records {
		f.checkPieces(id, list)
		f.checkAnswersOnce(id, list)
		f.checkAttemptsOnce(id, said)
	}
}

// checkCopies checks what whoever sent a copy was answered: never another task,
// or another version, than he who sent it first.
func (f *findings) checkCopies() {
	tasks, versions := map[string]string{}, map[string]uint64{}
	for _, o := range f.ops {
		switch {
		case !o.ok():
		case o.Op == "dispatch" && o.Key != "":
			tasks[o.Client+" "+o.Key] = o.end.ID
		case o.Op == "stream" && o.Text == "keyed":
			tasks["a2a "+o.Key] = o.end.ID // everybody is a2a there
		case o.Op == "append":
			versions[o.Client+" "+o.ID+" "+o.Key] = o.end.Version
		}
	}
	for _, o := range f.ops {
		if o.Op != "replay" {
			continue
		}
		f.counts["copies sent"]++
		f.counts["copies sent: "+o.Kind]++
		switch was := cmp.Or(o.ID, tasks[o.Client+" "+o.Key]); {
		case !o.ok():
		case (o.Kind == "dispatch" || o.Kind == sentAgain) && was != "" && o.end.ID != was:
			f.fault("17 replays", was, "a copy of what %s sent (%s) is task %s", o.Client, o.Kind, o.end.ID)
		case o.Kind == "append":
			if was := versions[o.Client+" "+o.ID+" "+o.Key]; was > 0 && o.end.Version != was {
				f.fault("17 replays", o.ID, "a copy of the append %s of %s, which is version %d, was acknowledged as version %d", o.Key, o.Client, was, o.end.Version)
			}
		}
	}
}

// checkMessages checks that a message of A2A with a key is one task.
func (f *findings) checkMessages() {
	keyed, tasks := map[string]bool{}, map[string]string{}
	for _, o := range f.ops {
		if o.Op == "stream" && o.Text == "keyed" {
			keyed[o.Key] = true
		}
	}
	for id, list := range f.records {
		if list[0].Data.Dispatch == nil {
			continue
		}
		message := list[0].Data.Dispatch.Input.MessageID
		if was := tasks[message]; keyed[message] && was != "" {
			f.fault("17 replays", id, "it and %s are of the message %s, which has a key", was, message)
		}
		tasks[message] = id
	}
}

// checkLinks checks that a link to answer by is for one answer.
func (f *findings) checkLinks() {
	taken := map[string]bool{}
	for _, o := range f.said {
		switch {
		case o.Op == "answer" && o.end.Code == "200":
			taken[o.Text] = true
		case o.Op == "replay":
			f.counts["links used again"]++
			if o.end.Code == "200" && taken[o.Text] {
				f.fault("17 replays", o.Text, "the link was used before, and its answer was taken once more")
			}
		}
	}
}

// checkPieces checks that a piece of output is recorded once in an attempt.
func (f *findings) checkPieces(id string, list []rig.Record) {
	type piece struct {
		attempt int
		id      string
	}
	pieces := map[piece]int{}
	for i := range list {
		r := &list[i]
		if r.Data.Artifact == nil {
			continue
		}
		f.counts["pieces of output"]++
		p := piece{r.Attempt, r.Data.Artifact.ID}
		if was := pieces[p]; was > 0 {
			f.fault("17 replays", id, "seq %d publishes what seq %d has published: %s", r.Seq, was, p.id)
		}
		pieces[p] = r.Seq
	}
}

// checkAnswersOnce checks that a human's answer to an alert has a task tried
// again once.
func (f *findings) checkAnswersOnce(id string, list []rig.Record) {
	alerts := map[string]int{}
	for i := range list {
		r := &list[i]
		if r.Kind != "resumed" || r.Facts.Human == nil {
			continue
		}
		f.counts["answers of humans"]++
		alert := r.Facts.Human.AnswerID
		if at := strings.LastIndex(alert, "-"); at > 0 {
			alert = alert[:at] // the rest is when
		}
		if was := alerts[alert]; was > 0 && alert != "one" { // an answer to one task alone
			f.fault("17 replays", id, "seq %d is by an answer to the alert %s, as seq %d is", r.Seq, alert, was)
		}
		alerts[alert] = r.Seq
	}
}

// attempt is one at a task, by somebody.
type attempt struct {
	task, agent string
	n           int
}

// failuresSaid are the attempts of which their agents have said that they failed.
func (f *findings) failuresSaid() map[attempt]bool {
	said := map[attempt]bool{}
	for _, list := range f.notes {
		for i := range list {
			if e := &list[i]; e.What == rig.WasSent && e.Status == "error" {
				said[attempt{e.Task, e.Agent, e.Attempt}] = true
			}
		}
	}
	return said
}

// checkAttemptsOnce checks that an attempt ends once, and fails by the word of
// its agent only where that has said so of this very attempt.
func (f *findings) checkAttemptsOnce(id string, said map[attempt]bool) {
	ended := map[int]bool{}
	for _, a := range f.records.Last(id).Facts.Attempts {
		if ended[a.Attempt] {
			f.fault("17 replays", id, "attempt %d ended twice", a.Attempt)
		}
		ended[a.Attempt] = true
		if a.Code == "agent_error" && !said[attempt{id, a.AgentID, a.Attempt}] {
			f.fault("17 replays", id, "attempt %d failed by the word of %s, who has not said that of it", a.Attempt, a.AgentID)
		}
	}
}

// checkLettersOnce checks that a copy of a letter has nobody dealt with it again,
// where nothing was wrong.
func (f *findings) checkLettersOnce() {
	copies := map[string][]int64{}
	for _, o := range f.ops {
		if o.Op == "replay" && o.Kind == "letter" {
			copies[o.Client+"."+o.ID] = append(copies[o.Client+"."+o.ID], o.from)
		}
	}
	first, down := map[string]int64{}, f.downtime()
	for _, list := range f.notes {
		for i := range list {
			e := &list[i]
			id := e.From + "." + e.Task
			if e.What != rig.WasLetter || len(copies[id]) == 0 {
				continue
			}
			if at := first[id]; at == 0 || e.At < at {
				first[id] = e.At
			}
		}
	}
	for _, list := range f.notes {
		for i := range list {
			e := &list[i]
			at, again := first[e.From+"."+e.Task]
			if e.What != rig.WasLetter || !again || e.At == at || down.meet(time.Unix(0, at), time.Unix(0, e.At)) {
				continue
			}
			if slices.ContainsFunc(copies[e.From+"."+e.Task], func(c int64) bool { return at < c && c < e.At }) {
				f.fault("17 replays", e.From+"."+e.Task, "%s has dealt with it again, after a copy of it was sent", e.Agent)
			}
		}
	}
}
