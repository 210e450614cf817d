package router

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"parley/subjects"
)

func TestIndexIsAMap(t *testing.T) {
	t.Parallel()
	ids := []subjects.TaskID{"abc-123", "A", "a", "00000000-0000-0000-0000-000000000000", "ABCDEF00-0000-0000-0000-000000000000"}
	for range 40 {
		ids = append(ids, subjects.TaskID(uuid.NewString()))
	}
	rapid.Check(t, func(t *rapid.T) {
		x, want := newIndex(), map[subjects.TaskID]uint64{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			id := rapid.SampledFrom(ids).Draw(t, "id")
			switch s := x.find(id); {
			case (s != 0) != has(want, id):
				t.Fatalf("find(%s) = %d, want known %v", id, s, has(want, id))
			case s == 0:
				_, e := x.add(id)
				e.lastSeq = rapid.Uint64().Draw(t, "seq")
				want[id] = e.lastSeq
			case rapid.Bool().Draw(t, "remove"):
				x.remove(s)
				delete(want, id)
			default:
				if got := x.at(s).lastSeq; got != want[id] || x.id(s) != id {
					t.Fatalf("at(%s) = %s %d, want %d", id, x.id(s), got, want[id])
				}
			}
		}
		got := map[subjects.TaskID]uint64{}
		for s, e := range x.all() {
			got[x.id(s)] = e.lastSeq
		}
		if diff := cmp.Diff(want, got); diff != "" || x.live != len(want) {
			t.Fatalf("all() differs (-want +got), live %d:\n%s", x.live, diff)
		}
	})
}

func has[K comparable, V any](m map[K]V, k K) bool { _, ok := m[k]; return ok }

func TestTimersPopInOrder(t *testing.T) {
	t.Parallel()
	var h timers
	rng := rand.New(rand.NewPCG(1, 2))
	var want []int64
	for range 1000 {
		at := rng.Int64N(500)
		h.push(timer{at, 1})
		want = append(want, at)
	}
	slices.Sort(want)
	if _, ok := h.pop(want[0] - 1); ok {
		t.Fatal("pop before anything is due gave a timer")
	}
	var got []int64
	for {
		tm, ok := h.pop(1000)
		if !ok {
			break
		}
		got = append(got, tm.at)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order differs (-want +got):\n%s", diff)
	}
}

func TestTurnsAreWeighted(t *testing.T) {
	t.Parallel()
	var tr turns
	var got [len(levels)]int
	for range 1500 {
		got[tr.next([len(levels)]bool{true, true, true, true})]++
	}
	if want := [len(levels)]int{800, 400, 200, 100}; got != want {
		t.Errorf("starts by level = %v, want %v", got, want)
	}
	got = [len(levels)]int{}
	for range 300 {
		got[tr.next([len(levels)]bool{false, false, true, true})]++
	}
	if want := [len(levels)]int{0, 0, 200, 100}; got != want {
		t.Errorf("starts by level = %v, want %v", got, want)
	}
	if n := tr.next([len(levels)]bool{}); n != -1 {
		t.Errorf("next of nothing = %d, want -1", n)
	}
}

func TestQueueKeepsTheOldestFirst(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x, c := newIndex(), &class{}
		in := map[slot]int64{}
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(in) > 0 && rapid.IntRange(0, 3).Draw(t, "take") == 0 {
				s := rapid.SampledFrom(slices.Sorted(maps.Keys(in))).Draw(t, "slot")
				c.dequeue(x, s)
				delete(in, s)
				continue
			}
			s, e := x.add(subjects.TaskID(fmt.Sprint("t", i)))
			e.created = int64(rapid.IntRange(0, 20).Draw(t, "created"))
			c.enqueue(x, s)
			c.enqueue(x, s) // twice is once
			in[s] = e.created
		}
		var got []int64
		for s := c.queues[0].head; s != 0; s = x.at(s).next {
			if n := x.at(s).next; n != 0 && x.at(n).prev != s {
				t.Fatalf("links of %d are broken", s)
			}
			got = append(got, x.at(s).created)
		}
		want := slices.Sorted(maps.Values(in))
		if diff := cmp.Diff(want, got); diff != "" || c.queued != len(in) {
			t.Fatalf("queue differs (-want +got), queued %d:\n%s", c.queued, diff)
		}
	})
}

// TestAgeingRaisesALevel: what has waited long takes the turns that nobody of
// its own level or above wants, and never those of the first.
func TestAgeingRaisesALevel(t *testing.T) {
	t.Parallel()
	const minute = int64(ageing)
	for _, tt := range []struct {
		name  string
		now   int64
		fresh []uint8 // priorities of tasks that have just come
		want  [len(levels)]string
	}{
		{"before", minute - 1, nil, [...]string{"", "", "", "old"}},
		{"a minute", minute, nil, [...]string{"", "", "old", "old"}},
		{"two", 2 * minute, nil, [...]string{"", "old", "", "old"}},
		{"many", 9 * minute, nil, [...]string{"", "old", "", "old"}},
		{"beside a critical one", 9 * minute, []uint8{0}, [...]string{"0", "old", "", "old"}},
		{"beside a high one", 9 * minute, []uint8{1}, [...]string{"", "1", "old", "old"}},
		{"beside all others", 9 * minute, []uint8{0, 1, 2}, [...]string{"0", "1", "2", "old"}},
		{"stored by somebody whose clock was ahead", -5 * minute, []uint8{0}, [...]string{"0", "", "", "old"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x, c := newIndex(), &class{}
			s, e := x.add("old")
			e.priority, e.created = 3, 0
			c.enqueue(x, s)
			for _, p := range tt.fresh {
				s, e := x.add(subjects.TaskID(strconv.Itoa(int(p))))
				e.priority, e.created = p, max(tt.now, 0)
				c.enqueue(x, s)
			}
			var got [len(levels)]string
			for l, s := range heads(x, tt.now, func(yield func(*class) bool) { yield(c) }) {
				if s != 0 {
					got[l] = string(x.id(s))
				}
			}
			if got != tt.want {
				t.Errorf("heads = %q, want %q", got, tt.want)
			}
		})
	}
}
