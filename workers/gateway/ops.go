package gateway

import (
	"context"
	"strconv"
	"strings"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

// visible is a task, if the caller may see it under this tenant. To others it
// does not exist.
func (w *Worker) visible(ctx context.Context, c *call, tenant subjects.AgentID, id string) (*picture, error) {
	task, err := subjects.ParseTaskID(id)
	if err != nil {
		return nil, noTask(subjects.TaskID(clip(id)))
	}
	p, err := w.picture(ctx, c, task)
	if err != nil {
		if asFault(err).kind == kindTaskNotFound {
			return nil, noTask(task)
		}
		return nil, err
	}
	if tenant != "" && p.last.Facts.Policy.Agent != tenant {
		return nil, noTask(task)
	}
	return p, nil
}

func clip(s string) string {
	const most = 80
	if len(s) > most {
		s = s[:most] + "…"
	}
	return clean(s)
}

// trimmed limits the history of a task to its n latest messages; nil is all.
func trimmed(t *a2apb.Task, n *int32) *a2apb.Task {
	if n != nil && int(*n) < len(t.History) {
		t.History = t.History[len(t.History)-int(*n):]
	}
	return t
}

// getTask is the operation GetTask.
func (w *Worker) getTask(ctx context.Context, c *call, req *a2apb.GetTaskRequest) (*a2apb.Task, error) {
	if req.GetHistoryLength() < 0 {
		return nil, badField("historyLength", "expected 0 or more")
	}
	tenant, err := tenantOf(req.GetTenant())
	if err != nil {
		return nil, err
	}
	if req.GetId() == "" {
		return nil, badField("id", "it is missing")
	}
	p, err := w.visible(ctx, c, tenant, req.GetId())
	if err != nil {
		return nil, err
	}
	return trimmed(p.task, req.HistoryLength), nil
}

// cancelTask is the operation CancelTask.
func (w *Worker) cancelTask(ctx context.Context, c *call, req *a2apb.CancelTaskRequest) (*a2apb.Task, error) {
	tenant, err := tenantOf(req.GetTenant())
	if err != nil {
		return nil, err
	}
	if req.GetId() == "" {
		return nil, badField("id", "it is missing")
	}
	p, err := w.visible(ctx, c, tenant, req.GetId())
	if err != nil {
		return nil, err
	}
	ended := func(s fleet.State) *fault {
		return faultf(kindNotCancelable, "the task has ended: it is "+string(s))
	}
	if p.last.State.Terminal() {
		return nil, ended(p.last.State)
	}
	id := subjects.TaskID(req.GetId())
	v, err := ask[fleet.TaskView](ctx, w, c.from, "task", "cancel", fleet.TaskCancel{
		TaskID: id, Reason: req.GetMetadata().GetFields()["reason"].GetStringValue(),
	})
	if err != nil {
		return nil, err
	}
	if v.State != fleet.StateCanceled {
		return nil, ended(v.State)
	}
	if p, err = w.picture(ctx, c, id); err != nil {
		return nil, err
	}
	return p.task, nil
}

// subscribeToTask is the operation SubscribeToTask. It begins with the task as
// it is, or behind the frame that the client had last.
func (w *Worker) subscribeToTask(ctx context.Context, c *call, req *a2apb.SubscribeToTaskRequest, send func(frame) error) error {
	tenant, err := tenantOf(req.GetTenant())
	if err != nil {
		return err
	}
	if req.GetId() == "" {
		return badField("id", "it is missing")
	}
	after, skip, resume, err := lastEvent(c.lastEventID)
	if err != nil {
		return err
	}
	id := subjects.TaskID(req.GetId())
	x := w.feed.watch(id)
	defer w.feed.unwatch(x)
	p, err := w.visible(ctx, c, tenant, req.GetId())
	if err != nil {
		return err
	}
	if p.last.State.Terminal() && (!resume || after >= p.seq) {
		return faultf(kindUnsupported, "the task has ended: it is "+string(p.last.State)+"; GetTask has its result")
	}
	first := frame{}
	if resume {
		p = &picture{reports: c.wantsReports()}
	} else {
		after = p.seq
		first = frame{id: frameID(p.seq, 0, 1), msg: taskFrame(p, nil)}
	}
	if err := send(first); err != nil {
		return err
	}
	x.sendProgress(p, after, send)
	return w.follow(ctx, c.from, x, p.seq, resume, func(ev *fleet.Event) error {
		frames := p.add(ev)
		switch ended := ev.State.Terminal(); {
		case ended && ev.Seq < after: // nobody can have been told of anything behind it
		case ended && ev.Seq == after:
			return errStop
		case ev.Seq <= after || resume && !ended && ev.Seq == after+1 && plant.Bug("stream_gap"):
			return nil
		}
		if ev.Seq == after+1 && skip > 0 {
			frames = frames[min(skip, len(frames)):]
		}
		for _, f := range frames {
			if err := send(f); err != nil {
				return err
			}
		}
		if ev.State.Terminal() {
			return errStop
		}
		return nil
	})
}

// lastEvent reads a Last-Event-ID: the record that was told in full, and how
// many frames of the next one.
func lastEvent(id string) (after uint64, skip int, ok bool, err error) {
	if id == "" {
		return 0, 0, false, nil
	}
	seq, part, more := strings.Cut(id, ".")
	after, err = strconv.ParseUint(seq, 10, 63)
	if err == nil && more {
		skip, err = strconv.Atoi(part)
	}
	if err != nil || skip < 0 {
		return 0, 0, false, badField("Last-Event-ID", "it is none of this stream's ids")
	}
	return after, skip, true, nil
}
