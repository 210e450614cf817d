package router

import (
	"testing"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// A failure that does not say its attempt, of an agent that another router has
// given the task once more meanwhile, is not taken for a repeat of the first, and
// what it spent is charged once.
func TestARouterThatIsBehindForgetsNoFailure(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		again func(t *testing.T, e *fleet.Event, store func(*fleet.Event) *fleet.Event, now time.Time)
	}{
		{"to try again", func(t *testing.T, e *fleet.Event, store func(*fleet.Event) *fleet.Event, now time.Time) {
			t.Helper()
			again, _ := failed(e, failure{code: subjects.CodeAgentError, retryable: true, tokens: 5}, settings{}, now)
			again.Facts.NotBefore = new(now.Add(-time.Second))
			store(again)
		}},
		{"to try again as a human says", func(t *testing.T, e *fleet.Event, store func(*fleet.Event) *fleet.Event, now time.Time) {
			t.Helper()
			human, action := failed(e, failure{code: subjects.CodeBudgetExhausted, tokens: 5}, settings{human: true}, now)
			if !waitsForHuman(human) {
				t.Fatalf("a spent budget is answered by %T", action)
			}
			store(resumed(store(human), &fleet.HumanAnswer{Verb: fleet.VerbRetry}, nil, now))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			srv := bustest.New(t)
			b := srv.Bus(t)
			w, _ := serving(t, srv, "r1")
			w.with(func(c *core, now time.Time) { c.settled, c.settleAt = false, now.Add(time.Hour) }) // it judges nobody
			dispatched(t, b, "t")
			cur, err := w.reread(t.Context(), "t")
			if err != nil {
				t.Fatal(err)
			}
			h := holder{"a", "main", 1}
			store := func(n *fleet.Event) *fleet.Event {
				t.Helper()
				anotherStores(t, b, cur, n)
				if cur, err = w.reread(t.Context(), "t"); err != nil {
					t.Fatal(err)
				}
				return cur.ev
			}
			first := working(cur.ev, h, w.now())
			first.Facts.SessionID, first.Facts.SessionBudget = "s", 1000
			tt.again(t, store(first), store, w.now())
			old := *cur
			forgets := func() { // what came after old
				w.with(func(c *core, _ time.Time) {
					s := c.x.find("t")
					c.hot[s] = &hot{ev: old.ev}
					c.x.at(s).lastSeq, c.x.at(s).state = old.lastSeq, codeOfState(old.ev.State)
				})
			}
			report := &fleet.Result{Status: fleet.StatusError, TokensSpent: 10, Error: &fleet.ResultError{Code: subjects.CodeAgentError, Retryable: true}}

			forgets()
			if n, err := w.result(t.Context(), "t", claim{agent: "a"}, report); subjects.CodeOf(err) != subjects.CodeUnavailable {
				t.Errorf("while it may have the task again: %v, %v; want unavailable", n, err)
			}
			store(working(old.ev, h, w.now()))
			forgets()
			if n, err := w.result(t.Context(), "t", claim{agent: "a"}, report); err != nil || len(n.Facts.Attempts) != 2 {
				t.Errorf("once it has the task again: %v, %v; want that its second attempt has failed", n, err)
			}

			// Until it may have the task again, it has only said it twice.
			if cur, err = w.reread(t.Context(), "t"); err != nil {
				t.Fatal(err)
			}
			if n, err := w.result(t.Context(), "t", claim{agent: "a"}, report); err != nil || len(n.Facts.Attempts) != 2 || n.Seq != cur.ev.Seq {
				t.Errorf("a repeat: %v, %v; want that nothing changes", n, err)
			}
			if spent := w.ledger.ceilings(&first.Facts)[0].Spent; spent != 10 {
				t.Errorf("%d tokens are charged, want 10", spent)
			}
		})
	}
}
