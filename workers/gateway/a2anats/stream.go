package a2anats

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"github.com/a2aproject/a2a-go/v2/a2apb/v1/pbconv"
	"github.com/cenkalti/backoff/v4"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"parley/bus"
)

// resumes is how often a stream is taken up again without an event in between.
const resumes = 8

// stream is a streaming call, over as many gateways as it takes.
type stream struct {
	t       *Transport
	params  a2aclient.ServiceParams
	op      string
	req     proto.Message
	tenant  string
	sending bool   // it began with a message, so it ends when the task waits, too
	task    string // once it is known
	last    string // id of the last event
	over    bool   // nothing comes after it
}

// events are the events of the stream, each once, in order.
func (s *stream) events(ctx context.Context) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		wait := backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond), backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
		for left := resumes; ; left-- {
			before := s.last
			err := s.once(ctx, yield)
			if err == nil || s.over && lost(err) {
				return
			}
			if s.last != before {
				left = resumes
				wait.Reset()
			}
			if !lost(err) || s.last == "" || s.task == "" || left == 0 || ctx.Err() != nil {
				yield(nil, told(s.op, err))
				return
			}
			s.op, s.req = "SubscribeToTask", &a2apb.SubscribeToTaskRequest{Tenant: s.tenant, Id: s.task}
			pause := time.NewTimer(wait.NextBackOff())
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
				yield(nil, told(s.op, ctx.Err()))
				return
			}
		}
	}
}

// lost reports whether another gateway may take the stream up.
func lost(err error) bool {
	if e, ok := errors.AsType[*a2a.Error](err); ok {
		return e.Details["reason"] == "UNAVAILABLE"
	}
	return errors.Is(err, errLost) || errors.Is(err, bus.ErrNoResponders)
}

// once gives the events of one call; nil says that the stream has ended, or
// that nobody wants more of it.
func (s *stream) once(ctx context.Context, yield func(a2a.Event, error) bool) error {
	c, err := s.t.open(s.op, s.params, s.req, s.last)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		m, err := s.t.next(ctx, c)
		if err != nil {
			return err
		}
		switch kind := m.Header.Get(HeaderFrame); kind {
		case FrameEnd:
			return nil
		case FrameEvent:
		default:
			return fmt.Errorf("%w: a frame %q", a2a.ErrInvalidAgentResponse, kind)
		}
		r := new(a2apb.StreamResponse)
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(m.Data, r); err != nil {
			return fmt.Errorf("%w: %w", a2a.ErrInvalidAgentResponse, err)
		}
		ev, err := pbconv.FromProtoStreamResponse(r)
		if err != nil {
			return fmt.Errorf("%w: %w", a2a.ErrInvalidAgentResponse, err)
		}
		s.last = m.Header.Get(HeaderEvent)
		if id := string(ev.TaskInfo().TaskID); id != "" {
			s.task = id
		}
		s.over = last(ev, s.sending)
		if !yield(ev, nil) || s.over && s.sending { // a subscription that took the stream up would go on
			return nil
		}
	}
}

// last reports whether ev is the last event of a stream.
func last(ev a2a.Event, sending bool) bool {
	switch ev := ev.(type) {
	case *a2a.Message:
		return true
	case *a2a.Task:
		return ev.Status.State.Terminal()
	case *a2a.TaskStatusUpdateEvent:
		s := ev.Status.State
		return s.Terminal() || sending && (s == a2a.TaskStateInputRequired || s == a2a.TaskStateAuthRequired)
	}
	return false
}
