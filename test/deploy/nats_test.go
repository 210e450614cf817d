package deploy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"parley/bus/bustest"
	"parley/test/deploy"
)

const patience = bustest.Patience

// site is a new site, whose passwords the servers of this process know.
func site(t *testing.T) *deploy.Site {
	t.Helper()
	s := deploy.NewSite(t, t.TempDir())
	for _, kv := range s.Env {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	return s
}

// run starts nodes by the files that ship.
func run(t *testing.T, s *deploy.Site, nodes ...string) []*server.Server {
	t.Helper()
	var all []*server.Server
	for _, node := range nodes {
		opts, err := server.ProcessConfigFile(s.Config(node))
		if err != nil {
			t.Fatalf("%s: %v", node, err)
		}
		all = append(all, begin(t, node, opts))
	}
	for i, ns := range all {
		reached(t, nodes[i], ns)
	}
	return all
}

// begin starts one server, until the test ends.
func begin(t *testing.T, node string, opts *server.Options) *server.Server {
	t.Helper()
	opts.NoLog, opts.NoSigs = true, true
	ns, err := server.NewServer(opts)
	if err != nil {
		t.Fatalf("%s: %v", node, err)
	}
	ns.Start()
	t.Cleanup(func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	})
	return ns
}

func reached(t *testing.T, node string, ns *server.Server) {
	t.Helper()
	if !ns.ReadyForConnections(patience) {
		t.Fatalf("%s does not take connections", node)
	}
}

func connect(t *testing.T, s *deploy.Site, node, user string) *nats.Conn {
	t.Helper()
	nc, err := dial(s, node, user, deploy.Password(user))
	if err != nil {
		t.Fatalf("%s at %s: %v", user, node, err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func dial(s *deploy.Site, node, user, password string, more ...nats.Option) (*nats.Conn, error) {
	opts := []nats.Option{nats.Timeout(5 * time.Second)}
	if user != deploy.Worker && user != "" {
		opts = append(opts, nats.CustomInboxPrefix("_INBOX_"+user))
	}
	if user != "" {
		opts = append(opts, nats.UserInfo(user, password))
	}
	if node != "single" && node != "leaf" {
		opts = append(opts, nats.RootCAs(s.CA))
	}
	return nats.Connect(s.URL(node), append(opts, more...)...)
}

// safe checks what every server with streams must have.
func safe(t *testing.T, ns *server.Server) {
	t.Helper()
	v, err := ns.Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	if c := v.JetStream.Config; c == nil || !c.SyncAlways {
		t.Errorf("%s does not sync always: %+v", v.Name, c)
	}
	if v.MaxPayload != 4<<20 {
		t.Errorf("%s takes messages of %d bytes, want 4 MiB", v.Name, v.MaxPayload)
	}
}

// private checks that the monitoring pages of a server for one machine are on the
// loopback alone: they ask nobody for a password.
func private(t *testing.T, ns *server.Server) {
	t.Helper()
	if at := ns.MonitorAddr(); at == nil || !at.IP.IsLoopback() {
		t.Errorf("%s has its monitoring pages at %v, want the loopback", ns.Name(), at)
	}
}

// guarded checks that a server takes nobody for another server who has no
// certificate.
func guarded(t *testing.T, s *deploy.Site, ns *server.Server) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(filepath.Dir(s.CA), "server.crt"), filepath.Join(filepath.Dir(s.CA), "server.key"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(read(t, s.CA))) {
		t.Fatal("no authority")
	}
	for _, pairs := range [][]tls.Certificate{nil, {pair}} {
		d := tls.Dialer{Config: &tls.Config{RootCAs: roots, Certificates: pairs, MinVersion: tls.VersionTLS13}}
		c, err := d.DialContext(t.Context(), "tcp", ns.ClusterAddr().String())
		if err != nil {
			t.Fatalf("the routes of %s: %v", ns.Name(), err)
		}
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		// The first word of a server says who it is.
		n, err := c.Read(make([]byte, 16))
		if taken := err == nil && n > 0; taken != (pairs != nil) {
			t.Errorf("%s takes a route with %d certificates: %t (%v)", ns.Name(), len(pairs), taken, err)
		}
		c.Close()
	}
}

// Every configuration that ships is one that a test here starts.
func TestEveryConfigurationIsStarted(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../deploy/nats/*.conf")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		got = append(got, strings.TrimSuffix(filepath.Base(f), ".conf"))
	}
	want := []string{"accounts", "callout", "cluster", "cluster-1", "cluster-2", "cluster-3", "leaf", "limits", "single"}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("deploy/nats has %q, want %q: give a new one a test", got, want)
	}
}

func TestSingle(t *testing.T) {
	s := site(t)
	ns := run(t, s, "single")[0]
	safe(t, ns)
	private(t, ns)
	stream(t, connect(t, s, "single", deploy.Worker), 1)
	identities(t, s, "single")
}

// A server does not start with a password that is not there.
func TestPasswordMissing(t *testing.T) {
	s := deploy.NewSite(t, t.TempDir())
	if _, err := server.ProcessConfigFile(s.Config("single")); err == nil || !strings.Contains(err.Error(), "NATS_") {
		t.Errorf("without passwords: %v, want an error that names one", err)
	}
}

func TestCluster(t *testing.T) {
	s := site(t)
	all := run(t, s, "cluster-1", "cluster-2", "cluster-3")
	for _, ns := range all {
		safe(t, ns)
		guarded(t, s, ns)
	}
	stream(t, connect(t, s, "cluster-2", deploy.Worker), 3)
	identities(t, s, "cluster-1")

	if nc, err := nats.Connect(s.URL("cluster-1"), nats.UserInfo(deploy.Worker, deploy.Password(deploy.Worker))); err == nil {
		nc.Close()
		t.Error("a client takes a server whose authority it does not know")
	}
	if !speaksTLS(t, strings.TrimPrefix(s.URL("cluster-1"), "tls://")) {
		t.Error("a server takes clients without TLS")
	}
}

// speaksTLS reports whether a server ends a connection whose client sends its
// password in the clear.
func speaksTLS(t *testing.T, address string) bool {
	t.Helper()
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "CONNECT {\"user\":%q,\"pass\":%q,\"verbose\":true}\r\nPING\r\n", deploy.Worker, deploy.Password(deploy.Worker))
	all, _ := io.ReadAll(c) // until the server hangs up
	return !strings.Contains(string(all), "PONG")
}

// A leaf lets its agents speak as its one agent, and as nobody else.
func TestLeaf(t *testing.T) {
	s := site(t)
	hub := run(t, s, "cluster-1", "cluster-2", "cluster-3")
	leaf := run(t, s, "leaf")[0]
	private(t, leaf)
	wait(t, "the leaf's connection", func() bool { return hub[0].NumLeafNodes()+hub[1].NumLeafNodes()+hub[2].NumLeafNodes() == 1 })

	worker := connect(t, s, "cluster-1", deploy.Worker)
	heard, err := worker.SubscribeSync("fleet.announce.>")
	if err != nil {
		t.Fatal(err)
	}
	agent, err := dial(s, "leaf", "", "", nats.CustomInboxPrefix("_INBOX_edge1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(agent.Close)
	_, err = agent.Subscribe("fleet.offer.edge1.*", func(m *nats.Msg) { _ = m.Respond([]byte("accepted")) })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	wait(t, "an answer to an offer", func() bool {
		m, rerr := worker.Request("fleet.offer.edge1.main", []byte("offer"), time.Second)
		return rerr == nil && string(m.Data) == "accepted"
	})
	for _, subject := range []string{"fleet.announce.claude.main", "fleet.announce.edge1.main"} {
		if err := agent.Publish(subject, []byte(subject)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := heard.NextMsgWithContext(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if m.Subject != "fleet.announce.edge1.main" {
		t.Errorf("the leaf edge1 speaks as another: %s", m.Subject)
	}
}

// identities checks who is let in, and as whom they may speak.
func identities(t *testing.T, s *deploy.Site, node string) {
	t.Helper()
	for _, who := range [][2]string{{"", ""}, {deploy.Worker, "wrong"}, {"nobody", deploy.Password("nobody")}} {
		nc, err := dial(s, node, who[0], who[1])
		if err == nil {
			nc.Close()
		}
		if !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%q with password %q: %v, want %v", who[0], who[1], err, nats.ErrAuthorization)
		}
	}
	refused := make(chan error, 8)
	agent, err := dial(s, node, deploy.Claude, deploy.Password(deploy.Claude), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	heard, err := connect(t, s, node, deploy.Worker).SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	limit := time.After(patience)
	for _, subject := range []string{
		"fleet.heartbeat.bob.main", "fleet.result.bob.t", "fleet.task.t", "$JS.API.INFO", "fleet.api.operator.agent.drain",
	} {
		if err := agent.Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-refused:
			if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), subject) {
				t.Errorf("claude publishes %s: %v", subject, err)
			}
		case <-limit:
			t.Fatalf("claude may publish %s", subject)
		}
	}
	const own = "fleet.heartbeat.claude.main"
	wait(t, "a message under its own name", func() bool {
		if err := agent.Publish(own, nil); err != nil {
			t.Fatal(err)
		}
		m, err := heard.NextMsg(time.Second)
		return err == nil && m.Subject == own
	})
}

// stream makes a stream and writes to it.
func stream(t *testing.T, nc *nats.Conn, replicas int) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	wait(t, "a stream", func() bool {
		try, stop := context.WithTimeout(ctx, 5*time.Second)
		defer stop()
		_, err = js.CreateOrUpdateStream(try, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: replicas})
		return err == nil
	})
	if _, err := js.Publish(ctx, "s", []byte("x")); err != nil {
		t.Errorf("publish to a stream of %d copies: %v", replicas, err)
	}
}

// wait asks until ok.
func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("no %s within %s", what, patience)
		}
	}
}
