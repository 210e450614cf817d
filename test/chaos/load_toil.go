//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"parley/test/rig"
)

// Pools are agents to which something happens all the time, whatever faults there
// are beside: some are killed, paused and restarted under the same id and instance,
// some are of an account that is limited again and again, and some are taken down by
// their tasks. A task names its pool by the label pool.
const (
	poolWounded = "wounded"
	poolLimited = "limited"
	poolUntold  = "untold" // limited, and nobody says until when
	poolDoomed  = "doomed"
)

// What happens to the processes of pools.
const (
	woundKill    = "kill"
	woundPause   = "pause"
	woundRestart = "restart"
)

// poolActor is an agent of a pool.
type poolActor struct {
	id, instance, pool, account string
	slots                       int
}

// poolCasts are the processes of the pools, and what happens to each.
var poolCasts = []struct {
	name   string
	actors []poolActor
	wounds []string
	every  time.Duration // about
}{
	{"cast-twin-a", []poolActor{{"twin", "a", poolWounded, "", 3}}, []string{woundKill, woundKill, woundPause, woundRestart}, 20 * time.Second},
	{"cast-twin-b", []poolActor{{"twin", "b", poolWounded, "", 3}}, []string{woundKill, woundPause}, 24 * time.Second},
	{"cast-lone", []poolActor{{"lone", "main", poolWounded, "", 3}}, []string{woundKill, woundKill, woundRestart, woundPause}, 22 * time.Second},
	{"cast-sleeper", []poolActor{{"sleeper", "main", poolWounded, "", 2}}, []string{woundPause}, 18 * time.Second},
	{"cast-quota-a", []poolActor{{"quota-0", "main", poolLimited, "acct-0", 2}, {"quota-1", "a", poolLimited, "acct-0", 2}}, nil, 0},
	{"cast-quota-b", []poolActor{
		{"quota-1", "b", poolLimited, "acct-0", 2}, {"quota-2", "main", poolUntold, "acct-1", 2},
	}, []string{woundKill, woundPause}, 45 * time.Second},
	{"cast-doomed-a", []poolActor{{"doomed-0", "main", poolDoomed, "", 2}}, nil, 0},
	{"cast-doomed-b", []poolActor{{"doomed-1", "main", poolDoomed, "", 2}}, nil, 0},
}

// writePools makes the processes of the pools.
func (f *fleet) writePools(self string) error {
	for i, pc := range poolCasts {
		c := rig.Cast{URL: f.c.urls(i), Fsync: true, Heartbeat: 500 * time.Millisecond, Try: 2 * time.Second}
		for _, a := range pc.actors {
			actor := rig.Actor{
				ID: a.id, Instance: a.instance, MaxParallel: a.slots, Labels: map[string]string{"pool": a.pool},
				Spool: filepath.Join(f.w.dir, "spool", a.id+"-"+a.instance),
			}
			if a.account != "" {
				actor.Labels["account"], actor.Limits = a.account, limitsFile(f.w.dir, a.account)
			}
			c.Agents = append(c.Agents, actor)
		}
		p, err := f.agentProcess(pc.name, self, c)
		if err != nil {
			return err
		}
		f.pools = append(f.pools, p)
	}
	return nil
}

func limitsFile(dir, account string) string { return filepath.Join(dir, account+".limits") }

// When the accounts are limited, told back from the end of the load: the last time
// begins while nothing else is wrong, and tasks wait when it ends.
const (
	limitEach     = time.Minute
	limitLasts    = 20 * time.Second
	limitAfter    = 6 * time.Second // not before
	limitEnds     = 2 * time.Second // before the load does
	untoldEach    = 150 * time.Second
	untoldLasts   = 10 * time.Second
	untoldTakes   = time.Minute // until it is tried again that nobody was told the end of
	toilTime      = 15 * time.Minute
	toilMaxLosses = 100
)

// limitTimes are the times at which the accounts are limited in a load that lasts so long.
func limitTimes(begin time.Time, lasts time.Duration) map[string][]rig.Limit {
	all := map[string][]rig.Limit{}
	for end := lasts - limitEnds; end > limitAfter; end -= limitEach {
		from := max(end-limitLasts, limitAfter)
		all["acct-0"] = append(all["acct-0"], rig.Limit{From: begin.Add(from), Until: begin.Add(end)})
	}
	for from := untoldEach / 5; from+untoldTakes < lasts; from += untoldEach {
		all["acct-1"] = append(all["acct-1"], rig.Limit{From: begin.Add(from), Until: begin.Add(from + untoldLasts), Untold: true})
	}
	return all
}

// pools gives the pools their work, and has happen to them what happens.
func (l *load) pools() {
	for account, list := range limitTimes(time.Now(), l.lasts) {
		data, err := json.Marshal(list)
		if err == nil {
			err = os.WriteFile(limitsFile(l.f.w.dir, account), data, 0o600)
		}
		if err != nil {
			panic(err) // nobody would be limited
		}
	}
	for i, p := range l.f.pools {
		if pc := poolCasts[i]; len(pc.wounds) > 0 {
			l.wg.Go(func() { l.wound(p, pc.wounds, pc.every, l.rng(21, i)) })
		}
	}
	recent := make(chan string, 200)
	l.wg.Go(func() { l.toils(client("toil", 0), l.rng(22, 0), recent) })
	l.wg.Go(func() { l.quotas(client("quota", 0), l.rng(23, 0), recent) })
	l.wg.Go(func() { l.dooms(client("doom", 0)) })
	l.wg.Go(func() { l.asks(l.rng(24, 0), recent) })
}

// wound has something happen to a process of agents again and again, and mends it at
// the end. It lives longer than it is gone.
func (l *load) wound(p *process, kinds []string, every time.Duration, rng *rand.Rand) {
	for n := 0; ; n++ {
		lives := every/2 + time.Duration(rng.Int64N(int64(every/2)))
		if n == 0 {
			lives = 4*time.Second + lives/4
		}
		if pause(l.stop, lives) != nil {
			return
		}
		kind := kinds[rng.IntN(len(kinds))]
		gone := time.Duration(rng.Int64N(int64(every / 2)))
		end := l.wounds.begin(line{Op: kind, ID: p.name})
		var err error
		switch kind {
		case woundPause:
			_, err = p.signal(syscall.SIGSTOP, false)
			_ = pause(l.stop, max(gone, 3*time.Second))
			_, cerr := p.signal(syscall.SIGCONT, false)
			if err == nil {
				err = cerr
			}
		case woundRestart:
			p.term(15 * time.Second)
			err = p.start(l.f.w)
		default:
			p.kill()
			_ = pause(l.stop, gone)
			err = p.start(l.f.w)
		}
		code := ""
		if err != nil {
			code = err.Error()
		}
		end(wasOK, line{Code: code})
	}
}

// toil is what the note of a task says that must be done: nothing happens to it but
// that its agents are killed, paused, limited and restarted.
const toil = "toil"

// doomed is what it says of one that takes its agents down, or has such agents.
const doomed = "doomed"

// toils gives tasks that take five seconds to agents that are killed and paused:
// to anybody, or to one of them, some with somebody else instead. Others take a
// moment, of agents that are taken down by their tasks.
func (l *load) toils(who string, rng *rand.Rand, recent chan string) {
	l.every(time.Second, func(n int) {
		t := l.toil(who, n, 5*time.Second)
		note := line{Client: who, Op: "dispatch", ID: t.Task.ID, Text: toil}
		switch dice := rng.IntN(10); {
		case dice < 3:
			t.Requirements = pooled(poolWounded)
		case dice < 4:
			t.Task.Agent = "lone"
		case dice < 5:
			t.Task.Agent = "sleeper"
		case dice < 6:
			t.Task.Agent, t.Task.Alternatives = "lone", []string{"twin", "sleeper"}
		case dice < 7:
			t.Task.Agent, t.Task.Alternatives = "quota-0", []string{l.f.agents[rng.IntN(len(l.f.agents))].ID}
			t.Brief = rig.Play(rig.Step{Do: rig.DoDone, MS: 200})
		default:
			t.Requirements, note.Text, t.Task.Priority = pooled(poolDoomed), doomed, "critical"
			t.Brief = rig.Play(rig.Step{Do: rig.DoDone, MS: 200})
		}
		l.given(who, t, note, recent)
	})
}

// quotas gives tasks to agents of accounts that are limited, more than they can do
// while they are.
func (l *load) quotas(who string, rng *rand.Rand, recent chan string) {
	l.every(500*time.Millisecond, func(n int) {
		t := l.toil(who, n, 800*time.Millisecond)
		t.Task.Priority = priorities[rng.IntN(len(priorities))]
		t.Requirements = pooled(poolLimited)
		if n%20 == 0 {
			t.Requirements = pooled(poolUntold)
		}
		l.given(who, t, line{Client: who, Op: "dispatch", ID: t.Task.ID, Text: toil}, recent)
	})
}

// dooms gives tasks that take their agents down: one that may lose one, one that may
// lose as many as any, and one that stores something before. Agents that are taken
// down again and again rest for minutes: in a long load there are none at its end.
func (l *load) dooms(who string) {
	l.every(12*time.Second, func(n int) {
		if left := l.lasts - time.Since(l.since); l.lasts > aWhile && left < doomsRest {
			return
		}
		t := task{Task: taskHead{ID: fmt.Sprintf("%s-%d", who, n), Timeout: 60, Escalate: "never", Priority: "low"}, Requirements: pooled(poolDoomed)}
		crash := rig.Step{Do: rig.DoCrash, MS: 50}
		switch n % 3 {
		case 1:
			t.Task.MaxLosses = 1
		case 2:
			t.Task.MaxLosses, crash.N = 2, 1
		}
		t.Brief = rig.Play(crash)
		l.given(who, t, line{Client: who, Op: "dispatch", ID: t.Task.ID, Text: doomed}, nil)
	})
}

// doomsRest is for how long before the end of a load no task takes its agents down.
const doomsRest = time.Minute

var priorities = []string{"critical", "high", "normal", "low"}

func pooled(pool string) map[string]any {
	return map[string]any{"labels": map[string]string{"pool": pool}}
}

func (l *load) toil(who string, n int, takes time.Duration) task {
	at := time.Now().Add(toilTime)
	return task{
		Task:     taskHead{ID: fmt.Sprintf("%s-%d", who, n), Timeout: 60, MaxLosses: toilMaxLosses},
		Deadline: &at, Brief: rig.Play(rig.Step{Do: rig.DoDone, MS: int(takes.Milliseconds())}),
	}
}

// given dispatches a task of a pool, while others go on.
func (l *load) given(who string, t task, note line, recent chan string) {
	l.wg.Go(func() {
		id := l.dispatch(who, t, note, false)
		if id == "" || recent == nil {
			return
		}
		select {
		case recent <- who + " " + id:
		default: // enough are asked for
		}
	})
}

// asks asks again and again why tasks wait that were given lately.
func (l *load) asks(rng *rand.Rand, recent chan string) {
	const most = 400
	var open []string
	end, cancel := context.WithTimeout(context.WithoutCancel(l.stop), l.lasts+asksOn)
	defer cancel()
	for pause(end, 200*time.Millisecond) == nil && l.hard.Err() == nil {
		for more := true; more; {
			select {
			case id := <-recent:
				open = append(open[max(0, len(open)+1-most):], id)
			default:
				more = false
			}
		}
		if len(open) == 0 {
			continue
		}
		i := rng.IntN(len(open))
		if who, id, _ := strings.Cut(open[i], " "); terminal(l.look(who, id)) {
			open = slices.Delete(open, i, i+1)
		}
	}
}

// asksOn is for how long it is asked after the load.
const asksOn = 10 * time.Second
