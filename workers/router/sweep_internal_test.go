package router

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// storeEnded stores the outcomes of n tasks.
func storeEnded(t *testing.T, b *bus.Bus, n int) {
	t.Helper()
	records, stop := b.Records(subjects.StreamTasks, bus.CommitDirect)
	defer stop()
	q := testRecord(t, "x", "", b.Now())
	for i := range n {
		q.TaskID = subjects.TaskID(fmt.Sprintf("ended-%d", i))
		e := canceled(q, "boss", "", b.Now())
		if _, err := records.Write(t.Context(), bus.Record{
			Subject: subjects.Task(e.TaskID), Data: fleet.MustEncode(e), WriteID: string(e.TaskID), Header: recordHeader(nil, e),
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// keptTasks counts the tasks that have records.
func keptTasks(t *testing.T, b *bus.Bus) int {
	t.Helper()
	st, err := b.StreamState(t.Context(), subjects.StreamTasks)
	if err != nil {
		t.Fatal(err)
	}
	return int(st.Subjects)
}

// However many tasks have ended, no more are kept than is said.
func TestSweepKeepsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		b := srv.Bus(t)
		storeEnded(t, b, 2*maxSweep+1000)
		w, err := New(Config{Bus: srv.Connect(t), KeepEnded: 3})
		if err != nil {
			t.Fatal(err)
		}
		bustest.Serve(t, w)
		time.Sleep(sweepEvery + time.Second)
		if n := keptTasks(t, b); n != 3 {
			t.Errorf("%d tasks are kept, want 3", n)
		}
	})
}

// What a sweep could not purge the next one does.
func TestASweepThatFails(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	w, err := New(Config{Bus: b, KeepEnded: 1})
	if err != nil {
		t.Fatal(err)
	}
	storeEnded(t, b, 10)
	ends, next, err := w.endedLongAgo(t.Context())
	if err != nil || len(ends) != 9 {
		t.Fatalf("%d are to be purged, %v; want 9", len(ends), err)
	}
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.purge(cut, ends, next); err == nil {
		t.Fatal("it does not fail")
	}
	if _, err := w.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := keptTasks(t, b); n != 1 {
		t.Errorf("%d tasks are kept, want 1", n)
	}
}
