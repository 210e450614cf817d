//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"parley/test/rig"
)

// planNode is a node of a run.
type planNode struct {
	ID           string   `json:"id"`
	Dependencies []string `json:"dependencies"`
	Brief        string   `json:"brief"`
	MaxRetries   int      `json:"max_retries"`
	OnFailure    string   `json:"on_failure"`
}

// runTimeout is how long a run may take, whatever is done to the fleet.
const runTimeout = 10 * time.Minute

// runs starts runs of four nodes, two of them side by side, and reads what
// came of each twice.
func (l *load) runs(who string, rng *rand.Rand) {
	var follow sync.WaitGroup
	defer follow.Wait()
	l.every(1500*time.Millisecond, func(n int) {
		id := fmt.Sprintf("%s-%d", who, n)
		def := map[string]any{"task_id": id, "timeout": runTimeout.Seconds(), "description": id}
		nodes := []planNode{{ID: "a"}, {ID: "b", Dependencies: []string{"a"}}, {ID: "c", Dependencies: []string{"a"}}, {ID: "d", Dependencies: []string{"b", "c"}}}
		for i := range nodes {
			nodes[i].MaxRetries, nodes[i].OnFailure, nodes[i].Brief = 5, "continue", rig.Play(rig.Step{Do: rig.DoDone, MS: rng.IntN(200)})
			if nodes[i].Dependencies == nil {
				nodes[i].Dependencies = []string{}
			}
		}
		def["agents"] = nodes
		end := l.journal.begin(line{Client: who, Op: "run", ID: id})
		var reply struct {
			State string `json:"state"`
		}
		err := l.ask(l.hard, who, "run", "start", def, &reply)
		what, code := told(err)
		end(what, line{State: reply.State, Code: code})
		if err == nil {
			l.known.add("run", id)
			follow.Go(func() { l.follow(who, id) })
		}
	})
}

// follow waits for the end of a run, and reads its document twice.
func (l *load) follow(who, id string) {
	end := l.journal.begin(line{Client: who, Op: "runend", ID: id})
	var reply struct {
		State string `json:"state"`
	}
	for {
		err := l.ask(l.hard, who, "run", "get", map[string]string{"run_id": id}, &reply)
		if err == nil && (reply.State == "running" || reply.State == "paused") {
			err = pause(l.hard, 500*time.Millisecond)
			if err == nil {
				continue
			}
		}
		what, code := told(err)
		end(what, line{State: reply.State, Code: code})
		if err != nil {
			return
		}
		break
	}
	for range 2 {
		end := l.journal.begin(line{Client: who, Op: "document", ID: id})
		var doc []byte
		err := l.ask(l.hard, who, "run", "output", map[string]string{"run_id": id}, &doc)
		what, code := told(err)
		end(what, line{Body: doc, Code: code})
	}
}

// sessions opens one session after the other, to which several append: half of
// them to the version that they know, half of them to whatever is the last.
// Every second one is deleted, and tried again.
func (l *load) sessions(who string, rng *rand.Rand) {
	for n := 0; l.stop.Err() == nil; n++ {
		end := l.journal.begin(line{Client: who, Op: "create", Key: strconv.Itoa(n)})
		var opened struct {
			Session struct {
				ID string `json:"session_id"`
			} `json:"session"`
		}
		err := l.ask(l.hard, who, "session", "create", map[string]any{}, &opened)
		what, code := told(err)
		id := opened.Session.ID
		end(what, line{ID: id, Code: code})
		if err != nil {
			_ = pause(l.stop, l.anew)
			continue
		}
		l.known.add("session", id)
		life, over := context.WithTimeout(l.stop, time.Duration(8+rng.IntN(8))*time.Second)
		var wg sync.WaitGroup
		for i := range 3 {
			own := l.rng(50+n, i)
			wg.Go(func() { l.appends(life, who, id, i, own) })
		}
		<-life.Done()
		over()
		if n%2 == 0 { // with appends on their way
			l.deleted(who, id)
		}
		wg.Wait()
	}
}

// appends appends and reads until life ends.
func (l *load) appends(life context.Context, who, id string, i int, rng *rand.Rand) {
	known := uint64(0)
	for n := 0; pause(life, time.Duration(20+rng.IntN(150))*time.Millisecond) == nil; n++ {
		if rng.IntN(4) == 0 {
			known = l.read(who, id, known)
			continue
		}
		key := fmt.Sprintf("%d-%d", i, n)
		note := line{Client: who, Op: "append", ID: id, Key: key}
		req := map[string]any{"session_id": id, "key": key, "entry": map[string]any{"status": "success", "findings": map[string]string{"key": key}}}
		if rng.IntN(2) == 0 {
			note.After, req["after_version"] = new(known), known
		}
		end := l.journal.begin(note)
		var reply struct {
			Version uint64 `json:"version"`
		}
		err := l.ask(l.hard, who, "session", "append", req, &reply)
		what, code := told(err)
		end(what, line{Key: key, Version: reply.Version, Code: code})
		if err == nil {
			known = reply.Version
		}
	}
}

// read asks how long the context is.
func (l *load) read(who, id string, after uint64) uint64 {
	end := l.journal.begin(line{Client: who, Op: "read", ID: id})
	var reply struct {
		Version uint64 `json:"version"`
	}
	err := l.ask(l.hard, who, "session", "context", map[string]any{"session_id": id, "after_version": after}, &reply)
	what, code := told(err)
	end(what, line{Version: reply.Version, Code: code})
	return max(after, reply.Version)
}

// deleted deletes a session, and tries to use it once that is acknowledged.
func (l *load) deleted(who, id string) {
	end := l.journal.begin(line{Client: who, Op: "delete", ID: id})
	var reply map[string]any
	err := l.ask(l.hard, who, "session", "delete", map[string]string{"session_id": id}, &reply)
	what, code := told(err)
	end(what, line{Code: code})
	if err != nil {
		return
	}
	for range 3 {
		l.read(who, id, 0)
		end := l.journal.begin(line{Client: who, Op: "append", ID: id, Key: "late"})
		err := l.ask(l.hard, who, "session", "append", map[string]any{"session_id": id, "key": "late", "entry": map[string]string{"status": "success"}}, &reply)
		what, code := told(err)
		end(what, line{Key: "late", Code: code})
		if pause(l.hard, 300*time.Millisecond) != nil {
			return
		}
	}
}

// letters are messages of the mesh: some to nobody, with little time to live;
// some are sent twice.
func (l *load) letters(who string, rng *rand.Rand) {
	l.every(time.Second/3, func(n int) {
		id := fmt.Sprintf("%s-%d", who, n)
		to := l.f.agents[rng.IntN(len(l.f.agents))].ID
		body := fmt.Sprintf(`{"message_id":%q,"text":"%d","action":"info","reply":"no"}`, id, n)
		if rng.IntN(20) == 0 {
			to = "nobody"
			body = fmt.Sprintf(`{"message_id":%q,"text":"%d","action":"info","reply":"no","ttl_seconds":2}`, id, n)
		}
		times := 1 + rng.IntN(10)/9
		for range times {
			end := l.journal.begin(line{Client: who, Op: "letter", ID: id, To: to})
			err := l.publish("fleet.mesh."+to+"."+who, body)
			what, code := told(err)
			end(what, line{Code: code})
		}
	})
}

// publish repeats until JetStream acknowledges.
func (l *load) publish(subject, body string) error {
	for {
		try, cancel := context.WithTimeout(l.hard, 5*time.Second)
		_, err := l.js.Publish(try, subject, []byte(body), jetstream.WithRetryAttempts(0))
		cancel()
		if err == nil {
			return nil
		}
		if perr := pause(l.hard, 50*time.Millisecond); perr != nil {
			return errors.Join(perr, err)
		}
	}
}

// troubles are tasks that a human must see to: their only agent fails for good.
// Once a human has said that it be tried again, it is done. Some are given up by
// their client, where no human was faster.
func (l *load) troubles(who string, rng *rand.Rand) {
	var follow sync.WaitGroup
	defer follow.Wait()
	none := 0
	l.every(2*time.Second, func(n int) {
		id := fmt.Sprintf("%s-%d", who, n)
		to := l.f.agents[rng.IntN(len(l.f.agents))].ID
		note := line{Client: who, Op: "dispatch", ID: id, To: to, Text: "human"}
		given := l.dispatch(who, task{
			Task:  taskHead{ID: id, Timeout: 20, Agent: to, Escalate: "always", MaxRetries: &none, GiveUpAfter: 45},
			Brief: rig.Play(rig.Step{Do: rig.DoFatal}, rig.Step{Do: rig.DoDone}),
		}, note, false)
		if given != "" && n%3 == 0 {
			follow.Go(func() { l.cancel(who, given, 2*time.Second) })
		}
	})
}
