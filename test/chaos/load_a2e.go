//go:build linux

package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"parley/test/rig"
)

// errands are tasks that somebody gives whose environment the fleet is: by A2E,
// in one session after the other. He waits for the end of each.
func (l *load) errands(who string, rng *rand.Rand) {
	session := ""
	l.every(time.Second/2, func(n int) {
		if session == "" || n%50 == 0 {
			session = l.shakeHands(who, n)
		}
		if session == "" {
			return // no agent was live, so there was nothing to be had
		}
		t := task{
			Task:  taskHead{ID: fmt.Sprintf("%s-%d", who, n), Timeout: 20, Escalate: "never"},
			Brief: rig.Play(rig.Step{Do: rig.DoDone, MS: rng.IntN(100)}),
		}
		end := l.journal.begin(line{Client: who, Op: "dispatch", ID: t.Task.ID, Session: session})
		v, err := l.call(who, session, "dispatch", marked(t), 0)
		what, code := told(err)
		end(what, line{ID: v.TaskID, Code: code, State: v.State})
		if err != nil {
			return
		}
		l.begun.Add(1)
		l.known.add("task", v.TaskID)
		end = l.journal.begin(line{Client: who, Op: "wait", ID: v.TaskID})
		for err == nil && !terminal(v.State) {
			v, err = l.call(who, session, "get", map[string]string{"task_id": v.TaskID}, 3)
		}
		what, code = told(err)
		end(what, line{State: v.State, Code: code})
	})
}

// shakeHands begins a session of A2E, "" for none.
func (l *load) shakeHands(who string, n int) string {
	end := l.journal.begin(line{Client: who, Op: "handshake"})
	var reply struct {
		Session string `json:"session_id"`
	}
	err := l.ask(l.hard, who, "a2e", "handshake", map[string]any{
		"a2e": "1.0", "type": "handshake/req", "id": strconv.Itoa(n), "ts": 1, "agent_id": who, "agent_caps": []string{"env"},
	}, &reply)
	what, code := told(err)
	end(what, line{ID: reply.Session, Code: code})
	return reply.Session
}

// call makes a call in a session of A2E, and gives the task that it is about.
func (l *load) call(who, session, verb string, params any, wait float64) (rig.View, error) {
	var reply struct {
		Result rig.View `json:"result"`
	}
	err := l.ask(l.hard, who, "a2e", "call", a2eCall(verb, session, params, wait), &reply)
	return reply.Result, err
}

// a2eCall is a call as it goes over the wire.
func a2eCall(verb, session string, params any, wait float64) map[string]any {
	return map[string]any{
		"a2e": "1.0", "type": "call/req", "id": verb, "ts": 1, "session_id": session, "call": verb, "params": params, "wait_seconds": wait,
	}
}
