package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// readTry bounds one try of a read: an answer may be lost.
const readTry = 5 * time.Second

// getRequest is the request of STREAM.MSG.GET and DIRECT.GET.
type getRequest struct {
	Seq       uint64   `json:"seq,omitempty"`
	LastFor   string   `json:"last_by_subj,omitempty"`
	NextFor   string   `json:"next_by_subj,omitempty"`
	Batch     int      `json:"batch,omitempty"`
	MultiLast []string `json:"multi_last,omitempty"`
	UpToSeq   uint64   `json:"up_to_seq,omitempty"`
	MaxBytes  int      `json:"max_bytes,omitempty"` // the batch ends with the message that reaches it

	Since *time.Time `json:"start_time,omitempty"` // the first stored then or later
}

// Last returns the last message of subject as the stream's leader has it. Two
// leaders say that there is none and do not know it: one that has yet to learn
// what this Bus has heard of the stream already, see hear, and one whose index
// has a message of subject that its disk does not give. That is ErrNoResponders,
// worth a repeat, and not ErrNotFound.
func (b *Bus) Last(ctx context.Context, stream, subject string) (Msg, error) {
	m, err := b.leaderGet(ctx, stream, getRequest{LastFor: subject})
	if !errors.Is(err, ErrNotFound) {
		return m, err
	}
	heard := b.heardOf(stream).Load()
	lastSeq, indexed, serr := b.indexOf(ctx, stream, subject)
	switch {
	case serr != nil:
		return Msg{}, notYet(serr)
	case lastSeq < heard:
		return Msg{}, fmt.Errorf("get from %s: %w: its leader knows of %d, %d was heard", stream, ErrNoResponders, lastSeq, heard)
	case indexed == 0:
		return m, err
	}
	// It may have come between the two questions.
	if m, err = b.leaderGet(ctx, stream, getRequest{LastFor: subject}); errors.Is(err, ErrNotFound) {
		return Msg{}, fmt.Errorf("get from %s: %w: its leader has %d of %s, and cannot read the last", stream, ErrNoResponders, indexed, subject)
	}
	return m, err
}

// indexOf asks the leader of a stream for its last sequence, and for how many
// messages of subject its index has. It answers from memory, without a look at
// its disk.
func (b *Bus) indexOf(ctx context.Context, stream, subject string) (lastSeq, count uint64, err error) {
	var resp struct {
		jetstream.StreamInfo
		Error *jetstream.APIError `json:"error"`
	}
	req := map[string]string{"subjects_filter": subject}
	if err := b.apiCall(ctx, "STREAM.INFO."+stream, req, &resp, &resp.Error); err != nil {
		return 0, 0, fmt.Errorf("index of %s: %w", stream, err)
	}
	for _, n := range resp.State.Subjects {
		count += n
	}
	return resp.State.LastSeq, count, nil
}

// hear notes that the message seq of a stream has been heard.
func (b *Bus) hear(stream string, seq uint64) {
	h := b.heardOf(stream)
	for was := h.Load(); was < seq && !h.CompareAndSwap(was, seq); was = h.Load() {
	}
}

// heardOf is the highest sequence of a stream that tails have heard, 0 for
// none.
func (b *Bus) heardOf(stream string) *atomic.Uint64 {
	if h, ok := b.heard.Load(stream); ok {
		return h.(*atomic.Uint64) //nolint:errcheck,forcetypeassert // nothing else is stored
	}
	h, _ := b.heard.LoadOrStore(stream, new(atomic.Uint64))
	return h.(*atomic.Uint64) //nolint:errcheck,forcetypeassert // as above
}

// nextFor returns the first message of subject at or after seq, from the
// leader.
func (b *Bus) nextFor(ctx context.Context, stream, subject string, seq uint64) (Msg, error) {
	return b.leaderGet(ctx, stream, getRequest{NextFor: subject, Seq: max(seq, 1)})
}

// LastDirect is Last from any replica: cheaper, and on a replicated stream it
// may lag behind.
func (b *Bus) LastDirect(ctx context.Context, stream, subject string) (Msg, error) {
	return b.directGet(ctx, stream, getRequest{LastFor: subject})
}

// Get returns the message with that sequence, from any replica, and from the
// leader when that one does not have it (yet). Who has heard of a message may
// know more than the leader: one that is new has not applied all that others
// have, and one that was replaced does not know it yet. So ErrNotFound is for
// what was there; a sequence beyond the stream's last is ErrNoResponders, worth
// a repeat.
func (b *Bus) Get(ctx context.Context, stream string, seq uint64) (Msg, error) {
	m, err := b.directGet(ctx, stream, getRequest{Seq: seq})
	if !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrNoResponders) {
		return m, err
	}
	if m, err = b.leaderGet(ctx, stream, getRequest{Seq: seq}); !errors.Is(err, ErrNotFound) {
		return m, err
	}
	s, err := b.StreamState(ctx, stream)
	switch {
	case err != nil:
		return Msg{}, notYet(err)
	case s.LastSeq < seq:
		return Msg{}, fmt.Errorf("get %d from %s: %w: its leader knows of %d", seq, stream, ErrNoResponders, s.LastSeq)
	}
	// It may have come between the two questions.
	return b.leaderGet(ctx, stream, getRequest{Seq: seq})
}

// maxRead is how many messages are asked for at once.
const maxRead = 1024

// History returns the messages of subject (which may have wildcards) from
// fromSeq on, at most limit, in ascending stream sequence, and whether there
// are more. The leader has the last word on what is the end.
func (b *Bus) History(ctx context.Context, stream, subject string, fromSeq uint64, limit int) ([]Msg, bool, error) {
	return b.Page(ctx, stream, subject, fromSeq, limit, 0)
}

// Page is History of about size bytes at most, but of one message at least; 0 is
// as many as there are.
func (b *Bus) Page(ctx context.Context, stream, subject string, fromSeq uint64, limit, size int) ([]Msg, bool, error) {
	if limit <= 0 {
		return nil, false, fmt.Errorf("history of %s: limit %d is not positive", subject, limit)
	}
	ctx, cancel := withDefaultTimeout(ctx, readTry)
	defer cancel()
	next := max(fromSeq, 1)
	msgs := make([]Msg, 0, min(limit, 64))
	bytes := 0
	full := func() bool { return len(msgs) >= limit || size > 0 && bytes >= size }
	for !full() {
		req := getRequest{NextFor: subject, Seq: next, Batch: min(limit-len(msgs), maxRead), MaxBytes: max(size-bytes, 0)}
		got, _, err := b.directBatch(ctx, stream, req)
		if err != nil {
			return nil, false, fmt.Errorf("history of %s: %w", subject, err)
		}
		if len(got) == 0 {
			break
		}
		msgs = append(msgs, got...)
		for _, m := range got {
			bytes += len(m.Data)
		}
		next = got[len(got)-1].Seq + 1
	}
	// A replica may lag: ask the leader what follows.
	for {
		m, err := b.nextFor(ctx, stream, subject, next)
		switch {
		case errors.Is(err, ErrNotFound):
			return msgs, false, nil
		case err != nil:
			return nil, false, fmt.Errorf("history of %s: %w", subject, err)
		case full():
			return msgs, true, nil
		}
		msgs = append(msgs, m)
		bytes += len(m.Data)
		next = m.Seq + 1
	}
}

// Purge deletes every message of subject; it is a success when there is none.
func (b *Bus) Purge(ctx context.Context, stream, subject string) error {
	return wrap("purge "+subject, b.purge(ctx, stream, purgeRequest{Filter: subject}))
}

// PurgeUpTo deletes the messages of subject whose sequence is at most seq.
func (b *Bus) PurgeUpTo(ctx context.Context, stream, subject string, seq uint64) error {
	return wrap("purge "+subject, b.purge(ctx, stream, purgeRequest{Filter: subject, Seq: seq + 1}))
}

// PurgeBefore deletes every message of stream whose sequence is less than seq.
func (b *Bus) PurgeBefore(ctx context.Context, stream string, seq uint64) error {
	return wrap("purge "+stream, b.purge(ctx, stream, purgeRequest{Seq: seq}))
}

// purgeRequest is the request of STREAM.PURGE: what is before Seq goes.
type purgeRequest struct {
	Filter string `json:"filter,omitempty"`
	Seq    uint64 `json:"seq,omitempty"`
}

func (b *Bus) purge(ctx context.Context, stream string, req purgeRequest) error {
	var resp struct {
		Error *jetstream.APIError `json:"error"`
	}
	return b.apiCall(ctx, "STREAM.PURGE."+stream, req, &resp, &resp.Error)
}

// DropDone deletes the messages of stream that its durable consumer has done
// with and that were stored before a time, but for the last of them (ADR 22).
// Where the stream holds a quarter of what it may, its older half is old enough.
func (b *Bus) DropDone(ctx context.Context, stream, durable string, before time.Time) error {
	var resp struct {
		jetstream.ConsumerInfo
		Error *jetstream.APIError `json:"error"`
	}
	if err := b.apiCall(ctx, "CONSUMER.INFO."+stream+"."+durable, nil, &resp, &resp.Error); err != nil {
		return fmt.Errorf("consumer %s of %s: %w", durable, stream, err)
	}
	s, err := b.StreamState(ctx, stream)
	if err != nil || s.Msgs == 0 {
		return err
	}
	last := s.LastSeq // of those that are old enough
	switch m, err := b.leaderGet(ctx, stream, getRequest{Since: &before}); {
	case err == nil:
		last = m.Seq - 1
	case !errors.Is(err, ErrNotFound):
		return err
	}
	if s.crowded() {
		last = max(last, s.FirstSeq+s.Msgs/2)
	}
	if last = min(last, resp.AckFloor.Stream); last <= s.FirstSeq {
		return nil
	}
	return b.PurgeBefore(ctx, stream, last)
}

// StreamState is what a stream holds now.
type StreamState struct {
	Msgs, Bytes       uint64
	MaxBytes, MaxMsgs int64 // -1 = no limit
	FirstSeq, LastSeq uint64
	Subjects          uint64
	Replicas          int
	Cluster           string // of servers, its name; "" on a single server
	Leader            string // server name, "" on a single server
	Created           time.Time
}

// crowded reports whether the stream holds a quarter of what it may.
func (s *StreamState) crowded() bool {
	return s.MaxBytes > 0 && s.Bytes > uint64(s.MaxBytes)/4 || s.MaxMsgs > 0 && s.Msgs > uint64(s.MaxMsgs)/4
}

// StreamState asks the stream's leader.
func (b *Bus) StreamState(ctx context.Context, stream string) (StreamState, error) {
	var resp struct {
		jetstream.StreamInfo
		Error *jetstream.APIError `json:"error"`
	}
	if err := b.apiCall(ctx, "STREAM.INFO."+stream, nil, &resp, &resp.Error); err != nil {
		return StreamState{}, fmt.Errorf("state of %s: %w", stream, err)
	}
	s := StreamState{
		Msgs: resp.State.Msgs, Bytes: resp.State.Bytes, MaxBytes: resp.Config.MaxBytes, MaxMsgs: resp.Config.MaxMsgs,
		FirstSeq: resp.State.FirstSeq, LastSeq: resp.State.LastSeq,
		Subjects: resp.State.NumSubjects, Replicas: resp.Config.Replicas, Created: resp.Created,
	}
	if resp.Cluster != nil {
		s.Cluster, s.Leader = resp.Cluster.Name, resp.Cluster.Leader
	}
	return s, nil
}

// StateFrom is StreamState for who knows of the message seq: a leader that has
// yet to catch up has ten seconds to. What it says then is how it is.
func (b *Bus) StateFrom(ctx context.Context, stream string, seq uint64) (StreamState, error) {
	bo := newBackoff(100*time.Millisecond, time.Second)
	for begin := time.Now(); ; {
		s, err := b.StreamState(ctx, stream)
		if err != nil || s.LastSeq >= seq || time.Since(begin) > 10*time.Second {
			return s, err
		}
		if err := wait(ctx, bo); err != nil {
			return StreamState{}, err
		}
	}
}

// deleteMsg removes one message; ErrNotFound when it is not there.
func (b *Bus) deleteMsg(ctx context.Context, stream string, seq uint64) error {
	var resp struct {
		Error *jetstream.APIError `json:"error"`
	}
	err := b.apiCall(ctx, "STREAM.MSG.DELETE."+stream, map[string]any{"seq": seq, "no_erase": true}, &resp, &resp.Error)
	if errors.Is(err, errRefused) { // one code for whatever prevents it
		if _, gerr := b.leaderGet(ctx, stream, getRequest{Seq: seq}); errors.Is(gerr, ErrNotFound) {
			err = gerr
		}
	}
	return wrap("delete message", err)
}

// apiCall is a request to the JetStream API. apiErr points at the error field
// of resp. What a cluster says of a stream that it has not, see lateStream, is
// believed when it has said so for a while.
func (b *Bus) apiCall(ctx context.Context, subject string, req, resp any, apiErr **jetstream.APIError) error {
	ctx, cancel := withDefaultTimeout(ctx, readTry)
	defer cancel()
	var data []byte
	if req != nil {
		var err error
		if data, err = json.Marshal(req); err != nil {
			return err
		}
	}
	late := b.lateStream()
	for {
		m, err := b.request(ctx, &nats.Msg{Subject: b.api + subject, Data: data})
		if *apiErr != nil && ctx.Err() != nil {
			return apiError(*apiErr) // as it was said before
		}
		if err != nil {
			return err
		}
		*apiErr = nil
		if err := json.Unmarshal(m.Data, resp); err != nil {
			return fmt.Errorf("answer of %s: %w", subject, err)
		}
		if *apiErr == nil {
			return nil
		}
		if err := apiError(*apiErr); !late(ctx, err) {
			return err
		}
	}
}

// lateStream gives a function that reports, after a pause, whether to ask again
// because of err: a server that has just begun to lead a cluster does not know
// of the last streams yet, and says that they are not there.
func (b *Bus) lateStream() func(ctx context.Context, err error) bool {
	var since time.Time // it has been said
	bo := newBackoff(100*time.Millisecond, time.Second)
	return func(ctx context.Context, err error) bool {
		if !errors.Is(err, errNoStream) || b.nc.ConnectedClusterName() == "" {
			since = time.Time{}
			return false
		}
		if since.IsZero() {
			since = time.Now()
			bo.Reset()
		}
		return time.Since(since) < readTry && wait(ctx, bo) == nil
	}
}

func (b *Bus) leaderGet(ctx context.Context, stream string, req getRequest) (Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, readTry)
	defer cancel()
	var resp struct {
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
		Error *jetstream.APIError `json:"error"`
	}
	if err := b.apiCall(ctx, "STREAM.MSG.GET."+stream, req, &resp, &resp.Error); err != nil {
		return Msg{}, fmt.Errorf("get from %s: %w", stream, notYet(err))
	}
	m := Msg{
		Subject: resp.Message.Subject, Seq: resp.Message.Seq, Data: resp.Message.Data,
		Time: resp.Message.Time.UTC(), Stream: stream, nc: b.nc,
	}
	if len(resp.Message.Header) > 0 {
		h, err := nats.DecodeHeadersMsg(resp.Message.Header)
		if err != nil {
			return Msg{}, fmt.Errorf("headers of %s %d: %w", stream, m.Seq, mapError(err))
		}
		m.Header = Header(h)
	}
	return m, nil
}

func (b *Bus) directGet(ctx context.Context, stream string, req getRequest) (Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, readTry)
	defer cancel()
	data, err := json.Marshal(req)
	if err != nil {
		return Msg{}, err
	}
	m, err := b.request(ctx, &nats.Msg{Subject: b.api + "DIRECT.GET." + stream, Data: data})
	if err == nil {
		err = directStatus(m)
	}
	if err != nil {
		return Msg{}, fmt.Errorf("get from %s: %w", stream, err)
	}
	return b.fromDirect(stream, m)
}

// directStatus is the error in a direct get's answer.
func directStatus(m *nats.Msg) error {
	if len(m.Data) > 0 {
		return nil
	}
	switch status := Header(m.Header).Get("Status"); status {
	case "":
		return nil
	case "404":
		return ErrNotFound
	case "408":
		return fmt.Errorf("%w: %s", errRefused, "bad request")
	default:
		return fmt.Errorf("%w: status %s %s", errRefused, status, Header(m.Header).Get("Description"))
	}
}

// fromDirect reads an answer whose place is told in headers, and removes those.
func (b *Bus) fromDirect(stream string, m *nats.Msg) (Msg, error) {
	h := Header(m.Header)
	seq, err := strconv.ParseUint(h.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return Msg{}, fmt.Errorf("get from %s: header %s: %w", stream, jetstream.SequenceHeader, err)
	}
	at, err := time.Parse(time.RFC3339Nano, h.Get(jetstream.TimeStampHeaer))
	if err != nil {
		return Msg{}, fmt.Errorf("get from %s: header %s: %w", stream, jetstream.TimeStampHeaer, err)
	}
	out := Msg{
		Subject: h.Get(jetstream.SubjectHeader), Seq: seq, Data: m.Data, Time: at.UTC(),
		Stream: stream, Header: h, nc: b.nc,
	}
	for _, name := range []string{
		jetstream.StreamHeader, jetstream.SequenceHeader, jetstream.TimeStampHeaer,
		jetstream.SubjectHeader, "Nats-Num-Pending", jetstream.LastSequenceHeader,
	} {
		delete(h, name)
	}
	if len(h) == 0 {
		out.Header = nil
	}
	return out, nil
}

// directBatch is one batched direct get: everything up to the end-of-batch
// mark, and how many follow it. A batch that breaks off, or of which nothing
// comes for readTry, is an error, never a short answer.
func (b *Bus) directBatch(ctx context.Context, stream string, req getRequest) (msgs []Msg, pending uint64, err error) {
	data, err := json.Marshal(req)
	if err != nil {
		return nil, 0, err
	}
	inbox := b.nc.NewRespInbox()
	sub, err := b.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, 0, mapError(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, 0, mapError(err)
	}
	request := &nats.Msg{Subject: b.api + "DIRECT.GET." + stream, Reply: inbox, Data: data}
	if err := b.nc.PublishMsg(request); err != nil {
		return nil, 0, mapError(err)
	}
	next, cancel := context.WithCancel(ctx)
	defer cancel()
	quiet := time.AfterFunc(readTry, cancel)
	defer quiet.Stop()
	defer b.untilReconnect(cancel)()
	for {
		m, err := sub.NextMsgWithContext(next)
		if err != nil && next.Err() != nil {
			err = cmp.Or(ctx.Err(), context.DeadlineExceeded)
		}
		if err != nil {
			return nil, 0, mapError(err)
		}
		quiet.Reset(readTry)
		h := Header(m.Header)
		if len(m.Data) == 0 {
			switch h.Get("Status") {
			case "204":
				pending, err = strconv.ParseUint(h.Get("Nats-Num-Pending"), 10, 64)
				if err != nil {
					return nil, 0, fmt.Errorf("end of batch from %s: %w", stream, err)
				}
				return msgs, pending, nil
			case "404":
				// Nothing matches; or, with messages resolved, one failed to load.
				if len(msgs) > 0 || (len(req.MultiLast) > 0 && h.Get("Description") != "No Results") {
					return nil, 0, fmt.Errorf("%w: %s", ErrNoResponders, h.Get("Description"))
				}
				return nil, 0, nil
			case "503":
				return nil, 0, ErrNoResponders
			}
		}
		if err := directStatus(m); err != nil {
			return nil, 0, err
		}
		msg, err := b.fromDirect(stream, m)
		if err != nil {
			return nil, 0, err
		}
		msgs = append(msgs, msg)
	}
}
