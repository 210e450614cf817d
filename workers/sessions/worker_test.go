package sessions_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers/sessions"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	if _, err := sessions.New(sessions.Config{}); err == nil {
		t.Error("New without a bus = nil, want an error")
	}
}

func TestSessionLife(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	boss := caller{t, b, "boss"}
	eve, operator := boss.by("eve"), boss.by("operator")

	o := must[handshake.Opened](boss, "create", handshake.Create{TaskID: "t1", TaskMetadata: handshake.TaskMetadata{Type: "single-agent", Priority: "high", Timeout: 60}})
	id := o.Session.SessionID
	if _, err := handshake.DecodeSession(fleet.MustEncode(&o.Session)); err != nil || o.Session.Orchestrator != "boss" {
		t.Errorf("record %+v: %v", o.Session, err)
	}
	if life := o.Session.ExpiresAt.Sub(o.Session.CreatedAt); life != time.Hour {
		t.Errorf("the token lasts %s, want 1 h", life)
	}
	ref := handshake.Ref{SessionID: id}
	if v := must[handshake.View](boss, "get", ref); v.Session.TaskMetadata.Priority != "high" || v.Version != 0 {
		t.Errorf("get = %+v", v)
	}
	must[handshake.View](operator, "get", ref)
	refused(eve, "get", ref, subjects.CodeNotFound)
	if v := must[handshake.View](eve, "get", handshake.Ref{SessionID: id, Token: o.Token}); v.Session.SessionID != id {
		t.Errorf("get with the token = %+v", v)
	}
	// What is wrong is told the same way of a session that is not there.
	gone := handshake.Ref{SessionID: "a2a-20251122T120000Z-7f3a9c21"}
	if a, b := refused(eve, "get", ref, subjects.CodeNotFound), refused(eve, "get", gone, subjects.CodeNotFound); strings.ReplaceAll(a.Error(), string(id), string(gone.SessionID)) != b.Error() {
		t.Errorf("%v tells more than %v", a, b)
	}
	other := opened(boss)
	refused(eve, "get", handshake.Ref{SessionID: other.Session.SessionID, Token: o.Token}, subjects.CodeAuthFailed)
	refused(eve, "get", handshake.Ref{SessionID: id, Token: o.Token + "x"}, subjects.CodeAuthFailed)

	// Only the owner and operators renew and delete, token or not.
	refused(eve, "update", handshake.Update{SessionID: id}, subjects.CodeNotFound)
	refused(eve, "delete", handshake.Ref{SessionID: id, Token: o.Token}, subjects.CodeNotFound)
	u := must[handshake.Opened](operator, "update", handshake.Update{SessionID: id, TaskID: "t2"})
	if u.Session.TaskID != "t2" || u.Session.TaskMetadata.Priority != "high" || u.Session.Orchestrator != "boss" {
		t.Errorf("update = %+v", u.Session)
	}

	for _, c := range []struct {
		by   caller
		want int
	}{{boss, 2}, {eve, 0}, {operator, 2}} {
		if l := must[handshake.ListReply](c.by, "list", handshake.List{}); len(l.Sessions) != c.want || l.Total != c.want {
			t.Errorf("%s sees %d sessions of %d, want %d", c.by.as, len(l.Sessions), l.Total, c.want)
		}
	}
	if l := must[handshake.ListReply](operator, "list", handshake.List{Limit: 1}); len(l.Sessions) != 1 || l.Total != 2 {
		t.Errorf("list of at most one has %d of %d", len(l.Sessions), l.Total)
	}

	must[handshake.Appended](boss, "append", said(id, "x"))
	must[handshake.Deleted](boss, "delete", ref)
	refused(boss, "get", ref, subjects.CodeNotFound)
	refused(boss, "context", handshake.Read{SessionID: id}, subjects.CodeNotFound)
	refused(eve, "append", handshake.Append{SessionID: id, Token: u.Token, Entry: handshake.Entry{Status: "x"}}, subjects.CodeNotFound)
	if _, err := b.Last(t.Context(), subjects.StreamContext, subjects.Context(id)); err == nil {
		t.Error("the context of a deleted session is still there")
	}
	refused(boss, "get", handshake.Ref{SessionID: "nothing"}, subjects.CodeInvalidID)
}

// TestDeletedIsOver: a session that another worker has deleted is over, also
// where that has not been heard yet.
func TestDeletedIsOver(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	boss := caller{t, b, "boss"}
	k, err := b.KV(t.Context(), subjects.BucketSessions)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		ref := handshake.Ref{SessionID: opened(boss).Session.SessionID}
		must[handshake.View](boss, "get", ref)
		e, err := k.Get(t.Context(), string(ref.SessionID))
		if err != nil {
			t.Fatal(err)
		}
		if err := k.DeleteRevision(t.Context(), e.Key, e.Revision); err != nil {
			t.Fatal(err)
		}
		refused(boss, "get", ref, subjects.CodeNotFound)
	}
}

// TestExpiry: readable at 23 h 59 m, gone after 24 h, the token over after one.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		start(t, b)
		boss := caller{t, b, "boss"}
		o := opened(boss)
		id := o.Session.SessionID
		must[handshake.Appended](boss, "append", said(id, "x"))
		digest := put(boss, id, []byte("large"))
		byToken := handshake.Ref{SessionID: id, Token: o.Token}

		time.Sleep(59 * time.Minute)
		must[handshake.View](boss.by("eve"), "get", byToken)
		time.Sleep(2 * time.Minute)
		refused(boss.by("eve"), "get", byToken, subjects.CodeSessionExpired)
		other := opened(boss)
		renewed := must[handshake.Opened](boss, "update", handshake.Update{SessionID: other.Session.SessionID})
		must[handshake.View](boss.by("eve"), "get", handshake.Ref{SessionID: other.Session.SessionID, Token: renewed.Token})

		// Up to here: in fake time a server takes away whatever it holds, once
		// the oldest of it is 24 h old (see bustest).
		time.Sleep(24*time.Hour - 62*time.Minute)
		must[handshake.View](boss, "get", handshake.Ref{SessionID: id})
		if got := all(boss, id); len(got) != 1 {
			t.Errorf("%d versions after 23 h 59 m, want 1", len(got))
		}
		time.Sleep(2 * time.Minute)
		refused(boss, "get", handshake.Ref{SessionID: id}, subjects.CodeNotFound)
		refused(boss, "context", handshake.Read{SessionID: id}, subjects.CodeNotFound)
		refused(boss, "fetch", handshake.Fetch{SessionID: id, Digest: digest}, subjects.CodeNotFound)
		time.Sleep(2 * time.Hour)
		if st, err := b.StreamState(t.Context(), subjects.StreamContext); err != nil || st.Msgs != 0 {
			t.Errorf("%d versions are left (%v), want none", st.Msgs, err)
		}
		objects, err := b.Objects(t.Context(), subjects.ObjectsOutputs)
		if err != nil {
			t.Fatal(err)
		}
		if names, err := objects.Names(t.Context()); err != nil || len(names) != 0 {
			t.Errorf("outputs %v are left (%v), want none", names, err)
		}
		// The key that signed has been followed by another; new tokens count.
		o = opened(boss)
		must[handshake.View](boss.by("eve"), "get", handshake.Ref{SessionID: o.Session.SessionID, Token: o.Token})
	})
}

// put stores an output in parts and returns its digest.
func put(c caller, id subjects.SessionID, data []byte) string {
	c.t.Helper()
	sum := sha256.Sum256(data)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	for i := 0; i*handshake.PartSize < len(data); i++ {
		part := data[i*handshake.PartSize : min((i+1)*handshake.PartSize, len(data))]
		must[handshake.PutReply](c, "put", handshake.Put{SessionID: id, Digest: digest, Index: i, Data: part})
	}
	return digest
}

func TestContext(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	start(t, b) // two share the calls
	boss := caller{t, b, "boss"}
	o := opened(boss)
	id := o.Session.SessionID
	for i := range 250 {
		req := said(id, strconv.Itoa(i))
		req.SharedData = map[string]json.RawMessage{"last": fleet.MustEncode(i)}
		if a := must[handshake.Appended](boss, "append", req); a.Version != uint64(i+1) {
			t.Fatalf("append %d is version %d", i, a.Version)
		}
	}
	records := all(boss, id)
	for i, r := range records {
		if r.Version != uint64(i+1) || string(r.Entry.Output) != fmt.Sprintf(`"%d"`, i) || r.Entry.AgentID != "boss" || r.Entry.ExecutionTime.IsZero() {
			t.Fatalf("record %d is %+v", i, r)
		}
	}
	view := handshake.Fold(id, records)
	if len(view.Context.PreviousAgents) != 250 || string(view.Context.SharedData["last"]) != "249" {
		t.Errorf("%d entries, last %s", len(view.Context.PreviousAgents), view.Context.SharedData["last"])
	}
	r := must[handshake.ReadReply](boss, "context", handshake.Read{SessionID: id, AfterVersion: 205, Limit: 3})
	if r.Version != 250 || len(r.Records) != 3 || r.Records[0].Version != 206 || !r.More {
		t.Errorf("a page after 205: version %d, %d records from %d, more %v", r.Version, len(r.Records), r.Records[0].Version, r.More)
	}

	// The same key is the same append; another's key is not one's own.
	req := said(id, "once")
	req.Key = "k"
	first := must[handshake.Appended](boss, "append", req)
	again := must[handshake.Appended](boss, "append", req)
	if first.Version != 251 || again.Version != 251 || first.Duplicate || !again.Duplicate {
		t.Errorf("appended %+v, then %+v, want 251 twice", first, again)
	}
	req.Token = o.Token
	if a := must[handshake.Appended](boss.by("eve"), "append", req); a.Version != 252 {
		t.Errorf("eve's append with that key is version %d, want 252", a.Version)
	}

	req = said(id, "z")
	req.AfterVersion = new(uint64(251))
	refused(boss, "append", req, subjects.CodeContextConflict)
	req.AfterVersion = new(uint64(999))
	refused(boss, "append", req, subjects.CodeContextConflict)
	req.AfterVersion = new(uint64(252))
	if a := must[handshake.Appended](boss, "append", req); a.Version != 253 {
		t.Errorf("append after 252 is version %d", a.Version)
	}
	forged := said(id, "by another")
	forged.Entry.AgentID = "mallory"
	refused(boss, "append", forged, subjects.CodeForbidden)
	refused(boss.by("eve"), "append", said(id, "x"), subjects.CodeNotFound)
	refused(boss, "append", handshake.Append{SessionID: id}, subjects.CodeInvalidMessage)
}

// TestContextLive: whoever waits hears of a version as it comes, from whichever
// worker.
func TestContextLive(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	start(t, b)
	boss := caller{t, b, "boss"}
	id := opened(boss).Session.SessionID
	if r := must[handshake.ReadReply](boss, "context", handshake.Read{SessionID: id, WaitSeconds: 0.01}); len(r.Records) != 0 {
		t.Errorf("news of nothing: %+v", r)
	}
	got := make(chan uint64, 20)
	for range 8 {
		go func() {
			r, err := ask[handshake.ReadReply](boss, "context", handshake.Read{SessionID: id, WaitSeconds: 15})
			if err != nil || len(r.Records) == 0 {
				got <- 0
				return
			}
			got <- r.Records[0].Version
		}()
	}
	must[handshake.Appended](boss, "append", said(id, "news"))
	for range 8 {
		if v := <-got; v != 1 {
			t.Errorf("heard version %d, want 1", v)
		}
	}
}

// TestDeletedWakes: whoever waits for news of a session hears at once that it is
// over, at whichever worker.
func TestDeletedWakes(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	start(t, b)
	boss := caller{t, b, "boss"}
	id := opened(boss).Session.SessionID
	const waiting = 8
	got := make(chan error, waiting)
	for range waiting {
		go func() {
			_, err := ask[handshake.ReadReply](boss, "context", handshake.Read{SessionID: id, WaitSeconds: 15})
			got <- err
		}()
	}
	must[handshake.ReadReply](boss, "context", handshake.Read{SessionID: id, WaitSeconds: 0.2}) // by then they wait
	must[handshake.Deleted](boss, "delete", handshake.Ref{SessionID: id})
	for range waiting {
		if err := <-got; subjects.CodeOf(err) != subjects.CodeNotFound {
			t.Errorf("heard %v, want not_found", err)
		}
	}
}

func TestLargeOutputs(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	boss := caller{t, b, "boss"}
	id := opened(boss).Session.SessionID

	// Inline, but too large to stay there.
	text := strings.Repeat("all is well. ", 20_000)
	must[handshake.Appended](boss, "append", said(id, text))
	e := all(boss, id)[0].Entry
	if len(e.Output) != 0 || e.Stored == nil || e.Stored.Size != int64(len(text)) {
		t.Fatalf("a large output is kept as %+v", e)
	}
	f := must[handshake.FetchReply](boss, "fetch", handshake.Fetch{SessionID: id, Digest: e.Stored.Digest})
	if string(f.Data) != text {
		t.Errorf("fetched %d bytes, want what was appended", len(f.Data))
	}

	// In parts.
	data := []byte(strings.Repeat("0123456789", 120_000))
	digest := put(boss, id, data)
	stored := handshake.Append{SessionID: id, Entry: handshake.Entry{Status: "completed", Stored: &handshake.Stored{Digest: digest, Size: int64(len(data))}}}
	must[handshake.Appended](boss, "append", stored)
	var back []byte
	for i := range 3 {
		back = append(back, must[handshake.FetchReply](boss, "fetch", handshake.Fetch{SessionID: id, Digest: digest, Index: i}).Data...)
	}
	if string(back) != string(data) {
		t.Errorf("fetched %d bytes, want %d", len(back), len(data))
	}
	wrong := stored
	wrong.Entry.Stored = &handshake.Stored{Digest: digest, Size: int64(len(data)) - 1}
	refused(boss, "append", wrong, subjects.CodeInvalidMessage)
	wrong.Entry.Stored = &handshake.Stored{Digest: digest, Size: 65 << 20}
	refused(boss, "append", wrong, subjects.CodePayloadTooLarge)
	other := "sha256:" + strings.Repeat("0", 64)
	wrong.Entry.Stored = &handshake.Stored{Digest: other, Size: 5}
	refused(boss, "append", wrong, subjects.CodeNotFound)
	must[handshake.PutReply](boss, "put", handshake.Put{SessionID: id, Digest: other, Data: []byte("wrong")})
	refused(boss, "append", wrong, subjects.CodeInvalidMessage)
	refused(boss, "put", handshake.Put{SessionID: id, Digest: other, Index: 128, Data: []byte("x")}, subjects.CodePayloadTooLarge)
	refused(boss.by("eve"), "fetch", handshake.Fetch{SessionID: id, Digest: digest}, subjects.CodeNotFound)
	other2 := opened(boss).Session.SessionID
	refused(boss, "fetch", handshake.Fetch{SessionID: other2, Digest: digest}, subjects.CodeNotFound)
	if got := all(boss, id); len(got) != 2 {
		t.Errorf("%d versions, want 2: what is refused is not there", len(got))
	}
}

// secret is nobody's, but looks like one.
const secret = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"

func TestSecrets(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	boss := caller{t, b, "boss"}
	id := opened(boss).Session.SessionID
	leak := said(id, "the token is "+secret+".")
	leak.SharedData = map[string]json.RawMessage{"deep": []byte(`{"list":[1,{"pem":"-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA04up8hoqzS1+APIB0RhjXyObwHQnOzhAk5Bd7mhkSbPkyhP1\n-----END RSA PRIVATE KEY-----"}]}`)}
	e := refused(boss, "append", leak, subjects.CodeSecretInContext)
	if e.Pointer != "/entry/output" || !strings.Contains(e.Message, "github-pat") || !strings.Contains(e.Message, "private-key at /shared_data/deep/list/1/pem") {
		t.Errorf("refused as %v, want rule and place of both", e)
	}
	if text := string(fleet.MustEncode(e)); strings.Contains(text, secret[8:20]) || strings.Contains(text, "MIIEpAI") {
		t.Errorf("the refusal shows the secret: %s", text)
	}
	leak.Redact = true
	a := must[handshake.Appended](boss, "append", leak)
	if a.Version != 1 || len(a.Redacted) != 2 {
		t.Errorf("appended %+v, want version 1 with two places masked", a)
	}
	text := string(fleet.MustEncode(all(boss, id)))
	if strings.Contains(text, secret) || strings.Contains(text, "MIIEpAI") || !strings.Contains(text, "the token is [redacted: github-pat].") || !strings.Contains(text, `"list":[1,`) {
		t.Errorf("kept %s", text)
	}
	named := said(id, "x")
	named.Metadata = map[string]json.RawMessage{secret: []byte("1")}
	named.Redact = true
	if e := refused(boss, "append", named, subjects.CodeSecretInContext); strings.Contains(e.Error(), secret) {
		t.Errorf("the refusal shows the secret: %v", e)
	}
	data := []byte(strings.Repeat("fine. ", 200_000) + secret)
	digest := put(boss, id, data)
	stored := handshake.Append{SessionID: id, Redact: true, Entry: handshake.Entry{Status: "x", Stored: &handshake.Stored{Digest: digest, Size: int64(len(data))}}}
	if e := refused(boss, "append", stored, subjects.CodeSecretInContext); !strings.Contains(e.Message, "at byte 1200000") {
		t.Errorf("refused as %v, want the place", e)
	}
	if got := all(boss, id); len(got) != 1 {
		t.Errorf("%d versions, want 1", len(got))
	}
}

// TestKeysAreShared: a token of one worker counts at another, and after all of
// them were replaced.
func TestKeysAreShared(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	stop := start(t, b)
	boss := caller{t, b, "boss"}
	o := opened(boss)
	stop()
	start(t, b)
	must[handshake.View](boss.by("eve"), "get", handshake.Ref{SessionID: o.Session.SessionID, Token: o.Token})
}

// agent answers handshakes as status-agent.
func answers(t *testing.T, b *bus.Bus, as subjects.AgentID, accepted bool) <-chan *handshake.Exchange {
	t.Helper()
	got := make(chan *handshake.Exchange, 1)
	sub, err := b.Subscribe(subjects.Handshake("status-agent"), "", func(m bus.Msg) {
		if x, err := handshake.DecodeExchange(m.Data); err == nil {
			got <- x
			_ = m.Respond(fleet.MustEncode(fleet.ControlReply{OK: true}), nil)
			return
		}
		i, err := handshake.DecodeInit(m.Data)
		if err != nil {
			t.Errorf("init: %v", err)
			return
		}
		_ = m.Respond(fleet.MustEncode(handshake.Ack{
			Header:    handshake.Header{ProtocolVersion: handshake.Version, MessageType: handshake.TypeAck},
			SessionID: i.SessionID, Accepted: accepted, Timestamp: time.Now().UTC(),
			Target: handshake.Party{AgentID: as, AgentType: handshake.Virtual, Status: handshake.StatusReady},
		}), nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestHandshake(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		as       subjects.AgentID
		accepted bool
		want     subjects.Code
	}{{"accepted", "status-agent", true, ""}, {"refused", "status-agent", false, ""}, {"forged", "eve", true, subjects.CodeForbidden}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := bustest.New(t).Bus(t)
			start(t, b)
			boss := caller{t, b, "boss"}
			id := opened(boss).Session.SessionID
			req := said(id, "result")
			req.SharedData = map[string]json.RawMessage{"infra": []byte(`"x"`)}
			must[handshake.Appended](boss, "append", req)
			greet := handshake.Greet{Init: handshake.Init{
				Header:    handshake.Header{ProtocolVersion: handshake.Version, MessageType: handshake.TypeInit},
				SessionID: id, Timestamp: time.Now().UTC(),
				Initiator: handshake.Party{AgentID: "boss"}, Target: handshake.Party{AgentID: "status-agent"},
				Task: handshake.Task{TaskID: "t1", Description: "status"},
			}}
			refused(boss, "handshake", greet, subjects.CodeAgentLost)
			got := answers(t, b, c.as, c.accepted)
			if c.want != "" {
				refused(boss, "handshake", greet, c.want)
				return
			}
			if ack := must[handshake.Ack](boss, "handshake", greet); ack.Accepted != c.accepted || ack.SessionID != id {
				t.Errorf("ack %+v", ack)
			}
			if c.accepted {
				x := <-got
				if len(x.Context.PreviousResults) != 1 || string(x.Context.PreviousResults[0].Output) != `"result"` || string(x.Context.SharedData["infra"]) != `"x"` {
					t.Errorf("exchange %+v", x)
				}
			}
			refused(boss.by("eve"), "handshake", greet, subjects.CodeForbidden)
			greet.Initiator.AgentID = "eve"
			refused(boss.by("eve"), "handshake", greet, subjects.CodeNotFound)
			greet.ProtocolVersion = "3.0"
			if e := refused(boss.by("eve"), "handshake", greet, subjects.CodeVersionMismatch); e.Pointer != "/protocol_version" {
				t.Errorf("refused at %s", e.Pointer)
			}
		})
	}
}
