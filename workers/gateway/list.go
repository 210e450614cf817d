package gateway

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"sync"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/subjects"
)

const (
	defaultPage = 50
	maxPage     = 100
	readers     = 8 // of one listing
)

// query is a ListTasks request, read.
type query struct {
	from, tenant subjects.AgentID
	context      string
	state        a2apb.TaskState // unspecified: any
	since        int64           // ms
	size         int
	after        cursor
}

// cursor is where a page ends: the order is by time, newest first, then by id.
type cursor struct {
	updated int64
	id      subjects.TaskID
}

func (c cursor) token() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "1 %d %s", c.updated, c.id))
}

func parseCursor(token string) (c cursor, err error) {
	if token == "" {
		return c, nil
	}
	bad := badField("pageToken", "it is none that this gateway gave")
	data, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return c, bad
	}
	if n, err := fmt.Sscanf(string(data), "1 %d %s", &c.updated, &c.id); n != 2 || err != nil || !subjects.ValidToken(string(c.id)) || c.token() != token {
		return c, bad
	}
	return c, nil
}

func newestFirst(a, b listed) int {
	return cmp.Or(cmp.Compare(b.updated, a.updated), strings.Compare(string(b.id), string(a.id)))
}

// before reports whether l comes behind the cursor.
func (c cursor) before(l *listed) bool {
	return c.id == "" || newestFirst(listed{updated: c.updated, id: c.id}, *l) < 0
}

func readQuery(c *call, req *a2apb.ListTasksRequest) (q query, err error) {
	q = query{from: c.from, context: req.GetContextId(), state: req.GetStatus(), size: defaultPage}
	if req.GetPageSize() != 0 { // clients send 0 for what they do not say
		q.size = int(req.GetPageSize())
	}
	if q.size < 1 || q.size > maxPage {
		return q, badField("pageSize", "expected 1 to 100")
	}
	if req.GetHistoryLength() < 0 {
		return q, badField("historyLength", "expected 0 or more")
	}
	if _, known := a2apb.TaskState_name[int32(q.state)]; !known {
		return q, badField("status", "it is none of the states")
	}
	if t := req.GetStatusTimestampAfter(); t != nil {
		if t.CheckValid() != nil {
			return q, badField("statusTimestampAfter", "it is not a time")
		}
		q.since = t.AsTime().UnixMilli()
		if t.AsTime().UnixMicro() > q.since*1000 {
			q.since++ // states are told by the millisecond
		}
	}
	if q.tenant, err = tenantOf(req.GetTenant()); err != nil {
		return q, err
	}
	q.after, err = parseCursor(req.GetPageToken())
	return q, err
}

// find lists what matches behind the cursor, newest first: one page, and one more
// to tell whether there is another. total counts all pages. While it looks no
// record is taken in, so it keeps no more than it needs.
func (f *feed) find(q query) (found []listed, total int) {
	most := q.size + 1
	found = make([]listed, 0, most+1)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.index {
		switch {
		case l.from != q.from, q.tenant != "" && l.agent != q.tenant, q.context != "" && l.context != q.context:
		case q.state != 0 && stateOf(l.state) != q.state, l.updated < q.since:
		default:
			total++
			if !q.after.before(l) || len(found) == most && newestFirst(found[most-1], *l) < 0 {
				continue
			}
			at, _ := slices.BinarySearchFunc(found, *l, newestFirst)
			found = slices.Insert(found, at, *l)
			found = found[:min(len(found), most)]
		}
	}
	return found, total
}

// listTasks is the operation ListTasks.
func (w *Worker) listTasks(ctx context.Context, c *call, req *a2apb.ListTasksRequest) (*a2apb.ListTasksResponse, error) {
	q, err := readQuery(c, req)
	if err != nil {
		return nil, err
	}
	found, total := w.feed.find(q)
	out := &a2apb.ListTasksResponse{Tasks: []*a2apb.Task{}, PageSize: int32(q.size)}
	for {
		n := min(q.size, len(found))
		tasks, err := w.readAll(ctx, c, found[:n])
		if err != nil {
			return nil, err
		}
		more := n < len(found) // is behind the page
		for i, t := range tasks {
			switch {
			case t == nil:
				total--
				continue
			case len(out.Tasks) == q.size:
				more = true
				continue
			}
			if !req.GetIncludeArtifacts() {
				t.Artifacts = nil
			}
			out.Tasks = append(out.Tasks, trimmed(t, req.HistoryLength))
			q.after = cursor{found[i].updated, found[i].id}
		}
		if !more {
			break
		}
		if len(out.Tasks) == q.size {
			out.NextPageToken = q.after.token()
			break
		}
		q.after = cursor{found[n-1].updated, found[n-1].id}
		found, _ = w.feed.find(q) // some are gone
	}
	out.TotalSize = int32(min(total, 1<<31-1))
	return out, nil
}

// readAll reads tasks, nil for one that is gone.
func (w *Worker) readAll(ctx context.Context, c *call, which []listed) ([]*a2apb.Task, error) {
	tasks := make([]*a2apb.Task, len(which))
	errs := make([]error, len(which))
	slots := make(chan struct{}, readers)
	var wg sync.WaitGroup
	for i := range which {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			p, err := w.picture(ctx, c, which[i].id)
			switch {
			case err == nil:
				tasks[i] = p.task
			case asFault(err).kind == kindTaskNotFound:
				w.feed.forget(which[i].id)
			default:
				errs[i] = err
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return tasks, nil
}
