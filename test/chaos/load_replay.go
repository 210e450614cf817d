//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// tapped is what is captured on its way, and what it is called. All of it may be
// repeated by whoever sent it, so that nobody else can do harm with a copy.
var tapped = []struct{ subject, kind string }{
	{"fleet.dispatch.*", "dispatch"},
	{"fleet.api.*.task.dispatch", "dispatch"},
	{"fleet.api.*.task.resume", "decision"},
	{"fleet.api.*.run.start", "run"},
	{"fleet.api.*.schedule.create", "schedule"},
	{"fleet.api.*.session.append", "append"},
	{"fleet.api.*.mesh.done", "receipt"},
	{"fleet.mesh.*.*", "letter"},
	{"fleet.progress.*.*", "progress"},
	{"fleet.result.*.*", "result"},
}

// failed is what a result is called that says so: it comes again while its task
// waits for the next attempt.
const failed = "failed result"

// Bounds of what is captured.
const (
	tapTurn    = 4 * time.Second // listens, and does not
	tapEach    = time.Second     // one of a kind
	tapLongest = 16 << 10
	tapRoom    = 128 // of which copies are to be sent
)

// capture is a message that came by: what it carries, byte for byte.
type capture struct {
	kind     string
	msg      *nats.Msg
	from     string // who sent it
	id       string // of the task, run, letter, schedule or session
	key      string
	attempt  uint64
	stranger bool // nobody whose journal is kept
}

// read says what a message carries.
func (c *capture) read() {
	token := strings.Split(c.msg.Subject, ".")
	c.from = token[2]
	if c.kind == "letter" {
		c.from = token[3]
	}
	var body struct {
		Task struct {
			ID  string `json:"task_id"`
			Key string `json:"idempotency_key"`
		} `json:"task"`
		ID       string `json:"task_id"`
		Letter   string `json:"message_id"`
		Schedule string `json:"name"`
		Session  string `json:"session_id"`
		Key      string `json:"key"`
		Attempt  uint64 `json:"attempt"`
		Status   string `json:"status"`
	}
	_ = json.Unmarshal(c.msg.Data, &body) // what cannot be read has nothing to be told by
	c.attempt = body.Attempt
	switch c.kind {
	case "dispatch":
		c.id, c.key = body.Task.ID, body.Task.Key
	case "append":
		c.id, c.key = body.Session, body.Key
	case "letter", "receipt":
		c.id = body.Letter
	case "schedule":
		c.id = body.Schedule
	default:
		c.id = body.ID
	}
	if c.kind == "result" && body.Status == "error" {
		c.kind = failed
	}
	nameless := c.id == "" && c.key == "" || c.kind == "append" && c.key == ""
	c.stranger = nameless || strings.HasPrefix(c.from, forger) || strings.HasPrefix(c.from, "greedy")
}

// tap listens to everybody, and keeps some of what asks for an answer.
type tap struct {
	caught chan *capture

	mu   sync.Mutex
	next map[string]time.Time       // guarded by mu; of a kind
	seen map[[sha256.Size]byte]bool // guarded by mu; a copy is not captured
}

func (t *tap) hear(kind string, m *nats.Msg) {
	if m.Reply == "" || len(m.Data) > tapLongest {
		return
	}
	c := &capture{kind: kind, msg: m}
	if kind == "result" && bytes.Contains(m.Data, []byte(`"status":"error"`)) {
		kind = failed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Before(t.next[kind]) {
		return
	}
	sum := sha256.Sum256(append([]byte(m.Subject+"\n"), m.Data...))
	if c.read(); c.stranger || t.seen[sum] {
		return
	}
	select {
	case t.caught <- c:
		t.next[kind], t.seen[sum] = now.Add(tapEach), true
	default:
	}
}

// listen subscribes to everything that is tapped.
func (t *tap) listen(nc *nats.Conn) (subs []*nats.Subscription) {
	for _, s := range tapped {
		sub, err := nc.Subscribe(s.subject, func(m *nats.Msg) { t.hear(s.kind, m) })
		if err != nil {
			panic(err) // what is not tried must not look as if it were
		}
		subs = append(subs, sub)
	}
	return subs
}

// replays sends again what others have sent: soon, and when all is long over. It
// listens half of the time: where somebody does, nobody hears that there is no
// responder.
func (l *load) replays(rng *rand.Rand) {
	nc, err := nats.Connect(l.f.c.urls(0), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.Name("chaos wiretap"))
	if err != nil {
		panic(err)
	}
	defer nc.Close()
	t := &tap{caught: make(chan *capture), next: map[string]time.Time{}, seen: map[[sha256.Size]byte]bool{}}
	turn := time.NewTicker(tapTurn)
	defer turn.Stop()
	subs := t.listen(nc)
	var follow sync.WaitGroup
	defer follow.Wait()
	room := make(chan struct{}, tapRoom)
	for {
		select {
		case <-l.stop.Done():
			return
		case <-turn.C:
			if subs == nil {
				subs = t.listen(nc)
				continue
			}
			for _, s := range subs {
				_ = s.Unsubscribe() // it fails only where the connection is closed
			}
			subs = nil
		case c := <-t.caught:
			waits := []int{rng.IntN(400), 500 + rng.IntN(2500), 3000 + rng.IntN(9000)} // ms
			room <- struct{}{}
			follow.Go(func() {
				defer func() { <-room }()
				for n, ms := range waits {
					_ = pause(l.stop, time.Duration(ms)*time.Millisecond) // what is left goes out at the end
					l.replay(nc, c, n)
				}
			})
		}
	}
}

// replay sends the nth copy. Where JetStream knows a repeat by its header, every
// second one has none.
func (l *load) replay(nc *nats.Conn, c *capture, n int) {
	m := &nats.Msg{Subject: c.msg.Subject, Data: c.msg.Data, Header: maps.Clone(c.msg.Header)}
	if n%2 == 1 && (c.kind == "letter" || strings.HasPrefix(m.Subject, "fleet.dispatch.")) {
		m.Header.Del("Nats-Msg-Id")
	}
	end := l.journal.begin(line{
		Client: c.from, Op: "replay", Kind: c.kind, ID: c.id, Key: c.key, Version: c.attempt, Text: m.Subject, Body: m.Data,
	})
	ctx, cancel := context.WithTimeout(l.hard, 5*time.Second)
	defer cancel()
	var reply struct {
		TaskID  string `json:"task_id"`
		Version uint64 `json:"version"`
	}
	answer, err := nc.RequestMsgWithContext(ctx, m)
	if err == nil {
		err = answered(answer.Data, &reply)
	}
	what, code := told(err)
	end(what, line{ID: reply.TaskID, Version: reply.Version, Code: code})
}
