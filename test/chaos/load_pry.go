//go:build linux

package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"parley/test/rig"
)

// wordOf is the word that stands in what a client alone may know: in the brief of
// a task that it calls id, and in what it appends to a session.
func wordOf(id string) string { return "canary-" + id }

// thing is a task, a session or a run of somebody.
type thing struct{ noun, id string }

// things are the latest that clients were told of.
type things struct {
	mu   sync.Mutex
	kept []thing // guarded by mu
	next int     // guarded by mu
}

const thingsMost = 256

func (t *things) add(noun, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.kept) < thingsMost {
		t.kept = append(t.kept, thing{noun, id})
		return
	}
	t.kept[t.next] = thing{noun, id}
	t.next = (t.next + 1) % thingsMost
}

func (t *things) any(rng *rand.Rand) (thing, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.kept) == 0 {
		return thing{}, false
	}
	return t.kept[rng.IntN(len(t.kept))], true
}

// vaults opens one session after the other, with a word that stays in it: what
// agents are told with the tasks of a session is of that session.
func (l *load) vaults(who string, rng *rand.Rand) {
	var follow sync.WaitGroup
	defer follow.Wait()
	for n := 0; l.stop.Err() == nil; n++ {
		name := fmt.Sprintf("%s-s%d", who, n)
		end := l.journal.begin(line{Client: who, Op: "vault", Key: name})
		var opened struct {
			Session struct {
				ID string `json:"session_id"`
			} `json:"session"`
		}
		err := l.ask(l.hard, who, "session", "create", map[string]any{}, &opened)
		id := opened.Session.ID
		if err == nil {
			var reply map[string]any
			err = l.ask(l.hard, who, "session", "append", map[string]any{
				// Not by a name that makes it look like a secret, which no context may hold.
				"session_id": id, "key": name, "entry": map[string]any{"status": "success", "findings": map[string]string{"word": wordOf(name)}},
			}, &reply)
		}
		what, code := told(err)
		end(what, line{ID: id, Key: name, Code: code})
		if err != nil {
			_ = pause(l.stop, l.anew)
			continue
		}
		l.known.add("session", id)
		for i := range 6 {
			if pause(l.stop, time.Duration(300+rng.IntN(700))*time.Millisecond) != nil {
				return
			}
			t := task{
				Task:  taskHead{ID: fmt.Sprintf("%s-%d", who, 6*n+i), Session: id, Timeout: 20, Escalate: "never"},
				Brief: rig.Play(rig.Step{Do: rig.DoDone, MS: rng.IntN(100)}),
			}
			follow.Go(func() { l.dispatch(who, t, line{Client: who, Op: "dispatch", ID: t.Task.ID, Session: id}, false) })
		}
	}
}

// pries are what somebody asks who has no right to: a task, a session or a run
// of others, by its very id.
func (l *load) pries(who string, rng *rand.Rand) {
	verbs := map[string][]string{
		"task":    {"get", "events", "wait", "cancel", "message", "list"},
		"session": {"get", "context", "append", "update", "delete", "list"},
		"run":     {"get", "output", "cancel", "list"},
	}
	l.every(200*time.Millisecond, func(int) {
		t, ok := l.known.any(rng)
		if !ok {
			return
		}
		verb := verbs[t.noun][rng.IntN(len(verbs[t.noun]))]
		req := map[string]any{t.noun + "_id": t.id}
		switch verb {
		case "list":
			req = map[string]any{}
		case "message":
			req["text"] = "let me in"
		case "append":
			req["key"], req["entry"] = who, map[string]any{"status": "success"}
		}
		end := l.journal.begin(line{Client: who, Op: "pry", ID: t.id, Text: t.noun + " " + verb})
		ctx, cancel := context.WithTimeout(l.stop, 10*time.Second)
		defer cancel()
		var body []byte
		what, code := told(l.ask(ctx, who, t.noun, verb, req, &body))
		end(what, line{ID: t.id, Text: t.noun + " " + verb, Body: body, Code: code})
	})
}

// marked is t with its word in its brief.
func marked(t task) task {
	t.Brief = rig.Mark(t.Brief, wordOf(cmp.Or(t.Task.ID, t.Task.Key)))
	return t
}
