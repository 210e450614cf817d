//go:build linux

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"parley/bus/bustest"
)

// desk answers what is asked of sessions: it refuses the first one, and the first
// thing that is appended. Once as many sessions are asked for as last says, over is
// called.
func desk(t *testing.T, nc *nats.Conn, last int, over func()) {
	t.Helper()
	var mu sync.Mutex
	asked := map[string]int{}
	_, err := nc.Subscribe("fleet.api.*.session.*", func(m *nats.Msg) {
		verb := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
		mu.Lock()
		defer mu.Unlock()
		asked[verb]++
		switch n := asked[verb]; n {
		case 1:
			_ = m.Respond([]byte(`{"error":{"code":"forbidden","message":"not now"}}`))
		default:
			if verb == "create" && n == last {
				over()
			}
			_ = m.Respond(fmt.Appendf(nil, `{"session":{"session_id":"a2a-%d"},"version":1}`, n))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestBeginsAgain: one who is refused a session asks for the next, so that there is
// something to look at.
func TestBeginsAgain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		op   string
		last int
		give func(l *load)
	}{
		{"create", 2, func(l *load) { l.sessions("team0", l.rng(5, 0)) }},
		{"vault", 3, func(l *load) { l.vaults("vault0", l.rng(8, 0)) }},
	} {
		t.Run(tt.op, func(t *testing.T) {
			t.Parallel()
			nc, err := nats.Connect(bustest.New(t, bustest.NoJetStream).URL())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			path := filepath.Join(t.TempDir(), "clients.jsonl")
			journal, err := newScribe(path)
			if err != nil {
				t.Fatal(err)
			}
			stop, over := context.WithCancel(t.Context())
			desk(t, nc, tt.last, over)
			tt.give(&load{nc: nc, journal: journal, stop: stop, hard: t.Context(), anew: 1, waits: make(chan struct{}, waitsMost)})
			lines, err := readLines(path)
			if err != nil {
				t.Fatal(err)
			}
			refused, opened := 0, 0
			for _, o := range operations(lines) {
				switch {
				case o.Op != tt.op:
				case o.ok():
					opened++
				case o.end.Code == "forbidden":
					refused++
				}
			}
			if refused == 0 || opened == 0 {
				t.Errorf("%d were refused, and %d opened", refused, opened)
			}
		})
	}
}
