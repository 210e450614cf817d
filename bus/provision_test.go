package bus_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/bus/bustest"
)

// edit changes one stream's configuration behind the bus's back.
func edit(t *testing.T, b *bus.Bus, stream string, change func(map[string]any)) {
	t.Helper()
	cfg := streamConfig(t, b, stream)
	change(cfg)
	data, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := b.Request(t.Context(), "$JS.API.STREAM.UPDATE."+stream, data, nil)
	if err != nil || strings.Contains(string(reply.Data), `"error"`) {
		t.Fatalf("update %s: %s, %v", stream, reply.Data, err)
	}
}

func streamConfig(t *testing.T, b *bus.Bus, stream string) map[string]any {
	t.Helper()
	reply, err := b.Request(t.Context(), "$JS.API.STREAM.INFO."+stream, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ Config map[string]any }
	if err := json.Unmarshal(reply.Data, &info); err != nil {
		t.Fatal(err)
	}
	return info.Config
}

var streams = []string{"FLEET_TASKS", "FLEET_ANNOUNCE", "FLEET_INBOX", "FLEET_DLQ", "FLEET_WEBHOOKS", "FLEET_ESCALATIONS", "KV_FLEET_IDEM", "KV_FLEET_AGENTS", "KV_FLEET_ALERTS", "KV_FLEET_LEDGER", "OBJ_FLEET_INDEX"}

func TestProvisionIdempotent(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	s := bustest.New(t)
	c := s.Config()
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	b, err := bus.Connect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	// Many processes start at once.
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := s.Connect(t).Provision(t.Context(), bus.Provisioning{}); err != nil {
				t.Errorf("Provision = %v", err)
			}
		})
	}
	wg.Wait()
	for _, mode := range []string{"", bus.ProvisionCreate, bus.ProvisionVerify, bus.ProvisionOff} {
		if err := b.Provision(t.Context(), bus.Provisioning{Mode: mode}); err != nil {
			t.Errorf("Provision(%q) again = %v", mode, err)
		}
	}
	if log.Len() > 0 {
		t.Errorf("Provision of what is there changed something:\n%s", log.String())
	}
	for _, name := range streams {
		cfg := streamConfig(t, b, name)
		metadata, _ := cfg["metadata"].(map[string]any)
		if cfg["storage"] != "file" || cfg["description"] == "" || metadata["app"] != "parley" || cfg["max_consumers"].(float64) <= 0 {
			t.Errorf("%s: %v", name, cfg)
		}
	}
	tasks := streamConfig(t, b, "FLEET_TASKS")
	want := map[string]any{
		"retention": "limits", "discard": "new", "allow_msg_ttl": true, "allow_atomic": true, "allow_direct": true,
		"max_age": 0.0, "republish": map[string]any{"src": "fleet.task.*", "dest": "fleet.event.{{wildcard(1)}}"},
	}
	for field, w := range want {
		if diff := cmp.Diff(w, tasks[field]); diff != "" {
			t.Errorf("FLEET_TASKS %s (-want +got):\n%s", field, diff)
		}
	}
}

func TestProvisionAdoptsSafeChanges(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	edit(t, b, "FLEET_TASKS", func(c map[string]any) {
		c["description"] = "something"
		c["max_bytes"] = 1 << 20
		c["allow_atomic"] = false
		c["republish"] = map[string]any{"src": "fleet.task.*", "dest": "other.{{wildcard(1)}}"}
		c["metadata"] = map[string]any{"owner": "ops"}
	})
	edit(t, b, "FLEET_ANNOUNCE", func(c map[string]any) { c["max_age"] = (24 * time.Hour).Nanoseconds() })
	err := b.Provision(t.Context(), bus.Provisioning{Mode: bus.ProvisionVerify})
	for _, want := range []string{"FLEET_TASKS: allow_atomic is false, true is wanted", "FLEET_TASKS: republish is {Source:fleet.task.* Destination:other."} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("verify = %v, want %q", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "max_bytes") {
		t.Errorf("verify = %v, complains about a size", err)
	}
	if err := b.Provision(t.Context(), bus.Provisioning{MaxBytes: 2 << 20}); err != nil {
		t.Fatal(err)
	}
	got := streamConfig(t, b, "FLEET_TASKS")
	metadata, _ := got["metadata"].(map[string]any)
	if got["max_bytes"] != float64(2<<20) || got["allow_atomic"] != true || metadata["owner"] != "ops" || metadata["app"] != "parley" ||
		!strings.HasPrefix(got["description"].(string), "Task records") {
		t.Errorf("after create: %v", got)
	}
	if age := streamConfig(t, b, "FLEET_ANNOUNCE")["max_age"]; age != float64(30*24*time.Hour) {
		t.Errorf("after create, announces are kept for %v ns, want 30 days", age)
	}
	if err := b.Provision(t.Context(), bus.Provisioning{Mode: bus.ProvisionVerify}); err != nil {
		t.Errorf("verify after create = %v", err)
	}
}

func TestProvisionRefuses(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Connect(t)
	ctx := t.Context()
	err := b.Provision(ctx, bus.Provisioning{Mode: bus.ProvisionVerify})
	for _, name := range streams {
		if err == nil || !strings.Contains(err.Error(), "stream "+name+" is missing") {
			t.Errorf("verify of nothing = %v, want %s to be missing", err, name)
		}
	}
	for name, cfg := range map[string]string{
		"FLEET_TASKS": `{"name":"FLEET_TASKS","subjects":["fleet.task.*","old.task.*"],"storage":"memory","retention":"limits","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"num_replicas":1}`,
		"FLEET_INBOX": `{"name":"FLEET_INBOX","subjects":["fleet.dispatch.*"],"storage":"file","retention":"workqueue","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"num_replicas":1}`,
		"FLEET_RUNS":  `{"name":"FLEET_RUNS","subjects":["fleet.run.*"],"storage":"file","retention":"interest","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"num_replicas":1}`,
	} {
		if _, err := b.Request(ctx, "$JS.API.STREAM.CREATE."+name, []byte(cfg), nil); err != nil {
			t.Fatal(err)
		}
	}
	err = b.Provision(ctx, bus.Provisioning{})
	for _, want := range []string{
		"stream FLEET_TASKS: storage is Memory, File is wanted, which needs a migration: no stream in memory can be backed up: have the work end",
		"stream FLEET_TASKS: subjects is fleet.task.* old.task.*, fleet.task.* is wanted, which needs a migration: move the messages of old.task.*",
		"stream FLEET_RUNS: retention is Interest, Limits is wanted, which needs a migration: stop all workers, back the stream up (nats stream backup), delete it, restore it (nats stream restore --config, with this changed), and start them again",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Provision = %v, want %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "FLEET_INBOX") {
		t.Errorf("Provision = %v: an inbox that is a work queue, as it was once, is refused", err)
	}
	if got := streamConfig(t, b, "FLEET_DLQ"); got["storage"] != "file" {
		t.Errorf("FLEET_DLQ is not there: %v", got)
	}

	for p, want := range map[bus.Provisioning]string{
		{Mode: "maybe"}: `mode "maybe" is not create, verify or off`,
		{Replicas: 2}:   "2 replicas: use 1, 3 or 5",
	} {
		if err := b.Provision(ctx, p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Provision(%+v) = %v, want %q", p, err, want)
		}
	}
	one := bustest.New(t).Connect(t)
	if err := one.Provision(ctx, bus.Provisioning{Replicas: 3}); err == nil || !strings.Contains(err.Error(), "create with 3 replicas") {
		t.Errorf("3 replicas on one server = %v", err)
	}
	if err := one.Provision(ctx, bus.Provisioning{MaxBytes: 1 << 50}); err == nil || !strings.Contains(err.Error(), "free disk space") {
		t.Errorf("a petabyte = %v", err)
	}
}

func maxBytes(t *testing.T, b *bus.Bus, stream string) int64 {
	t.Helper()
	n, _ := streamConfig(t, b, stream)["max_bytes"].(float64)
	return int64(n)
}

func TestProvisionFitsTheRoom(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, c := range []struct {
		name       string
		room, give int64
		tasks      int64 // at least; 0 = it must not fit
	}{
		{"plenty", 16 << 30, 0, 4096 * mib},
		{"a small disk", 544 * mib, 0, 136 * mib},
		{"the least", bus.MinRoom, 0, 64 * mib},
		{"less than the least", bus.MinRoom - mib, 0, 0},
		{"little beside what is given", 1024 * mib, 512 * mib, 512 * mib},
		{"more given than there is", 1024 * mib, 1025 * mib, 0},
		{"nothing left beside what is given", 1024 * mib, 1024 * mib, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := bustest.New(t, bustest.Room(c.room)).Connect(t)
			err := b.Provision(t.Context(), bus.Provisioning{Room: c.room, MaxBytes: c.give})
			if c.tasks == 0 {
				if !errors.Is(err, bus.ErrFull) || !strings.Contains(err.Error(), "MiB") {
					t.Errorf("Provision = %v, want ErrFull and the figures", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := maxBytes(t, b, "FLEET_TASKS"); got < c.tasks {
				t.Errorf("FLEET_TASKS has %d MiB, want %d", got/mib, c.tasks/mib)
			}
			var all int64
			for _, s := range streams {
				all += maxBytes(t, b, s)
			}
			if all > c.room {
				t.Errorf("the streams take %d MiB of %d", all/mib, c.room/mib)
			}
		})
	}
}

func TestProvisionKeepsSizes(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	b := bustest.New(t).Connect(t)
	for _, p := range []bus.Provisioning{{MaxBytes: 10 * mib}, {}, {Room: bus.MinRoom}} {
		if err := b.Provision(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if got := maxBytes(t, b, "FLEET_TASKS"); got != 10*mib {
			t.Errorf("after %+v FLEET_TASKS has %d bytes, want 10 MiB", p, got)
		}
	}
}

// A size that is too small for what a stream holds is not taken on: it would take
// no record any more. One that is merely smaller is.
func TestProvisionLowersNoStreamBelowWhatItHolds(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	var log strings.Builder
	c := bustest.New(t).Config()
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	b, err := bus.Connect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	small := bus.Provisioning{MaxBytes: mib}
	provision := func(want int64) {
		t.Helper()
		if err := b.Provision(t.Context(), small); err != nil {
			t.Fatal(err)
		}
		if got := maxBytes(t, b, "FLEET_TASKS"); got != want {
			t.Errorf("FLEET_TASKS has %d bytes, want %d", got, want)
		}
	}
	records, stop := b.Records("FLEET_TASKS", bus.CommitDirect)
	defer stop()
	store := func(task string, data []byte) {
		t.Helper()
		if _, err := records.Write(t.Context(), bus.Record{Subject: "fleet.task." + task, WriteID: task, Data: data}); err != nil {
			t.Errorf("store a record = %v", err)
		}
	}
	provision(mib)
	edit(t, b, "FLEET_TASKS", func(c map[string]any) { c["max_bytes"] = 4 * mib })
	for i := range 3 {
		store("t"+strconv.Itoa(i), make([]byte, mib*2/3))
	}
	provision(4 * mib)
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "stays=4194304") {
		t.Errorf("the log says nothing of it:\n%s", log.String())
	}
	store("more", []byte("{}"))
	for i := range 2 {
		if err := b.Purge(t.Context(), "FLEET_TASKS", "fleet.task.t"+strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	provision(mib)
}

// TestProvisionLooksAtConsumers refuses one that would hold work back, where it
// may not be mended, and mends it where it may.
func TestProvisionLooksAtConsumers(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Connect(t)
	ctx := t.Context()
	if err := b.Provision(ctx, bus.Provisioning{}); err != nil {
		t.Fatal(err)
	}
	r, err := b.Request(ctx, "$JS.API.CONSUMER.INFO.FLEET_INBOX.routers", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		Config map[string]any `json:"config"`
	}
	if err := json.Unmarshal(r.Data, &info); err != nil {
		t.Fatal(err)
	}
	info.Config["max_ack_pending"] = 10
	narrow, err := json.Marshal(map[string]any{"stream_name": "FLEET_INBOX", "action": "update", "config": info.Config})
	if err != nil {
		t.Fatal(err)
	}
	if r, err = b.Request(ctx, "$JS.API.CONSUMER.DURABLE.CREATE.FLEET_INBOX.routers", narrow, nil); err != nil || strings.Contains(string(r.Data), `"error"`) {
		t.Fatalf("narrow the consumer: %s, %v", r.Data, err)
	}
	err = b.Provision(ctx, bus.Provisioning{Mode: bus.ProvisionVerify})
	if err == nil || !strings.Contains(err.Error(), "consumer routers of stream FLEET_INBOX: MaxAckPending is 10") {
		t.Errorf("verify = %v, want it to name MaxAckPending", err)
	}
	if err := errors.Join(b.Provision(ctx, bus.Provisioning{}), b.Provision(ctx, bus.Provisioning{Mode: bus.ProvisionVerify})); err != nil {
		t.Errorf("after it is mended: %v", err)
	}
}

// old is a server of that version, which says that and nothing else.
func old(t *testing.T, version string) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	all.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		fmt.Fprintf(c, "INFO {\"server_id\":\"old\",\"version\":%q,\"proto\":1,\"headers\":true,\"jetstream\":true,\"max_payload\":1048576}\r\n", version)
		for lines := bufio.NewScanner(c); lines.Scan(); {
			if lines.Text() == "PING" {
				fmt.Fprint(c, "PONG\r\n")
			}
		}
	})
	return "nats://" + l.Addr().String()
}

// TestProvisionRefusesOldServers, whatever it may do about the streams.
func TestProvisionRefusesOldServers(t *testing.T) {
	t.Parallel()
	low := bustest.New(t, bustest.NoJetStream)
	jetStream := low.Connect(t)
	_, err := jetStream.Subscribe("$JS.API.INFO", "", func(m bus.Msg) {
		if err := jetStream.Publish(m.Reply, []byte(`{"api":{"level":3}}`), nil); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(err, jetStream.Ping(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{bus.ProvisionCreate, bus.ProvisionVerify, bus.ProvisionOff} {
		for want, url := range map[string]string{
			"the NATS server is version 2.15.0, at least 2.15.1 is needed: upgrade nats-server": old(t, "2.15.0"),
			"the server's JetStream API level is 3, at least 4 is needed: upgrade nats-server":  low.URL(),
		} {
			b, err := bus.Connect(t.Context(), bus.Config{URL: url})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.Close)
			if err := b.Provision(t.Context(), bus.Provisioning{Mode: mode}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Provision(%s) = %v, want %q", mode, err, want)
			}
		}
	}
}
