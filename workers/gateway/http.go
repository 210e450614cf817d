package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/subjects/fleet"
)

// Paths that the gateway serves.
const (
	pathRPC    = "/a2a" // POST: JSON-RPC; below it: REST
	pathCard   = "/.well-known/agent-card.json"
	pathGRPC   = "/lf.a2a.v1.A2AService/"
	pathAgents = "/agents"
)

// maxBody is how long a request may be: a dispatch, in its envelope.
const maxBody = fleet.MaxMessage + 64<<10

// maxNesting is how deep JSON may nest.
const maxNesting = fleet.MaxDepth

// Handlers are the gateway's pages by the pattern of http.ServeMux where they
// belong.
func (w *Worker) Handlers() map[string]http.Handler {
	guard := func(f http.HandlerFunc) http.Handler { return w.guarded(f) }
	overGRPC := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !w.hostAllowed(r.Host) {
			http.Error(rw, "this host name is not served here", http.StatusMisdirectedRequest)
			return
		}
		w.rpc.ServeHTTP(w.impatient(rw), r)
	})
	pages := map[string]http.Handler{
		pathRPC:             guard(w.serveRPC),
		pathRPC + "/":       guard(w.serveREST),
		"GET " + pathCard:   guard(w.serveCard),
		"GET " + pathAgents: guard(w.serveAgents),
		"GET " + pathKeys:   guard(w.serveKeys),
		"GET " + pathAgents + "/{agent}" + pathCard: guard(w.serveCard),
		pathGRPC: overGRPC,
	}
	if !w.cfg.NoLegacy {
		pages["GET "+legacyCardPath] = guard(w.serveCard)
		pages["GET "+pathAgents+"/{agent}"+legacyCardPath] = guard(w.serveCard)
		pages[legacyPathGRPC] = overGRPC
	}
	return pages
}

// guarded is what holds for every page: the version is told, the host must be
// ours, pages of other origins are let in only where they are listed, and who
// does not read is let go.
func (w *Worker) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		rw := w.impatient(out)
		rw.Header()[headerVersion] = []string{protocolVersion} // as the specification writes it
		rw.Header().Set("X-Content-Type-Options", "nosniff")
		if !w.hostAllowed(r.Host) {
			w.restFault(rw, r, &fault{kind: kindUnauthorized, message: "this host name is not served here"})
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" && !sameOrigin(origin, r.Host) {
			if !slices.Contains(w.cfg.Origins, origin) {
				w.restFault(rw, r, &fault{kind: kindUnauthorized, message: "pages of this origin may not call"})
				return
			}
			h := rw.Header()
			h.Set("Access-Control-Allow-Origin", origin)
			h.Add("Vary", "Origin")
			h.Set("Access-Control-Expose-Headers", strings.Join([]string{headerVersion, headerExtensions, "ETag", "Retry-After"}, ", "))
			if r.Method == http.MethodOptions {
				h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
				h.Set("Access-Control-Allow-Headers", strings.Join([]string{"Authorization", "Content-Type", headerVersion, headerExtensions, headerAPIKey, headerIdempotent, headerLastEvent}, ", "))
				h.Set("Access-Control-Max-Age", "600")
				rw.WriteHeader(http.StatusNoContent)
				return
			}
		}
		next.ServeHTTP(rw, r)
	})
}

// hostAllowed reports whether a request that names host is served.
func (w *Worker) hostAllowed(host string) bool {
	return hostAllowed(host, w.publicHost, w.auth.cfg.required() || w.cfg.Open)
}

// baseOf is where the client reached us, or where we are told that it does.
func (w *Worker) baseOf(r *http.Request) base {
	if w.cfg.URL != "" {
		return base{url: w.cfg.URL, host: w.publicAuthority}
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return base{url: scheme + "://" + r.Host, host: r.Host}
}

// patient lets an answer take as long as it takes: the server's time-out for
// reading a request would end it.
func patient(rw http.ResponseWriter) {
	_ = http.NewResponseController(rw).SetReadDeadline(time.Time{}) // what cannot do that has no such time-out
}

// impatient lets a reader go that does not read. A stream may be quiet for as
// long as it is.
type impatient struct {
	http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
}

func (w *Worker) impatient(rw http.ResponseWriter) *impatient {
	if i, already := rw.(*impatient); already {
		return i
	}
	return impatiently(rw, w.cfg.WriteTimeout)
}

func impatiently(rw http.ResponseWriter, timeout time.Duration) *impatient {
	return &impatient{ResponseWriter: rw, rc: http.NewResponseController(rw), timeout: timeout}
}

// limit bounds the writing until the next Flush.
func (i *impatient) limit() error {
	if err := i.rc.SetWriteDeadline(time.Now().Add(i.timeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// atOnce is how many bytes are written within the time for it: who reads slowly
// does read.
const atOnce = 64 << 10

// Write writes within the time for it.
func (i *impatient) Write(p []byte) (int, error) {
	for n := 0; ; {
		if err := i.limit(); err != nil {
			return n, err
		}
		m, err := i.ResponseWriter.Write(p[n:min(n+atOnce, len(p))])
		if n += m; err != nil || n == len(p) {
			return n, err
		}
	}
}

// Flush sends what was written.
func (i *impatient) Flush() { _ = i.FlushError() }

// FlushError is Flush that says whether it could.
func (i *impatient) FlushError() error {
	if err := i.limit(); err != nil {
		return err
	}
	if err := i.rc.Flush(); err != nil {
		return err
	}
	_ = i.rc.SetWriteDeadline(time.Time{}) // what cannot do that had no limit
	return nil
}

// Unwrap is for http.ResponseController.
func (i *impatient) Unwrap() http.ResponseWriter { return i.ResponseWriter }

// admitHTTP admits an HTTP request that has been read.
func (w *Worker) admitHTTP(rw http.ResponseWriter, r *http.Request, legacy bool) (*call, error) {
	c, err := w.admit(r.Context(), r.Header, peerOf(r), func() error {
		if legacy {
			return nil
		}
		return checkVersion(pick(first(r.Header, headerVersion), queryVersion(r)))
	})
	if err != nil {
		return nil, err
	}
	patient(rw)
	c.base = w.baseOf(r)
	echo := headerExtensions
	if legacy {
		echo = legacyExtensions
	}
	c.activated = func(uris []string) { rw.Header()[echo] = []string{strings.Join(uris, ",")} }
	c.activate(c.active)
	return c, nil
}

func queryVersion(r *http.Request) string { return r.URL.Query().Get(headerVersion) }

// readBody reads a JSON body within its bounds.
func readBody(rw http.ResponseWriter, r *http.Request) ([]byte, error) {
	if err := checkMediaType(r); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxBody))
	if err == nil {
		return body, nil
	}
	if big, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, faultf(kindTooLarge, "the request is longer than "+strconv.FormatInt(big.Limit, 10)+" bytes; pass large content as a url")
	}
	return nil, &fault{kind: kindParse, message: "the request ends too early", cause: err}
}

// checkMediaType refuses a body that is not JSON.
func checkMediaType(r *http.Request) error {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err == nil && (t == "application/json" || t == "application/a2a+json") {
		return nil
	}
	return faultf(kindContentType, "the Content-Type must be application/json or application/a2a+json")
}

// decode reads a request in ProtoJSON. What is not known is ignored.
func decode(data []byte, into proto.Message) error {
	err := protojson.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: maxNesting}.Unmarshal(data, into)
	if q, ok := into.(*a2apb.ListTasksRequest); ok && err == nil && q.GetStatus() == 0 {
		return knownStatus(data)
	}
	if err == nil {
		return nil
	}
	// "proto: (line 1:9): invalid value for string field id: 1"
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	text = strings.TrimPrefix(text, "proto: ")
	return &fault{kind: kindInvalidParams, message: clip(text), cause: err}
}

// knownStatus refuses a filter that names no state, which would be ignored as
// not known, and so let everything through.
func knownStatus(data []byte) error {
	var q struct {
		Status json.RawMessage `json:"status"`
	}
	if json.Unmarshal(data, &q) != nil {
		return nil
	}
	switch string(q.Status) {
	case "", "0", "null", `"TASK_STATE_UNSPECIFIED"`:
		return nil
	}
	return badField("status", "it is none of the states")
}

// encode is a result in ProtoJSON; of a listing, what must be there is.
func encode(m proto.Message) (json.RawMessage, error) {
	switch m := m.(type) {
	case *a2apb.ListTasksResponse:
		out := struct {
			Tasks         []json.RawMessage `json:"tasks"`
			NextPageToken string            `json:"nextPageToken"`
			PageSize      int32             `json:"pageSize"`
			TotalSize     int32             `json:"totalSize"`
		}{[]json.RawMessage{}, m.NextPageToken, m.PageSize, m.TotalSize}
		for _, t := range m.Tasks {
			data, err := protojson.Marshal(t)
			if err != nil {
				return nil, err
			}
			out.Tasks = append(out.Tasks, data)
		}
		return json.Marshal(out)
	case *a2apb.AgentCard:
		return cardJSON(m)
	}
	return protojson.Marshal(m)
}

func writeJSON(rw http.ResponseWriter, code int, mediaType string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		code, data = http.StatusInternalServerError, []byte(`{"error":{"code":500,"status":"INTERNAL"}}`)
	}
	h := rw.Header()
	h.Set("Content-Type", mediaType)
	h.Set("Content-Length", strconv.Itoa(len(data)))
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	rw.WriteHeader(code)
	_, _ = rw.Write(data)
}

// told logs what a client cannot know, and gives it what it can.
func (w *Worker) told(rw http.ResponseWriter, r *http.Request, err error) *fault {
	f := asFault(err)
	if f.kind == kindInternal {
		w.log.Error("answer a request", slog.String("path", r.URL.Path), slog.Any("error", f.reason()))
	}
	w.retryHeaders(rw, f)
	return f
}

func (w *Worker) retryHeaders(rw http.ResponseWriter, f *fault) {
	if f.retry > 0 {
		rw.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(f.retry.Seconds()))))
	}
	if f.kind == kindUnauthenticated {
		rw.Header().Set("WWW-Authenticate", `Bearer realm="parley"`)
	}
}

// sse writes the events of one stream.
type sse struct {
	rw    *impatient
	began bool
	wrap  func(json.RawMessage) ([]byte, error)
}

// frame writes one event; the first one begins the stream.
func (s *sse) frame(f frame) error {
	if f.msg == nil {
		return s.write(": open\n\n")
	}
	data, err := protojson.Marshal(f.msg)
	if err != nil {
		return err
	}
	if data, err = s.wrap(data); err != nil {
		return err
	}
	event := "data: " + string(data) + "\n\n"
	if f.id != "" {
		event = "id: " + f.id + "\n" + event
	}
	return s.write(event)
}

func (s *sse) write(text string) error {
	if !s.began {
		s.began = true
		h := s.rw.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no")
		s.rw.WriteHeader(http.StatusOK)
	}
	// A reader that does not read is let go; it resumes where it was.
	if _, err := io.WriteString(s.rw, text); err != nil {
		return err
	}
	return s.rw.FlushError()
}

// dialect is how a binding writes a stream.
type dialect struct {
	wrap   func(json.RawMessage) ([]byte, error) // an event
	refuse func(error)                           // an error before the first event
	last   func(*fault) []byte                   // an error as the last event
}

// serveStream runs a streaming operation.
func (w *Worker) serveStream(rw http.ResponseWriter, r *http.Request, c *call, op *operation, req proto.Message, d dialect) {
	s := &sse{rw: w.impatient(rw), wrap: d.wrap}
	ctx, cancel := w.during(r.Context())
	defer cancel()
	frames := make(chan frame)
	failed := make(chan error, 1)
	go func() { // joined below: failed is always received, and ctx ends first
		failed <- op.stream(ctx, c, req, func(f frame) error {
			select {
			case frames <- f:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	alive := time.NewTicker(w.cfg.KeepAlive)
	defer alive.Stop()
	for {
		var err error
		select {
		case f := <-frames:
			err = s.frame(f)
		case <-alive.C:
			if s.began {
				err = s.write(": keep-alive\n\n")
			}
		case err = <-failed:
			w.endStream(r, s, err, d)
			return
		}
		if err != nil {
			cancel()
			w.log.Debug("stream ended early", slog.Any("error", errors.Join(err, <-failed)))
			return
		}
	}
}

// endStream says why a stream ends, unless it ended as it should.
func (w *Worker) endStream(r *http.Request, s *sse, err error, d dialect) {
	switch {
	case err == nil, r.Context().Err() != nil:
	case !s.began:
		d.refuse(err)
	case errors.Is(err, errDraining): // the client resumes elsewhere
	default:
		if err := s.write("data: " + string(d.last(asFault(err))) + "\n\n"); err != nil {
			w.log.Debug("stream ended early", slog.Any("error", err))
		}
	}
}
