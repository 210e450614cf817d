package sessions_test

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/handshake"
)

// TestManyAppenders: 64 at a time append 2 000 entries to one session while
// the stream's leader goes away and comes back, and a worker is killed. Versions
// are 1 … 2 000, none is lost and none is there twice.
func TestManyAppenders(t *testing.T) {
	if testing.Short() {
		t.Skip("2 000 appends")
	}
	const appenders, appends = 64, 2_000
	server := bustest.NewCluster(t, 3)
	b := server.Bus(t)
	// A connection that just breaks off is a worker that is killed: what it had
	// in hand is answered by nobody.
	doomed := server.Connect(t)
	start(t, server.Connect(t))
	die := start(t, doomed)
	boss := caller{t, b, "boss"}
	id := opened(boss).Session.SessionID

	var next, done atomic.Int64
	third, twoThirds := make(chan struct{}), make(chan struct{})
	versions := make([]uint64, appends) // by entry
	var all64 sync.WaitGroup
	for range appenders {
		all64.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= appends {
					return
				}
				req := said(id, strconv.Itoa(i))
				req.Key = strconv.Itoa(i)
				a, err := ask[handshake.Appended](boss, "append", req)
				if err != nil {
					t.Errorf("append %d = %v", i, err)
					return
				}
				versions[i] = a.Version
				switch done.Add(1) {
				case appends / 3:
					close(third)
				case appends * 2 / 3:
					close(twoThirds)
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { all64.Wait(); close(finished) }()
	await := func(ch chan struct{}) {
		select {
		case <-ch:
		case <-finished:
		}
	}
	await(third)
	leader := leaderOf(t, b)
	server.Stop(leader)
	server.Start(t, leader)
	await(twoThirds)
	doomed.Close()
	die()
	<-finished

	records := all(boss, id)
	if len(records) != appends {
		t.Fatalf("%d versions, want %d", len(records), appends)
	}
	seen := map[string]uint64{}
	for i, r := range records {
		if r.Version != uint64(i+1) {
			t.Fatalf("version %d follows %d", r.Version, i)
		}
		if was, twice := seen[string(r.Entry.Output)]; twice {
			t.Errorf("%s is version %d and %d", r.Entry.Output, was, r.Version)
		}
		seen[string(r.Entry.Output)] = r.Version
	}
	for i, v := range versions {
		if got := seen[fmt.Sprintf("%q", strconv.Itoa(i))]; got != v {
			t.Errorf("append %d was acknowledged as version %d, and is %d", i, v, got)
		}
	}
}

// leaderOf is the number of the server that leads the stream of contexts.
func leaderOf(t *testing.T, b *bus.Bus) int {
	t.Helper()
	var leader string
	bustest.Eventually(t, "a leader", func() bool {
		st, err := b.StreamState(t.Context(), subjects.StreamContext)
		leader = st.Leader
		return err == nil && leader != ""
	})
	n, err := strconv.Atoi(leader[1:])
	if err != nil {
		t.Fatal(err)
	}
	return n - 1
}
