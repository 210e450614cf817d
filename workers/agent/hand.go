package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// How long a CANCEL for a task that is not in hand is remembered: an offer that
// timed out at the router may still be on its way here, behind its CANCEL.
const rememberCancel = 10 * time.Second

// mostOnTheWay is how long a result may be on its way before heartbeats name
// its task again: less than a lease, more than an answer takes.
const mostOnTheWay = 500 * time.Millisecond

// phase is how far a task in hand has come.
type phase int

const (
	checking phase = iota // has a slot; the offer is not answered yet
	working               // accepted; the handler runs, or is about to
	handing               // the handler has returned; its result is on its way
)

// held is one task in hand: from the reservation of its slot until its result
// was answered or is of no use any more.
type held struct {
	// fixed
	id       subjects.TaskID
	task     *Task
	limit    time.Duration           // per attempt
	cancel   context.CancelCauseFunc // of the handler's context
	deadline time.Time               // of the task

	// guarded by hand.mu
	phase     phase
	attempt   int
	offers    map[string]bool  // ids of the offers of that attempt by which it was accepted
	moved     context.Context  //nolint:containedctx // ends, and is replaced, when attempt changes
	move      func()           // ends moved
	aborted   error            // why the handler was canceled
	drop      func(error)      // stops handing in
	result    *fleet.Result    // since handing
	returned  time.Time        // since when it is handing
	toldOf    bool             // a heartbeat named it while handing
	clock     *time.Timer      // ends the attempt; nil while it stands
	clockEnds time.Time        // when it runs
	clockLeft time.Duration    // while it stands
	asking    int              // questions open: the clock stands
	questions map[string]*open // by id
	answered  map[string]bool  // ids of questions that have been answered
	followUps []fleet.Message  // those of the offer first
	followed  chan struct{}    // closed and replaced when there is another one

	pace pace // has its own lock

	lent  atomic.Int64 // tokens that agents it has asked have spent
	spent atomic.Int64 // tokens that the handler said it has spent so far
}

// open is a question that waits for its answer.
type open struct {
	answer  chan fleet.Answer // of capacity 1
	arrived func()            // called once the answer is in
}

// hand is everything an instance has in hand, and what it takes more.
type hand struct {
	max      int           // handlers at once; fixed
	onTheWay time.Duration // how long heartbeats do not name what is handed in; fixed

	mu        sync.Mutex
	tasks     map[subjects.TaskID]*held
	running   int // tasks that are not handing
	draining  bool
	unwell    string // why nothing can be done just now; "" it can
	stopping  bool
	idle      chan struct{} // closed when stopping and no handler runs
	emptied   chan struct{} // closed when stopping and nothing is in hand
	tombs     map[subjects.TaskID]tomb
	canceled  map[string]time.Time // ids of offers that were canceled before they came, until when that is remembered
	swept     time.Time            // when the old ones were last removed
	worked    bool                 // a task has been accepted
	beat      chan struct{}        // asks for a heartbeat; capacity 1
	announced chan struct{}        // asks for an announce; capacity 1
}

// tomb remembers a CANCEL for a task that was not in hand, or a task that was in
// hand until lately.
type tomb struct {
	attempt int  // offers up to this one are canceled; 0: all
	left    bool // it was in hand: nothing is canceled, and a CANCEL means what it was
	until   time.Time
}

func (t tomb) buries(attempt int) bool { return !t.left && (t.attempt == 0 || attempt <= t.attempt) }

func newHand(maxTasks int, heartbeat time.Duration) *hand {
	return &hand{
		max: maxTasks, onTheWay: min(mostOnTheWay, heartbeat),
		tasks: make(map[subjects.TaskID]*held),
		tombs: make(map[subjects.TaskID]tomb), canceled: make(map[string]time.Time),
		idle: make(chan struct{}), emptied: make(chan struct{}),
		beat: make(chan struct{}, 1), announced: make(chan struct{}, 1),
	}
}

// kick leaves a note in a channel of capacity 1.
func kick(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// admission is what becomes of an offer.
type admission int

const (
	refuseBusy admission = iota // agent_busy, for the reason given
	takeOver                    // in hand already: accepted again
	reserved                    // has a slot now: to be accepted
)

// admit decides on an offer for h.id under the lock, so that slots are never
// given twice. h is the task to put in hand if there is room; check says why it
// must be refused, given that it would be new.
func (a *hand) admit(h *held, now time.Time, check func() *fleet.ResultError) (admission, string, *fleet.ResultError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Before(a.canceled[firstOf(h.offers)]) {
		return refuseBusy, "the offer was canceled before it came", nil
	}
	if was := a.tasks[h.id]; was != nil {
		switch a.againLocked(was, h, now) {
		case takeOver:
			return takeOver, "", nil
		case refuseBusy:
			return refuseBusy, "the task is still in hand here", nil
		case reserved: // its last result is detached; the task begins anew
		}
	}
	a.sweepLocked(now)
	t, known := a.tombs[h.id]
	switch {
	case a.stopping:
		return refuseBusy, "the agent is stopping", nil
	case a.draining:
		return refuseBusy, "the agent is draining", nil
	case a.unwell != "":
		return refuseBusy, a.unwell, nil
	case known && now.Before(t.until) && t.buries(h.attempt):
		return refuseBusy, "the offer was canceled before it came", nil
	}
	if e := check(); e != nil {
		return refuseBusy, "", e
	}
	if a.running >= a.max || len(a.tasks) >= min(2*a.max, maxParallel) {
		return refuseBusy, "every slot is taken", nil
	}
	a.tasks[h.id] = h
	a.running++
	a.worked = true
	return reserved, "", nil
}

// againLocked decides on an offer, h, of a task that is already in hand.
// reserved means that what was in hand is detached: it still hands in its
// result, but that is not what a new attempt asks for.
func (a *hand) againLocked(was, h *held, now time.Time) admission {
	switch {
	case h.attempt < was.attempt, was.phase == checking:
		return refuseBusy
	case was.phase == working && (was.aborted != nil || was.expired(now)):
		return refuseBusy // it is on its way out
	case was.phase == handing && h.attempt > was.attempt && (!succeeded(was.result) || h.task.wasInvalid()):
		a.forgetLocked(was)
		return reserved
	}
	if h.attempt > was.attempt {
		was.attempt, was.offers = h.attempt, map[string]bool{}
		was.move()
		was.moved, was.move = context.WithCancel(context.Background())
		was.clockLeft = was.limit
		if was.phase == working && was.asking == 0 {
			was.stopClockLocked()
			a.runClockLocked(was)
		}
	}
	maps.Copy(was.offers, h.offers)
	return takeOver
}

func succeeded(r *fleet.Result) bool {
	return r.Status == fleet.StatusDone || r.Status == fleet.StatusPartial
}

func (h *held) expired(now time.Time) bool { return !now.Before(h.deadline) }

// runClockLocked lets the attempt's time run from what is left of it.
func (a *hand) runClockLocked(h *held) {
	h.clockEnds = time.Now().Add(h.clockLeft)
	var t *time.Timer
	t = time.AfterFunc(h.clockLeft, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if h.clock == t { // not stopped meanwhile
			h.abortLocked(ErrTimeout)
		}
	})
	h.clock = t
}

func (h *held) stopClockLocked() {
	if h.clock != nil {
		h.clock.Stop()
		h.clock = nil
	}
}

// begin makes a reserved task one that is worked on. It fails when a CANCEL
// came first.
func (a *hand) begin(h *held) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.aborted != nil {
		return h.aborted
	}
	h.phase, h.clockLeft = working, h.limit
	a.runClockLocked(h)
	return nil
}

// finish moves h to handing r in; drop stops that. The slot is free from here.
func (a *hand) finish(h *held, r *fleet.Result, drop func(error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h.stopClockLocked()
	h.phase, h.result, h.drop, h.returned = handing, r, drop, time.Now()
	a.running--
	a.emptyLocked()
}

// forget takes h out of the hand.
func (a *hand) forget(h *held) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgetLocked(h)
}

func (a *hand) forgetLocked(h *held) {
	if a.tasks[h.id] != h {
		return
	}
	delete(a.tasks, h.id)
	h.cancel(errGone)
	h.stopClockLocked()
	if h.phase != handing {
		a.running--
	}
	if h.toldOf || h.aborted != nil {
		kick(a.beat) // routers believe it in hand until they hear otherwise
	}
	if h.aborted != nil {
		now := time.Now()
		a.sweepLocked(now)
		a.tombs[h.id] = tomb{left: true, until: now.Add(rememberCancel)}
	}
	a.emptyLocked()
}

// emptyLocked closes idle and emptied when it is time.
func (a *hand) emptyLocked() {
	if !a.stopping {
		return
	}
	if a.running == 0 {
		closeOnce(a.idle)
	}
	if len(a.tasks) == 0 {
		closeOnce(a.emptied)
	}
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// stop refuses new tasks from now on. idle is closed once no handler runs,
// emptied once nothing at all is in hand.
func (a *hand) stop() (idle, emptied <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopping = true
	a.emptyLocked()
	kick(a.beat)
	kick(a.announced)
	return a.idle, a.emptied
}

func (a *hand) isStopping() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stopping
}

// abort cancels every handler.
func (a *hand) abort(cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.tasks {
		h.abortLocked(cause)
	}
}

func (h *held) abortLocked(cause error) {
	if h.phase == handing {
		return
	}
	if h.aborted == nil {
		h.aborted = cause
	}
	h.cancel(cause)
}

// spend notes what the handler of h says that it has spent so far, and ends the
// attempt if that is more than it may.
func (a *hand) spend(h *held, tokens int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h.spent.Store(max(h.spent.Load(), tokens))
	if b := h.task.budget(); b > 0 && h.spent.Load()+h.lent.Load() > b {
		h.abortLocked(ErrBudget)
	}
}

// recall drops a task at a router's word; false when it is not in hand, which
// is remembered for a while. A CANCEL of an offer ends what was accepted by it and
// by no other; one of an attempt ends that, whichever offer began it.
func (a *hand) recall(c *fleet.Control, cause error, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	id, attempt := c.TaskID, c.Attempt
	h := a.tasks[id]
	if c.OfferID != "" {
		a.sweepLocked(now)
		a.canceled[c.OfferID] = now.Add(rememberCancel)
	}
	switch {
	case h == nil && c.OfferID != "":
		return false
	case h == nil:
		a.sweepLocked(now)
		if t, known := a.tombs[id]; !known || !t.left || !now.Before(t.until) {
			a.tombs[id] = tomb{attempt: attempt, until: now.Add(rememberCancel)}
		}
		return false
	case c.OfferID != "" && !h.withoutLocked(c.OfferID):
		return true // it is in hand by another offer
	case attempt != 0 && attempt < h.attempt:
		return true // meant for an earlier attempt
	case h.phase == handing:
		h.drop(cause)
	default:
		h.abortLocked(cause)
	}
	return true
}

// withoutLocked takes the acceptance of an offer back, and reports whether it was
// the last one.
func (h *held) withoutLocked(offer string) bool {
	known := h.offers[offer]
	delete(h.offers, offer)
	return known && len(h.offers) == 0
}

func (a *hand) sweepLocked(now time.Time) {
	if now.Sub(a.swept) < rememberCancel/10 {
		return
	}
	a.swept = now
	maps.DeleteFunc(a.tombs, func(_ subjects.TaskID, t tomb) bool { return !now.Before(t.until) })
	maps.DeleteFunc(a.canceled, func(_ string, until time.Time) bool { return !now.Before(until) })
}

// drain refuses new tasks while on.
func (a *hand) drain(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.draining = on
	kick(a.beat)
	kick(a.announced)
}

// holding lists what is in hand, by task id, for a heartbeat or an announce. A
// result that has only just been handed in is not: the heartbeat would come
// behind it, and routers would believe the slot taken until the next one.
func (a *hand) holding() (list []fleet.Holding, draining, fresh bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for id, h := range a.tasks {
		if h.phase == checking || h.phase == handing && now.Sub(h.returned) < a.onTheWay {
			continue
		}
		h.toldOf = h.toldOf || h.phase == handing
		list = append(list, fleet.Holding{
			TaskID: id, Attempt: h.attempt, OfferID: firstOf(h.offers), TokensSpent: h.spent.Load() + h.lent.Load(),
		})
	}
	slices.SortFunc(list, func(x, y fleet.Holding) int { return compare(x.TaskID, y.TaskID) })
	return list, a.draining || a.stopping || a.unwell != "", !a.worked
}

// firstOf is the first of a set of ids; "" of an empty one.
func firstOf(ids map[string]bool) string {
	if len(ids) == 0 {
		return ""
	}
	return slices.Min(slices.Collect(maps.Keys(ids)))
}

func compare(x, y subjects.TaskID) int {
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// turn is the attempt that h stands for now, and what ends when it changes.
func (a *hand) turn(h *held) (attempt int, moved context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return h.attempt, h.moved
}

// ask opens a question and stops the attempt's clock.
func (a *hand) ask(h *held, id string, q *open) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.questions[id] != nil || h.answered[id] {
		return errors.New("a question of this id was asked before")
	}
	h.questions[id] = q
	if h.asking++; h.asking == 1 {
		h.stopClockLocked()
		h.clockLeft = max(time.Until(h.clockEnds), 0)
	}
	return nil
}

// asked closes a question and lets the clock run on.
func (a *hand) asked(h *held, id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(h.questions, id)
	if h.asking--; h.asking == 0 && h.phase == working && a.tasks[h.id] == h {
		a.runClockLocked(h)
	}
}

// followUpLocked keeps a follow-up for the handler; one that it has is ignored.
func (h *held) followUpLocked(m fleet.Message) {
	if slices.ContainsFunc(h.followUps, func(old fleet.Message) bool { return old.ID == m.ID }) {
		return
	}
	h.followUps = append(h.followUps, m)
	close(h.followed)
	h.followed = make(chan struct{})
}

// followUp is the n-th follow-up, or what is closed when there is another one.
func (a *hand) followUp(h *held, n int) (*fleet.Message, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n < len(h.followUps) {
		return &h.followUps[n], nil
	}
	return nil, h.followed
}

// input gives an answer to the question it is for, or a follow-up to the task;
// a repeated one is
// taken and ignored. false when no such question was asked.
func (a *hand) input(c *fleet.Control) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.tasks[c.TaskID]
	if h == nil {
		return false
	}
	if c.ID != "" {
		h.followUpLocked(fleet.Message{ID: c.ID, Text: c.Text, Parts: c.Parts})
		return true
	}
	if h.answered[c.QuestionID] {
		return true
	}
	q := h.questions[c.QuestionID]
	if q == nil {
		return false
	}
	h.answered[c.QuestionID] = true
	q.answer <- fleet.Answer{QuestionID: c.QuestionID, Text: c.Text, Parts: c.Parts}
	q.arrived()
	return true
}
