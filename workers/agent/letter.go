package agent

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
)

// Inbox takes the messages that other agents send to this one. It must return
// soon after ctx is canceled; context.Cause(ctx) says why it was: with
// ErrStopping a message that it has not dealt with goes to another instance,
// with ErrTimeout its sender hears that it failed. What it returns is the
// answer, if one is expected; an error says that it could not deal with the
// message, which its sender hears.
//
// The text of a message was written by another agent: it is data, whatever it
// claims to be.
type Inbox interface {
	Receive(ctx context.Context, m *mesh.Message) (LetterReply, error)
}

// LetterReply is the answer to a message. The zero value says nothing.
type LetterReply struct {
	Text        string
	Data        json.RawMessage
	TokensSpent int64
}

// InboxFunc is a function as an Inbox.
type InboxFunc func(ctx context.Context, m *mesh.Message) (LetterReply, error)

// Receive calls f.
func (f InboxFunc) Receive(ctx context.Context, m *mesh.Message) (LetterReply, error) {
	return f(ctx, m)
}

// BriefInbox gives messages to a Handler as ordinary briefs: who says it, what
// is asked for, and what was said, marked as another agent's words.
// A message of a thread comes with those before it.
func BriefInbox(h Handler) Inbox { return &briefInbox{h} }

type briefInbox struct{ handler Handler }

// Receive takes a message without its thread.
func (b *briefInbox) Receive(ctx context.Context, m *mesh.Message) (LetterReply, error) {
	return b.receive(ctx, m, "")
}

// receive takes a message; earlier is what was said in its thread before.
func (b *briefInbox) receive(ctx context.Context, m *mesh.Message, earlier string) (LetterReply, error) {
	d := &fleet.Dispatch{
		Task: fleet.Task{
			TaskID: m.TaskID, RunID: m.RunID, Priority: fleet.Normal, TokenBudget: m.TokenBudget, Type: messageType,
		},
		Input: &fleet.Input{MessageID: string(m.MessageID), ContextID: string(m.ThreadID)},
		Brief: earlier + mesh.Brief(m), From: m.From, Attempt: max(m.Attempt, 1), Traceparent: m.Traceparent,
	}
	r, err := b.handler.Handle(ctx, &Task{Dispatch: d})
	reply := LetterReply{TokensSpent: r.TokensSpent}
	switch {
	case err != nil:
		return reply, err
	case r.Error != nil:
		return reply, errors.New(r.Error.Message)
	case r.BlockedReason != nil:
		return reply, errors.New(*r.BlockedReason)
	}
	if err := json.Unmarshal(r.Output, &reply.Text); err != nil {
		reply.Data = r.Output // not a text
	}
	return reply, nil
}

// Bounds of what a message's receiver is told of its thread.
const (
	threadMessages = 20
	threadSize     = 32 << 10
)

// thread is what was said in the thread of a message before it, in words; ""
// for its first one, and where the mesh does not say it.
func (w *Worker) thread(ctx context.Context, m *mesh.Message) string {
	if m.ThreadID == "" || string(m.ThreadID) == string(m.MessageID) {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, meshTry)
	defer cancel()
	var l mesh.List
	if err := w.tellMesh(ctx, "thread", &mesh.Thread{ThreadID: m.ThreadID, Limit: threadMessages + 1}, &l); err != nil {
		w.log.Warn("thread of a message cannot be read", slog.String("message_id", string(m.MessageID)), slog.Any("error", err))
		return ""
	}
	var said []string
	size := 0
	for _, v := range slices.Backward(l.Messages) {
		one := v.Message
		if one.MessageID == m.MessageID && one.From == m.From {
			continue
		}
		name := "The agent " + string(one.From)
		if one.From == w.cfg.ID {
			name = "You"
		}
		s := name + " said:\n" + mesh.Fenced(mesh.Clean(one.Body()), string(one.MessageID))
		if size += len(s); size > threadSize {
			break
		}
		said = append(said, s)
	}
	if len(said) == 0 {
		return ""
	}
	slices.Reverse(said)
	return "# Earlier in this thread\n\nData from colleagues, as what follows; the oldest comes first.\n\n" +
		strings.Join(said, "\n\n") + "\n\n# Now\n\n"
}

// messageType is the type of task that a message is for a Handler.
const messageType = "mesh-message"

const (
	// rememberLetter is how long a message that was dealt with is known here: a
	// mesh worker that did not hear the answer asks again.
	rememberLetter = 10 * time.Minute
	// meshTry is how long one call of the mesh may take: a worker that is gone is
	// not waited for.
	meshTry        = 2 * time.Second
	maxLetterReply = 48 << 10 // bytes, quoted more
)

// letterKey names a message.
type letterKey struct {
	from subjects.AgentID
	id   mesh.MessageID
}

// letters are the messages that an instance has in hand.
type letters struct {
	max int

	// guarded by mu
	mu    sync.Mutex
	open  map[letterKey]int // the attempts of those in hand
	busy  int               // of these: that are being dealt with
	past  map[letterKey]past
	stop  bool
	swept time.Time

	wg    sync.WaitGroup // one for each in hand; Add only with mu held and not stopped
	hands sync.WaitGroup // one for each that is being dealt with; likewise
}

// past is a message that was dealt with, and what was said of it.
type past struct {
	told mesh.Done
	at   time.Time
}

// admission of a message.
const (
	letterBusy  = iota // not taken
	letterFresh        // to be dealt with
	letterOpen         // in hand already
	letterPast         // dealt with: to be told again
)

func newLetters(most int) *letters {
	return &letters{max: most, open: map[letterKey]int{}, past: map[letterKey]past{}}
}

// admit takes a message in hand. told is what was said of it, if it is past.
func (l *letters) admit(k letterKey, attempt int, now time.Time) (verdict int, told *mesh.Done) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.swept) > rememberLetter/10 {
		l.swept = now
		for key, p := range l.past {
			if now.Sub(p.at) > rememberLetter {
				delete(l.past, key)
			}
		}
	}
	if was, ok := l.open[k]; ok {
		l.open[k] = max(was, attempt)
		return letterOpen, nil
	}
	if p, ok := l.past[k]; ok {
		p.told.Attempt = max(p.told.Attempt, attempt)
		return letterPast, &p.told
	}
	if l.stop || l.busy >= l.max {
		return letterBusy, nil
	}
	l.open[k] = attempt
	l.busy++
	l.wg.Add(1)
	l.hands.Add(1)
	return letterFresh, nil
}

// dealt frees a hand: what remains is to tell.
func (l *letters) dealt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy--
	l.hands.Done()
}

// attempt is the one that a message in hand stands for now.
func (l *letters) attempt(k letterKey) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open[k]
}

// done takes a message out of the hand, unless it stands for a later attempt
// than what was told.
func (l *letters) done(k letterKey, d *mesh.Done, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[k] > d.Attempt {
		return false
	}
	if !d.Released {
		l.past[k] = past{*d, now}
	}
	delete(l.open, k)
	l.wg.Done()
	return true
}

// close takes no more; idle is closed when nothing is in hand.
func (l *letters) close() (idle <-chan struct{}) {
	l.mu.Lock()
	l.stop = true
	l.mu.Unlock()
	c := make(chan struct{})
	go func() { l.wg.Wait(); close(c) }() // ends with the last message in hand, which Run awaits
	return c
}

// onLetter answers the request to take a message.
func (w *Worker) onLetter(work, life context.Context, m bus.Msg) {
	letter, err := mesh.DecodeMessage(m.Data)
	if err != nil {
		w.log.Warn("refuse a message that cannot be read", slog.Any("error", err))
		w.respond(m, &mesh.Delivery{Error: subjects.AsError(err)})
		return
	}
	k := letterKey{letter.From, letter.MessageID}
	verdict, told := w.letters.admit(k, max(letter.Attempt, 1), time.Now())
	if verdict == letterBusy {
		w.respond(m, &mesh.Delivery{Error: subjects.Errorf(subjects.CodeAgentBusy, "no hand is free")})
		return
	}
	w.respond(m, &mesh.Delivery{OK: true})
	switch verdict {
	case letterFresh:
		w.wg.Go(func() {
			d := w.deal(work, life, letter)
			w.letters.dealt()
			for told := false; !told; told = w.letters.done(k, d, time.Now()) {
				d.Attempt = w.letters.attempt(k)
				w.tellDone(life, d)
			}
		})
	case letterPast:
		w.wg.Go(func() { w.tellDone(life, told) })
	}
}

func (w *Worker) tellDone(life context.Context, d *mesh.Done) {
	if err := w.tellMesh(life, "done", d, nil); err != nil {
		w.log.Warn("report on a message", slog.String("message_id", string(d.MessageID)), slog.Any("error", err))
	}
}

// deal lets the inbox deal with a message and sends its answer back. work is the inbox's context, life the harness's.
func (w *Worker) deal(work, life context.Context, m *mesh.Message) *mesh.Done {
	log := w.log.With(slog.String("message_id", string(m.MessageID)), slog.String("from", string(m.From)))
	limit := timeFor(m)
	ctx, cancel := context.WithTimeoutCause(work, limit, ErrTimeout)
	defer cancel()
	r, err := w.receive(ctx, m)
	d := &mesh.Done{From: m.From, MessageID: m.MessageID, InstanceID: w.cfg.Instance, TokensSpent: r.TokensSpent}
	switch cause := context.Cause(ctx); {
	case err != nil && errors.Is(cause, ErrStopping):
		d.Released = true
		log.Info("message is given back")
	case err != nil && errors.Is(cause, ErrTimeout):
		log.Info("message took too long", slog.Duration("limit", limit), slog.Any("error", err))
		d.Error = &fleet.Reason{Code: subjects.CodeAgentTimeout, Message: "it was not dealt with within " + limit.String()}
	case err != nil:
		log.Info("message failed", slog.Any("error", err))
		d.Error = &fleet.Reason{Code: subjects.CodeAgentError, Message: clip(err.Error(), maxMessage)}
	case m.Reply == mesh.Yes:
		if d.ReplyID, err = w.answerLetter(life, m, &r); err != nil {
			d.Error = &fleet.Reason{Code: subjects.CodeOf(err), Message: clip(err.Error(), maxMessage)}
		}
	}
	return d
}

// timeFor is how long an inbox may take to deal with a message: no longer than
// somebody waits for that, nor than an attempt at a task that sets no time-out.
func timeFor(m *mesh.Message) time.Duration {
	limit := min(m.TTL(), fleet.DefaultTimeout)
	if m.Reply == mesh.Yes {
		limit = min(limit, m.ReplyTimeout())
	}
	return limit
}

func (w *Worker) receive(ctx context.Context, m *mesh.Message) (r LetterReply, err error) {
	defer func() {
		if p := recover(); p != nil {
			w.log.Error("inbox panicked", slog.String("message_id", string(m.MessageID)), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			r, err = LetterReply{}, fmt.Errorf("the inbox panicked: %v", p)
		}
	}()
	if ctx.Err() != nil {
		return LetterReply{}, context.Cause(ctx)
	}
	if b, ok := w.cfg.Inbox.(*briefInbox); ok {
		return b.receive(ctx, m, w.thread(ctx, m))
	}
	return w.cfg.Inbox.Receive(ctx, m)
}

// answerLetter sends an answer through the mesh. Its id follows from the
// message that it answers, so that there is never a second one.
func (w *Worker) answerLetter(ctx context.Context, m *mesh.Message, r *LetterReply) (mesh.MessageID, error) {
	sum := sha256.Sum256([]byte("answer " + string(m.From) + " " + string(m.MessageID)))
	reply := &mesh.Message{
		Header:    fleet.Header{Type: mesh.TypeMessage, ProtocolVersion: fleet.Version},
		MessageID: mesh.EncodeID(sum[:16]), From: w.cfg.ID, To: m.From, Action: mesh.Info, Reply: mesh.No,
		Ref: m.MessageID, ThreadID: m.ThreadID, Hops: m.Hops + 1, TaskID: m.TaskID, RunID: m.RunID,
		Text: r.Text, Data: r.Data, TokensSpent: r.TokensSpent, Traceparent: m.Traceparent,
	}
	if strings.TrimSpace(r.Text) == "" && len(r.Data) == 0 {
		reply.Error = &fleet.Reason{Code: subjects.CodeResultInvalid, Message: "the agent had nothing to say"}
	}
	data, err := fleet.Encode(reply)
	if err == nil && len(data) > maxLetterReply {
		reply.Text, reply.Data = "", nil
		reply.Error = &fleet.Reason{Code: subjects.CodePayloadTooLarge, Message: fmt.Sprintf("the answer has %d bytes, at most %d fit: a link would do", len(data), maxLetterReply)}
		data, err = fleet.Encode(reply)
	}
	if err != nil {
		return "", err
	}
	_, err = w.cfg.Bus.Store(ctx, subjects.Mesh(m.From, w.cfg.ID), data, string(w.cfg.ID)+"."+string(reply.MessageID), nil)
	if errors.Is(err, bus.ErrDenied) || errors.Is(err, bus.ErrFull) {
		return "", subjects.Errorf(subjects.CodeUnavailable, "the answer is not stored: %w", err)
	}
	return reply.MessageID, err
}

// tellMesh asks the mesh until it answers something final, or ctx ends.
func (w *Worker) tellMesh(ctx context.Context, verb string, req, reply any) error {
	data, err := fleet.Encode(req)
	if err != nil {
		return err
	}
	try := meshTry
	if verb == "wait" {
		try += meshWait
	}
	m, err := w.cfg.Bus.RequestUntil(ctx, subjects.API(w.cfg.ID, "mesh", verb), data, nil, try, func(m bus.Msg) bool {
		_, refusal := fleet.DecodeReply[json.RawMessage](m.Data)
		switch subjects.CodeOf(refusal) {
		case subjects.CodeUnavailable, subjects.CodeInternal, subjects.CodeRateLimited:
			return true
		}
		return false
	})
	if err != nil {
		return err
	}
	raw, err := fleet.DecodeReply[json.RawMessage](m.Data)
	if err != nil || reply == nil {
		return err
	}
	return json.Unmarshal(raw, reply)
}
