package agent

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/subjects/fleet"
)

// beatTimes is a bus on which nothing but heartbeats may be published.
type beatTimes struct {
	Bus

	mu    sync.Mutex
	times []time.Time
	last  *fleet.Heartbeat
}

func (b *beatTimes) Publish(_ string, data []byte, _ bus.Header) error {
	hb, err := fleet.DecodeHeartbeat(data)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.times, b.last = append(b.times, time.Now()), hb
	return err
}

// TestBeatsKeepTheirDistance has something change every millisecond, as it does
// where many tasks end: what is told of it is told rarely, and in time.
func TestBeatsKeepTheirDistance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &beatTimes{}
		w, err := New(Config{ID: "bob", Heartbeat: 10 * time.Second, Bus: b, Handler: Echo{}})
		if err != nil {
			t.Fatal(err)
		}
		life, end := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { w.beatAll(life) })
		for range 1000 {
			<-time.After(time.Millisecond)
			kick(w.hand.beat)
		}
		w.hand.drain(true)
		changed := time.Now()
		<-time.After(beatsApart)
		synctest.Wait()
		b.mu.Lock()
		for i := 1; i < len(b.times); i++ {
			if apart := b.times[i].Sub(b.times[i-1]); apart < beatsApart {
				t.Errorf("heartbeats %d and %d are %s apart, want %s", i, i+1, apart, beatsApart)
			}
		}
		if n := len(b.times); n < 15 {
			t.Errorf("%d heartbeats in a second of changes, want some 20", n)
		}
		if !b.last.Draining || b.times[len(b.times)-1].Sub(changed) > beatsApart {
			t.Errorf("the last change was not told within %s: %+v", beatsApart, b.last)
		}
		quiet := len(b.times)
		b.mu.Unlock()
		<-time.After(9 * time.Second) // nothing changes
		synctest.Wait()
		if n := len(b.times); n > quiet+1 {
			t.Errorf("%d heartbeats while nothing changed", n-quiet)
		}
		end()
		wg.Wait()
	})
}

// TestHandedInIsNotNamed wants no heartbeat for a result that is answered at
// once, neither with its task nor to take that back.
func TestHandedInIsNotNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		after time.Duration // from the handler's return to a heartbeat
		named bool
	}{{"answered at once", mostOnTheWay - 1, false}, {"long on its way", mostOnTheWay, true}} {
		synctest.Test(t, func(t *testing.T) {
			a := newHand(1, time.Minute)
			h := &held{id: "t1", limit: time.Minute, cancel: func(error) {}, attempt: 1}
			if got, why, e := a.admit(h, time.Now(), func() *fleet.ResultError { return nil }); got != reserved {
				t.Fatalf("%v, %s, %v", got, why, e)
			}
			if err := a.begin(h); err != nil {
				t.Fatal(err)
			}
			if list, _, _ := a.holding(); len(list) != 1 {
				t.Errorf("%s: a task that is worked on is not named: %v", c.name, list)
			}
			a.finish(h, &fleet.Result{Status: fleet.StatusDone}, func(error) {})
			<-time.After(c.after)
			if list, _, _ := a.holding(); (len(list) == 1) != c.named {
				t.Errorf("%s: %v is named, want %t", c.name, list, c.named)
			}
			a.forget(h)
			if asked := len(a.beat) == 1; asked != c.named {
				t.Errorf("%s: another heartbeat is asked for: %t, want %t", c.name, asked, c.named)
			}
		})
	}
}
