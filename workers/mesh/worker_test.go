package mesh_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	wire "parley/subjects/mesh"
	"parley/workers/mesh"
)

// A message goes one way, and its sender hears how far it has come.
func TestDelivery(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	heard := make(chan wire.Ack, 10)
	if _, err := b.Subscribe(subjects.MeshAck("ann", "*"), "", func(m bus.Msg) {
		if a, err := wire.DecodeAck(m.Data); err == nil {
			heard <- *a
		}
	}); err != nil {
		t.Fatal(err)
	}
	start(t, b, mesh.Limits{})
	bob := join(t, b, "bob", "one", 1)
	id := send(t, b, "ann", "bob", "hello \x1b[31m\u202eworld", func(m *wire.Message) {
		m.SenderName, m.Data = "Ann\nof the office", []byte(`{"a":"\u0007b"}`)
	})
	m := bob.next()
	if m.From != "ann" || m.To != "bob" || m.MessageID != id || m.ThreadID != wire.ThreadID(id) || m.Attempt != 1 || m.Time == nil ||
		m.Text != "hello [31mworld" || string(m.Data) != `{"a":"b"}` || m.SenderName != "Ann of the office" || !m.Untrusted {
		t.Errorf("bob got %+v", m)
	}
	await(t, b, "ann", id, wire.Delivered)
	if err := bob.done(m, func(d *wire.Done) { d.Attempt = 2 }); subjects.CodeOf(err) != subjects.CodeLateResult {
		t.Errorf("done of another attempt = %v, want late_result", err)
	}
	for range 2 { // it may be repeated
		if err := bob.done(m, nil); err != nil {
			t.Errorf("done = %v", err)
		}
	}
	var states []wire.State
	for len(states) < 3 {
		select {
		case a := <-heard:
			states = append(states, a.State)
		case <-time.After(time.Minute):
			t.Fatalf("heard only %v", states)
		}
	}
	if want := []wire.State{wire.Delivering, wire.Delivered, wire.Processed}; !slices.Equal(states, want) {
		t.Errorf("the sender heard %v, want %v", states, want)
	}
	v, err := ask[wire.View](t, b, "ann", "get", wire.Ref{MessageID: id})
	if err != nil || v.Ack.State != wire.Processed || v.Message.Text != m.Text {
		t.Errorf("get = %+v, %v", v, err)
	}
	if _, err := ask[wire.View](t, b, "eve", "get", wire.Ref{MessageID: id, From: "ann"}); subjects.CodeOf(err) != subjects.CodeNotFound {
		t.Errorf("a stranger's get = %v, want not_found", err)
	}
	if _, err := ask[wire.Ack](t, b, "eve", "done", wire.Done{From: "ann", MessageID: id, Attempt: 1, InstanceID: "one"}); subjects.CodeOf(err) != subjects.CodeNotFound {
		t.Errorf("a stranger's done = %v, want not_found", err)
	}
}

// Who sleeps gets his messages when he announces himself: in order per sender,
// one at a time, each once.
func TestSleeperWakesAndKeepsTheOrder(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	stop := start(t, b, mesh.Limits{})
	const n = 5
	for i := range n {
		for _, from := range []subjects.AgentID{"ann", "cid"} {
			send(t, b, from, "bob", strconv.Itoa(i), nil)
		}
	}
	again := wire.Message{MessageID: "twice", To: "bob", Text: "twice", Reply: wire.No}
	for range 3 { // at the raw door, beyond what JetStream would recognise
		if _, err := b.Store(t.Context(), subjects.Mesh("bob", "dan"), fleet.MustEncode(&again), "", nil); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	start(t, b, mesh.Limits{}) // another worker, who knows nothing but the streams
	one, two := join(t, b, "bob", "one", 1), join(t, b, "bob", "two", 1)
	got := map[subjects.AgentID][]string{}
	for range 2*n + 1 {
		var p *peer
		var m wire.Message
		select {
		case m = <-one.got:
			p = one
		case m = <-two.got:
			p = two
		case <-time.After(time.Minute):
			t.Fatalf("got only %v", got)
		}
		got[m.From] = append(got[m.From], m.Text)
		if err := p.done(m, nil); err != nil {
			t.Error(err)
		}
	}
	want := []string{"0", "1", "2", "3", "4"}
	if !slices.Equal(got["ann"], want) || !slices.Equal(got["cid"], want) || !slices.Equal(got["dan"], []string{"twice"}) {
		t.Errorf("bob got %v", got)
	}
	await(t, b, "dan", "twice", wire.Processed)
}

// What an instance has does not go to another one, unless it is lost; what it
// may have, it is asked for again; what it refuses, the other one gets.
func TestInstances(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b, mesh.Limits{})
	one := join(t, b, "bob", "one", 1)
	one.say(wire.Delivery{}, true)
	id := send(t, b, "ann", "bob", "x", nil)
	if m := one.next(); m.Attempt != 1 {
		t.Errorf("attempt %d, want 1", m.Attempt)
	}
	two := join(t, b, "bob", "two", 1)
	one.say(wire.Delivery{OK: true}, false)
	if m := one.next(); m.Attempt != 2 { // it did not answer: the same one again
		t.Errorf("attempt %d, want 2", m.Attempt)
	}
	await(t, b, "ann", id, wire.Delivered)
	one.die()
	m := two.next()
	await(t, b, "ann", id, wire.Delivered)
	if m.Attempt != 3 || m.MessageID != id {
		t.Errorf("after the loss: attempt %d of %s, want 3 of %s", m.Attempt, m.MessageID, id)
	}
	if err := one.done(m, func(d *wire.Done) { d.Attempt = 1 }); subjects.CodeOf(err) != subjects.CodeLateResult {
		t.Errorf("done of the lost one = %v, want late_result", err)
	}
	three := join(t, b, "bob", "three", 1)
	if err := two.done(m, func(d *wire.Done) { d.Released = true }); err != nil {
		t.Fatal(err)
	}
	two.say(wire.Delivery{Error: subjects.Errorf(subjects.CodeAgentBusy, "busy")}, false)
	if m = three.next(); m.Attempt < 4 {
		t.Errorf("given back: attempt %d, want a later one", m.Attempt)
	}
	if err := three.done(m, func(d *wire.Done) {
		d.Error = &fleet.Reason{Code: subjects.CodeAgentError, Message: "no idea"}
	}); err != nil {
		t.Fatal(err)
	}
	if a := await(t, b, "ann", id, wire.Failed); a.Reason == nil || a.Reason.Message != "no idea" {
		t.Errorf("failed for %+v", a.Reason)
	}
}

// A person at a terminal takes messages by hand: as an instance that is done at
// once, or from the inbox.
func TestPeople(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b, mesh.Limits{})
	id := send(t, b, "ann", "bob", "first", nil)
	l, err := ask[wire.List](t, b, "bob", "inbox", wire.Inbox{WaitSeconds: 30})
	if err != nil || len(l.Messages) != 1 || l.Messages[0].Message.MessageID != id || l.Messages[0].Ack.State != wire.Accepted {
		t.Fatalf("inbox = %+v, %v", l, err)
	}
	if l, err = ask[wire.List](t, b, "bob", "inbox", wire.Inbox{Take: true}); err != nil || len(l.Messages) != 1 || l.Messages[0].Ack.State != wire.Processed {
		t.Fatalf("take = %+v, %v", l, err)
	}
	if l, err = ask[wire.List](t, b, "bob", "inbox", wire.Inbox{Take: true}); err != nil || len(l.Messages) != 0 {
		t.Errorf("taken twice: %+v, %v", l, err)
	}
	if l, err = ask[wire.List](t, b, "bob", "inbox", wire.Inbox{All: true}); err != nil || len(l.Messages) != 1 {
		t.Errorf("all = %+v, %v", l, err)
	}
	await(t, b, "ann", id, wire.Processed)
	bob := join(t, b, "bob", "one", 1)
	bob.say(wire.Delivery{OK: true, Done: true}, false)
	id = send(t, b, "ann", "bob", "second", nil)
	bob.next()
	await(t, b, "ann", id, wire.Processed)
}

// An answer belongs to its question: it is threaded, fetched by who waits for
// it, and otherwise delivered as any message.
func TestAnswers(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b, mesh.Limits{})
	ann := join(t, b, "ann", "one", 1)
	var ids []wire.MessageID
	for _, to := range []subjects.AgentID{"isa", "linda", "bob"} {
		p := join(t, b, to, "one", 1)
		ids = append(ids, send(t, b, "ann", to, "which?", func(m *wire.Message) { m.Reply, m.Collect = wire.Yes, true }))
		m := p.next()
		switch to {
		case "isa":
			r := send(t, b, to, "ann", "this", func(a *wire.Message) { a.Ref = m.MessageID })
			if err := p.done(m, func(d *wire.Done) { d.ReplyID = r }); err != nil {
				t.Fatal(err)
			}
		case "linda":
			send(t, b, to, "ann", "that", func(a *wire.Message) { a.Ref = m.MessageID }) // and says nothing of done
		case "bob":
			if err := p.done(m, func(d *wire.Done) {
				d.Error = &fleet.Reason{Code: subjects.CodeAgentError, Message: "no idea"}
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	r, err := ask[wire.Answers](t, b, "ann", "wait", wire.Wait{MessageIDs: ids, Need: 1, TimeoutSeconds: 60})
	if err != nil || !r.Done {
		t.Fatalf("the first = %+v, %v", r, err)
	}
	r, err = ask[wire.Answers](t, b, "ann", "wait", wire.Wait{MessageIDs: ids, TimeoutSeconds: 60})
	if err != nil || !r.Done || len(r.Answers) != 3 {
		t.Fatalf("all = %+v, %v", r, err)
	}
	a := r.Answers
	if a[0].Reply == nil || a[0].Reply.Text != "this" || a[0].Reply.ThreadID != wire.ThreadID(ids[0]) || a[0].Reply.Hops != 1 ||
		a[1].Reply == nil || a[1].Reply.Text != "that" || a[2].State != wire.Failed || a[2].Reason == nil || a[2].Reason.Message != "no idea" {
		t.Errorf("answers = %+v", a)
	}
	await(t, b, "ann", ids[0], wire.Answered)
	if end := await(t, b, "ann", ids[1], wire.Answered); end.ReplyID == "" {
		t.Errorf("the record of an answered message names no answer: %+v", end)
	}
	ann.nothing(300 * time.Millisecond)

	// Not collected: it comes as any message.
	bob := join(t, b, "cid", "one", 1)
	id := send(t, b, "ann", "cid", "and you?", func(m *wire.Message) { m.Reply = wire.Yes })
	send(t, b, "cid", "ann", "me?", func(m *wire.Message) { m.Ref = bob.next().MessageID })
	if m := ann.next(); m.Ref != id || m.ThreadID != wire.ThreadID(id) {
		t.Errorf("the answer came as %+v", m)
	}
	l, err := ask[wire.List](t, b, "cid", "thread", wire.Thread{ThreadID: wire.ThreadID(id)})
	if err != nil || len(l.Messages) != 2 || l.Messages[0].Message.MessageID != id {
		t.Errorf("thread = %+v, %v", l, err)
	}
	if _, err := ask[wire.List](t, b, "eve", "thread", wire.Thread{ThreadID: wire.ThreadID(id)}); subjects.CodeOf(err) != subjects.CodeNotFound {
		t.Errorf("a stranger's thread = %v, want not_found", err)
	}
	if l, err := ask[wire.List](t, b, "operator", "thread", wire.Thread{ThreadID: wire.ThreadID(id)}); err != nil || len(l.Messages) != 2 {
		t.Errorf("an operator's thread = %+v, %v", l, err)
	}
}

// Whatever the mesh does not carry, its sender hears why.
func TestRefusals(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b, mesh.Limits{PairPerMinute: 3, MaxBytes: 2000})
	raw := func(from, to subjects.AgentID, data string) uint64 {
		t.Helper()
		seq, err := b.Store(t.Context(), subjects.Mesh(to, from), []byte(data), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	for _, tt := range []struct {
		from subjects.AgentID
		data string
		want subjects.Code
	}{
		{"a1", `not JSON`, subjects.CodeInvalidMessage},
		{"a2", `{"text":"x","from":"boss"}`, subjects.CodeForbidden},
		{"a3", `{"text":"x","to":"linda"}`, subjects.CodeInvalidMessage},
		{"a4", `{"text":"` + strings.Repeat("x", 2000) + `"}`, subjects.CodePayloadTooLarge},
		{"a5", `{"text":"x","hops":9}`, subjects.CodeHopLimit},
	} {
		id := wire.MessageID(fmt.Sprintf("m%d", raw(tt.from, "bob", tt.data)))
		if a := await(t, b, tt.from, id, wire.Refused); a.Reason == nil || a.Reason.Code != tt.want {
			t.Errorf("%.40s: refused for %+v, want %s", tt.data, a.Reason, tt.want)
		}
	}
	var last uint64
	for i := range 4 {
		last = raw("fast", "bob", fmt.Sprintf(`{"text":"%d"}`, i))
	}
	if a := await(t, b, "fast", wire.MessageID(fmt.Sprintf("m%d", last)), wire.Refused); a.Reason.Code != subjects.CodeRateLimited {
		t.Errorf("the fourth is refused for %+v, want rate_limited", a.Reason)
	}
	// At the API all of this is said at once.
	for want, m := range map[subjects.Code]wire.Message{
		subjects.CodeInvalidID:       {Text: "x"},
		subjects.CodeForbidden:       {To: "bob", From: "boss", Text: "x"},
		subjects.CodePayloadTooLarge: {To: "bob", Text: strings.Repeat("x", 2000)},
		subjects.CodeRateLimited:     {To: "bob", Text: "x"},
	} {
		_, err := ask[wire.Sent](t, b, "fast", "send", m)
		if e := subjects.AsError(err); e == nil || e.Code != want || (want == subjects.CodeRateLimited) != (e.RetryAfterSeconds > 0) {
			t.Errorf("send = %v, want %s", err, want)
		}
	}
}

// Several workers share the inboxes; when one goes, its inboxes are the others'.
func TestSeveralWorkers(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	stops := []func(){start(t, b, mesh.Limits{}), start(t, b, mesh.Limits{}), start(t, b, mesh.Limits{})}
	peers := map[subjects.AgentID]*peer{}
	for i := range 12 {
		a := subjects.AgentID(fmt.Sprintf("a%d", i))
		peers[a] = join(t, b, a, "one", 1)
	}
	for round, stop := range append([]func(){func() {}}, stops[:2]...) {
		stop()
		for a, p := range peers {
			id := send(t, b, "ann", a, strconv.Itoa(round), nil)
			m := p.next()
			if m.Text != strconv.Itoa(round) || m.Attempt != 1 {
				t.Errorf("%s got %q, attempt %d", a, m.Text, m.Attempt)
			}
			if err := p.done(m, nil); err != nil {
				t.Fatal(err)
			}
			await(t, b, "ann", id, wire.Processed)
		}
	}
}

// What is not taken, or not answered, in its time says so to its sender; some
// time after their end messages are gone.
func TestTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		stop := start(t, b, mesh.Limits{})
		asleep := send(t, b, "ann", "nobody", "x", func(m *wire.Message) { m.TTLSeconds = 2 * 3600 })
		soon := send(t, b, "ann", "nobody", "y", func(m *wire.Message) { m.TTLSeconds = 5 })
		bob := join(t, b, "bob", "one", 1)
		question := send(t, b, "ann", "bob", "z", func(m *wire.Message) { m.Reply, m.ReplyTimeoutSeconds = wire.Yes, 60 })
		m := bob.next()
		if err := bob.done(m, nil); err != nil {
			t.Fatal(err)
		}
		held := send(t, b, "ann", "bob", "h", func(m *wire.Message) { m.TTLSeconds = 3600 })
		bob.next() // and it does nothing about it
		await(t, b, "ann", soon, wire.Expired)
		await(t, b, "ann", question, wire.Processed)
		time.Sleep(61 * time.Second)
		if a := await(t, b, "ann", question, wire.Unanswered); a.Reason.Code != subjects.CodeAgentTimeout {
			t.Errorf("unanswered for %+v", a.Reason)
		}
		time.Sleep(time.Hour - time.Minute)
		if a := await(t, b, "ann", held, wire.Expired); a.Reason.Code != subjects.CodeAgentTimeout {
			t.Errorf("expired for %+v, want agent_timeout: it was delivered", a.Reason)
		}
		stop() // nobody runs when it is time
		bob.die()
		time.Sleep(time.Hour)
		start(t, b, mesh.Limits{})
		if a := await(t, b, "ann", asleep, wire.Expired); a.Reason.Code != subjects.CodeAgentLost {
			t.Errorf("expired for %+v, want agent_lost", a.Reason)
		}
		time.Sleep(time.Hour + 2*time.Minute)
		for _, stream := range []string{subjects.StreamMesh, subjects.StreamMeshState} {
			bustest.Eventually(t, stream+" is empty", func() bool {
				s, err := b.StreamState(t.Context(), stream)
				return err == nil && s.Msgs == 0
			})
		}
		bob = join(t, b, "bob", "two", 2)
		id := send(t, b, "ann", "bob", "still here", nil)
		if m := bob.next(); m.MessageID != id {
			t.Errorf("bob got %+v", m)
		}
	})
}

// An instance that was asked again, and has not heard of it, may say that it is
// done: otherwise, once it has gone, another one would deal with the message.
func TestDoneOfAnEarlierAttempt(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b, mesh.Limits{})
	bob := join(t, b, "bob", "one", 1)
	bob.say(wire.Delivery{}, true)
	id := send(t, b, "ann", "bob", "x", nil)
	first := bob.next()
	for again := first; again.Attempt == first.Attempt; {
		again = bob.next()
	}
	if err := bob.done(first, nil); err != nil {
		t.Errorf("done = %v", err)
	}
	if a := await(t, b, "ann", id, wire.Processed); a.Attempt <= first.Attempt {
		t.Errorf("processed as attempt %d", a.Attempt)
	}
}

// TestManyAreTaken: a person who takes more than are listed by default gets just
// those that are taken from the inbox, the oldest first.
func TestManyAreTaken(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b, mesh.Limits{PairPerMinute: 1000, AgentPerMinute: 1000})
	const n = 130
	for i := range n {
		send(t, b, "boss", "ann", strconv.Itoa(i), nil)
	}
	var got []string
	for len(got) < n {
		l, err := ask[wire.List](t, b, "ann", "inbox", wire.Inbox{Take: true, Limit: 120})
		if err != nil {
			t.Fatal(err)
		}
		if len(l.Messages) == 0 {
			t.Fatalf("%d messages of %d were handed over", len(got), n)
		}
		for _, v := range l.Messages {
			got = append(got, v.Message.Text)
		}
	}
	for i, text := range got {
		if text != strconv.Itoa(i) {
			t.Fatalf("message %d is %s", i, text)
		}
	}
}

// TestLastOnesAreListed: of what does not fit into a reply, the last messages of
// a thread are there, in order.
func TestLastOnesAreListed(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b, mesh.Limits{PairPerMinute: 1000, AgentPerMinute: 1000})
	const n = 20
	for i := range n {
		send(t, b, "boss", "ann", strings.Repeat("x", 60<<10), func(m *wire.Message) { m.ThreadID, m.MessageID = "long", wire.MessageID(fmt.Sprint("m", i)) })
	}
	bustest.Eventually(t, "the last one in the list of the thread", func() bool {
		l, err := ask[wire.List](t, b, "boss", "thread", wire.Thread{ThreadID: "long"})
		if err != nil || len(l.Messages) == 0 {
			return false
		}
		for i, v := range l.Messages {
			if want := wire.MessageID(fmt.Sprint("m", n-len(l.Messages)+i)); v.Message.MessageID != want {
				return false
			}
		}
		return true
	})
}
