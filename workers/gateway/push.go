package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
)

// maxPushConfigs is how many configs a task may have.
const maxPushConfigs = 16

// pushConfig is a push notification config, as the bucket FLEET_PUSH keeps it
// under pushKey until the task's records go. Sent says how far its receiver has
// been told: what lies behind it is in the outbox of the webhooks.
type pushConfig struct {
	ID          string           `json:"id"`
	TaskID      subjects.TaskID  `json:"task_id"`
	From        subjects.AgentID `json:"from"`
	Tenant      string           `json:"tenant,omitempty"`
	URL         string           `json:"url"`
	Token       string           `json:"token,omitempty"`
	Scheme      string           `json:"scheme,omitempty"`
	Credentials string           `json:"credentials,omitempty"`
	Reports     bool             `json:"reports,omitempty"` // its caller has activated the extension
	Sent        uint64           `json:"sent"`
	Done        bool             `json:"done,omitempty"` // the end of the task was told, too
	Until       time.Time        `json:"until"`          // the records may be gone then
}

// pushKey is where a config is kept: ids of clients need not be keys.
func pushKey(task subjects.TaskID, id string) string {
	sum := sha256.Sum256([]byte(id))
	return string(task) + "." + hex.EncodeToString(sum[:16])
}

// kept is a config with its revision.
type kept struct {
	pushConfig
	rev uint64
}

// pusher tells receivers of their tasks: for every record of a task that has
// configs it puts what a stream would tell into the outbox of the webhooks. All
// replicas do so; the outbox takes each delivery once.
type pusher struct {
	w  *Worker
	kv *bus.KV

	mu      sync.Mutex
	configs map[subjects.TaskID]map[string]kept // by key
	heard   map[subjects.TaskID]uint64          // the latest record of a task that has configs, where it is known
	dirty   map[subjects.TaskID]bool
	left    bool // not all that was dirty was taken
	busy    map[subjects.TaskID]bool
	wake    chan struct{} // capacity 1

	lost     int // configs that are gone and were not told all, since that was said; guarded by mu, too
	lostSaid time.Time

	outbox   shared[bus.StreamState]
	taken    atomic.Uint64 // bytes of the outbox, since it was asked for
	roomless roomless
}

func newPusher(w *Worker) *pusher {
	return &pusher{
		w: w, configs: make(map[subjects.TaskID]map[string]kept),
		heard: make(map[subjects.TaskID]uint64), dirty: make(map[subjects.TaskID]bool), busy: make(map[subjects.TaskID]bool), wake: make(chan struct{}, 1),
	}
}

// mark says that a task may have something to tell: its record seq, 0 where it is
// not known which. It has not where everybody was told of its end, as of most tasks
// that a gateway reads of when it starts.
func (p *pusher) mark(task subjects.TaskID, seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.configs[task]
	if len(of) == 0 {
		return
	}
	if seq > 0 {
		p.heard[task] = seq
	}
	for _, k := range of {
		if !k.Done {
			p.dirty[task] = true
			p.kick()
			return
		}
	}
}

func (p *pusher) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// onEntry takes in a change of the bucket.
func (p *pusher) onEntry(e bus.Entry) {
	task, _, ok := strings.Cut(e.Key, ".")
	if !ok {
		return
	}
	id := subjects.TaskID(task)
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Deleted {
		if k, known := p.configs[id][e.Key]; known && !k.Done && time.Until(k.Until) < time.Minute { // nobody deleted it
			p.lost++
		}
		delete(p.configs[id], e.Key)
		if len(p.configs[id]) == 0 {
			delete(p.configs, id)
			delete(p.heard, id)
		}
		return
	}
	k := kept{rev: e.Revision}
	if err := k.read(e); err != nil {
		p.kv.Skip(e, err)
		return
	}
	p.learn(e.Key, k)
}

// read reads an entry of the bucket.
func (k *kept) read(e bus.Entry) error {
	if err := json.Unmarshal(e.Value, &k.pushConfig); err != nil {
		return err
	}
	if task, _, _ := strings.Cut(e.Key, "."); string(k.TaskID) != task {
		return subjects.Misplaced("task")
	}
	return nil
}

// learn needs the lock. A config that is new, or took the place of another one, may
// have something to tell at once.
func (p *pusher) learn(key string, k kept) {
	of := p.configs[k.TaskID]
	if of == nil {
		of = make(map[string]kept)
		p.configs[k.TaskID] = of
	}
	was, known := of[key]
	if known && was.rev >= k.rev {
		return
	}
	of[key] = k
	if !k.Done && (!known || was.From != k.From || was.Sent >= k.Sent) {
		p.dirty[k.TaskID] = true
		p.kick()
	}
}

// pushers is how many tasks are told of at a time, and pushRetry how long one
// rests after a failure.
const (
	pushers   = 8
	pushRetry = time.Second
)

// run tells until ctx ends, or the configs can be watched no more.
func (p *pusher) run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer fail(nil)
	wg.Go(func() {
		if err := p.kv.Watch(ctx, p.onEntry); err != nil {
			fail(fmt.Errorf("watch push configs: %w", err))
		}
	})
	slots := make(chan struct{}, pushers)
	retry := time.NewTicker(pushRetry)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.wake:
		case <-retry.C:
			p.sayLost(time.Now())
		}
		for _, task := range p.take(time.Now()) {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			wg.Go(func() {
				err := p.push(ctx, task)
				<-slots
				p.done(ctx, task, err)
			})
		}
	}
}

// take is what is dirty and not in hand, as many as may be told of at now; it is in
// hand then.
func (p *pusher) take(now time.Time) []subjects.TaskID {
	most := p.roomless.most(now)
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []subjects.TaskID
	p.left = false
	for task := range p.dirty {
		if p.busy[task] {
			continue
		}
		if p.left = len(out) == most; p.left {
			break
		}
		out = append(out, task)
		p.busy[task] = true
		delete(p.dirty, task)
	}
	return out
}

// done frees a task; one that failed is tried again at the next tick.
func (p *pusher) done(ctx context.Context, task subjects.TaskID, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, task)
	if err != nil && ctx.Err() == nil {
		p.dirty[task] = true
		if errors.Is(err, errNoRoom) {
			return // that is told once for all
		}
		p.w.log.Warn("push notifications wait", slog.String("task_id", string(task)), slog.Any("error", err))
		return
	}
	if p.dirty[task] || p.left {
		p.kick()
	}
}

// stored reads the configs of a task: one that was deleted hears nothing more.
func (p *pusher) stored(ctx context.Context, task subjects.TaskID) (map[string]kept, error) {
	entries, err := p.kv.Entries(ctx, string(task)+".*")
	if err != nil {
		return nil, err
	}
	all := make(map[string]kept)
	for _, e := range entries {
		k := kept{rev: e.Revision}
		if err := k.read(e); err != nil {
			p.kv.Skip(e, err)
			continue
		}
		all[e.Key] = k
	}
	return all, nil
}

// news is what a stream tells of one record.
type news struct {
	seq    uint64
	frames []frame
}

// callers are those who have configs of a task, and heard is the latest of its
// records, where it is known.
func (p *pusher) callers(task subjects.TaskID) (callers []subjects.AgentID, heard uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.configs[task] {
		if !slices.Contains(callers, k.From) {
			callers = append(callers, k.From)
		}
	}
	return callers, p.heard[task]
}

// push puts what the receivers of a task have not been told into the outbox.
func (p *pusher) push(ctx context.Context, task subjects.TaskID) error {
	callers, heard := p.callers(task)
	if len(callers) == 0 {
		return nil
	}
	if !p.roomless.mayTell(time.Now()) {
		return errNoRoom
	}
	if err := p.room(ctx, 0); err != nil {
		return err
	}
	var failed error
	for _, from := range callers {
		err := p.pushAs(ctx, from, task, heard)
		if errors.Is(err, errNoRoom) {
			return err
		}
		failed = errors.Join(failed, err)
	}
	if failed == nil {
		p.roomless.told(false, time.Now())
	}
	return failed
}

// pushAs does so for the receivers of one caller, by what that one sees: of callers
// who see a task one may see it no more. Configs are read after the records: one
// that is deleted before something happens hears nothing of it.
func (p *pusher) pushAs(ctx context.Context, from subjects.AgentID, task subjects.TaskID, heard uint64) error {
	var all []news
	var last *fleet.Event
	pic := &picture{reports: true}
	err := p.w.events(ctx, from, task, 0, func(ev *fleet.Event) error {
		last = ev
		all = append(all, news{ev.Seq, pic.add(ev)})
		return nil
	})
	gone := err != nil && asFault(err).kind == kindTaskNotFound
	if err != nil && !gone {
		return err
	}
	if !gone && heard > 0 && (last == nil || last.Seq < heard) {
		return fmt.Errorf("%d records came, and %d was heard of", len(all), heard)
	}
	configs, err := p.stored(ctx, task)
	if err != nil {
		return err
	}
	maps.DeleteFunc(configs, func(_ string, k kept) bool { return k.From != from })
	if gone {
		return p.drop(ctx, configs)
	}
	for _, key := range slices.Sorted(maps.Keys(configs)) {
		if err := p.tellAll(ctx, key, configs[key], all, last); err != nil {
			return err
		}
	}
	return nil
}

// tellAll tells one receiver what it has not been told.
func (p *pusher) tellAll(ctx context.Context, key string, k kept, all []news, last *fleet.Event) error {
	if k.Done {
		return nil
	}
	for _, n := range all {
		if n.seq <= k.Sent {
			continue
		}
		for i, f := range n.frames {
			if !k.Reports {
				f.msg = withoutReport(f.msg)
			}
			if err := p.tell(ctx, fmt.Sprintf("%s %d %d", key, n.seq, i), &k.pushConfig, last.Trace(), f); err != nil {
				return err
			}
		}
	}
	return p.told(ctx, key, k, last)
}

// told notes how far a receiver has been told. Whoever else has noted more was
// faster, and is right.
func (p *pusher) told(ctx context.Context, key string, k kept, last *fleet.Event) error {
	if last == nil || last.Seq <= k.Sent {
		return nil
	}
	k.Sent, k.Done, k.Until = last.Seq, last.State.Terminal(), until(last)
	rev, err := p.kv.UpdateFor(ctx, key, fleet.MustEncode(k.pushConfig), k.rev, max(time.Until(k.Until), time.Minute))
	if errors.Is(err, bus.ErrConflict) {
		return nil
	}
	if err != nil {
		return err
	}
	crash.Point("after_push_noted")
	k.rev = rev
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, still := p.configs[k.TaskID][key]; still {
		p.learn(key, k)
	}
	return nil
}

// drop removes a caller's configs of a task whose records are gone for that one, as
// all replicas do.
func (p *pusher) drop(ctx context.Context, configs map[string]kept) error {
	for key, k := range configs {
		ended := k
		ended.Done = true // so that onEntry does not count it too
		p.mu.Lock()
		if p.configs[k.TaskID][key].rev <= k.rev {
			delete(p.configs[k.TaskID], key)
			p.learn(key, ended)
		}
		p.mu.Unlock()
		err := p.kv.DeleteRevision(ctx, key, k.rev)
		if err != nil && !errors.Is(err, bus.ErrConflict) {
			return err
		}
		if err == nil && !k.Done {
			p.mu.Lock()
			p.lost++
			p.mu.Unlock()
		}
	}
	return nil
}

// remove deletes a caller's config, if there is one.
func (p *pusher) remove(ctx context.Context, from subjects.AgentID, task subjects.TaskID, id string) error {
	key := pushKey(task, id)
	for range setTries {
		all, err := p.stored(ctx, task)
		if err != nil {
			return err
		}
		k, there := all[key]
		if !there || k.From != from {
			return nil
		}
		if err := p.kv.DeleteRevision(ctx, key, k.rev); !errors.Is(err, bus.ErrConflict) {
			crash.Point("after_push_remove")
			return err
		}
	}
	return changing()
}
