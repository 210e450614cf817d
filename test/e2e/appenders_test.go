package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/test/deploy"
)

const appenders = 64

// TestAppenders: 64 at a time append to one session, on a cluster of three with
// two sessions workers, while the server that leads the stream of contexts and
// one of the workers are killed. Versions are 1, 2, 3 …; what was acknowledged is
// there, under the version that it was acknowledged with, and nothing twice.
func TestAppenders(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nodes, brokers := s.cluster()
	var workers []*process
	for i := range 2 {
		page := deploy.FreeAddress(t)
		workers = append(workers, s.parley("sessions"+strconv.Itoa(i), s.env(deploy.Worker, nodes...), "serve", "--workers", "sessions",
			"--replicas", "3", "--http", page, "--max-store", "512MiB"))
		s.well("http://" + page + "/readyz")
	}
	var urls strings.Builder
	for _, n := range nodes {
		urls.WriteString(s.URL(n) + ",")
	}
	b, err := bus.Connect(t.Context(), bus.Config{
		URL: urls.String()[:len(urls.String())-1], Name: "appenders", CA: s.CA, User: deploy.Worker, Password: deploy.Password(deploy.Worker), ConnectTimeout: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	boss := sessionCaller{t, b, 10 * time.Second}
	id := mustSession[handshake.Opened](boss, "create", handshake.Create{}).Session.SessionID

	appends := *appendsFlag
	versions := make([]uint64, appends) // by entry
	var next, done atomic.Int64
	third, twoThirds := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	begin := time.Now()
	for range appenders {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= appends || t.Context().Err() != nil {
					return
				}
				q := handshake.Append{SessionID: id, Key: strconv.Itoa(i), Entry: handshake.Entry{Status: "completed", Output: fleet.MustEncode(i)}}
				a, refused := askSession[handshake.Appended](boss, "append", q)
				if refused != nil {
					t.Errorf("append %d = %v", i, refused)
					return
				}
				versions[i] = a.Version
				switch int(done.Add(1)) {
				case appends / 3:
					close(third)
				case appends * 2 / 3:
					close(twoThirds)
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { all.Wait(); close(finished) }()
	await := func(ch chan struct{}) {
		select {
		case <-ch:
		case <-finished:
		}
	}
	await(third)
	state, err := b.StreamState(t.Context(), subjects.StreamContext)
	if err != nil || len(state.Leader) != 2 {
		t.Fatalf("leader %q, %v", state.Leader, err)
	}
	leader := "cluster-" + state.Leader[1:] // n1 is cluster-1
	brokers[leader].kill()
	s.broker(leader)
	await(twoThirds)
	workers[1].kill()
	if !workers[1].killed() {
		t.Error("the worker ended by itself")
	}
	<-finished
	took := time.Since(begin)
	boss.check(id, versions)
	fmt.Printf("e2e: %d appends by %d at a time took %s, with a lost leader and a killed worker\n", appends, appenders, took.Round(time.Millisecond))
}

// sessionCaller asks the session API, and repeats until it is answered.
type sessionCaller struct {
	tb  testing.TB
	b   *bus.Bus
	try time.Duration // for one answer
}

// askSession asks session.<verb>; a refusal is the error.
func askSession[T any](c sessionCaller, verb string, req any) (v T, err error) {
	c.tb.Helper()
	ctx, cancel := context.WithTimeout(c.tb.Context(), 4*patience)
	defer cancel()
	again := func(m bus.Msg) bool {
		_, refused := fleet.DecodeReply[fleet.Unknown](m.Data)
		return subjects.CodeOf(refused) == subjects.CodeUnavailable
	}
	m, err := c.b.RequestUntil(ctx, subjects.API("boss", "session", verb), fleet.MustEncode(req), nil, c.try, again)
	if err != nil {
		return v, err
	}
	return fleet.DecodeReply[T](m.Data)
}

func mustSession[T any](c sessionCaller, verb string, req any) T {
	c.tb.Helper()
	v, err := askSession[T](c, verb, req)
	if err != nil {
		c.tb.Fatalf("session %s = %v", verb, err)
	}
	return v
}

// check reads the whole context and compares it with what was acknowledged.
func (c sessionCaller) check(id subjects.SessionID, versions []uint64) {
	c.tb.Helper()
	seen := map[int]uint64{}
	for last := uint64(0); ; {
		page := mustSession[handshake.ReadReply](c, "context", handshake.Read{SessionID: id, AfterVersion: last, Limit: 1000})
		for _, r := range page.Records {
			if last++; r.Version != last {
				c.tb.Fatalf("version %d follows %d", r.Version, last-1)
			}
			var i int
			if err := json.Unmarshal(r.Entry.Output, &i); err != nil {
				c.tb.Fatalf("version %d holds %s", r.Version, r.Entry.Output)
			}
			if was, twice := seen[i]; twice {
				c.tb.Errorf("entry %d is version %d and %d", i, was, r.Version)
			}
			seen[i] = r.Version
		}
		if !page.More {
			break
		}
	}
	if len(seen) != len(versions) {
		c.tb.Errorf("%d entries are there, want %d", len(seen), len(versions))
	}
	for i, v := range versions {
		if seen[i] != v {
			c.tb.Errorf("entry %d was acknowledged as version %d, and is %d", i, v, seen[i])
		}
	}
}
