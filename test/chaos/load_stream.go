//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"parley/test/rig"
)

// streams sends messages by A2A and follows each to its end, by whichever
// gateway answers.
func (l *load) streams(who string, rng *rand.Rand) {
	var follow sync.WaitGroup
	defer follow.Wait()
	few := make(chan struct{}, 16)
	l.every(time.Second/2, func(n int) {
		select {
		case few <- struct{}{}:
		default:
			return // gateways are away
		}
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		follow.Go(func() {
			defer func() { <-few }()
			l.stream(who, fmt.Sprintf("%s-%d", who, n), own)
		})
	})
}

// leg is one connection of a stream.
type leg struct {
	Door  string   `json:"door"`
	After string   `json:"after,omitempty"` // Last-Event-ID
	Told  []string `json:"told,omitempty"`  // "ID STATE" of each event, in order; for a piece of output "ID artifact"
	Why   string   `json:"why,omitempty"`   // it broke
}

// listener is a client of one stream: in a hurry, slow, or one that hangs up.
type listener struct {
	rng   *rand.Rand
	send  []byte // the request that the stream begins with
	key   string // the message's; repeats under it are the same task
	task  string // once it is known
	last  string // id of the last event
	legs  []leg
	ended string // the state that it ended with
}

// stream sends one message and follows its task. A stream that breaks is taken
// up again behind its last event; now and then from the task as it is. Every
// other message has a key, and is sent once more when all is over.
func (l *load) stream(who, message string, rng *rand.Rand) {
	s := &listener{rng: rng, send: rpc("SendStreamingMessage", map[string]any{"message": map[string]any{
		"messageId": message, "role": "ROLE_USER", "parts": []map[string]string{{"text": story(rng)}},
	}})}
	note := line{Client: who, Op: "stream", Key: message}
	if rng.IntN(2) == 0 {
		s.key, note.Text = message, "keyed"
	}
	end := l.journal.begin(note)
	for try := rng.IntN(2); s.ended == ""; try++ {
		err := s.listen(l.hard, l.f.links[try%len(l.f.links)])
		if s.ended != "" {
			break
		}
		if pause(l.hard, time.Duration(100+rng.IntN(200))*time.Millisecond) != nil {
			end(wasInfo, line{ID: s.task, Code: fmt.Sprint(err), Body: s.told()})
			return
		}
	}
	end(wasOK, line{ID: s.task, State: s.ended, Body: s.told()})
	if s.key == "" || pause(l.stop, time.Duration(rng.IntN(5000))*time.Millisecond) != nil {
		return
	}
	end = l.journal.begin(line{Client: who, Op: "replay", Kind: sentAgain, ID: s.task, Key: message, Body: s.send})
	again := &listener{rng: rng, send: s.send, key: s.key}
	err := again.listen(l.hard, l.f.links[rng.IntN(len(l.f.links))])
	if again.task == "" {
		end(wasInfo, line{Code: fmt.Sprint(err)})
		return
	}
	end(wasOK, line{ID: again.task, Body: again.told()})
}

// sentAgain is a message of A2A that is sent once more under its key.
const sentAgain = "message of A2A"

// story is a task of which there is something to tell: pieces of output, or
// attempts that fail.
func story(rng *rand.Rand) string {
	ms := rng.IntN(300)
	done, pieces := rig.Step{Do: rig.DoDone, MS: ms}, rig.Step{Do: rig.DoArtifact, MS: ms, N: 2 + rng.IntN(5)}
	switch rng.IntN(5) {
	case 0:
		return rig.Play(rig.Step{Do: rig.DoError, MS: ms}, pieces)
	case 1:
		return rig.Play(rig.Step{Do: rig.DoReturned}, rig.Step{Do: rig.DoError}, done)
	case 2, 3:
		return rig.Play(pieces)
	}
	return rig.Play(done)
}

// rpc is a request in JSON-RPC.
func rpc(method string, params any) []byte {
	data, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		panic(err)
	}
	return data
}

func (s *listener) told() []byte {
	data, err := json.Marshal(s.legs)
	if err != nil {
		panic(err)
	}
	return data
}

// listen is one connection: it sends the message, or takes the task up where it
// is known.
func (s *listener) listen(ctx context.Context, door string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	body, now := s.send, leg{Door: door}
	if s.task != "" {
		body = rpc("SubscribeToTask", map[string]string{"id": s.task})
		if s.rng.IntN(10) > 0 {
			now.After = s.last
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, door+"/a2a", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("A2A-Version", "1.0")
	if s.key != "" && s.task == "" {
		req.Header.Set("Idempotency-Key", s.key)
	}
	if now.After != "" {
		req.Header.Set("Last-Event-ID", now.After)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") {
		text, rerr := io.ReadAll(io.LimitReader(answer.Body, 500))
		return errors.Join(fmt.Errorf("%s: %s", answer.Status, text), rerr)
	}
	if err = s.read(ctx, answer.Body, &now); err != nil {
		now.Why = err.Error()
	}
	s.legs = append(s.legs, now)
	return err
}

var errHungUp = errors.New("hung up")

// read reads events until the stream ends, breaks, or is left: early, now and
// then, and by some slowly.
func (s *listener) read(ctx context.Context, body io.Reader, now *leg) error {
	most, wait := 1000, time.Duration(0)
	switch s.rng.IntN(4) {
	case 0:
		most = 1 + s.rng.IntN(5)
	case 1:
		wait = time.Duration(s.rng.IntN(700)) * time.Millisecond
	}
	id := ""
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		if after, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			id = after
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if err := s.event(id, data, now); err != nil {
			return err
		}
		if len(now.Told) == most && s.ended == "" {
			return errHungUp
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
	return lines.Err()
}

// event takes one in.
func (s *listener) event(id, data string, now *leg) error {
	type status struct {
		State string `json:"state"`
	}
	var e struct {
		Result struct {
			Task *struct {
				ID     string `json:"id"`
				Status status `json:"status"`
			} `json:"task"`
			Status *struct {
				Status status `json:"status"`
			} `json:"statusUpdate"`
			Artifact *struct{} `json:"artifactUpdate"`
		} `json:"result"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		return fmt.Errorf("%w: %s", err, data)
	}
	state := "artifact"
	switch r := &e.Result; {
	case len(e.Error) > 0:
		return fmt.Errorf("the stream ends with %s", e.Error)
	case r.Task != nil:
		s.task, state = r.Task.ID, a2aState(r.Task.Status.State)
	case r.Status != nil:
		state = a2aState(r.Status.Status.State)
	case r.Artifact == nil:
		return fmt.Errorf("whatever that is: %s", data)
	}
	s.last = id
	now.Told = append(now.Told, id+" "+state)
	if state == "completed" || state == "failed" || state == "rejected" || state == "canceled" {
		s.ended = state
	}
	return nil
}

// a2aState is a state's name in plain words.
func a2aState(s string) string { return strings.ToLower(strings.TrimPrefix(s, "TASK_STATE_")) }
