package main

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

// settled replaces what differs from run to run.
func settled(s *shell, out string) string {
	out = strings.ReplaceAll(out, s.home(), "$HOME")
	return regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(out, "127.0.0.1:PORT")
}

func TestUpBanner(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	j := s.start(t, "up", "--port", "-1", "--http", "127.0.0.1:0", "--save-context")
	j.stdout.waitFor(t, "Next")
	if code := j.end(t); code != 0 {
		t.Errorf("exit %d after a signal, want 0:\n%s", code, j.stderr)
	}
	golden(t, "up", settled(s, j.stdout.String()))
	if n := strings.Count(j.stdout.String(), "\n"); n != 5 {
		t.Errorf("the banner has %d lines, want 5", n)
	}
	data, err := os.ReadFile(filepath.Join(s.home(), ".config", "nats", "context", "parley.json"))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "up-context", settled(s, string(data)))

	unsafe := s.start(t, "up", "--port", "-1", "--http", "off", "--sync=2m", "--save-context=parley")
	unsafe.stdout.waitFor(t, "Next")
	unsafe.end(t)
	golden(t, "up-unsafe", settled(s, unsafe.stdout.String()))

	asJSON := s.start(t, "up", "--port", "-1", "--http", "127.0.0.1:0", "-o", "json")
	var at addresses
	if err := json.Unmarshal([]byte(asJSON.stdout.waitFor(t, "\n}")), &at); err != nil {
		t.Fatalf("%v in:\n%s", err, asJSON.stdout)
	}
	if !strings.HasPrefix(at.NATS, "nats://127.0.0.1:") || at.Sync != "always" || at.Data != filepath.Join(s.home(), ".local", "share", "parley") {
		t.Errorf("addresses %+v", at)
	}
}

func TestUpLeavesForeignContextsAlone(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	path := filepath.Join(s.home(), ".config", "nats", "context", "prod.json")
	if err := writeContext(path, natsContext{Description: "production", URL: "nats://prod"}); err != nil {
		t.Fatal(err)
	}
	s.run(t, "up", "--port", "-1", "--http", "off", "--save-context=prod").check(t, exitUsage, "", "--save-context=prod2")
	if c, err := readContext(path); err != nil || c.URL != "nats://prod" {
		t.Errorf("the context is %+v, %v now", c, err)
	}
}

func TestUpPortTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s := newShell(t)
	got := s.run(t, "up", "--port", port, "--http", "off")
	got.check(t, exitFailed, "", "parley: 127.0.0.1:"+port+" is taken: another process listens there\n")
	got.check(t, exitFailed, "", "next:  parley up --port ")
	got = s.run(t, "up", "--port", "-1", "--http", l.Addr().String())
	got.check(t, exitFailed, "", "parley: cannot serve health pages: "+l.Addr().String()+" is taken\n")
	got.check(t, exitFailed, "", "--http off")
}

func TestUpOncePerDirectory(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.up(t)
	got := s.run(t, "up", "--port", "-1", "--http", "off")
	got.check(t, exitFailed, "", "parley: another parley up runs with the data in "+filepath.Join(s.home(), ".local", "share", "parley")+"\n")
	got.check(t, exitFailed, "", "next:  use that one, stop it, or start a second fleet: parley up --data")
}

func TestHealthPages(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	j, _ := s.up(t)
	at := regexp.MustCompile(`http://\S+`).FindString(j.stdout.String())
	for path, want := range map[string]string{"/healthz": `"status":"ok"`, "/readyz": `"router":"ok"`} {
		code, body := get(t, at+path)
		if code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want 200 and %s", path, code, body, want)
		}
	}
	if code, _ := get(t, at+"/"); code != http.StatusNotFound {
		t.Errorf("/: %d, want 404", code)
	}
}

func TestReadyzTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	stopping := make(chan struct{})
	connected := true
	var store error
	var unsafe []string
	h, err := (&app{conf: &config{}}).listenHealth("127.0.0.1:0", healthChecks{
		connected: func() bool { return connected }, stopping: stopping, store: func() error { return store }, unsafe: func() []string { return unsafe },
	})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Run(t, h.Run)
	for _, step := range []struct {
		change func()
		code   int
		status string
	}{
		{func() {}, 200, `{"status":"ok","workers":{"store":"ok"}}`},
		{func() { unsafe = []string{"one copy"} }, 200, `{"status":"ok","unsafe":["one copy"],"workers":{"store":"ok"}}`},
		{func() { store = errors.New("no write") }, 503, `"store":"no write"`},
		{func() { store, connected = nil, false }, 503, "not connected to NATS"},
		{func() { close(stopping) }, 503, "draining"},
	} {
		step.change()
		if code, body := get(t, h.address()+"/readyz"); code != step.code || !strings.Contains(body, step.status) {
			t.Errorf("%d %s, want %d %s", code, body, step.code, step.status)
		}
	}
}

// get reads a page: its status and its text.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestServeGroupsWrites shows what --sync is for: the records of many dispatches
// at once carry the header of an atomic batch, or never do.
func TestServeGroupsWrites(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		args    []string
		grouped bool
	}{{"default", nil, true}, {"told that it is lazy", []string{"--sync=2m"}, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := bustest.New(t, bustest.SyncAlways)
			b := server.Connect(t)
			var batched atomic.Int64
			sub, err := b.Subscribe("fleet.task.*", "", func(m bus.Msg) {
				if m.Header.Get("Nats-Batch-Id") != "" {
					batched.Add(1)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			s := newShell(t, "NATS_URL="+server.URL())
			j := s.start(t, append([]string{"serve", "--http", "off", "--workers", "router"}, c.args...)...)
			j.stderr.waitFor(t, `"msg":"ready"`)
			rounds := 2 // without grouping, of which none may show a batch
			if c.grouped {
				rounds = 500 // the first that shows one is enough
			}
			for round := 0; round < rounds && batched.Load() == 0; round++ {
				var wg sync.WaitGroup
				for range 256 {
					wg.Go(func() {
						if _, err := b.Request(t.Context(), subjects.API("me", "task", "dispatch"), []byte(`{"brief":"do it"}`), nil); err != nil {
							t.Errorf("dispatch: %v", err)
						}
					})
				}
				wg.Wait()
			}
			if err := sub.Drain(); err != nil {
				t.Fatal(err)
			}
			if got := batched.Load() > 0; got != c.grouped {
				t.Errorf("writes are grouped: %t, want %t", got, c.grouped)
			}
		})
	}
}

func TestServe(t *testing.T) {
	t.Parallel()
	server := bustest.New(t)
	s := newShell(t, "NATS_URL="+server.URL())
	j := s.start(t, "serve", "--http", "off", "--workers", "registry")
	j.stderr.waitFor(t, `"msg":"ready"`)
	s.run(t, "agent", "ls").check(t, 0, "", "no agents")
	s.run(t, "task", "ls").check(t, 38, "", "no router is there")
	second := s.start(t, "serve", "--http", "off", "--workers", "router")
	second.stderr.waitFor(t, `"msg":"ready"`)
	s.run(t, "task", "ls").check(t, 0, "", "no tasks")
	if code := second.end(t); code != 0 {
		t.Errorf("exit %d after a signal, want 0:\n%s", code, second.stderr)
	}
	verify := newShell(t, "NATS_URL="+bustest.New(t).URL())
	verify.run(t, "serve", "--http", "off", "--provision", "verify").check(t, exitFailed, "", "streams are not as they must be")
}

func TestUpSaysWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	got := s.run(t, "up", "--port", "-1", "--http", "off", "--max-store", "4000000TiB")
	got.check(t, exitFailed, "", "parley: the fleet's streams do not fit on the disk: the broker can reserve ")
	got.check(t, exitFailed, "", "next:  --max-store is 4000000TiB (PARLEY_MAX_STORE): leave it out")
	served := newShell(t, "NATS_URL="+bustest.New(t).URL())
	served.run(t, "serve", "--http", "off", "--max-store", "1TiB").
		check(t, exitFailed, "", "raise the servers' max_file_store, or have smaller task records: --max-store 512MiB")
	a := &app{conf: &config{Data: "/data"}}
	err, ok := errors.AsType[*problem](a.notProvisioned(bus.ErrFull, 100<<20))
	if !ok || !strings.Contains(err.what, "100 MiB in /data") || !strings.Contains(err.then, "needs 256 MiB") {
		t.Errorf("%+v", err)
	}
}

// TestUpStaysOnThisMachine: without authentication, nobody else is let in unless
// that is what is wanted.
func TestUpStaysOnThisMachine(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	for _, host := range []string{"0.0.0.0", "::", "192.0.2.1", "example.com"} {
		got := s.run(t, "up", "--host", host, "--port", "-1", "--http", "off")
		got.check(t, exitUsage, "", "--host "+host+" would let other machines reach a broker")
		got.check(t, exitUsage, "", "--insecure")
	}
	// Where it asks who connects, they may: this fails for want of that address.
	dir := filepath.Join(t.TempDir(), "fleet")
	s.run(t, "auth", "init", dir).check(t, 0, "parley up --auth "+dir, "")
	s.run(t, "up", "--auth", dir, "--host", "192.0.2.1", "--port", "-1", "--http", "off").check(t, exitFailed, "", "listen on 192.0.2.1:0")
	// Loopback is wherever 127/8 is; --insecure changes nothing there.
	j := s.start(t, "up", "--host", "127.0.0.2", "--insecure", "--port", "-1", "--http", "off", "--sync=1m")
	if out := j.stdout.waitFor(t, "Next"); !strings.Contains(out, "open: whoever reaches it") {
		t.Errorf("the banner does not say that nobody is asked:\n%s", out)
	}
	j.end(t)
	for host, want := range map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true, "127.9.9.9": true, "0.0.0.0": false, "": false, "10.0.0.1": false} {
		if got := loopback(host); got != want {
			t.Errorf("loopback(%q) = %v, want %v", host, got, want)
		}
	}
}
