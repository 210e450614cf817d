//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"parley/test/rig"
)

func second(s float64) time.Time { return morning.Add(time.Duration(s * float64(time.Second))) }

// called takes down a call by its id, which says of which alert it is, who is called
// and which call that is; alerts have the names of agents. It is about the task of
// that agent, and signed by keys.
func called(f *findings, at float64, id string, keys ...int) {
	part := strings.Split(id, "-")
	alert, who := part[0], part[1]
	n, err := strconv.Atoi(part[2])
	if err != nil {
		panic(err)
	}
	body, err := json.Marshal(map[string]any{
		"alert_id": alert, "sequence": n, "group": map[string]string{"code": "agent_error", "agent": alert}, "since": second(1),
		"tasks": []map[string]string{{"task_id": "task-" + alert}},
	})
	if err != nil {
		panic(err)
	}
	f.calls = append(f.calls, line{At: second(at).UnixNano(), Op: "call", ID: id, To: who, Version: 200, Body: body, Text: signed(id, second(at), body, keys)})
}

// signed are the headers of a call.
func signed(id string, at time.Time, body []byte, keys []int) string {
	var all []string
	for _, k := range keys {
		wh, err := standardwebhooks.NewWebhook(secretOf(k))
		if err != nil {
			panic(err)
		}
		sign, err := wh.Sign(id, at, body)
		if err != nil {
			panic(err)
		}
		all = append(all, sign)
	}
	return strings.Join([]string{id, strconv.FormatInt(at.Unix(), 10), strings.Join(all, " ")}, "\n")
}

// toldOften is what is left behind where two tasks wait for a human. Of a somebody is
// told again and again until he answers; b is acknowledged, which times out. The
// key is replaced meanwhile.
func toldOften() *findings {
	f := &findings{records: rig.History{}, dumps: map[string][]message{}, counts: map[string]int{}}
	for _, alert := range []string{"a", "b"} {
		id := "task-" + alert
		waits := rig.Record{Kind: "human", State: "input_required", Stored: second(1)}
		waits.Facts.Await, waits.Reason.Code = "human", "agent_error"
		waits.Facts.Attempts = []rig.PastAttempt{{AgentID: alert, Code: "agent_error"}}
		f.records[id] = []rig.Record{waits, {Kind: "resumed", State: "queued", Stored: second(30)}}
		f.dumps["FLEET_ESCALATIONS"] = append(f.dumps["FLEET_ESCALATIONS"], message{Subject: "fleet.escalation.3." + id})
	}
	act := func(what, id string, from, to float64) {
		f.said = append(f.said, &op{line: line{Op: what, ID: id}, end: line{What: wasOK}, from: second(from).UnixNano(), to: second(to).UnixNano()})
	}
	step := func(n int, from, to float64) {
		f.faults = append(f.faults, &op{line: line{Op: replaceKey, ID: strconv.Itoa(n)}, from: second(from).UnixNano(), to: second(to).UnixNano()})
	}
	step(1, 100, 102)
	step(2, 110, 112)
	for i, at := range []float64{1.2, 5, 9, 13, 17, 21, 25} {
		called(f, at, fmt.Sprintf("a-human-%d", 1+2*i), 0)
		called(f, at+2, fmt.Sprintf("a-lead-%d", 2+2*i), 0)
	}
	act("answer", "a", 28, 29)
	called(f, 1.2, "b-human-1", 0)
	act("ack", "b", 2, 3)
	for i, at := range []float64{18, 22, 26} {
		called(f, at, fmt.Sprintf("b-human-%d", 2+2*i), 0)
		called(f, at+2, fmt.Sprintf("b-lead-%d", 3+2*i), 0)
	}
	act("answer", "b", 28, 29)
	// Far from all that, the same again while the key is replaced.
	f.records["task-c"] = []rig.Record{f.records["task-a"][0], {Kind: "resumed", State: "queued", Stored: second(126)}}
	f.records["task-c"][0].Stored = second(95)
	f.records["task-c"][0].Facts.Attempts = []rig.PastAttempt{{AgentID: "c"}}
	f.dumps["FLEET_ESCALATIONS"] = append(f.dumps["FLEET_ESCALATIONS"], message{Subject: "fleet.escalation.3.task-c"})
	called(f, 96, "c-human-1", 0)
	f.calls[len(f.calls)-1].Version = 500
	called(f, 101, "c-human-1", 1, 0) // it is tried again
	called(f, 107, "c-human-2", 0, 1)
	called(f, 111, "c-human-3", 1)
	called(f, 116, "c-human-4", 1)
	return f
}

// without are the calls but some.
func (f *findings) without(bad func(c *line) bool) {
	f.calls = slices.DeleteFunc(f.calls, func(c line) bool { return bad(&c) })
}

// plantedInCalls are what may be wrong with what people are told.
func plantedInCalls() []planting {
	return []planting{
		{"nobody is told", "task-a: it waits for a human, and human hears nothing of it for 29s", func(f *findings) {
			f.without(func(c *line) bool { return strings.HasPrefix(c.ID, "a-") })
		}},
		{"nobody is ever told", "8 humans: task-a: it waited 59s for a human, and no call names it", func(f *findings) {
			f.records["task-a"][1].Stored = second(60)
			f.without(func(c *line) bool { return strings.HasPrefix(c.ID, "a-") })
		}},
		{"a call of nonsense", "8 humans: a-human-1: the body of a call: ", func(f *findings) { f.calls[0].Body = []byte("{") }},
		{"a step of no keys", "8 signatures: x: no step of the keys", func(f *findings) { f.faults[0].ID = "x" }},
		{"told once", "human hears nothing of it for 28.8s, with nothing wrong for 26.8s", func(f *findings) {
			f.without(func(c *line) bool { return strings.HasPrefix(c.ID, "a-") && c.At > second(4).UnixNano() })
		}},
		{"the next contact is not told", "lead hears nothing of it", func(f *findings) {
			f.without(func(c *line) bool { return c.To == "lead" })
		}},
		{"another task is named", "task-a: it waits for a human, and human hears nothing of it", func(f *findings) {
			for i := range f.calls {
				if strings.HasPrefix(f.calls[i].ID, "a-") {
					f.calls[i].Body = []byte(strings.ReplaceAll(string(f.calls[i].Body), "task-a", "task-b"))
				}
			}
		}},
		{"forgotten after the acknowledgement", "task-b: it waits for a human, and human hears nothing of it", func(f *findings) {
			f.records["task-b"][1].Stored = second(60)
			f.said = f.said[:2]
			f.without(func(c *line) bool { return strings.HasPrefix(c.ID, "b-") && c.At > second(10).UnixNano() })
		}},
		{"called though somebody sees to it", "b: human is called 2 times more after that was taken in: ack", func(f *findings) {
			called(f, 6, "b-human-11", 0)
			called(f, 10, "b-human-12", 0)
		}},
		{"called after the answer", "a: lead is called 2 times more after that was taken in: answer", func(f *findings) {
			called(f, 30, "a-lead-16", 0)
			called(f, 32, "a-lead-17", 0)
		}},
		{"called when it is over", "a: human is called 11s after what waited was over, with nothing wrong for 11s", func(f *findings) {
			called(f, 41, "a-human-16", 0)
		}},
		{"called for nothing", "human is called, and nothing ever waited: agent_error at d", func(f *findings) {
			called(f, 6, "d-human-1", 0)
		}},
		{"called too often", "b: lead hears call 9 when it is open for 3s", func(f *findings) {
			called(f, 4, "b-lead-9", 0)
		}},
		{"an escalation twice", "it waited for a human 1 times, and 2 escalations say so", func(f *findings) {
			f.dumps["FLEET_ESCALATIONS"] = append(f.dumps["FLEET_ESCALATIONS"], f.dumps["FLEET_ESCALATIONS"][0])
		}},
		{"a body that was changed on the way", "8 signatures: a-human-1: the signature of a call does not hold", func(f *findings) {
			f.calls[0].Body = append(f.calls[0].Body, '1')
		}},
		{"a key of nobody", "the signature of a call does not hold", func(f *findings) { called(f, 109, "c-lead-2", 7) }},
		{"the new key does not sign", "not signed by key 1, which is in force", func(f *findings) { called(f, 107, "c-lead-2", 0) }},
		{"the former key ends early", "not signed by key 0, which is in force", func(f *findings) { called(f, 101, "c-lead-2", 1) }},
		{"the former key never ends", "signed by key 0, which is not in force", func(f *findings) { called(f, 117, "c-lead-2", 1, 0) }},
		{"the new key begins early", "signed by key 1, which is not in force", func(f *findings) { called(f, 99, "c-lead-2", 0, 1) }},
		{"the new key alone too early", "not signed by key 1, which is in force", func(f *findings) { called(f, 111, "c-lead-2", 0) }},
		{"another body after the key was replaced", "two calls under one id differ", func(f *findings) {
			called(f, 116, "c-human-1", 1)
			c := &f.calls[len(f.calls)-1]
			c.Body = append(c.Body, ' ')
			c.Text = signed(c.ID, second(116), c.Body, []int{1})
		}},
		{"an old stamp", "is stamped", func(f *findings) {
			c := &f.calls[0]
			c.Text = signed(c.ID, second(-30), c.Body, []int{0})
		}},
	}
}

// What is in order is not called a violation.
func TestCheckerExcusesHumans(t *testing.T) {
	t.Parallel()
	fault := func(f *findings, kind string, from, to float64) {
		f.faults = append(f.faults, &op{line: line{Op: kind}, from: second(from).UnixNano(), to: second(to).UnixNano()})
	}
	for _, tt := range []struct {
		name  string
		plant func(f *findings)
	}{
		{"a call that was on its way", func(f *findings) {
			called(f, 6, "b-human-3", 0)
			called(f, 30, "a-human-16", 0)
		}},
		{"the same call again", func(f *findings) {
			for range 3 {
				f.calls = append(f.calls, f.calls[0])
				f.calls[len(f.calls)-1].At = second(10).UnixNano()
			}
		}},
		{"nobody is told while a disk is full", func(f *findings) {
			fault(f, fullDisk, 3, 8) // and 20 s more
			f.without(func(c *line) bool { return strings.HasPrefix(c.ID, "a-") && c.At > second(4).UnixNano() })
		}},
		{"an answer that nobody took in", func(f *findings) {
			f.said[0].end.What = wasFail
			called(f, 30, "a-lead-16", 0)
			called(f, 32, "a-lead-17", 0)
		}},
		{"the agent is down", func(f *findings) {
			down := f.records["task-a"][0]
			down.Reason.Code = "agent_lost"
			f.records["task-d"] = []rig.Record{down, f.records["task-a"][1]}
			f.dumps["FLEET_ESCALATIONS"] = append(f.dumps["FLEET_ESCALATIONS"], message{Subject: "fleet.escalation.3.task-d"})
			f.without(func(c *line) bool { return strings.HasPrefix(c.ID, "a-") })
			for i := range 29 {
				c := f.calls[0]
				c.ID, c.To = fmt.Sprintf("d-%d", i), contacts[i%2]
				c.At = second(float64(i + 1)).UnixNano()
				c.Body = []byte(strings.NewReplacer("agent_error", "agent_lost", "task-b", "task-d", `"b"`, `"a"`).Replace(string(c.Body)))
				c.Text = signed(c.ID, second(float64(i+1)), c.Body, []int{0})
				f.calls = append(f.calls, c)
			}
			f.said = f.said[1:]
		}},
		{"a stamp of a worker that nobody told the time", func(f *findings) {
			fault(f, skewWorker, 0, 5)
			fault(f, killServer, 0, 2)
			c := &f.calls[0]
			c.Text = signed(c.ID, second(-200), c.Body, []int{0})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := toldOften()
			tt.plant(f)
			if found := verdict(f, (*findings).checkHumans); found != "" {
				t.Errorf("found:\n%s", found)
			}
		})
	}
}

// TestKeysAt: a step may be in force from its beginning, and the one before it until
// it is done and what was sent before has come.
func TestKeysAt(t *testing.T) {
	t.Parallel()
	list := []inForce{{}, {1, second(10).UnixNano(), second(12).UnixNano()}, {2, second(20).UnixNano(), second(22).UnixNano()}}
	for _, tt := range []struct {
		at        float64
		must, may []int
	}{
		{9, []int{0}, []int{0}},
		{11, []int{0}, []int{0, 0, 1}},
		{14, []int{0}, []int{0, 0, 1}},
		{16, []int{0, 1}, []int{0, 1}},
		{21, []int{1}, []int{0, 1, 1}},
		{26, []int{1}, []int{1}},
	} {
		must, may := keysAt(list, second(tt.at).UnixNano())
		slices.Sort(must)
		slices.Sort(may)
		if !slices.Equal(must, tt.must) || !slices.Equal(may, tt.may) {
			t.Errorf("at %v: must %v, may %v; want %v, %v", tt.at, must, may, tt.must, tt.may)
		}
	}
}

// TestKeysAreReplaced: every plan has it, and one of 20 s takes two steps.
func TestKeysAreReplaced(t *testing.T) {
	t.Parallel()
	for total, want := range map[time.Duration]int{20 * time.Second: 2, time.Minute: 2, 5 * time.Minute: 2, time.Hour: 10} {
		for _, only := range []string{"", replaceKey} {
			n := 0
			for _, f := range plan(1, total, &world{}, only) {
				if f.kind == replaceKey {
					n++
				}
			}
			if n != want && n != want+1 { // the end is quiet
				t.Errorf("in %s with -only %q %d steps, want %d or one more", total, only, n, want)
			}
		}
	}
}
