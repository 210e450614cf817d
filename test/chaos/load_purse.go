//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"parley/test/rig"
)

// A purse is the budget that the tasks of a session, or of a run, share. The first
// few of them spend it; the others are asked for long after it is empty.
const (
	purseTasks  = 15
	purseTokens = 3 * rig.Tokens
	purseEvery  = 10 * time.Second
)

// purses opens one purse after the other.
func (l *load) purses(who, of string, rng *rand.Rand) {
	var follow sync.WaitGroup
	defer follow.Wait()
	l.every(purseEvery, func(n int) {
		account := fmt.Sprintf("%s-%d", who, n)
		head := taskHead{Timeout: 20, Escalate: "never"}
		switch of {
		case "session":
			if head.Session = l.open(who, account); head.Session == "" {
				return
			}
			head.OfSession = purseTokens
		case "run":
			head.Run, head.OfRun = account, purseTokens
		}
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		follow.Go(func() { l.spend(who, account, head, own) })
	})
}

// open opens a session, "" for none.
func (l *load) open(who, key string) string {
	end := l.journal.begin(line{Client: who, Op: "create", Key: key})
	var opened struct {
		Session struct {
			ID string `json:"session_id"`
		} `json:"session"`
	}
	what, code := told(l.ask(l.hard, who, "session", "create", map[string]any{}, &opened))
	end(what, line{ID: opened.Session.ID, Code: code})
	if what == wasOK {
		l.known.add("session", opened.Session.ID)
	}
	return opened.Session.ID
}

// spend gives the tasks of a purse, further and further apart, and once all have
// ended asks how much is spent.
func (l *load) spend(who, account string, head taskHead, rng *rand.Rand) {
	var tasks sync.WaitGroup
	last := ""
	for i := range purseTasks {
		if pause(l.stop, time.Duration(400+200*i)*time.Millisecond) != nil {
			break
		}
		done := rig.Step{Do: rig.DoDone, MS: rng.IntN(100)}
		t := task{Task: head, Brief: rig.Play(done)}
		if i == 0 {
			t.Brief = rig.Play(rig.Step{Do: rig.DoError}, done) // spends twice
		}
		t.Task.ID = fmt.Sprintf("%s-%d", account, i)
		if id := l.dispatch(who, t, line{Client: who, Op: "dispatch", ID: t.Task.ID, Session: head.Session}, false); id != "" {
			last = id
			tasks.Go(func() { l.await(who, id) })
		}
	}
	tasks.Wait()
	for range 6 { // whoever of the routers answers
		if last != "" {
			l.look(who, last)
		}
	}
}

// looks asks a few times how far a task is.
func (l *load) looks(who, id string) {
	for range 6 {
		l.look(who, id)
		if pause(l.hard, 30*time.Millisecond) != nil {
			return
		}
	}
}

// look asks once, and returns the state that it is told.
func (l *load) look(who, id string) (state string) {
	end := l.journal.begin(line{Client: who, Op: "look", ID: id})
	var v struct {
		State   string          `json:"state"`
		Seq     uint64          `json:"seq"`
		Waiting json.RawMessage `json:"waiting"`
		Shared  []struct {
			Spent int64 `json:"tokens_spent"`
		} `json:"shared_budgets"`
	}
	what, code := told(l.ask(l.hard, who, "task", "get", map[string]string{"task_id": id}, &v))
	seen := line{State: v.State, Version: v.Seq, Code: code, Body: v.Waiting}
	if len(v.Shared) > 0 {
		seen.Tokens = &v.Shared[0].Spent
	}
	end(what, seen)
	return v.State
}
