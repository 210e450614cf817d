package e2e_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"
)

// victim is a process that is killed and started again.
type victim struct {
	name        string
	start       func() *process
	least, most time.Duration // between two misfortunes
	process     *process
}

// misfortune is what happens to a victim, and when.
type misfortune struct {
	at     time.Duration
	victim int
	what   string
}

const (
	kill   = "kill"   // SIGKILL
	revive = "revive" // start it again
	stop   = "stop"   // SIGSTOP: a machine that sleeps, and does not know it
	wake   = "wake"   // SIGCONT
)

// misfortunes plans what happens to the victims for a while: the same for the
// same seed. Each victim is well in the end.
func misfortunes(rng *rand.Rand, victims []victim, chaos time.Duration) (plan []misfortune) {
	between := func(least, most time.Duration) time.Duration {
		return least + time.Duration(rng.Int64N(int64(most-least)))
	}
	for i, v := range victims {
		for at := between(v.least, v.most); at < chaos; at += between(v.least, v.most) {
			begin, end, down := kill, revive, between(0, 1500*time.Millisecond)
			if rng.IntN(4) == 0 {
				begin, end, down = stop, wake, between(300*time.Millisecond, 2500*time.Millisecond)
			}
			plan = append(plan, misfortune{at, i, begin})
			at += down
			plan = append(plan, misfortune{at, i, end})
		}
	}
	slices.SortStableFunc(plan, func(a, b misfortune) int { return cmp.Compare(a.at, b.at) })
	return plan
}

// suffer lets the plan happen, and returns how often each thing did.
func suffer(t *testing.T, victims []victim, plan []misfortune) map[string]int {
	t.Helper()
	begin := time.Now()
	done := map[string]int{}
	for _, m := range plan {
		v := &victims[m.victim]
		if pause(t.Context(), time.Until(begin.Add(m.at))) != nil {
			break
		}
		done[m.what]++
		switch m.what {
		case kill:
			v.process.kill()
		case revive:
			v.process = v.start()
		case stop:
			v.process.signal(syscall.SIGSTOP)
		case wake:
			v.process.signal(syscall.SIGCONT)
		}
	}
	for _, v := range victims {
		if !v.process.runs() {
			t.Errorf("%s ended by itself: %s\n%s", v.name, v.process.ending(), tail(v.process.log, 4000))
		}
	}
	return done
}
