package subjects_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
)

// starred is a catalogue pattern as NATS wants it.
func starred(pattern string) string {
	tokens := strings.Split(pattern, ".")
	for i, t := range tokens {
		if strings.HasPrefix(t, "<") {
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}

func TestCatalogue(t *testing.T) {
	t.Parallel()
	patterns := map[string]bool{}
	for _, e := range subjects.Catalogue() {
		if patterns[starred(e.Pattern)] {
			t.Errorf("%s is there twice", e.Pattern)
		}
		patterns[starred(e.Pattern)] = true
		if e.Message == "" || e.Writer == "" || e.Readers == "" || !strings.HasSuffix(e.Description, ".") {
			t.Errorf("%s: incomplete: %+v", e.Pattern, e)
		}
		if e.Stream != "" && e.Kept == "" {
			t.Errorf("%s is kept in %s, but not said for how long", e.Pattern, e.Stream)
		}
	}
	for _, p := range []string{
		subjects.AnnouncePattern, subjects.HeartbeatPattern, subjects.RouterHeartbeatPattern,
		subjects.AgentEventPattern, subjects.DispatchPattern, subjects.TaskPattern, subjects.EventPattern,
		subjects.OutcomePattern, subjects.OfferPattern, subjects.ControlPattern,
		subjects.ProgressPattern, subjects.ResultPattern, subjects.WebhookPattern, subjects.WebhookEventPattern,
		subjects.EscalationPattern, subjects.AlertPattern,
		subjects.ContextPattern, subjects.ContextNewsPattern, subjects.HandshakePattern,
		subjects.LogPattern, subjects.Audit,
		subjects.RunsHeartbeatPattern, subjects.RunPattern, subjects.RunEventPattern, subjects.RunResultPattern,
		subjects.MeshHeartbeatPattern, subjects.MeshPattern, subjects.MeshStatePattern, subjects.MeshAckPattern, subjects.InboxPattern,
	} {
		if !patterns[p] {
			t.Errorf("%s is not in the catalogue", p)
		}
	}
}

// TestAuthors: whatever a worker hears that no stream tells has one author: who the
// subject names where clients write, and a name that no agent can have where
// workers do. Each new subject of the catalogue has to.
func TestAuthors(t *testing.T) {
	t.Parallel()
	for _, e := range subjects.Catalogue() {
		subject := subjects.Named(e, "me")
		author, ok := subjects.Author(subject)
		client, streams := subjects.WrittenByClients(e), slices.Contains(strings.Split(e.Writer, ", "), "stream")
		switch {
		case client:
			if !ok || author != "me" || subjects.Republished(subject) {
				t.Errorf("%s has the author %q, %v, want who the subject names", e.Pattern, author, ok)
			}
		case e.Stream != "" || !subjects.ReadByWorkers(e): // permissions keep clients away; clients judge what they hear
		case streams:
			if ok || !subjects.Republished(subject) {
				t.Errorf("%s, which a stream writes, has the author %q, %v; republished: %v", e.Pattern, author, ok, subjects.Republished(subject))
			}
		case strings.HasPrefix(e.Pattern, "fleet.told."): // in streams only
		default:
			if _, err := subjects.ParseAgentID(string(author)); !ok || err == nil || subjects.Republished(subject) {
				t.Errorf("%s has the author %q, %v, want a name that no agent can have", e.Pattern, author, ok)
			}
		}
	}
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	api := []string{
		"fleet.a2a.bob.*", "fleet.a2a.bob.confirm.*.*",
		"fleet.api.bob.a2e.call", "fleet.api.bob.a2e.handshake",
		"fleet.api.bob.agent.limits", "fleet.api.bob.agent.list", "fleet.api.bob.task.answer", "fleet.api.bob.task.cancel",
		"fleet.api.bob.task.dispatch", "fleet.api.bob.task.events", "fleet.api.bob.task.explain",
		"fleet.api.bob.task.get", "fleet.api.bob.task.list", "fleet.api.bob.task.message", "fleet.api.bob.task.wait", "fleet.dispatch.bob",
		"fleet.api.bob.session.append", "fleet.api.bob.session.context", "fleet.api.bob.session.create",
		"fleet.api.bob.session.delete", "fleet.api.bob.session.fetch", "fleet.api.bob.session.get",
		"fleet.api.bob.session.handshake", "fleet.api.bob.session.list", "fleet.api.bob.session.put",
		"fleet.api.bob.session.update",
		"fleet.api.bob.schedule.create", "fleet.api.bob.schedule.get", "fleet.api.bob.schedule.list", "fleet.api.bob.schedule.pause",
		"fleet.api.bob.schedule.remove", "fleet.api.bob.schedule.resume", "fleet.api.bob.schedule.run",
		"fleet.api.bob.run.cancel", "fleet.api.bob.run.get", "fleet.api.bob.run.list", "fleet.api.bob.run.output",
		"fleet.api.bob.run.part", "fleet.api.bob.run.pause", "fleet.api.bob.run.resume", "fleet.api.bob.run.retry", "fleet.api.bob.run.start",
		"fleet.api.bob.mesh.get", "fleet.api.bob.mesh.inbox", "fleet.api.bob.mesh.send", "fleet.api.bob.mesh.thread",
		"fleet.api.bob.mesh.wait", "fleet.mesh.*.bob",
	}
	for _, tt := range []struct {
		role               string
		publish, subscribe []string
	}{
		{
			role: subjects.RoleAgent,
			publish: append([]string{
				"fleet.announce.bob.*", "fleet.heartbeat.bob.*", "fleet.progress.bob.*", "fleet.result.bob.*",
				"fleet.api.bob.mesh.done",
			}, api...),
			subscribe: []string{
				"_INBOX_bob.>", "fleet.agent.*.*", "fleet.control.bob.*",
				"fleet.handshake.bob", "fleet.inbox.bob.*", "fleet.meshack.bob.*", "fleet.offer.bob.*", "fleet.outcome.bob.*",
			},
		},
		{
			role: subjects.RoleOrchestrator, publish: api,
			subscribe: []string{"_INBOX_bob.>", "fleet.agent.*.*", "fleet.meshack.bob.*", "fleet.outcome.bob.*"},
		},
		{
			role: subjects.RoleOperator,
			publish: append([]string{
				"$SRV.>", "fleet.api.bob.agent.drain", "fleet.api.bob.agent.lift", "fleet.api.bob.agent.resume", "fleet.api.bob.audit.read",
				"fleet.api.bob.escalation.ack", "fleet.api.bob.escalation.answer", "fleet.api.bob.escalation.cancel",
				"fleet.api.bob.escalation.complete", "fleet.api.bob.escalation.get", "fleet.api.bob.escalation.list",
				"fleet.api.bob.escalation.reassign", "fleet.api.bob.escalation.retry", "fleet.api.bob.escalation.silence",
				"fleet.api.bob.escalation.status", "fleet.api.bob.identity.add", "fleet.api.bob.identity.get", "fleet.api.bob.identity.list",
				"fleet.api.bob.identity.revoke", "fleet.api.bob.identity.rotate", "fleet.api.bob.task.resume", "fleet.api.bob.task.waiting",
				"fleet.api.bob.webhook.drop", "fleet.api.bob.webhook.get", "fleet.api.bob.webhook.list",
				"fleet.api.bob.webhook.replay", "fleet.api.bob.webhook.status",
			}, api...),
			subscribe: []string{
				"_INBOX_bob.>", "fleet.agent.*.*", "fleet.alert.*", "fleet.announce.*.*", "fleet.dlq.>", "fleet.escalation.*.*", "fleet.event.*",
				"fleet.heartbeat.*.*", "fleet.mesh.*.*", "fleet.meshack.*.*", "fleet.outcome.*.*", "fleet.progress.*.*", "fleet.runevent.*",
			},
		},
		{role: subjects.RoleWorker, publish: []string{">"}, subscribe: []string{">"}},
		{role: "nobody"},
	} {
		t.Run(tt.role, func(t *testing.T) {
			t.Parallel()
			slices.Sort(tt.publish)
			publish, subscribe := subjects.Permissions(tt.role, "bob")
			if diff := cmp.Diff(tt.publish, publish); diff != "" {
				t.Errorf("publish (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.subscribe, subscribe); diff != "" {
				t.Errorf("subscribe (-want +got):\n%s", diff)
			}
			if got, want := subjects.Responds(tt.role), tt.role == subjects.RoleAgent; got != want {
				t.Errorf("Responds(%s) = %v, want %v", tt.role, got, want)
			}
		})
	}
}

// Whoever is not a worker writes under its own name alone, and never where the
// truth is.
func TestPermissionsProveTheWriter(t *testing.T) {
	t.Parallel()
	for _, role := range []string{subjects.RoleAgent, subjects.RoleLeaf, subjects.RoleOrchestrator, subjects.RoleOperator} {
		publish, subscribe := subjects.Permissions(role, "bob")
		for _, p := range publish {
			if p != "$SRV.>" && (p != "_R_.>" || role != subjects.RoleLeaf) && !slices.Contains(strings.Split(p, "."), "bob") {
				t.Errorf("%s may publish %s, which does not name it", role, p)
			}
		}
		for _, p := range slices.Concat(publish, subscribe) {
			for _, no := range []string{"$JS", "$KV", "$O", "$SYS", ">", "*", "fleet.>", "fleet.task"} {
				if p == no || strings.HasPrefix(p, no+".") {
					t.Errorf("%s may use %s", role, p)
				}
			}
		}
	}
}

// A leaf has the rights of the agent whose instances it connects, and may
// answer workers.
func TestPermissionsOfLeaf(t *testing.T) {
	t.Parallel()
	want, subscribe := subjects.Permissions(subjects.RoleAgent, "bob")
	for i, p := range want {
		if own, ok := strings.CutSuffix(p, ".*"); ok {
			want[i] = own + ".>"
		}
	}
	want = slices.DeleteFunc(want, func(p string) bool { return p == "fleet.a2a.bob.confirm.*.>" }) // part of fleet.a2a.bob.>
	want = append(want, "_R_.>")
	slices.Sort(want)
	publish, got := subjects.Permissions(subjects.RoleLeaf, "bob")
	if diff := cmp.Diff(want, publish); diff != "" {
		t.Errorf("publish (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(subscribe, got); diff != "" {
		t.Errorf("subscribe (-want +got):\n%s", diff)
	}
}

// Nothing passes from clients to workers but what the catalogue has them write,
// and no passage is as wide as JetStream's API or a record.
func TestPassagesAreNarrow(t *testing.T) {
	t.Parallel()
	in, out := 0, 0
	for _, p := range subjects.Passages() {
		if p.Out {
			out++
		} else {
			in++
		}
		if tokens := strings.Split(p.Subject, "."); p.Subject != "$SRV.>" && (tokens[0] != "fleet" || len(tokens) < 2 || strings.ContainsAny(tokens[1], "*>")) {
			t.Errorf("%+v is too wide", p)
		}
		for _, no := range []string{"fleet.task.", "fleet.audit", "fleet.log.", "fleet.run."} {
			if strings.HasPrefix(p.Subject, no) {
				t.Errorf("%+v lets clients at what workers keep", p)
			}
		}
	}
	if in < 10 || out < 5 {
		t.Errorf("%d passages in and %d out: this test would notice nothing", in, out)
	}
}
