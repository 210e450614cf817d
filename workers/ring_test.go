package workers_test

import (
	"strconv"
	"testing"
	"time"

	"parley/subjects"
	"parley/workers"
)

// Every key has one owner, each worker owns its share, and when one goes only
// what it owned moves.
func TestRing(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	ids := []subjects.InstanceID{"a", "b", "c"}
	rings := map[subjects.InstanceID]*workers.Ring{}
	for _, id := range ids {
		rings[id] = workers.NewRing(id)
		for _, other := range ids {
			if got := rings[id].Heard(other, now); got != (other != id) {
				t.Errorf("%s.Heard(%s) = %v", id, other, got)
			}
		}
	}
	owners := func() map[string]subjects.InstanceID {
		all := map[string]subjects.InstanceID{}
		for i := range 3000 {
			key := strconv.Itoa(i)
			for id, r := range rings {
				if r.Owns(key) {
					if all[key] != "" {
						t.Fatalf("%s and %s own %s", all[key], id, key)
					}
					all[key] = id
				}
			}
			if all[key] == "" {
				t.Fatalf("nobody owns %s", key)
			}
		}
		return all
	}
	before := owners()
	share := map[subjects.InstanceID]int{}
	for _, id := range before {
		share[id]++
	}
	for _, id := range ids {
		if share[id] < 800 || share[id] > 1200 {
			t.Errorf("the shares are %v", share)
		}
	}
	delete(rings, "c")
	if !rings["a"].Left("c") || rings["a"].Left("c") {
		t.Error("Left does not say what changed")
	}
	later := now.Add(3*workers.RingBeat + 1)
	rings["b"].Heard("a", later)
	if !rings["b"].Expire(later) || rings["b"].Expire(later) {
		t.Error("Expire does not say what changed")
	}
	for key, id := range owners() {
		if was := before[key]; was != "c" && was != id {
			t.Fatalf("%s moved from %s to %s", key, was, id)
		}
	}
}
