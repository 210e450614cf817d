//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of what follows the faults. A planted bug is not waited for: what
// does not end is found.
const (
	loadTime    = 2 * time.Minute // for clients to see the end of what they began, and half the time of the faults
	quietTime   = 4 * time.Minute // for everything that was acknowledged to come to its end
	plantedTime = 25 * time.Second
	restTime    = 30 * time.Second // for what was needed meanwhile to be given back
)

// settle heals everything, lets clients finish, and waits until nothing is
// left to be done. What does not come to its end is a violation.
func (st *stage) settle(ctx context.Context) (strange []violation) {
	load, quiet := st.patience, quietTime
	if st.planted {
		load, quiet = plantedTime, plantedTime
	}
	wrong := func(invariant, format string, args ...any) {
		strange = append(strange, violation{invariant, "fleet", fmt.Sprintf(format, args...)})
		say("WRONG: %s", strange[len(strange)-1])
	}
	say("heal")
	if err := st.n.heal(ctx); err != nil {
		wrong("23 liveness", "it does not heal: %v", err)
	}
	ended := make(chan struct{})
	go func() { // ends with the load, which abort ends
		st.load.wg.Wait()
		close(ended)
	}()
	limit, cancel := st.w.machine.patient(ctx, load)
	defer cancel()
	select {
	case <-ended:
	case <-ctx.Done():
	case <-limit.Done():
		if ctx.Err() == nil {
			wrong("23 liveness", "clients are not told the end of what they began within %s", load)
			st.abort()
			<-ended
		}
	}
	st.tellCPU()
	say("drain")
	whole := ctx
	ctx, cancel = st.w.machine.patient(ctx, quiet)
	defer cancel()
	d := &drain{c: st.c, next: map[string]uint64{}, states: map[string]string{}, owed: map[string]uint64{}}
	for n := 0; ; n++ {
		left, err := d.left(ctx)
		if err == nil && len(left) == 0 {
			break
		}
		if n%20 == 19 {
			say("left: %s (%v)", strings.Join(left, "; "), err)
		}
		if pause(ctx, 500*time.Millisecond) != nil {
			wrong("23 liveness", "within %s it does not come to rest: %s (%v)", quiet, strings.Join(left, "; "), err)
			break
		}
	}
	if err := st.awaitRest(whole, restTime); err != nil {
		wrong("25 resources", "%v", err)
	}
	_, _, broken := st.n.faultsDone()
	for _, what := range broken {
		wrong("23 liveness", "a fault was not mended: %s", what)
	}
	return strange
}

// tellCPU says who has spent how much of the processor until now.
func (st *stage) tellCPU() {
	var servers, routers, others, agents time.Duration
	for _, p := range st.c.nodes {
		servers += p.cpu()
	}
	for _, p := range st.f.workers {
		if strings.HasPrefix(p.name, "router") {
			routers += p.cpu()
		} else {
			others += p.cpu()
		}
	}
	for _, p := range slices.Concat(st.f.casts, st.f.pools) {
		agents += p.cpu()
	}
	var self unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &self)
	mine := time.Duration(self.Utime.Nano() + self.Stime.Nano())
	n := time.Duration(max(st.load.begun.Load(), 1))
	tell := func(who string, d time.Duration) {
		fmt.Fprintf(os.Stdout, "  %8s  %8s for each task  %s\n", d.Round(100*time.Millisecond), (d / n).Round(10*time.Microsecond), who)
	}
	say("processor time, %d plain tasks since %s:", n, time.Since(st.load.since).Round(time.Second))
	tell("servers", servers)
	tell("routers", routers)
	tell("other workers", others)
	tell("agents", agents)
	tell("clients and faults", mine)
}

// drain looks at what is left to be done.
type drain struct {
	c      *cluster
	next   map[string]uint64 // that is to be read, by stream
	states map[string]string // of tasks
	owed   map[string]uint64 // the last message that the audit is to have a line of, by stream
}

// read reads what is new in a stream.
func (d *drain) read(ctx context.Context, stream string, f func(m *message) error) error {
	last, err := d.c.eachMessage(ctx, stream, d.next[stream], f)
	if err == nil {
		d.next[stream] = last + 1
	}
	return err
}

// left says what is not at its end.
func (d *drain) left(ctx context.Context) (left []string, err error) {
	err = d.read(ctx, "FLEET_TASKS", func(m *message) error {
		var r struct {
			State string `json:"state"`
		}
		bad := json.Unmarshal(m.Data, &r)
		d.states[m.Subject], d.owed["FLEET_TASKS"] = r.State, m.Seq
		return bad
	})
	if err != nil {
		return nil, err
	}
	open := map[string]int{}
	example := ""
	for id, s := range d.states {
		if !terminal(s) {
			open[s]++
			example = id
		}
	}
	if len(open) > 0 {
		left = append(left, fmt.Sprintf("tasks %v, such as %s", open, example))
	}
	inbox, err := d.c.js.Consumer(ctx, "FLEET_INBOX", "routers")
	if err != nil {
		return nil, err
	}
	if n := inbox.CachedInfo().NumPending + uint64(inbox.CachedInfo().NumAckPending); n > 0 {
		left = append(left, fmt.Sprintf("%d in the inbox", n))
	}
	letters, err := d.letters(ctx)
	if err != nil {
		return nil, err
	}
	if letters > 0 {
		left = append(left, fmt.Sprintf("%d letters", letters))
	}
	clocks, err := d.clocks(ctx)
	if err != nil {
		return nil, err
	}
	if clocks > 0 {
		left = append(left, fmt.Sprintf("%d schedules", clocks))
	}
	calls, err := d.calls(ctx)
	if err != nil {
		return nil, err
	}
	if calls > 0 {
		left = append(left, fmt.Sprintf("%d alerts and calls", calls))
	}
	behind, err := d.audit(ctx)
	if behind != "" {
		left = append(left, behind)
	}
	return left, err
}

// letters counts those that have not come to an end.
func (d *drain) letters(ctx context.Context) (n int, err error) {
	var list []message
	if _, err := d.c.eachMessage(ctx, "FLEET_MESH_STATE", 1, func(m *message) error {
		list = append(list, *m)
		return nil
	}); err != nil {
		return 0, err
	}
	for _, s := range letterStates(list) {
		if !letterEnds[s] && s != "unanswered" {
			n++
		}
	}
	return n, nil
}

// clocks counts the schedules that have something to begin.
func (d *drain) clocks(ctx context.Context) (n int, err error) {
	var list []message
	if _, err := d.c.eachMessage(ctx, "KV_FLEET_SCHEDULES", 1, func(m *message) error {
		list = append(list, *m)
		return nil
	}); err != nil {
		return 0, err
	}
	for _, r := range clockRecords(list) {
		if r.busy() {
			n++
		}
	}
	return n, nil
}

// calls counts the alerts that are open, and the calls that have not arrived: what
// becomes of them the audit tells, too.
func (d *drain) calls(ctx context.Context) (n int, err error) {
	open := map[string]bool{} // by subject, or id of a call
	for _, s := range []string{"KV_FLEET_ALERTS", "FLEET_WEBHOOKS"} {
		if _, err := d.c.eachMessage(ctx, s, 1, func(m *message) error {
			var is struct {
				State string `json:"state"`
			}
			token := strings.Split(m.Subject, ".")
			switch {
			case strings.HasPrefix(m.Subject, "$KV.FLEET_ALERTS.alert."):
				open[m.Subject] = len(m.Data) > 0 && json.Unmarshal(m.Data, &is) == nil && is.State != "resolved"
			case token[1] == "webhookevent":
				open[token[2]] = json.Unmarshal(m.Data, &is) == nil && is.State == "pending"
			case token[1] == "webhook":
				if _, tried := open[token[3]]; !tried {
					open[token[3]] = true
				}
			}
			return nil
		}); err != nil {
			return 0, err
		}
	}
	for _, is := range open {
		if is {
			n++
		}
	}
	return n, nil
}

// audit says how far the audit is behind.
func (d *drain) audit(ctx context.Context) (string, error) {
	for _, a := range audited[1:] { // records of tasks have been read
		err := d.read(ctx, a.stream, func(m *message) error {
			if strings.HasPrefix(m.Subject, a.prefix) && len(m.Data) > 0 { // no marker of an end
				d.owed[a.stream] = m.Seq
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	s, err := d.c.js.Stream(ctx, "FLEET_AUDIT")
	if err != nil {
		return "", err
	}
	m, err := s.GetLastMsgForSubject(ctx, "fleet.audit")
	if err != nil {
		return "", err
	}
	var b struct {
		Positions map[string]uint64 `json:"positions"`
	}
	if err := json.Unmarshal(m.Data, &b); err != nil {
		return "", err
	}
	for stream, seq := range d.owed {
		if b.Positions[stream] >= seq {
			continue
		}
		if gone, err := d.gone(ctx, stream, seq); err != nil || !gone {
			return fmt.Sprintf("the audit is at %d of %d of %s", b.Positions[stream], seq, stream), err
		}
		delete(d.owed, stream) // before the audit could read it
	}
	return "", nil
}

// gone reports whether a message has been purged.
func (d *drain) gone(ctx context.Context, stream string, seq uint64) (gone bool, err error) {
	gone = true
	_, err = d.c.eachMessage(ctx, stream, seq, func(m *message) error {
		gone = gone && m.Seq != seq
		return nil
	})
	return gone, err
}

// collect reads the streams, from each server, and what processes have said.
func (st *stage) collect(ctx context.Context) (*findings, error) {
	say("read the streams")
	ctx, cancel := context.WithTimeout(ctx, quietTime)
	defer cancel()
	for _, s := range dumped {
		if _, err := st.c.dump(ctx, s); err != nil {
			return nil, fmt.Errorf("read %s: %w", s, err)
		}
	}
	sums := map[string]map[string]string{}
	for _, s := range []string{"FLEET_TASKS", "FLEET_CONTEXT"} {
		if st.planted {
			break // replicas are not what is tried
		}
		for range 3 { // somebody may purge meanwhile
			var err error
			if sums[s], err = st.c.sums(ctx, s); err != nil {
				return nil, err
			}
			if same(sums[s]) || pause(ctx, 5*time.Second) != nil {
				break
			}
		}
	}
	if err := keep(st.w.dir, sumsFile, sums); err != nil {
		return nil, err
	}
	if err := st.w.machine.keep(st.w.dir); err != nil {
		return nil, err
	}
	f, err := readFindings(st.w.dir)
	if err != nil {
		return nil, err
	}
	for _, p := range slices.Concat(st.f.all(), slices.Collect(maps.Values(st.c.nodes))) {
		f.strange = append(f.strange, p.oddities()...)
		data, err := os.ReadFile(p.log())
		if err != nil {
			return nil, err
		}
		f.strange = append(f.strange, oddWords(p.name, data)...)
	}
	return f, nil
}

// oddWords is what a process has said that none ever should.
func oddWords(name string, log []byte) (odd []violation) {
	for _, bad := range []string{"DATA RACE", "panic: ", "panicked", "fatal error: "} {
		if at := bytes.Index(log, []byte(bad)); at >= 0 {
			odd = append(odd, violation{"0 processes", name, string(log[at:min(at+1500, len(log))])})
		}
	}
	return odd
}

// same reports whether all servers hold the same.
func same(sums map[string]string) bool {
	for _, s := range sums {
		if s != sums[nodeNames[0]] {
			return false
		}
	}
	return true
}

// done is how often each kind of fault happened.
func (f *findings) done() (by map[string]int, all int) {
	by = map[string]int{}
	for _, o := range f.faults {
		if o.Op != quietKind {
			by[o.Op]++
			all++
		}
	}
	return by, all
}

// summary says what was looked at.
func (f *findings) summary() {
	by, all := f.done()
	from, to := f.span()
	say("in %s %d faults of %d kinds; %d tasks (%d acknowledged dispatches), %.0f a second; %d violations", to.Sub(from).Round(time.Second),
		all, len(by), f.counts["tasks"], f.counts["acknowledged dispatches"], float64(f.counts["tasks"])/max(to.Sub(from).Seconds(), 1), len(f.found))
	for _, k := range slices.Sorted(maps.Keys(by)) {
		fmt.Fprintf(os.Stdout, "  %4d  %s\n", by[k], k)
	}
	if away, _ := f.absent(); away > 0 {
		say("the machine was away for %s of that; whoever is late then is not called so", away.Round(time.Second))
	}
	say("looked at:")
	for _, k := range slices.Sorted(maps.Keys(f.counts)) {
		fmt.Fprintf(os.Stdout, "  %7d  %s\n", f.counts[k], k)
	}
	ends, codes := map[string]int{}, map[string]int{}
	for id := range f.records {
		last := f.records.Last(id)
		ends[last.State]++
		for _, a := range last.Facts.Attempts {
			codes[a.Code]++
		}
	}
	say("tasks ended %v; attempts failed %v", ends, codes)
	f.tellGaps()
	if all, done := f.toiled(); all > 0 {
		say("%d of %d tasks are done whose agents were only killed, paused, restarted and limited: %.2f %%", done, all, 100*float64(done)/float64(all))
	}
}

// span is from the first dispatch that was asked for to the last one that was
// acknowledged.
func (f *findings) span() (from, to time.Time) {
	for _, o := range f.ops {
		if o.Op != "dispatch" || !o.ok() {
			continue
		}
		if at := time.Unix(0, o.from); from.IsZero() || at.Before(from) {
			from = at
		}
		if at := time.Unix(0, o.to); at.After(to) {
			to = at
		}
	}
	return from, to
}
