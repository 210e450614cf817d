package mesh_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	wire "parley/subjects/mesh"
	"parley/workers/mesh"
)

// start runs a mesh worker until stop is called or the test ends, and waits
// until it serves.
func start(t *testing.T, b *bus.Bus, l mesh.Limits) (stop func()) {
	t.Helper()
	w, err := mesh.New(mesh.Config{Bus: b, Limits: l, Keep: time.Hour, Operators: []subjects.AgentID{"operator"}})
	if err != nil {
		t.Fatal(err)
	}
	return bustest.Serve(t, w)
}

// peer plays an instance of an agent.
type peer struct {
	t        *testing.T
	b        *bus.Bus
	agent    subjects.AgentID
	instance subjects.InstanceID
	epoch    int64
	got      chan wire.Message
	beats    func() // ends the heartbeats
	sub      *bus.Subscription

	mu     sync.Mutex
	answer wire.Delivery // guarded by mu
	mute   bool          // guarded by mu; it answers nothing
}

// join brings an instance to life. Its heartbeats, every second, end with the
// test or with leave.
func join(t *testing.T, b *bus.Bus, agent subjects.AgentID, instance subjects.InstanceID, epoch int64) *peer {
	t.Helper()
	p := &peer{t: t, b: b, agent: agent, instance: instance, epoch: epoch, got: make(chan wire.Message, 1000), answer: wire.Delivery{OK: true}}
	sub, err := b.Subscribe(subjects.Inbox(agent, instance), "", p.receive)
	if err != nil {
		t.Fatal(err)
	}
	p.sub = sub
	p.announce()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			hb := fleet.Heartbeat{Epoch: epoch}
			_ = b.Publish(subjects.Heartbeat(agent, instance), fleet.MustEncode(&hb), nil)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	p.beats = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(p.beats)
	return p
}

func (p *peer) announce() {
	p.t.Helper()
	a := fleet.Announce{Worker: fleet.Worker{AgentID: p.agent, InstanceID: p.instance, Epoch: p.epoch}, HeartbeatSeconds: new(1.0)}
	if _, err := p.b.Store(p.t.Context(), subjects.Announce(p.agent, p.instance), fleet.MustEncode(&a), "", nil); err != nil {
		p.t.Fatal(err)
	}
}

// die ends the instance without a word.
func (p *peer) die() {
	p.beats()
	if err := p.sub.Unsubscribe(); err != nil {
		p.t.Error(err)
	}
}

func (p *peer) receive(m bus.Msg) {
	msg, err := wire.DecodeMessage(m.Data)
	if err != nil {
		p.t.Errorf("%s got %v: %s", p.agent, err, m.Data)
		return
	}
	p.mu.Lock()
	answer, mute := p.answer, p.mute
	p.mu.Unlock()
	p.got <- *msg
	if !mute {
		_ = m.Respond(fleet.MustEncode(&answer), nil)
	}
}

func (p *peer) say(d wire.Delivery, mute bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer, p.mute = d, mute
}

// next is the next message that the instance is handed.
func (p *peer) next() wire.Message {
	p.t.Helper()
	select {
	case m := <-p.got:
		return m
	case <-time.After(time.Hour):
		p.t.Fatalf("%s/%s got nothing", p.agent, p.instance)
		return wire.Message{}
	}
}

// nothing checks that the instance is handed nothing within d.
func (p *peer) nothing(d time.Duration) {
	p.t.Helper()
	select {
	case m := <-p.got:
		p.t.Fatalf("%s/%s got %q, attempt %d, want nothing", p.agent, p.instance, m.Text, m.Attempt)
	case <-time.After(d):
	}
}

// done reports a message as dealt with.
func (p *peer) done(m wire.Message, change func(*wire.Done)) error {
	p.t.Helper()
	d := wire.Done{From: m.From, MessageID: m.MessageID, Attempt: m.Attempt, InstanceID: p.instance}
	if change != nil {
		change(&d)
	}
	_, err := ask[wire.Ack](p.t, p.b, p.agent, "done", d)
	return err
}

// ask calls the mesh's API as from.
func ask[T any](t *testing.T, b *bus.Bus, from subjects.AgentID, verb string, req any) (T, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	m, err := b.RequestUntil(ctx, subjects.API(from, "mesh", verb), fleet.MustEncode(req), nil, time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	return fleet.DecodeReply[T](m.Data)
}

// send sends a message by the API and returns its id.
func send(t *testing.T, b *bus.Bus, from, to subjects.AgentID, text string, change func(*wire.Message)) wire.MessageID {
	t.Helper()
	m := wire.Message{To: to, Text: text, Reply: wire.No}
	if change != nil {
		change(&m)
	}
	r, err := ask[wire.Sent](t, b, from, "send", m)
	if err != nil {
		t.Fatal(err)
	}
	return r.MessageID
}

// await waits until a message is in the state.
func await(t *testing.T, b *bus.Bus, from subjects.AgentID, id wire.MessageID, want wire.State) wire.Ack {
	t.Helper()
	var last wire.Ack
	bustest.Eventually(t, "message "+string(id)+" is "+string(want), func() bool {
		m, err := b.Last(t.Context(), subjects.StreamMeshState, subjects.MeshState(from, string(id)))
		if err != nil {
			return false
		}
		if err := json.Unmarshal(m.Data, &last); err != nil {
			t.Fatal(err)
		}
		return last.State == want
	})
	return last
}
