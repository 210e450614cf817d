//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"parley/test/rig"
)

const (
	floodAtOnce = 9                // dispatches of a burst, more than a session of A2E may have under way
	floodMost   = 4                // which is the fleet's default
	floodTry    = 15 * time.Second // for an answer; there is no second try
	flooded     = "flood"          // marks them in the journal
)

// floods are bursts of more than is allowed, by somebody who does not mind: more
// tasks than a session of A2E may have under way, and one that is too long. It
// asks once, and takes whatever it is told.
func (l *load) floods(who string, rng *rand.Rand) {
	session := ""
	l.every(3*time.Second, func(n int) {
		if session == "" || n%10 == 0 {
			session = l.shakeHands(who, n)
		}
		if session == "" {
			return
		}
		var burst sync.WaitGroup
		defer burst.Wait()
		for i := range floodAtOnce {
			brief := rig.Play(rig.Step{Do: rig.DoDone, MS: 500 + rng.IntN(500)})
			burst.Go(func() { l.flood(who, session, fmt.Sprintf("%s-%d-%d", who, n, i), brief) })
		}
		if n%3 == 0 {
			l.flood(who, "", fmt.Sprintf("%s-%d-long", who, n), strings.Repeat("x", 1<<20-500))
		}
	})
}

// flood asks once for a task: in a session of A2E, or of the fleet itself.
func (l *load) flood(who, session, id, brief string) {
	ctx, cancel := context.WithTimeout(l.hard, floodTry)
	defer cancel()
	t := task{Task: taskHead{ID: id, Timeout: 20, Escalate: "never"}, Brief: brief}
	end := l.journal.begin(line{Client: who, Op: "dispatch", ID: id, Session: session, Text: flooded})
	verb, req := "task.dispatch", any(t)
	if session != "" {
		verb, req = "a2e.call", a2eCall("dispatch", session, marked(t), 0)
	}
	data, err := json.Marshal(req)
	if err == nil {
		var m *nats.Msg
		if m, err = l.nc.RequestWithContext(ctx, "fleet.api."+who+"."+verb, data); err == nil {
			err = answered(m.Data, new(map[string]any))
		}
	}
	what, code := told(err)
	if code == "unavailable" || code == "internal" {
		what = wasInfo // it may have been stored
	}
	end(what, line{Code: code})
}
