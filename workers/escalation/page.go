package escalation

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers"
)

// Handler serves the links in calls: GET shows what waits and asks, POST acts.
// Whoever has a link may answer as its contact; a page of another site cannot
// post here, and programs that only look at links change nothing.
func (w *Worker) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+LinkPath+"{token}", w.getLink)
	mux.HandleFunc("POST "+LinkPath+"{token}", w.postLink)
	sameSite := http.NewCrossOriginProtection()
	sameSite.SetDenyHandler(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		err := subjects.Errorf(subjects.CodeForbidden, "a page of another site may not answer").WithRemedy("open the link itself")
		w.refuseLink(r.Context(), "", r.RemoteAddr, err)
		w.fail(rw, err)
	}))
	return sameSite.Handler(mux)
}

// page is what the template shows.
type page struct {
	Title, Message string
	Alert          *fleet.Alert
	By             string
	Form           string // the request id of what the form answers, "": there is none
	Decide         bool   // there is something to decide, beside who sees to it
}

func (w *Worker) getLink(rw http.ResponseWriter, r *http.Request) {
	c, ok := w.admit(rw, r)
	if !ok {
		return
	}
	a, err := w.shown(r.Context(), c.Alert, maxNamed)
	if err != nil {
		w.fail(rw, err)
		return
	}
	p := page{Title: summary(*a), Alert: a, By: c.by(), Form: strings.ToLower(rand.Text()), Decide: a.Group[labelCause] == ""}
	if err := open(a, c.Alert); err != nil {
		p.Form, p.Message = "", subjects.AsError(err).Message
	}
	w.render(rw, http.StatusOK, p)
}

func (w *Worker) postLink(rw http.ResponseWriter, r *http.Request) {
	c, ok := w.admit(rw, r)
	if !ok {
		return
	}
	r.Body = http.MaxBytesReader(rw, r.Body, fleet.MaxMessage)
	if err := r.ParseForm(); err != nil {
		w.fail(rw, subjects.Errorf(subjects.CodeInvalidMessage, "the form cannot be read"))
		return
	}
	verb := r.PostForm.Get("verb")
	if verb == "ack" {
		if _, err := w.acknowledge(r.Context(), c.by(), c.Alert); err != nil {
			w.tooLate(r.Context(), c, err)
			w.fail(rw, err)
			return
		}
		w.render(rw, http.StatusOK, page{Title: "Thank you", Message: "You see to it. Nobody else is called for " + w.cfg.Chain.AckTimeout.String() + "; this link still takes your answer."})
		return
	}
	req := &fleet.EscalationAnswer{
		ID: c.Alert, RequestID: r.PostForm.Get("request"), AgentID: subjects.AgentID(strings.TrimSpace(r.PostForm.Get("agent_id"))), Text: r.PostForm.Get("text"),
	}
	if !subjects.ValidToken(req.RequestID) {
		req.RequestID = ""
	}
	if verb == fleet.VerbComplete {
		req.Result = asResult(r.PostForm.Get("result"))
	}
	if !slices.Contains(fleet.HumanVerbs(), verb) {
		w.fail(rw, subjects.Errorf(subjects.CodeInvalidMessage, "%q is not something to decide", clip(verb, 40)))
		return
	}
	done, err := w.decide(r.Context(), c.by(), verb, req, false)
	switch {
	case err != nil:
		w.tooLate(r.Context(), c, err)
		w.fail(rw, err)
	case done.Duplicate:
		w.render(rw, http.StatusOK, page{Title: "Thank you", Message: "Your answer, " + verb + ", was taken before. It counts once."})
	case done.Applied < done.Tasks && done.Applied == 0:
		w.render(rw, http.StatusAccepted, page{Title: "Thank you", Message: "Your answer, " + verb + ", is kept and will be carried out; no router has taken it yet."})
	default:
		p := page{Title: "Thank you", Message: "Your answer, " + verb + ", is on its way to what waits."}
		for _, problem := range done.Problems {
			p.Message += "\n" + problem
		}
		w.render(rw, http.StatusOK, p)
	}
}

// refuseLink keeps that a link was refused, and says so to the audit.
func (w *Worker) refuseLink(ctx context.Context, alert, by string, err error) {
	w.refuse(ctx, alert, by, err.Error())
	w.notes.Refuse(ctx, "", human, handshake.EventAuthRefused, workers.Refusal{
		Code: subjects.CodeOf(err), Action: "escalation_link", Message: workers.Clip(err.Error()), Address: workers.Clip(by),
	})
}

// tooLate keeps that a link was used for an alert that takes nothing any more.
func (w *Worker) tooLate(ctx context.Context, c claims, err error) {
	if subjects.CodeOf(err) == subjects.CodeLateResult {
		w.refuseLink(ctx, c.Alert, c.by(), fmt.Errorf("the link was used again: %w", err))
	}
}

// asResult makes a result of what a human typed: a TASK_RESULT as it is, any
// other text or JSON as the output.
func asResult(text string) json.RawMessage {
	if r, err := fleet.DecodeResult([]byte(text)); err == nil {
		return fleet.MustEncode(r)
	}
	if strings.TrimSpace(text) == "" {
		return nil
	}
	output := json.RawMessage(text)
	if !json.Valid(output) {
		output = fleet.MustEncode(text)
	}
	return fleet.MustEncode(&fleet.Result{
		Header: fleet.Header{Type: fleet.TypeResult, ProtocolVersion: fleet.Version},
		Status: fleet.StatusDone, NextSteps: []string{}, Output: output,
	})
}

// admit checks the link.
func (w *Worker) admit(rw http.ResponseWriter, r *http.Request) (claims, bool) {
	c, err := w.check(r.PathValue("token"), w.now())
	if err != nil {
		if subjects.CodeOf(err) != subjects.CodeUnavailable {
			w.refuseLink(r.Context(), c.Alert, r.RemoteAddr, err)
		}
		w.fail(rw, err)
		return c, false
	}
	return c, true
}

func (w *Worker) fail(rw http.ResponseWriter, err error) {
	e := bus.AsError(err)
	_, _, _, status := subjects.CodeInfo(e.Code)
	if e.Code == subjects.CodeInternal {
		w.log.Error("answer a link", attrErr(err))
	}
	message := e.Message
	if e.Remedy != "" {
		message += "\n" + e.Remedy
	}
	w.render(rw, status, page{Title: string(e.Code), Message: message})
}

func (w *Worker) render(rw http.ResponseWriter, status int, p page) {
	var b bytes.Buffer
	if err := pages.Execute(&b, p); err != nil {
		w.log.Error("make a page", slog.Any("error", err))
		status = http.StatusInternalServerError
	}
	h := rw.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Robots-Tag", "noindex")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	rw.WriteHeader(status)
	_, _ = rw.Write(b.Bytes()) // nobody is left to be told
}

var pages = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Parley: {{.Title}}</title>
<style>
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem}
pre,code{font:14px ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
article,form{border:1px solid #8886;border-radius:.5rem;padding:.75rem 1rem;margin:1rem 0}
input,textarea{font:inherit;width:100%;box-sizing:border-box}
button{font:inherit;padding:.4rem 1rem;margin:.5rem .5rem 0 0}
label{display:block}small{opacity:.75}
</style></head><body>
<h1>{{.Title}}</h1>
{{with .Message}}<pre role="status">{{.}}</pre>{{end}}
{{with .Alert}}<p>Alert <code>{{.AlertID}}</code>, {{.State}}, since {{.Since.Format "2006-01-02 15:04:05"}} UTC{{with .AckBy}}; {{.}} sees to it{{end}}</p>
{{range .Tasks}}<article><b><code>{{.TaskID}}</code></b> from {{.From}}<br>
{{with .Brief}}<q>{{.}}</q><br>{{end}}
<b>{{.Code}}</b>: {{.Message}}<br>
{{range .Tried}}<small>attempt {{.Attempt}} by {{.AgentID}}: {{.Code}} {{.Message}}</small><br>{{end}}
<small>gives up at {{.GiveUpAt.Format "2006-01-02 15:04:05"}} UTC</small></article>{{end}}
{{with .Omitted}}<p>and {{.}} more</p>{{end}}
{{with .Waiting}}<p>{{.Remedy}}; <code>parley task cancel TASK</code> ends a task. They go on by themselves.</p>{{end}}{{end}}
{{with .Form}}<p>You answer as <b>{{$.By}}</b>, for all of them, once.</p>
<form method="post"><input type="hidden" name="request" value="{{.}}"><button name="verb" value="ack">I see to it</button>{{if $.Decide}}<button name="verb" value="retry">Try again</button><button name="verb" value="cancel">Cancel</button>{{end}}</form>
{{if $.Decide}}<form method="post"><input type="hidden" name="request" value="{{.}}"><label>Give it to agent <input name="agent_id" required maxlength="64" pattern="[A-Za-z0-9_\-]+"></label><button name="verb" value="reassign">Reassign</button></form>
<form method="post"><input type="hidden" name="request" value="{{.}}"><label>Try again, knowing that <textarea name="text" rows="4" required></textarea></label><button name="verb" value="answer">Answer</button></form>
<form method="post"><input type="hidden" name="request" value="{{.}}"><label>The result, as text or JSON <textarea name="result" rows="4" required></textarea></label><button name="verb" value="complete">Complete</button></form>
{{end}}{{end}}</body></html>
`))
