//go:build linux

package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"parley/bus/plant/skew"
)

// Kinds of faults, by who suffers.
const (
	killLeader   = "kill the stream's leader"
	killServer   = "kill a server"
	pauseServer  = "pause a server"
	cutServer    = "cut a server off"
	cutOneWay    = "cut one way"
	cutAll       = "cut all servers apart"
	slowServer   = "slow link"
	fullDisk     = "full disk"
	powerOne     = "power loss of one"
	powerAll     = "power loss of all"
	powerPauses  = "power loss of one and pauses"
	stepDown     = "leader steps down"
	rollServers  = "rolling restart of the servers"
	killWorker   = "kill a worker"
	pauseWorker  = "pause a worker"
	stopWorker   = "restart a worker"
	killAgents   = "kill agents"
	pauseAgents  = "pause agents"
	muteAgents   = "agents fall silent"
	cutZone      = "cut a zone off a server"
	garbage      = "garbage at every door"
	skewWorker   = "a worker's clock is wrong"
	skewAgents   = "agents' clock is wrong"
	replaceKey   = "the key of webhooks is replaced"
	quietKind    = "quiet"
	quietQuarter = 4 // one period in so many is quiet
)

// kind says how often faults of a kind are drawn, and what they take of the machine.
type kind struct {
	name    string
	people  bool // happens beside what happens to the servers
	weight  int
	net     bool
	disk    bool
	seconds [2]float64 // how long it lasts
}

var kinds = []kind{
	{killLeader, false, 6, false, false, [2]float64{0, 3}},
	{killServer, false, 3, false, false, [2]float64{0, 3}},
	{pauseServer, false, 3, false, false, [2]float64{1, 12}},
	{cutServer, false, 3, true, false, [2]float64{2, 8}},
	{cutOneWay, false, 3, true, false, [2]float64{2, 8}},
	{cutAll, false, 1, true, false, [2]float64{2, 6}},
	{slowServer, false, 2, true, false, [2]float64{3, 6}},
	{fullDisk, false, 2, false, true, [2]float64{3, 5}},
	{powerOne, false, 3, false, true, [2]float64{0, 3}},
	{powerAll, false, 2, false, true, [2]float64{0, 2}},
	{powerPauses, false, 2, false, true, [2]float64{5, 9}},
	{stepDown, false, 3, false, false, [2]float64{0, 1}},
	{rollServers, false, 1, false, false, [2]float64{0, 1}},
	{killWorker, true, 5, false, false, [2]float64{0, 2}},
	{pauseWorker, true, 4, false, false, [2]float64{0.3, 6}},
	{stopWorker, true, 2, false, false, [2]float64{0, 1}},
	{killAgents, true, 3, false, false, [2]float64{0, 2}},
	{pauseAgents, true, 2, false, false, [2]float64{0.3, 4}},
	{muteAgents, true, 2, false, false, [2]float64{4, 9}},
	{cutZone, true, 2, true, false, [2]float64{1, 5}},
	{garbage, true, 2, false, false, [2]float64{0, 1}},
	{skewWorker, true, 3, false, false, [2]float64{1, 8}},
	{skewAgents, true, 2, false, false, [2]float64{1, 8}},
	{replaceKey, true, 0, false, false, [2]float64{1, 1}}, // not drawn: every run has it
}

// fault is one thing that is done to somebody.
type fault struct {
	at     time.Duration
	kind   string
	lasts  time.Duration
	target int // whoever that is, modulo how many there are
	other  int
	people bool
}

const period = 12 * time.Second

// quietTail is how long nothing is done at the end of a run of some minutes: what is
// judged only while nothing is wrong has that long, and until all has come to rest.
const quietTail = 36 * time.Second

// plan says what happens, and when: the same for the same seed and time. In
// every period a few kinds are drawn, and each happens as often as it fits; a
// quarter of the periods are quiet. Keys are replaced in between, whatever is drawn.
// In a run of some minutes the stream's leader is killed first, and for a period
// nothing else befalls servers: what follows is what that takes. It ends quietly.
func plan(seed uint64, total time.Duration, w *world, only string) (list []fault) {
	rng := rand.New(rand.NewPCG(seed, 2))
	alone := only == "" && total >= aWhile
	if alone {
		list = append(list, fault{at: period / 4, kind: killLeader})
		total -= quietTail
	}
	if only == "" || strings.Contains(only, replaceKey) {
		each := min(total/3, 5*time.Minute)
		for at := each; each > 0 && at+each <= total; at += each {
			list = append(list, fault{at: at, kind: replaceKey, people: true, lasts: time.Second})
		}
	}
	for at := period / 4; at < total; at += period {
		if rng.IntN(quietQuarter) == 0 && only == "" {
			list = append(list, fault{at: at, kind: quietKind})
			continue
		}
		end := min(at+period, total)
		for _, people := range []bool{false, true} {
			drawn := []int{draw(rng, people, only), draw(rng, people, only)}
			if drawn[0] < 0 {
				continue
			}
			gap := 7 * time.Second
			if people {
				gap = 2 * time.Second
			}
			for t := at + time.Duration(rng.Int64N(int64(gap))); t < end; t += gap/2 + time.Duration(rng.Int64N(int64(gap))) {
				k := kinds[drawn[rng.IntN(len(drawn))]]
				f := fault{
					at: t, kind: k.name, people: people, target: rng.IntN(1000), other: rng.IntN(1000),
					lasts: time.Duration((k.seconds[0] + rng.Float64()*(k.seconds[1]-k.seconds[0])) * float64(time.Second)),
				}
				possible := (w.nets || !k.net) && (w.disks || !k.disk) && (skew.Possible || k.name != skewWorker && k.name != skewAgents)
				if possible && (!alone || at >= period || !hurtsServers(k.name)) {
					list = append(list, f)
				}
			}
		}
	}
	slices.SortStableFunc(list, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	return list
}

// kindsIn counts the kinds of faults in a plan.
func kindsIn(list []fault) int {
	names := map[string]bool{}
	for _, f := range list {
		if f.kind != quietKind {
			names[f.kind] = true
		}
	}
	return len(names)
}

// draw draws a kind by its weight, -1 where there is none.
func draw(rng *rand.Rand, people bool, only string) int {
	fits := func(i int) bool {
		return kinds[i].people == people && (only == "" || strings.Contains(only, kinds[i].name))
	}
	sum := 0
	for i := range kinds {
		if fits(i) {
			sum += kinds[i].weight
		}
	}
	if sum == 0 {
		return -1
	}
	n := rng.IntN(sum)
	for i, k := range kinds {
		if !fits(i) {
			continue
		}
		if n -= k.weight; n < 0 {
			return i
		}
	}
	panic("weights")
}

// refused are the kinds that this machine cannot do.
func refused(w *world) (names []string) {
	for _, k := range kinds {
		if k.net && !w.nets || k.disk && !w.disks || !skew.Possible && (k.name == skewWorker || k.name == skewAgents) {
			names = append(names, k.name)
		}
	}
	return names
}

func (f *fault) String() string {
	return fmt.Sprintf("%s: %s (%d, %d) for %s", f.at.Round(time.Millisecond), f.kind, f.target, f.other, f.lasts.Round(time.Millisecond))
}
