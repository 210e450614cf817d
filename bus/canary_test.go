package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

// TestCanary: it goes through, changes nothing of the task stream, and fails
// where that is not there.
func TestCanary(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	if _, err := b.Store(t.Context(), subjects.Task("t"), []byte("x"), "", nil); err != nil {
		t.Fatal(err)
	}
	before, err := b.StreamState(t.Context(), subjects.StreamTasks)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.Canary(t.Context()); err != nil {
			t.Errorf("Canary = %v", err)
		}
	}
	if after, err := b.StreamState(t.Context(), subjects.StreamTasks); err != nil || after != before {
		t.Errorf("the task stream is %+v, %v after a canary, %+v before", after, err, before)
	}
	if _, err := b.Request(t.Context(), "$JS.API.STREAM.DELETE."+subjects.StreamTasks, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Canary(t.Context()); !errors.Is(err, bus.ErrNotFound) || !strings.Contains(err.Error(), subjects.StreamTasks) {
		t.Errorf("Canary = %v without a task stream, want ErrNotFound and its name", err)
	}
}

// TestCanaryWithoutMajority: a task stream that has lost its majority takes no
// record, though the servers are a cluster, and the buckets take what they get.
func TestCanaryWithoutMajority(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a cluster takes seconds")
	}
	s := bustest.NewCluster(t, 5)
	b := s.Connect(t)
	if err := b.Provision(t.Context(), bus.Provisioning{Replicas: 1}); err != nil {
		t.Fatal(err)
	}
	edit(t, b, subjects.StreamTasks, func(c map[string]any) { c["num_replicas"] = 3 })
	var hold []string
	bustest.Eventually(t, "three copies of the task stream", func() bool {
		hold = holders(t, b, subjects.StreamTasks)
		return len(hold) == 3
	})
	bustest.Eventually(t, "a canary that goes through", func() bool { return b.Canary(t.Context()) == nil })
	keep := holders(t, b, "KV_"+subjects.BucketScratch)
	stopped := 0
	for i := range 5 {
		if name := s.NATS(i).Name(); stopped < 2 && slices.Contains(hold, name) && !slices.Contains(keep, name) {
			s.Stop(i)
			stopped++
		}
	}
	bustest.Eventually(t, "a canary that fails for the sake of the task stream", func() bool {
		try, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		err := b.Canary(try)
		return err != nil && strings.Contains(err.Error(), subjects.StreamTasks)
	})
}

// TestCommitsWithoutMajority: a bucket whose leader is alone takes nothing, and
// its state alone does not show it. No message can be deleted from a bucket, so
// it is tried another way than a stream.
func TestCommitsWithoutMajority(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a cluster takes seconds")
	}
	const stream = "KV_" + subjects.BucketSessions
	s := bustest.NewCluster(t, 5)
	first := s.Connect(t)
	if err := first.Provision(t.Context(), bus.Provisioning{Replicas: 1}); err != nil {
		t.Fatal(err)
	}
	edit(t, first, stream, func(c map[string]any) { c["num_replicas"] = 3 })
	var hold []string
	bustest.Eventually(t, "three copies of the bucket", func() bool {
		hold = holders(t, first, stream)
		return len(hold) == 3
	})
	node := func(name string) int {
		for i := range 5 {
			if s.NATS(i).Name() == name {
				return i
			}
		}
		t.Fatalf("there is no server %s", name)
		return 0
	}
	b, err := bus.Connect(t.Context(), bus.Config{URL: s.NATS(node(hold[0])).ClientURL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	bustest.Eventually(t, "a commit", func() bool { return b.Commits(t.Context(), stream) == nil })
	for _, name := range hold[1:] {
		s.Stop(node(name))
	}
	try, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := b.Commits(try, stream); err == nil || !strings.Contains(err.Error(), stream) {
		t.Errorf("Commits = %v while its leader is alone, want an error that names it", err)
	}
}

// TestFiguresSayWhoDoesNotAnswer: streams that are away with their server are
// named, and the figures are those of the others, each once.
func TestFiguresSayWhoDoesNotAnswer(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a cluster takes seconds")
	}
	s := bustest.NewCluster(t, 3)
	b := s.Connect(t)
	if err := b.Provision(t.Context(), bus.Provisioning{Replicas: 1}); err != nil {
		t.Fatal(err)
	}
	all, err := b.StreamFigures(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	gone := map[string]bool{}
	for i := range all {
		gone[all[i].Name] = all[i].Leader == s.NATS(2).Name()
	}
	s.Stop(2)
	bustest.Eventually(t, "figures that say who does not answer", func() bool {
		list, err := b.StreamFigures(t.Context())
		if err == nil || len(list) == 0 {
			return false // the servers have yet to find a leader
		}
		there := map[string]bool{}
		for i := range list {
			if name := list[i].Name; there[name] || gone[name] {
				t.Errorf("%s has figures twice, or is away", name)
			}
			there[list[i].Name] = true
		}
		named := strings.Fields(strings.ReplaceAll(err.Error(), ",", " "))
		for name, away := range gone {
			if slices.Contains(named, name) != away || there[name] == away {
				t.Errorf("%s is away: %t, has figures: %t; the error is %v", name, away, there[name], err)
			}
		}
		return true
	})
}

// TestCommits: it goes through for every stream that there is, whoever writes it,
// and changes none. It fails, too, where a later server says in other words that
// nothing is there to be deleted.
func TestCommits(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	if _, err := b.Store(t.Context(), subjects.Task("t"), []byte("x"), "", nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Canary(t.Context()); err != nil { // its key is in a bucket
		t.Fatal(err)
	}
	list, err := b.StreamFigures(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		name := list[i].Name
		before, err := b.StreamState(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Commits(t.Context(), name); err != nil {
			t.Errorf("Commits(%s) = %v", name, err)
		}
		if after, err := b.StreamState(t.Context(), name); err != nil || after != before {
			t.Errorf("%s is %+v, %v after a canary, %+v before", name, after, err, before)
		}
	}
	if err := b.Commits(t.Context(), "NONE"); !errors.Is(err, bus.ErrNotFound) || !strings.Contains(err.Error(), "NONE") {
		t.Errorf("Commits(NONE) = %v, want ErrNotFound and its name", err)
	}
}

// TestCommitsToABrokenStore: a stream of which a write has failed takes none
// until its server is started again. Its server answers with the same code as where
// nothing is there to be deleted.
func TestCommitsToABrokenStore(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Bus(t)
	if _, err := b.Store(t.Context(), subjects.Task("t"), []byte("x"), "", nil); err != nil {
		t.Fatal(err)
	}
	msgs := filepath.Join(s.NATS(0).StoreDir(), "$G", "streams", subjects.StreamTasks, "msgs")
	if err := os.Rename(msgs, msgs+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(msgs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Request(t.Context(), "$JS.API.STREAM.PURGE."+subjects.StreamTasks, nil, nil); err != nil { // it needs a new file
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := b.Store(ctx, subjects.Task("t"), []byte("x"), "", nil); err == nil {
		t.Fatal("the store is not broken")
	}
	for _, stream := range []string{subjects.StreamTasks, subjects.StreamDLQ} {
		broken := stream == subjects.StreamTasks
		if err := b.Commits(t.Context(), stream); (err != nil) != broken {
			t.Errorf("Commits(%s) = %v, want an error: %t", stream, err, broken)
		}
	}
	if err := b.Canary(t.Context()); err == nil || !strings.Contains(err.Error(), subjects.StreamTasks) {
		t.Errorf("Canary = %v, want an error that names %s", err, subjects.StreamTasks)
	}
}

// holders are the servers that have an up-to-date copy of a stream.
func holders(t *testing.T, b *bus.Bus, stream string) []string {
	t.Helper()
	reply, err := b.Request(t.Context(), "$JS.API.STREAM.INFO."+stream, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		Cluster struct {
			Leader   string
			Replicas []struct {
				Name    string
				Current bool
			}
		}
	}
	if err := json.Unmarshal(reply.Data, &info); err != nil {
		t.Fatal(err)
	}
	names := []string{info.Cluster.Leader}
	for _, r := range info.Cluster.Replicas {
		if r.Current {
			names = append(names, r.Name)
		}
	}
	return names
}

// TestGetBeyondTheLast: a message that the leader does not know yet is not one
// that is gone.
func TestGetBeyondTheLast(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	if _, err := b.Get(t.Context(), subjects.StreamDLQ, 1); !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("Get beyond the last = %v, want ErrNoResponders", err)
	}
	if err := b.BuryDeadLetter(t.Context(), bus.Msg{Subject: "poison.x", Data: []byte("x")}, "not JSON"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), subjects.StreamDLQ, 1); err != nil {
		t.Errorf("Get = %v", err)
	}
	if err := b.Purge(t.Context(), subjects.StreamDLQ, "fleet.dlq.>"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), subjects.StreamDLQ, 1); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Get of what was purged = %v, want ErrNotFound", err)
	}
}

// TestLastBehindWhatWasHeard: a leader that knows less than a tail has heard
// does not know either that there is no message of a subject.
func TestLastBehindWhatWasHeard(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	last := func() error {
		_, err := b.Last(t.Context(), subjects.StreamDLQ, "fleet.dlq.none")
		return err
	}
	if err := last(); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Last = %v, want ErrNotFound", err)
	}
	b.Hear(subjects.StreamDLQ, 1)
	if err := last(); !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("Last = %v, want ErrNoResponders", err)
	}
	if err := b.BuryDeadLetter(t.Context(), bus.Msg{Subject: "poison.x", Data: []byte("x")}, "not JSON"); err != nil {
		t.Fatal(err)
	}
	if err := last(); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Last = %v, want ErrNotFound once the leader has caught up", err)
	}
}
