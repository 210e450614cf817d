package runs

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

// TaskID is the task of a node's generation: always the same one, so that
// whoever dispatches it again dispatches nothing new.
func TaskID(r subjects.RunID, n run.NodeID, generation int) subjects.TaskID {
	return hashed("%s %s %d", r, n, generation)
}

// ItemID is the task of an item of a fan-out in a generation.
func ItemID(r subjects.RunID, n run.NodeID, generation, index int) subjects.TaskID {
	return hashed("%s %s %d %d", r, n, generation, index)
}

func hashed(format string, args ...any) subjects.TaskID {
	sum := sha256.Sum256(fmt.Appendf(nil, format, args...))
	return subjects.TaskID("run-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:20])))
}

// driver carries a run on. Its methods are called by its own goroutine, where
// they do not say otherwise.
type driver struct {
	*Worker
	id   subjects.RunID
	l    *live
	stop context.CancelFunc
	log  *slog.Logger

	box     *box
	heard   map[subjects.TaskID][]byte // ends that are yet to be stored
	told    map[subjects.TaskID]bool   // dispatched by this driver
	fans    map[subjects.TaskID]*fan   // by the id of the node's generation
	begun   map[subjects.TaskID]bool   // fan-outs that this driver has begun: their items are nobody else's
	running sync.WaitGroup             // the fans
	doubts  doubts
	others  map[subjects.TaskID]bool // had been dispatched when this driver took over
	since   time.Time                // when it did
	session session
	counted time.Time // when the items of fan-outs were last written down

	definition []byte    // the run's, in JSON; nil: not encoded yet
	kept       kept      // of results
	unwritten  time.Time // since when the document cannot be left where it is to be; zero: it can
}

func (w *Worker) newDriver(id subjects.RunID, l *live, stop context.CancelFunc) *driver {
	return &driver{
		Worker: w, id: id, l: l, stop: stop, log: w.log.With(slog.String("run_id", string(id))),
		box: newBox(l.kick), heard: map[subjects.TaskID][]byte{}, told: map[subjects.TaskID]bool{}, fans: map[subjects.TaskID]*fan{},
		begun: map[subjects.TaskID]bool{}, kept: newKept(),
	}
}

// run drives until the run ends, or is another worker's.
func (d *driver) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		d.running.Wait()
		for task := range d.told {
			d.listen(task, nil)
		}
	}()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	all := true // ask about every task, whatever was heard
	for {
		select {
		case <-d.l.kick: // what it tells of is seen now
		default:
		}
		rec, rev := d.record(d.l)
		if rec == nil {
			return
		}
		if d.others == nil {
			d.others, d.since = dispatchedIn(rec), time.Now()
		}
		wrote, err := d.turn(ctx, rec, rev, all)
		if ctx.Err() != nil {
			return
		}
		wait := rec.Deadline.Sub(d.now())
		all = err != nil
		switch {
		case err != nil && !errors.Is(err, bus.ErrConflict):
			d.log.Warn("run is looked at again", slog.Any("error", err))
			wait = againAfter
		case err != nil:
			wait = againAfter
		case wrote:
			continue
		}
		timer := time.NewTimer(max(wait, time.Millisecond))
		select {
		case <-ctx.Done():
		case <-d.l.kick:
		case <-poll.C:
			all = true
		case <-timer.C:
		}
		timer.Stop()
	}
}

// dispatchedIn are the tasks of the nodes that are under way.
func dispatchedIn(rec *run.Record) map[subjects.TaskID]bool {
	tasks := map[subjects.TaskID]bool{}
	for _, n := range rec.Nodes {
		if n.State == run.Dispatched {
			tasks[n.TaskID] = true
		}
	}
	return tasks
}

// turn does what a record says, and stores what follows from it and from what
// has ended.
func (d *driver) turn(ctx context.Context, rec *run.Record, rev uint64, all bool) (wrote bool, err error) {
	now := d.now()
	if err := d.storeResults(ctx, rec.RunID); err != nil { // of the last turn
		return false, err
	}
	for _, f := range d.fans {
		f.pause(rec.State == run.Paused)
	}
	if rec.Cancel != "" {
		return d.store(ctx, rec, rev, Cancel(rec, rec.Cancel, now))
	}
	session := d.openSession(ctx, rec)
	ended, err := d.look(ctx, rec, all) // what cannot be done holds up neither the deadline nor other nodes
	opened := session != rec.SessionID
	if opened {
		next := *rec
		next.SessionID = session
		rec = &next
	}
	p, errNext := d.next(ctx, rec, ended, now)
	if errNext != nil {
		return false, errors.Join(err, errNext)
	}
	if p.Record == nil && len(p.Ask) == 0 && (opened || d.count(rec)) {
		next := *rec
		next.Nodes = maps.Clone(rec.Nodes)
		p.Record = &next
	}
	if p.Record == nil {
		return false, err
	}
	for name, n := range p.Record.Nodes {
		if f := d.fans[n.TaskID]; f != nil && n.State == run.Dispatched {
			n.Items = f.items()
			p.Record.Nodes[name] = n
		}
	}
	wrote, errStore := d.store(ctx, rec, rev, p)
	return wrote && err == nil, errors.Join(err, errStore)
}

// next decides what follows, with whatever conditions there are to look at.
func (d *driver) next(ctx context.Context, rec *run.Record, ended []Outcome, now time.Time) (Plan, error) {
	news := News{Ended: ended, Verdicts: map[run.NodeID]Verdict{}}
	for {
		p := Next(rec, news, func(n run.NodeID, generation int) subjects.TaskID { return TaskID(rec.RunID, n, generation) }, now)
		if len(p.Ask) == 0 {
			return p, nil
		}
		as := rec
		if p.Record != nil {
			as = p.Record
		}
		for _, n := range p.Ask {
			v, err := d.judge(ctx, as, n)
			if err != nil {
				return Plan{}, err
			}
			news.Verdicts[n] = v
		}
	}
}

// count reports whether it is time to write down how far the fan-outs are.
func (d *driver) count(rec *run.Record) bool {
	const countEvery = 2 * time.Second
	if time.Since(d.counted) < countEvery {
		return false
	}
	for _, n := range rec.Nodes {
		if f := d.fans[n.TaskID]; f != nil && n.State == run.Dispatched {
			if now := f.items(); now != nil && (n.Items == nil || *n.Items != *now) {
				d.counted = time.Now()
				return true
			}
		}
	}
	return false
}

// store carries out a plan.
func (d *driver) store(ctx context.Context, rec *run.Record, rev uint64, p Plan) (wrote bool, err error) {
	for _, n := range p.Cancel { // before it is written that they are
		if err := d.cancelNode(ctx, rec, n, p.Record); err != nil {
			return false, err
		}
	}
	if p.Record.State.Ended() {
		if err := d.lastResults(ctx, p.Record); err != nil {
			return false, err
		}
		if err := d.leaveOutput(ctx, p.Record); err != nil {
			return false, err
		}
	}
	if d.definition == nil {
		d.definition = fleet.MustEncode(&p.Record.Definition)
	}
	var results error
	var wg sync.WaitGroup
	wg.Go(func() { results = d.storeResults(ctx, rec.RunID) })
	crash.Point("before_run_record")
	err = d.write(ctx, p.Record, rev, d.definition, toldOf(rec, p.Record))
	wg.Wait()
	if err != nil {
		return false, errors.Join(err, results)
	}
	crash.Point("after_run_record")
	for _, name := range p.Dispatch {
		d.begun[p.Record.Nodes[name].TaskID] = true
	}
	if p.Record.State.Ended() {
		d.log.Info("run ended", slog.String("state", string(p.Record.State)), slog.Int64("tokens_spent", p.Record.Tokens))
		d.publishOutput(ctx, p.Record)
	}
	return true, results
}

// write stores a record after rev, with what the audit is told of it; definition
// is the run's, in JSON.
func (w *Worker) write(ctx context.Context, r *run.Record, rev uint64, definition, told []byte) error {
	rec := bus.Record{
		Subject: subjects.Run(r.RunID), Expected: rev, WriteID: uuid.NewString(), Data: r.Encode(definition),
		Header: bus.Header{subjects.HeaderWriter: {string(w.cfg.ID)}, subjects.HeaderKind: {string(r.State)}}, Told: told,
	}
	if r.State.Ended() {
		rec.TTL = keepEnded
	}
	ctx, cancel := context.WithTimeout(ctx, 2*callTry)
	defer cancel()
	over := w.writing(rec.WriteID)
	next, err := w.records.Write(ctx, rec)
	if err == nil {
		w.heard(r, next)
	}
	was := over()
	if err == nil {
		return nil
	}
	// What is stored may be another's, or this after all; what is stored only
	// after this is heard of as any other.
	if was == nil {
		m, lastErr := w.cfg.Bus.Last(ctx, subjects.StreamRuns, rec.Subject)
		if lastErr != nil {
			return err
		}
		was = &m
	}
	read, stop := context.WithTimeout(context.WithoutCancel(ctx), callTry) // ctx may have ended with the write
	defer stop()
	if readErr := w.takeRecord(read, *was); readErr != nil {
		w.log.Warn("record cannot be read", slog.String("subject", was.Subject), slog.Any("error", readErr))
	}
	return err
}

// look dispatches what the record says is dispatched, and finds what has ended:
// of all tasks, or of those of which that was heard.
func (d *driver) look(ctx context.Context, rec *run.Record, all bool) (ended []Outcome, err error) {
	maps.Copy(d.heard, d.box.take())
	defer d.kept.forget()
	var (
		mu     sync.Mutex
		errs   []error
		undone []subjects.TaskID
		wg     sync.WaitGroup
	)
	slots := make(chan struct{}, callsAtOnce)
	begun := 0 // the sequence of those that were dispatched last
	for _, node := range inSequence(&rec.Definition) {
		n := rec.Nodes[node.Name()]
		if n.State != run.Dispatched {
			continue
		}
		if node.FanOut != nil {
			if o := d.fan(ctx, rec, node, n).outcome(); o != nil {
				mu.Lock()
				ended = append(ended, *o)
				mu.Unlock()
			}
			continue
		}
		first, heard := !d.told[n.TaskID], d.heard[n.TaskID]
		if !first && heard == nil && !all {
			continue
		}
		if first && node.Sequence != begun {
			wg.Wait() // they come first in the fleet's queue, too
			begun = node.Sequence
		}
		d.told[n.TaskID] = true
		d.listen(n.TaskID, d.box) // before it is dispatched
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			o, err := d.ask(ctx, rec, node, n.TaskID, first, heard)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				if first {
					undone = append(undone, n.TaskID)
				}
			} else if o != nil {
				ended = append(ended, *o)
			}
		})
	}
	wg.Wait()
	for _, task := range undone {
		delete(d.told, task)
	}
	for _, o := range ended {
		d.listen(o.TaskID, nil)
		delete(d.heard, o.TaskID)
	}
	return ended, errors.Join(errs...)
}

// inSequence are the nodes in the order in which they are dispatched.
func inSequence(d *run.Definition) []*run.Node {
	list := make([]*run.Node, len(d.Agents))
	for i := range d.Agents {
		list[i] = &d.Agents[i]
	}
	slices.SortStableFunc(list, func(a, b *run.Node) int { return a.Sequence - b.Sequence })
	return list
}

// ask dispatches a node's task, if that is yet to be done, and finds out how
// far it is; nil: it has not ended. It may be called concurrently.
func (d *driver) ask(ctx context.Context, rec *run.Record, node *run.Node, task subjects.TaskID, first bool, heard []byte) (*Outcome, error) {
	var e *end
	var err error
	switch {
	case heard != nil:
		if e, err = endOf(heard); err != nil {
			e, err = d.get(ctx, rec.From, task)
		}
	case first:
		var dispatch *fleet.Dispatch
		if dispatch, err = d.dispatchOf(ctx, rec, node, task); err == nil {
			e, err = d.dispatch(ctx, rec.From, dispatch)
		} else if code := subjects.CodeOf(err); !again(code) {
			e, err = refused(err), nil
		}
	default:
		e, err = d.get(ctx, rec.From, task)
	}
	if e == nil || err != nil {
		return nil, err
	}
	d.kept.add(task, e.result)
	return &Outcome{Node: node.Name(), TaskID: task, Status: e.status}, nil
}
