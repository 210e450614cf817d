package a2e

import (
	"errors"
	"io"
	"log/slog"
	"math"
	"mime"
	"net/http"
	"strconv"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Paths that the worker serves.
const (
	pathHandshake = "POST /a2e/v1/handshake"
	pathCall      = "POST /a2e/v1/call"
)

const (
	transportHTTP = "http"
	// headerToken holds the token of the session: the handshake answers it, calls
	// send it.
	headerToken = "A2E-Session-Token" //nolint:gosec // the name of a header
)

// maxLine is how long a request may be: a message, in its envelope.
const maxLine = fleet.MaxMessage + 64<<10

// Handlers are the worker's pages by the pattern of http.ServeMux where they
// belong. identify says who calls by what the request proves: "" where nobody
// is asked; auth_failed where somebody was to say, and did not.
func (w *Worker) Handlers(identify func(*http.Request) (subjects.AgentID, error)) map[string]http.Handler {
	page := func(serve func(http.ResponseWriter, *http.Request, caller, []byte)) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			id, err := identify(r)
			if err != nil && subjects.CodeOf(err) != subjects.CodeAuthFailed {
				fail(rw, err)
				return
			}
			body, berr := readBody(rw, r)
			if berr != nil {
				fail(rw, berr)
				return
			}
			// The server's time-out for reading a request would end a long answer.
			_ = http.NewResponseController(rw).SetReadDeadline(time.Time{})
			serve(rw, r, caller{id: id, trusted: id != "", refused: err, token: r.Header.Get(headerToken), how: transportHTTP}, body)
		})
	}
	return map[string]http.Handler{pathHandshake: page(w.serveHandshake), pathCall: page(w.serveCall)}
}

func (w *Worker) serveHandshake(rw http.ResponseWriter, r *http.Request, c caller, body []byte) {
	answer, token, err := w.shake(r.Context(), c, body)
	if err != nil {
		fail(rw, err)
		return
	}
	status := http.StatusOK
	if answer.Error != nil {
		status = statusOf(rw, answer.Error)
	} else {
		rw.Header().Set(headerToken, token)
	}
	w.write(rw, status, answer)
}

func (w *Worker) serveCall(rw http.ResponseWriter, r *http.Request, c caller, body []byte) {
	answer := w.call(r.Context(), c, body)
	status := http.StatusOK
	if answer.Error != nil {
		status = statusOf(rw, answer.Error)
	}
	w.write(rw, status, answer)
}

// statusOf is the HTTP status of an error, and its headers.
func statusOf(rw http.ResponseWriter, e *subjects.Error) int {
	if e.RetryAfterSeconds > 0 {
		rw.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfterSeconds))))
	}
	if e.Code == subjects.CodeAuthFailed {
		rw.Header().Set("WWW-Authenticate", `Bearer realm="parley"`)
	}
	_, _, _, status := subjects.CodeInfo(e.Code)
	return status
}

// fail answers what is not even a message of the protocol.
func fail(rw http.ResponseWriter, err error) {
	e := subjects.AsError(err)
	writeJSON(rw, statusOf(rw, e), fleet.MustEncode(&fleet.ErrorReply{Error: e}))
}

func (w *Worker) write(rw http.ResponseWriter, status int, v any) {
	data, err := fleet.Encode(v)
	if err != nil {
		w.log.Error("encode an answer", slog.Any("error", err))
		fail(rw, err)
		return
	}
	writeJSON(rw, status, data)
}

func writeJSON(rw http.ResponseWriter, status int, data []byte) {
	h := rw.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(data)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	rw.WriteHeader(status)
	_, _ = rw.Write(data)
}

// readBody reads a JSON body within its bounds.
func readBody(rw http.ResponseWriter, r *http.Request) ([]byte, error) {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "expected the Content-Type application/json")
	}
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxLine))
	if _, big := errors.AsType[*http.MaxBytesError](err); big {
		return nil, subjects.Errorf(subjects.CodePayloadTooLarge, "the request is longer than %d bytes", maxLine)
	}
	if err != nil {
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "the request was not read to its end: %w", err)
	}
	return body, nil
}
