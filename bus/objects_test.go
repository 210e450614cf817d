package bus_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

const outputs = "OBJ_" + subjects.ObjectsOutputs

// objectsIn opens the bucket of outputs, with room for so many bytes.
func objectsIn(t *testing.T, b *bus.Bus, room int64) *bus.Objects {
	t.Helper()
	if err := b.Provision(t.Context(), bus.Provisioning{BucketMaxBytes: room}); err != nil {
		t.Fatal(err)
	}
	o, err := b.Objects(t.Context(), subjects.ObjectsOutputs)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// object reads what is stored under a name.
func object(t *testing.T, o *bus.Objects, name string) []byte {
	t.Helper()
	r, err := o.Get(t.Context(), name)
	if err != nil {
		t.Fatalf("Get(%s) = %v", name, err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read %s: %v", name, err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("close %s: %v", name, err)
	}
	return data
}

func held(t *testing.T, b *bus.Bus) bus.StreamState {
	t.Helper()
	s, err := b.StreamState(t.Context(), outputs)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fill takes all the room there is, in pieces that belong to no object.
func fill(t *testing.T, b *bus.Bus) {
	t.Helper()
	for size := 100_000; size > 0; size /= 10 {
		var err error
		for err == nil {
			_, err = b.Store(t.Context(), "$O."+subjects.ObjectsOutputs+".C.filler", make([]byte, size), "", nil)
		}
		if !errors.Is(err, bus.ErrFull) {
			t.Fatal(err)
		}
	}
}

// Where there is no room, an object can be deleted all the same, and nothing of
// it is left.
func TestDeleteNeedsNoRoom(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	o := objectsIn(t, b, 1<<20)
	if err := o.Put(t.Context(), "a", bytes.NewReader(make([]byte, 500_000))); err != nil {
		t.Fatal(err)
	}
	fill(t, b)
	if err := o.Delete(t.Context(), "a"); err != nil {
		t.Fatalf("Delete = %v", err)
	}
	if names, err := o.Names(t.Context()); err != nil || len(names) != 0 {
		t.Errorf("Names = %v, %v, want none", names, err)
	}
	if err := b.Purge(t.Context(), outputs, "$O."+subjects.ObjectsOutputs+".C.filler"); err != nil {
		t.Fatal(err)
	}
	if s := held(t, b); s.Msgs != 0 {
		t.Errorf("%d messages are left of an object that was deleted, want none", s.Msgs)
	}
}

// An object that is to be replaced, and cannot be, stays.
func TestPutIntoAFullBucket(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	o := objectsIn(t, b, 1<<20)
	was := bytes.Repeat([]byte("was"), 100_000)
	if err := o.Put(t.Context(), "a", bytes.NewReader(was)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Store(t.Context(), "$O."+subjects.ObjectsOutputs+".C.filler", make([]byte, 600_000), "", nil); err != nil {
		t.Fatal(err)
	}
	before := held(t, b) // there is room for what is said of an object, and for no more
	for _, name := range []string{"a", "b"} {
		if err := o.Put(t.Context(), name, bytes.NewReader(make([]byte, 300_000))); !errors.Is(err, bus.ErrFull) {
			t.Errorf("Put(%s) = %v, want ErrFull", name, err)
		}
	}
	if !bytes.Equal(object(t, o, "a"), was) {
		t.Error("the object is not what it was")
	}
	if _, err := o.Get(t.Context(), "b"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Get of what was refused = %v, want ErrNotFound", err)
	}
	if s := held(t, b); s.Bytes != before.Bytes {
		t.Errorf("%d bytes, want %d as before", s.Bytes, before.Bytes)
	}
}

// What is there already is not written again, unless a piece of it is missing.
func TestKeep(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	o := objectsIn(t, b, 0)
	data := bytes.Repeat([]byte("part"), 100_000)
	keep := func(data []byte) (written bool) {
		t.Helper()
		before := held(t, b).LastSeq
		if err := o.Keep(t.Context(), "a", data); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(object(t, o, "a"), data) {
			t.Error("it is not what was kept")
		}
		return held(t, b).LastSeq != before
	}
	if !keep(data) || keep(data) {
		t.Error("want it written at first, and not again")
	}
	if !keep(data[:len(data)-1]) || !keep(data) {
		t.Error("want others written in its place")
	}
	if err := b.Purge(t.Context(), outputs, "$O."+subjects.ObjectsOutputs+".C.>"); err != nil {
		t.Fatal(err)
	}
	if !keep(data) {
		t.Error("want it written again where its data was lost")
	}
	if s := held(t, b); s.Msgs != 5 {
		t.Errorf("%d messages, want 4 with data and 1 that says so", s.Msgs)
	}
}

// The only object of a bucket that has no room for the next one goes, and what is
// said of it goes first: nobody waits for data that is not there.
func TestPutOnlyWithoutRoom(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	o := objectsIn(t, b, 1<<20)
	data := make([]byte, 600_000)
	for _, want := range []error{nil, bus.ErrFull} {
		if err := o.PutOnly(t.Context(), "a", bytes.NewReader(data)); !errors.Is(err, want) {
			t.Fatalf("PutOnly = %v, want %v", err, want)
		}
	}
	if _, err := o.Get(t.Context(), "a"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Get = %v, want ErrNotFound", err)
	}
	if err := o.PutOnly(t.Context(), "a", bytes.NewReader(data)); err != nil || !bytes.Equal(object(t, o, "a"), data) {
		t.Errorf("the next PutOnly = %v, want it stored", err)
	}
}

// An object whose data goes while it is read, or has gone before, ends with an
// error, and at once.
func TestReadOfWhatIsGone(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	o := objectsIn(t, b, 0)
	if err := o.Put(t.Context(), "a", bytes.NewReader(make([]byte, 10<<20))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bustest.Patience)
	defer cancel()
	r, err := o.Get(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if err := b.Purge(t.Context(), outputs, "$O."+subjects.ObjectsOutputs+".C.>"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err = io.ReadAll(r); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("read of what has gone = %v, want ErrNotFound", err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if r, err = o.Get(ctx, "a"); err != nil {
			t.Fatal(err)
		}
	}
}

// lagging is a server of which the copy that is read directly holds no object: it
// has others answer for itself.
type lagging struct{ nats.InProcessConnProvider }

type laggingConn struct{ net.Conn }

func (l lagging) InProcessConn() (net.Conn, error) {
	conn, err := l.InProcessConnProvider.InProcessConn()
	return laggingConn{conn}, err
}

func (c laggingConn) Write(p []byte) (int, error) {
	_, err := c.Conn.Write(bytes.ReplaceAll(p, []byte("$JS.API.DIRECT.GET.OBJ_"), []byte("$LG.API.DIRECT.GET.OBJ_")))
	return len(p), err
}

// TestObjectsOfACopyThatLags: what one copy has not yet is there.
func TestObjectsOfACopyThatLags(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Bus(t)
	var asked atomic.Int64
	if _, err := b.Subscribe("$LG.API.DIRECT.GET.>", "", func(m bus.Msg) {
		asked.Add(1)
		_ = m.Respond(nil, bus.Header{"Status": {"404"}, "Description": {"Message Not Found"}})
	}); err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("part"), 100_000)
	if err := objectsIn(t, b, 0).Put(t.Context(), "a", bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	c := s.Config()
	c.URL, c.InProcess = "", lagging{s.NATS(0)}
	behind, err := bus.Connect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(behind.Close)
	o, err := behind.Objects(t.Context(), subjects.ObjectsOutputs)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(object(t, o, "a"), data) {
		t.Error("it is not what was put")
	}
	if _, err := o.Get(t.Context(), "b"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Get of what is not there = %v, want ErrNotFound", err)
	}
	if asked.Load() == 0 {
		t.Error("the copy was not asked")
	}
}

// lossy loses the first question for several messages.
type lossy struct {
	nats.InProcessConnProvider
	lost *atomic.Bool
}

type lossyConn struct {
	net.Conn
	lost *atomic.Bool
}

func (l lossy) InProcessConn() (net.Conn, error) {
	conn, err := l.InProcessConnProvider.InProcessConn()
	return lossyConn{conn, l.lost}, err
}

func (c lossyConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("next_by_subj")) && !c.lost.Swap(true) {
		p = bytes.ReplaceAll(bytes.Clone(p), []byte("$JS.API.DIRECT.GET."), []byte("$LG.API.DIRECT.GET."))
	}
	return c.Conn.Write(p)
}

// TestAnswerLost: who has a minute does not wait it for an answer that is lost,
// and an object is read nevertheless.
func TestAnswerLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewFake(t)
		data := bytes.Repeat([]byte("part"), 100_000)
		if err := objectsIn(t, s.Bus(t), 0).Put(t.Context(), "a", bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Bus(t).Subscribe("$LG.>", "", func(bus.Msg) {}); err != nil { // or the server says at once that nobody hears
			t.Fatal(err)
		}
		c := s.Config()
		lost := new(atomic.Bool)
		c.URL, c.InProcess = "", lossy{s.NATS(0), lost}
		b, err := bus.Connect(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		o, err := b.Objects(t.Context(), subjects.ObjectsOutputs)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		r, err := o.Get(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, data) || !lost.Load() || time.Since(begin) > 10*time.Second {
			t.Errorf("read %d bytes after %s, %v, lost %t", len(got), time.Since(begin), err, lost.Load())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		lost.Store(false)
		begin = time.Now()
		if _, _, err := b.History(ctx, outputs, ">", 1, 10); !errors.Is(err, bus.ErrTimeout) || time.Since(begin) > 10*time.Second {
			t.Errorf("history = %v after %s, want a timeout of one try", err, time.Since(begin))
		}
	})
}

// What those leave who are killed while they put an object is found once it is
// old; what is under way, or belongs to an object, stays.
func TestDropStrays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		o := objectsIn(t, b, 0)
		stray := func(nuid string) {
			t.Helper()
			if _, err := b.Store(t.Context(), "$O."+subjects.ObjectsOutputs+".C."+nuid, make([]byte, 1000), "", nil); err != nil {
				t.Fatal(err)
			}
		}
		want := []string{"a", "b/c", "d"}
		for _, name := range want {
			if err := o.Put(t.Context(), name, bytes.NewReader([]byte(name))); err != nil {
				t.Fatal(err)
			}
		}
		stray("old")
		time.Sleep(time.Hour)
		stray("new")
		if err := o.DropStrays(t.Context()); err != nil {
			t.Fatal(err)
		}
		all, err := b.Subjects(t.Context(), outputs, "$O."+subjects.ObjectsOutputs+".C.*")
		if _, old := all["$O.FLEET_OUTPUTS.C.old"]; err != nil || old || all["$O.FLEET_OUTPUTS.C.new"] != 1 || len(all) != 4 {
			t.Errorf("left is %v, %v, want three objects and what is new", all, err)
		}
		names, err := o.Names(t.Context())
		if diff := cmp.Diff(want, names); err != nil || diff != "" {
			t.Errorf("Names %v (-want +got):\n%s", err, diff)
		}
		for _, name := range want {
			if got := object(t, o, name); string(got) != name {
				t.Errorf("%s holds %q", name, got)
			}
		}
	})
}

// A list of an empty bucket comes to an end, where direct reads are not answered
// too.
func TestNamesOfAnEmptyBucket(t *testing.T) {
	t.Parallel()
	s := bustest.New(t, bustest.Users(bustest.User{Name: "worker", Password: "w"},
		bustest.User{Name: "limited", Password: "l", Publish: []string{"$JS.API.STREAM.>", "$JS.API.CONSUMER.>"}}))
	connect := func(user, password string) *bus.Bus {
		t.Helper()
		c := s.Config()
		c.User, c.Password = user, password
		b, err := bus.Connect(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		return b
	}
	objectsIn(t, connect("worker", "w"), 0)
	o, err := connect("limited", "l").Objects(t.Context(), subjects.ObjectsOutputs)
	if err != nil {
		t.Fatal(err)
	}
	listed := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		names, err := o.Names(ctx)
		if err == nil && len(names) != 0 {
			err = errors.New("there are some")
		}
		listed <- err
	}()
	select {
	case err := <-listed:
		if err != nil {
			t.Errorf("Names = %v, want none", err)
		}
	case <-time.After(bustest.Patience):
		t.Errorf("Names has not returned within %s", bustest.Patience)
	}
}

// All subjects are listed, with what each has.
func TestSubjects(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	for _, task := range []string{"a", "b", "a"} {
		if _, err := b.Store(t.Context(), "fleet.task."+task, []byte("x"), "", nil); err != nil {
			t.Fatal(err)
		}
	}
	for filter, want := range map[string]map[string]uint64{
		"fleet.task.*": {"fleet.task.a": 2, "fleet.task.b": 1}, "fleet.task.b": {"fleet.task.b": 1}, "fleet.task.c": {},
	} {
		got, err := b.Subjects(t.Context(), subjects.StreamTasks, filter)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", filter, err, diff)
		}
	}
	if _, err := b.Subjects(t.Context(), "NONE", ">"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Subjects of no stream = %v, want ErrNotFound", err)
	}
}
