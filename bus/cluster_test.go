package bus_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

// Replicated: compare-and-set holds, and writers and readers outlive the loss
// of the leader.
func TestCluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a cluster takes seconds")
	}
	s := bustest.NewCluster(t, 3, bustest.SyncAlways)
	b := s.Bus(t)
	state, err := b.StreamState(t.Context(), "FLEET_TASKS")
	if err != nil || state.Replicas != 3 || state.Leader == "" {
		t.Fatalf("StreamState = %+v, %v, want 3 replicas and a leader", state, err)
	}
	conflict := func(t *testing.T, mode bus.CommitMode) {
		t.Helper()
		w, stop := b.Records("FLEET_TASKS", mode)
		defer stop()
		r := bus.Record{Subject: fmt.Sprint("fleet.task.mode", mode), WriteID: "a"}
		seq, err := w.Write(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := w.Write(t.Context(), r); err != nil || again != seq {
			t.Errorf("the same Write = %d, %v, want %d", again, err, seq)
		}
		r.WriteID = "b"
		if _, err := w.Write(t.Context(), r); !errors.Is(err, bus.ErrConflict) {
			t.Errorf("another Write = %v, want ErrConflict", err)
		}
	}
	for _, mode := range []bus.CommitMode{bus.CommitDirect, bus.CommitGrouped, bus.CommitAuto} {
		conflict(t, mode)
	}
	for _, mode := range []bus.CommitMode{bus.CommitDirect, bus.CommitGrouped} {
		sameRecord(t, b, mode)
	}
	raceRecords(t, b, bus.CommitGrouped, 60, 3)
	clusterLosesLeader(t, s, b)
}

// TestLateStream: a cluster whose leader learns of a stream only now is asked
// again, and no message is "not found" in a stream that is not there.
func TestLateStream(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a cluster takes seconds")
	}
	b := bustest.NewCluster(t, 3).Bus(t)
	for name, ask := range map[string]func(context.Context, string) error{
		"StreamState": func(ctx context.Context, stream string) error {
			_, err := b.StreamState(ctx, stream)
			return err
		},
		"Consume": func(ctx context.Context, stream string) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			return b.Consume(ctx, bus.Consumer{Stream: stream, Durable: "late"}, func(context.Context, bus.Msg) error {
				cancel()
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stream := "LATE_" + name
			asked := make(chan struct{}, 100)
			for _, subject := range []string{"$JS.API.*.INFO." + stream, "$JS.API.*.INFO." + stream + ".>"} {
				if _, err := b.Subscribe(subject, "", func(bus.Msg) { asked <- struct{}{} }); err != nil {
					t.Fatal(err)
				}
			}
			done := make(chan error, 1)
			go func() { done <- ask(t.Context(), stream) }()
			<-asked
			config := fmt.Sprintf(`{"name":%q,"subjects":[%q],"storage":"file","num_replicas":3}`, stream, stream)
			if _, err := b.Request(t.Context(), "$JS.API.STREAM.CREATE."+stream, []byte(config), nil); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Store(t.Context(), stream, []byte("x"), "", nil); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Errorf("%s = %v of a stream that was late", name, err)
			}
		})
	}
	if _, err := b.Last(t.Context(), "NONE", "none"); !errors.Is(err, bus.ErrNoResponders) || errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Last = %v of no stream, want ErrNoResponders", err)
	}
	if _, err := b.StreamState(t.Context(), "NONE"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("StreamState = %v of no stream, want ErrNotFound", err)
	}
}

// TestCopyThatCannotBeMade: servers of a cluster that cannot make their copies of
// a stream for a moment hold up provisioning, and do not end it.
func TestCopyThatCannotBeMade(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a cluster takes seconds")
	}
	s := bustest.NewCluster(t, 3)
	b := s.Connect(t)
	for i := range 3 { // each clears the way as it fails
		inTheWay := filepath.Join(s.NATS(i).StoreDir(), "$G", "streams", subjects.StreamTasks)
		if err := os.MkdirAll(filepath.Dir(inTheWay), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Provision(t.Context(), bus.Provisioning{Replicas: 3}); err != nil {
		t.Errorf("Provision = %v", err)
	}
}

// TestStreamTakenBack: a stream that a cluster takes back once it has said that it
// is there is made again.
func TestStreamTakenBack(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a cluster takes seconds")
	}
	s := bustest.NewCluster(t, 3)
	b, other := s.Connect(t), s.Connect(t)
	var once sync.Once
	if _, err := other.Subscribe("$JS.EVENT.ADVISORY.STREAM.CREATED."+subjects.StreamDLQ, "", func(bus.Msg) {
		once.Do(func() {
			if _, err := other.Request(t.Context(), "$JS.API.STREAM.DELETE."+subjects.StreamTasks, nil, nil); err != nil {
				t.Error(err)
			}
		})
	}); err != nil {
		t.Fatal(err)
	}
	if err := other.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Provision(t.Context(), bus.Provisioning{Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.StreamState(t.Context(), subjects.StreamTasks); err != nil {
		t.Errorf("it is not there: %v", err)
	}
}

func clusterLosesLeader(t *testing.T, s *bustest.Server, b *bus.Bus) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before, err := b.StreamState(ctx, "FLEET_TASKS")
	if err != nil {
		t.Fatal(err)
	}
	const tasks, each = 8, 40
	var read sync.Map
	var got atomic.Int64
	tail := make(chan error, 1)
	all := make(chan struct{})
	go func() {
		var last uint64
		tail <- b.Tail(ctx, bus.Tail{Stream: "FLEET_TASKS", StartSeq: before.LastSeq + 1, Handle: func(m bus.Msg) {
			if m.Seq <= last {
				t.Errorf("sequence %d after %d", m.Seq, last)
			}
			last = m.Seq
			if _, twice := read.LoadOrStore(m.Seq, string(m.Data)); !twice && got.Add(1) == tasks*each {
				close(all)
			}
		}})
	}()
	w, stop := b.Records("FLEET_TASKS", bus.CommitAuto)
	defer stop()
	var writers, halfway sync.WaitGroup
	half := make(chan struct{})
	halfway.Add(tasks)
	for task := range tasks {
		writers.Go(func() {
			seq := uint64(0)
			for i := range each {
				if i == each/2 {
					halfway.Done()
					<-half
				}
				id := fmt.Sprint(task, "-", i)
				next, err := w.Write(ctx, bus.Record{Subject: fmt.Sprint("fleet.task.chain", task), Expected: seq, WriteID: id, Data: []byte(id)})
				if err != nil {
					t.Errorf("Write(%s) = %v", id, err)
					cancel() // ends everybody's
					if i < each/2 {
						halfway.Done()
					}
					return
				}
				seq = next
			}
		})
	}
	halfway.Wait()
	for i := range 3 {
		if s.NATS(i).Name() == before.Leader {
			close(half) // the writers go on while the leader stops
			s.Stop(i)
		}
	}
	writers.Wait()
	select {
	case <-all:
	case <-ctx.Done():
	}
	cancel()
	if err := <-tail; err != nil {
		t.Errorf("Tail = %v", err)
	}
}
