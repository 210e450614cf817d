package telemetry

import (
	"cmp"
	"net/http"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

// told is what a state of a delivery adds to the trace of what it tells of: the
// attempt that has ended, and the whole delivery once that has.
func told(s *fleet.DeliveryState) []span {
	if s.Traceparent == "" || s.Sending != nil {
		return nil
	}
	why := ""
	if s.Error != nil && s.State != fleet.DeliveryDelivered {
		why = cmp.Or(s.Error.Message, string(s.Error.Code))
	}
	about := []attr{text("parley.webhook.id", string(s.DeliveryID)), text("parley.webhook.endpoint", s.Endpoint)}
	if s.TaskID != "" {
		about = append(about, text("parley.task.id", string(s.TaskID)))
	}
	var spans []span
	if ended := s.State != fleet.DeliveryPending; ended {
		whole := span{
			kind: fleet.SpanWebhook, name: "webhook " + s.Endpoint, start: s.Queued, end: s.Updated,
			attrs: append(about, text("parley.webhook.state", s.State), number("parley.webhook.attempts", int64(s.Attempts))),
		}
		if s.State != fleet.DeliveryDelivered {
			whole.failed = cmp.Or(why, s.State)
		}
		spans = append(spans, whole)
	}
	// What ends it without an attempt says so: the time was over, or it is gone.
	silent := s.Error != nil && (s.Error.Code == subjects.CodeDeadlineExceeded ||
		s.Error.Code == subjects.CodeNotFound && s.Status != http.StatusNotFound && s.Status != http.StatusGone)
	if s.Attempts == 0 || silent || s.State == fleet.DeliveryDropped {
		return spans
	}
	post := span{
		kind: fleet.SpanPost, n: s.Post(), name: "POST", parentKind: fleet.SpanWebhook,
		start: s.Updated.Add(-time.Duration(s.DurationMS) * time.Millisecond), end: s.Updated,
		attrs: []attr{text("http.request.method", "POST"), number("parley.attempt", int64(s.Attempts))}, failed: why,
	}
	if s.Status != 0 {
		post.attrs = append(post.attrs, number("http.response.status_code", int64(s.Status)))
	}
	return append(spans, post)
}

// whole is the span of a run that has ended, of which its tasks hang.
func whole(r *run.Record) []span {
	s := span{
		kind: fleet.SpanRun, name: "run", start: r.Created, end: *r.Ended,
		attrs: []attr{
			text("parley.run.id", string(r.RunID)), text("parley.run.from", string(r.From)), text("parley.run.state", string(r.State)),
			number("parley.run.tokens", r.Tokens), number("parley.run.nodes", int64(len(r.Nodes))),
		},
	}
	if r.SessionID != "" {
		s.attrs = append(s.attrs, text("parley.session.id", string(r.SessionID)))
	}
	if r.State != run.Done {
		s.failed = string(r.State)
		if r.Reason != nil {
			s.failed += ": " + string(r.Reason.Code)
		}
	}
	return []span{s}
}
