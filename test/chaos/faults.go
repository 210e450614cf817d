//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"parley/test/rig"
)

// nemesis does what the plan says.
type nemesis struct {
	w       *world
	c       *cluster
	f       *fleet
	journal *scribe
	step    int      // of the keys that sign calls
	must    []string // kinds of faults without which a run proves nothing

	mu    sync.Mutex
	done  map[string]int // guarded by mu; by kind
	wrong []string       // guarded by mu: what could not be mended
}

// healTime is how long the cluster may take to be well again.
const healTime = 90 * time.Second

// run lets the plan happen: the servers' misfortunes one after the other, and
// beside them those of workers and agents.
func (n *nemesis) run(ctx context.Context, list []fault) {
	begin := time.Now()
	var wg sync.WaitGroup
	for _, people := range []bool{false, true} {
		wg.Go(func() {
			for _, f := range list {
				if f.people != people || f.kind == quietKind && people {
					continue
				}
				late := time.Since(begin) - f.at
				if n.tooLate(f, late) || pause(ctx, -late) != nil {
					continue // the one before it took its time
				}
				n.one(ctx, f)
			}
		})
	}
	wg.Wait()
}

// tooLate reports whether a fault is not done since the one before it took its time.
// What must happen does so once, however late.
func (n *nemesis) tooLate(f fault, late time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	owed := f.kind == replaceKey || n.done[f.kind] == 0 && slices.Contains(n.must, f.kind)
	return late > period/2 && !owed
}

// one does one fault and mends what it broke, also when ctx ends meanwhile.
func (n *nemesis) one(ctx context.Context, f fault) {
	end := n.journal.begin(line{Op: f.kind, Text: f.String(), ID: n.whom(f)})
	err := n.do(ctx, f)
	code := ""
	if err != nil {
		code = err.Error()
	}
	end(wasOK, line{Code: code})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.done[f.kind]++
	if err != nil && ctx.Err() == nil {
		n.wrong = append(n.wrong, fmt.Sprintf("%s: %v", f.String(), err))
	}
}

// whom is the process of agents that suffers, or the step of the keys that is taken,
// "" where it is something else.
func (n *nemesis) whom(f fault) string {
	switch f.kind {
	case killAgents, pauseAgents, muteAgents, skewAgents:
		return n.f.casts[f.target%len(n.f.casts)].name
	case replaceKey:
		return strconv.Itoa(n.step + 1)
	}
	return ""
}

func (n *nemesis) do(ctx context.Context, f fault) error {
	whole := context.WithoutCancel(ctx) // what is broken is mended
	node := nodeNames[f.target%3]
	worker, cast := n.f.workers[f.target%len(n.f.workers)], n.f.casts[f.target%len(n.f.casts)]
	wait := func() { _ = pause(ctx, f.lasts) }
	switch f.kind {
	case quietKind:
		return nil
	case killWorker:
		worker.kill()
		wait()
		return worker.start(n.w)
	case stopWorker:
		worker.term(15 * time.Second)
		wait()
		return worker.start(n.w)
	case pauseWorker:
		return n.pauses(ctx, f, worker)
	case killAgents:
		cast.kill()
		wait()
		return cast.start(n.w)
	case pauseAgents:
		return n.pauses(ctx, f, cast)
	case muteAgents:
		return n.mutes(ctx, f, cast)
	case skewWorker:
		return n.skews(ctx, f, worker)
	case skewAgents:
		return n.skews(ctx, f, cast)
	case cutZone:
		zone := []string{zoneA, zoneB, zoneOut}[f.other%3]
		return n.cuts(ctx, f, [][2]string{{zone, node}, {node, zone}}[:1+f.other%2])
	case garbage:
		return n.garbage(f)
	case replaceKey:
		return n.replaceKeys(ctx, f)
	}
	err := n.server(ctx, whole, f, node)
	return errors.Join(err, n.mend(whole))
}

// pauses stops processes for a while.
func (n *nemesis) pauses(ctx context.Context, f fault, all ...*process) (err error) {
	for _, p := range all {
		_, serr := p.signal(syscall.SIGSTOP, false)
		err = errors.Join(err, serr)
	}
	_ = pause(ctx, f.lasts)
	for _, p := range all {
		_, serr := p.signal(syscall.SIGCONT, false)
		err = errors.Join(err, serr)
	}
	return err
}

// mutes keeps agents from sending heartbeats for a while, though they work.
func (n *nemesis) mutes(ctx context.Context, f fault, p *process) error {
	file := rig.Mute(p.journal())
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	_ = pause(ctx, f.lasts)
	return os.Remove(file)
}

// skews makes a clock wrong by up to five minutes for a while: it jumps, or the
// process begins with it.
func (n *nemesis) skews(ctx context.Context, f fault, p *process) error {
	by := time.Duration(f.other%601-300) * time.Second
	if err := p.skew(by); err != nil {
		return err
	}
	if f.target%2 == 0 {
		p.kill()
		if err := p.start(n.w); err != nil {
			return err
		}
	}
	_ = pause(ctx, f.lasts)
	return p.skew(0)
}

// cuts cuts ways for a while.
func (n *nemesis) cuts(ctx context.Context, f fault, ways [][2]string) (err error) {
	whole := context.WithoutCancel(ctx)
	for _, way := range ways {
		err = errors.Join(err, n.w.cut(whole, way[0], way[1]))
	}
	_ = pause(ctx, f.lasts)
	for _, way := range ways {
		err = errors.Join(err, n.w.join(whole, way[0], way[1]))
	}
	return err
}

// server does something to the servers.
func (n *nemesis) server(ctx, whole context.Context, f fault, node string) error {
	wait := func() { _ = pause(ctx, f.lasts) }
	a, b := nodeNames[(f.target+1)%3], nodeNames[(f.target+2)%3]
	switch f.kind {
	case killLeader, killServer:
		if l := n.c.leader(ctx, "FLEET_TASKS"); f.kind == killLeader && l != "" {
			node = l
		}
		n.c.nodes[node].kill()
		wait()
		return n.c.nodes[node].start(n.w)
	case pauseServer:
		return n.pauses(ctx, f, n.c.nodes[node])
	case cutServer:
		return n.cuts(ctx, f, [][2]string{{node, a}, {a, node}, {node, b}, {b, node}})
	case cutOneWay:
		return n.cuts(ctx, f, [][2]string{{node, a}, {node, b}}[:1+f.other%2])
	case cutAll:
		return n.cuts(ctx, f, [][2]string{{node, a}, {a, node}, {node, b}, {b, node}, {a, b}, {b, a}})
	case slowServer:
		err := n.w.slow(whole, node)
		wait()
		return errors.Join(err, n.w.fast(whole, node))
	case fullDisk:
		return n.fullDisk(ctx, f, node)
	case powerOne:
		return n.power(whole, wait, node)
	case powerAll:
		return n.power(whole, wait, nodeNames...)
	case powerPauses:
		return n.powerPauses(whole, wait, f)
	case stepDown:
		for _, s := range []string{"FLEET_TASKS", "FLEET_CONTEXT", "FLEET_RUNS", "FLEET_WEBHOOKS", "FLEET_AUDIT", "FLEET_MESH_STATE"} {
			_ = n.c.stepDown(ctx, s, "") // there may be none
		}
		return nil
	case rollServers:
		for _, s := range nodeNames {
			n.c.nodes[s].term(20 * time.Second)
			if err := errors.Join(n.c.nodes[s].start(n.w), n.mend(whole)); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%q is no kind of fault", f.kind)
}

// fullDisk fills a server's disk while it works, then mends it as the guide
// says: make room, restart the server.
func (n *nemesis) fullDisk(ctx context.Context, f fault, node string) error {
	n.c.nodes[node].mayEnd()
	err := n.w.fill(node)
	_ = pause(ctx, f.lasts)
	err = errors.Join(err, n.w.free(node))
	n.c.nodes[node].kill()
	return errors.Join(err, n.c.nodes[node].start(n.w))
}

// power takes the power from servers, and gives it back.
func (n *nemesis) power(ctx context.Context, wait func(), nodes ...string) (err error) {
	for _, s := range nodes {
		n.c.nodes[s].mayEnd()
		err = errors.Join(err, n.w.powerOff(s))
	}
	for _, s := range nodes {
		n.c.nodes[s].kill()
	}
	wait()
	for _, s := range nodes {
		err = errors.Join(err, n.w.powerOn(ctx, s))
	}
	for _, s := range nodes {
		err = errors.Join(err, n.c.nodes[s].start(n.w))
	}
	return err
}

// powerPauses makes a majority of one server that has slept and one that has
// lost its power: a follower is paused, the other one loses power, the leader
// is paused, and those two go on without it.
func (n *nemesis) powerPauses(ctx context.Context, wait func(), f fault) error {
	leader := n.c.leader(ctx, "FLEET_TASKS")
	if leader == "" {
		leader = nodeNames[f.target%3]
	}
	var others []string
	for _, s := range nodeNames {
		if s != leader {
			others = append(others, s)
		}
	}
	_, err := n.c.nodes[others[0]].signal(syscall.SIGSTOP, false)
	_ = pause(ctx, time.Second)
	err = errors.Join(err, n.power(ctx, func() {
		_, serr := n.c.nodes[leader].signal(syscall.SIGSTOP, false)
		err = errors.Join(err, serr)
		_, serr = n.c.nodes[others[0]].signal(syscall.SIGCONT, false)
		err = errors.Join(err, serr)
	}, others[1]))
	wait()
	_, serr := n.c.nodes[leader].signal(syscall.SIGCONT, false)
	return errors.Join(err, serr)
}

// mend waits until the servers are well, and a write goes through.
func (n *nemesis) mend(ctx context.Context) error {
	for _, s := range nodeNames {
		err := n.c.nodes[s].start(n.w) // one may have ended by itself
		if err == nil {
			err = n.c.awaitNode(ctx, s, healTime)
		}
		if err != nil {
			return err
		}
	}
	return n.c.awaitCanary(ctx, healTime)
}

// heal makes everything well at last.
func (n *nemesis) heal(ctx context.Context) error {
	if err := n.mend(ctx); err != nil {
		return err
	}
	for _, p := range n.f.all() {
		if err := p.start(n.w); err != nil {
			return err
		}
	}
	return n.f.awaitReady(ctx, healTime)
}

// faultsDone is how often each kind happened.
func (n *nemesis) faultsDone() (done map[string]int, all int, wrong []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, c := range n.done {
		if k != quietKind {
			all += c
		}
	}
	return n.done, all, n.wrong
}
