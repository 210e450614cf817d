package mcp

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestTheEndWaits checks that input ends when all that it asked is answered, when
// nobody wants the answers, and after a minute at the latest.
func TestTheEndWaits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in string
		then     func(r reader, w writer)
		want     time.Duration
	}{
		{"nothing was asked", `{"jsonrpc":"2.0","method":"m"}`, func(reader, writer) {}, 0},
		{"nobody answers", `{"jsonrpc":"2.0","id":1,"method":"m"}`, func(reader, writer) {}, lastAnswers},
		{"it is answered", `{"jsonrpc":"2.0","id":1,"method":"m"}`, func(_ reader, w writer) { _, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`)) }, time.Second},
		{"one of two is answered", `[{"id":1,"method":"m"},{"id":2,"method":"m"}]`, func(_ reader, w writer) { _, _ = w.Write([]byte(`{"id":1,"result":{}}`)) }, lastAnswers},
		{"it is closed", `{"jsonrpc":"2.0","id":1,"method":"m"}`, func(r reader, _ writer) { _ = r.Close() }, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPiped(io.NopCloser(strings.NewReader(tt.in)), discard{})
				time.AfterFunc(time.Second, func() { tt.then(reader{p}, writer{p}) })
				begin := time.Now()
				if _, err := io.ReadAll(p); err != nil && !errors.Is(err, io.EOF) {
					t.Error(err)
				}
				if took := time.Since(begin); took != tt.want {
					t.Errorf("the end came after %s, want %s", took, tt.want)
				}
				<-time.After(time.Second) // for what is to happen then
			})
		})
	}
}

// discard is output that nobody reads.
type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) Close() error                { return nil }
