// Package otlptest receives traces in tests.
package otlptest

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span that was received; ids are hexadecimal.
type Span struct {
	Trace, Parent, ID, Name string
	Failed                  string // why; "" when it has not
	Start                   uint64 // ns
}

// Receiver is an OTLP endpoint in memory.
type Receiver struct {
	*httptest.Server
	mu    sync.Mutex // guards spans
	spans map[string]Span
}

// New starts a receiver that lives as long as the test.
func New(tb testing.TB) *Receiver {
	tb.Helper()
	r := &Receiver{spans: map[string]Span{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var export collector.ExportTraceServiceRequest
		body, err := io.ReadAll(req.Body)
		if err == nil {
			err = proto.Unmarshal(body, &export)
		}
		if err != nil {
			tb.Errorf("spans cannot be read: %v", err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		for _, resource := range export.GetResourceSpans() {
			for _, scope := range resource.GetScopeSpans() {
				for _, s := range scope.GetSpans() {
					r.take(s)
				}
			}
		}
	}))
	tb.Cleanup(r.Close)
	return r
}

func (r *Receiver) take(s *otlp.Span) {
	got := Span{
		Trace: hex.EncodeToString(s.GetTraceId()), Parent: hex.EncodeToString(s.GetParentSpanId()), ID: hex.EncodeToString(s.GetSpanId()),
		Name: s.GetName(), Start: s.GetStartTimeUnixNano(),
	}
	if s.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR {
		got.Failed = s.GetStatus().GetMessage()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans[got.ID] = got
}

// Take gives what has come, each span once.
func (r *Receiver) Take() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Span, 0, len(r.spans))
	for _, s := range r.spans {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Span) int {
		switch {
		case a.Start != b.Start && a.Start < b.Start, a.Start == b.Start && a.Name < b.Name:
			return -1
		case a == b:
			return 0
		}
		return 1
	})
	return all
}

// Forget drops what has come.
func (r *Receiver) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.spans)
}
