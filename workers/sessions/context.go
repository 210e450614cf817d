package sessions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers/sessions/secrets"
)

// appendEntry adds what an agent did to the context.
func (w *Worker) appendEntry(ctx context.Context, from subjects.AgentID, r *handshake.Append) (any, error) {
	if r.Entry.AgentID == "" {
		r.Entry.AgentID = from
	}
	if r.Entry.AgentID != from && !w.operator(from) {
		return nil, subjects.Errorf(subjects.CodeForbidden, "the entry is of %s, the subject says %s", r.Entry.AgentID, from).
			At("/entry/agent_id").WithRemedy("append what you did yourself; leave agent_id out")
	}
	if _, err := w.use(ctx, from, r.SessionID, r.Token); err != nil {
		return nil, err
	}
	rec := handshake.Record{
		SessionID: r.SessionID, Time: w.now(), Entry: r.Entry, SharedData: r.SharedData,
		Constraints: r.Constraints, Metadata: r.Metadata,
	}
	if r.Key != "" {
		rec.Key = string(from) + "/" + r.Key // one's own keys
	}
	return w.add(ctx, rec, r.AfterVersion, r.Redact)
}

// add scans, stores what is large, and appends.
func (w *Worker) add(ctx context.Context, rec handshake.Record, after *uint64, redact bool) (*handshake.Appended, error) {
	if rec.Entry.ExecutionTime.IsZero() {
		rec.Entry.ExecutionTime = rec.Time
	}
	redacted, err := w.clean(ctx, &rec, redact)
	if err != nil {
		return nil, err
	}
	version, dup, err := w.repeated(ctx, &rec)
	if err == nil && !dup {
		if err = w.settleOutput(ctx, rec.SessionID, &rec.Entry); err == nil {
			version, dup, err = w.append(ctx, &rec, after)
		}
	}
	if err != nil {
		return nil, err
	}
	reply := &handshake.Appended{SessionID: rec.SessionID, Version: version, Duplicate: dup}
	for _, f := range redacted {
		reply.Redacted = append(reply.Redacted, f.String())
	}
	return reply, nil
}

// body is what of a record is somebody's own words.
type body struct {
	Entry       handshake.Entry            `json:"entry"`
	SharedData  map[string]json.RawMessage `json:"shared_data,omitempty"`
	Constraints *handshake.Constraints     `json:"constraints,omitempty"`
	Metadata    map[string]json.RawMessage `json:"metadata,omitempty"`
}

// scanTime is how long it may take to look for secrets in what is appended. 4 MiB
// take a few seconds on a machine that has nothing else to do.
const (
	scanTime = 20 * time.Second
	scanMiB  = 2 * time.Second // more, for each MiB of a large output
)

// errTooMuch is the cause of a refusal of what takes longer, or more room than a
// message has.
var errTooMuch = errors.New("too much for one entry")

// clean refuses a record that holds a secret, or masks it and says what.
func (w *Worker) clean(ctx context.Context, rec *handshake.Record, redact bool) (found []secrets.Finding, err error) {
	done, err := w.scans.take(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	err = within(ctx, scanTime, func(ctx context.Context) (err error) {
		found, err = w.scan(ctx, rec, redact)
		return err
	})
	return found, err
}

// within looks for secrets, and refuses what that takes longer for.
func within(ctx context.Context, most time.Duration, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, most, errTooMuch)
	defer cancel()
	err := look(ctx)
	if err == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, errTooMuch) {
		return unavailable(cause)
	}
	e := subjects.Errorf(subjects.CodePayloadTooLarge, "it takes more than %s to look for secrets in it", most).
		WithRemedy("append less at a time, or keep it elsewhere and append where it is (output_file)")
	e.Err = errTooMuch
	return e
}

func (w *Worker) scan(ctx context.Context, rec *handshake.Record, redact bool) ([]secrets.Finding, error) {
	data, err := fleet.Encode(body{rec.Entry, rec.SharedData, rec.Constraints, rec.Metadata})
	if err != nil {
		return nil, err
	}
	masked, found, named, err := w.scanner.JSON(ctx, data)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	if !redact || named {
		return nil, secretError(found)
	}
	b, err := fleet.DecodeStored[body](masked)
	if err != nil {
		return nil, secretError(found) // it cannot be masked where it is
	}
	if _, again, _, err := w.scanner.JSON(ctx, masked); err != nil {
		return nil, err
	} else if len(again) > 0 {
		return nil, secretError(found)
	}
	b.Entry.AgentID, b.Entry.ExecutionTime = rec.Entry.AgentID, rec.Entry.ExecutionTime
	rec.Entry, rec.SharedData, rec.Constraints, rec.Metadata = b.Entry, b.SharedData, b.Constraints, b.Metadata
	return found, nil
}

// secretError names rules and places.
func secretError(found []secrets.Finding) error {
	const most = 8
	var names []string
	for _, f := range found[:min(len(found), most)] {
		names = append(names, f.String())
	}
	e := subjects.Errorf(subjects.CodeSecretInContext, "it holds what looks like a secret: %s", strings.Join(names, ", ")).
		WithRemedy("take it out, or append with redact: true to have it masked")
	if place := found[0].Place; strings.HasPrefix(place, "/") {
		e.Pointer = place
	}
	return e
}

// readContext gives a page of the context, at once or when there is news.
func (w *Worker) readContext(ctx, run context.Context, from subjects.AgentID, r *handshake.Read) (any, error) {
	if _, err := w.use(ctx, from, r.SessionID, r.Token); err != nil {
		return nil, err
	}
	full := false
	if r.WaitSeconds > 0 {
		defer w.waiting.Add(-1)
		full = w.waiting.Add(1) > maxWaiting
	}
	wait := time.NewTimer(time.Duration(r.WaitSeconds * float64(time.Second)))
	defer wait.Stop()
	for {
		var news <-chan struct{}
		if r.WaitSeconds > 0 {
			news = w.news(r.SessionID) // before looking, so that none is missed
		}
		reply, err := w.read(ctx, r.SessionID, r.AfterVersion, cmp.Or(r.Limit, 100))
		if err != nil || len(reply.Records) > 0 || r.WaitSeconds == 0 {
			return reply, err
		}
		if full {
			return nil, subjects.Errorf(subjects.CodeRateLimited, "%d calls wait for news of a session, which is as many as a worker takes", maxWaiting).
				WithRemedy("repeat later").RetryAfter(time.Second)
		}
		select {
		case <-news:
		case <-wait.C:
			return reply, nil
		case <-run.Done(): // it goes; the caller asks again
			return reply, nil
		case <-ctx.Done():
			return nil, unavailable(ctx.Err())
		}
		if _, err := w.use(ctx, from, r.SessionID, r.Token); err != nil {
			return nil, err
		}
	}
}
