// Package bustest starts real NATS servers for tests. They listen on a free
// port of the loopback, keep their data in t.TempDir, and are closed by the
// test's cleanup. Run and Serve run workers on them for as long.
//
// With NewFake a server runs inside a synctest bubble, on the bubble's time.
// Two things of the process reach into all bubbles, and would break that:
//
//   - The server's access-time ticker waits on a channel made at package init.
//     Started inside a bubble it never blocks durably, and fake time stands
//     still; this package starts it outside. TestFakeTimeMoves is the canary. So
//     the server goes by the real time for what a stream's MaxAge takes away:
//     when the oldest message is that old in fake time, all of them go.
//   - The NATS client takes the timers of Flush, FlushTimeout, NextMsg and
//     Drain, and of the Flush after a reconnect, from one pool of the process,
//     and gives them back. A bubble's timer that another bubble or a test
//     outside gets there ends the process ("reset of synctest timer from
//     outside bubble"), at random and far from its cause. bus.Config.FakeTime, which
//     Config sets, keeps the bus away from the pool; a test that works with the
//     client itself must wait by context (FlushWithContext,
//     NextMsgWithContext, RequestWithContext) and Close instead of Drain.
//     TestTimersStayInTheirBubble catches whatever else gives one back.
package bustest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nkeys"

	"parley/bus"
)

// Started here the server's ticker belongs to no bubble.
func init() { ats.Register() } //nolint:gochecknoinits // see the package's comment

// Server is a running test server, or a cluster of them.
type Server struct {
	nodes []*node
	fake  bool
}

type node struct {
	opts *server.Options
	ns   *server.Server
}

// Patience is how long a test waits for what takes moments on an idle machine:
// what takes longer hangs, however busy or slow the machine is. No test passes or
// fails by how much real time something took.
const Patience = 2 * time.Minute

// fakePatience is that in a bubble, whose time stands still while anything works.
const fakePatience = 20 * time.Second

// patience is how long to wait here. The time in a bubble begins with the year 2000.
func patience() time.Duration {
	if time.Now().Year() < 2020 {
		return fakePatience
	}
	return Patience
}

// Option changes how a server is started.
type Option func(*server.Options)

// SyncAlways makes the server sync before it acknowledges. Tests are lazy by
// default.
func SyncAlways(o *server.Options) { o.SyncAlways = true }

// NoJetStream starts a server without JetStream.
func NoJetStream(o *server.Options) { o.JetStream = false }

// NoJetStreamFor has one account, without JetStream, which name and password
// are let into.
func NoJetStreamFor(name, password string) Option {
	return func(o *server.Options) {
		poor := server.NewAccount("poor")
		o.Accounts = []*server.Account{poor}
		o.Users = []*server.User{{Username: name, Password: password, Account: poor}}
	}
}

// Room is how many bytes the server can reserve for streams; 64 GiB otherwise.
func Room(n int64) Option { return func(o *server.Options) { o.JetStreamMaxStore = n } }

// MaxPayload is how many bytes a message may have; 4 MiB otherwise.
func MaxPayload(n int32) Option { return func(o *server.Options) { o.MaxPayload = n } }

// OneBatch has a stream take one atomic batch at a time, not 50, and give one up
// timeout after its first message, not 10 s.
func OneBatch(timeout time.Duration) Option {
	return func(o *server.Options) {
		o.JetStreamLimits.MaxBatchInflightPerStream, o.JetStreamLimits.MaxBatchTimeout = 1, timeout
	}
}

// TLS makes the server speak TLS with the certificate given.
func TLS(c tls.Certificate) Option {
	return func(o *server.Options) {
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{c}, MinVersion: tls.VersionTLS13}
	}
}

// Certified makes a server that speaks TLS take nobody without a certificate,
// whoever has signed it; it goes after TLS.
func Certified(o *server.Options) { o.TLSConfig.ClientAuth = tls.RequireAnyClientCert }

// APIError is one of the errors that a JetStream server knows.
type APIError struct {
	Code        int // such as 10059
	Status      int // such as 404
	Description string
}

// APIErrors lists all errors that the server knows.
func APIErrors() []APIError {
	var all []APIError
	for _, e := range server.ApiErrors {
		all = append(all, APIError{int(e.ErrCode), e.Code, e.Description})
	}
	return all
}

// User may connect to a server, and publish and subscribe to what is given;
// nil allows all.
type User struct {
	Name, Password     string
	Publish, Subscribe []string
}

// Users makes a server ask who connects.
func Users(users ...User) Option {
	return func(o *server.Options) {
		for _, u := range users {
			su := &server.User{Username: u.Name, Password: u.Password, Permissions: &server.Permissions{}}
			if u.Publish != nil {
				su.Permissions.Publish = &server.SubjectPermission{Allow: u.Publish}
			}
			if u.Subscribe != nil {
				su.Permissions.Subscribe = &server.SubjectPermission{Allow: u.Subscribe}
			}
			o.Users = append(o.Users, su)
		}
	}
}

// AccountKey makes an account's key: its seed and its public half.
func AccountKey(tb testing.TB) (seed, public string) {
	tb.Helper()
	pair, err := nkeys.CreateAccount()
	if err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	s, err := pair.Seed()
	if err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	if public, err = pair.PublicKey(); err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	return string(s), public
}

// Callout makes a server ask who may connect, except for users, who are let in
// by their passwords. It believes whoever has issuer's seed, and encrypts for
// xkey unless that is empty.
func Callout(issuer, xkey string, users ...User) Option {
	return func(o *server.Options) {
		Users(users...)(o)
		o.AuthCallout = &server.AuthCallout{Issuer: issuer, XKey: xkey, Account: "$G"}
		for _, u := range users {
			o.AuthCallout.AuthUsers = append(o.AuthCallout.AuthUsers, u.Name)
		}
		o.AuthTimeout = 5
	}
}

// CurveKey makes a key to encrypt for: its seed and its public half.
func CurveKey(tb testing.TB) (seed, public string) {
	tb.Helper()
	pair, err := nkeys.CreateCurveKeys()
	if err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	s, err := pair.Seed()
	if err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	if public, err = pair.PublicKey(); err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	return string(s), public
}

// New starts one server.
func New(tb testing.TB, options ...Option) *Server {
	tb.Helper()
	s := &Server{nodes: []*node{{opts: baseOptions(tb, "test", options)}}}
	s.start(tb)
	return s
}

// NewFake starts a server without a socket, for use inside a synctest bubble:
// its time is the bubble's. It, and everything connected to it, is closed by
// the bubble's cleanup. What cannot be had there: a cluster, a socket, and a
// reconnect. Connect with Config, which sets FakeTime.
func NewFake(t *testing.T, options ...Option) *Server {
	t.Helper()
	o := baseOptions(t, "fake", options)
	o.DontListen = true
	o.SyncInterval = 365 * 24 * time.Hour // a day passes within a second: the disk is not to be what it waits for
	o.StoreDir = inMemory(t, o.StoreDir)
	s := &Server{nodes: []*node{{opts: o}}, fake: true}
	s.start(t)
	return s
}

// inMemory is a directory that needs no disk, where the system has such;
// otherwise dir.
func inMemory(t *testing.T, dir string) string {
	t.Helper()
	mem, err := os.MkdirTemp("/dev/shm", "parley-test-") //nolint:usetesting // that is on a disk
	if err != nil {
		return dir
	}
	t.Cleanup(func() { _ = os.RemoveAll(mem) })
	return mem
}

// NewCluster starts n servers that form a cluster with a leader.
func NewCluster(tb testing.TB, n int, options ...Option) *Server {
	tb.Helper()
	routes := make([]*url.URL, n)
	ports := make([]int, n)
	for i := range n {
		ports[i] = freePort(tb)
		routes[i] = &url.URL{Scheme: "nats-route", Host: fmt.Sprintf("127.0.0.1:%d", ports[i])}
	}
	s := &Server{}
	for i := range n {
		o := baseOptions(tb, fmt.Sprintf("n%d", i+1), options)
		o.Port = freePort(tb)
		o.Cluster = server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: ports[i]}
		o.Routes = routes
		s.nodes = append(s.nodes, &node{opts: o})
	}
	s.start(tb)
	Eventually(tb, "a meta leader", func() bool {
		for _, n := range s.nodes {
			if n.ns.JetStreamIsLeader() && len(n.ns.JetStreamClusterPeers()) == len(s.nodes) {
				return true
			}
		}
		return false
	})
	return s
}

func baseOptions(tb testing.TB, name string, options []Option) *server.Options {
	o := &server.Options{
		ServerName: name, Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: storeDir(tb), JetStreamMaxStore: 64 << 30, MaxPayload: 4 << 20,
	}
	for _, option := range options {
		option(o)
	}
	return o
}

// storeDir is a temporary directory that is removed once the server is closed. A
// server that has shut down may still be removing what it staged of a batch.
func storeDir(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	tb.Cleanup(func() {
		for range 100 {
			if os.RemoveAll(dir) == nil {
				return
			}
			<-time.After(10 * time.Millisecond)
		}
	})
	return dir
}

func (s *Server) start(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(s.Close)
	for i := range s.nodes {
		s.startNode(tb, i)
	}
	for _, n := range s.nodes {
		if !n.ns.ReadyForConnections(patience()) {
			tb.Fatalf("bustest: server %s is not ready", n.opts.ServerName)
		}
	}
}

func (s *Server) startNode(tb testing.TB, i int) {
	tb.Helper()
	n := s.nodes[i]
	ns, err := server.NewServer(n.opts.Clone())
	if err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	n.ns = ns
	ns.Start()
}

// Close stops every server and waits for it.
func (s *Server) Close() {
	for i := range s.nodes {
		s.Stop(i)
	}
}

// Stop stops server i and waits for it; its data stays.
func (s *Server) Stop(i int) {
	if n := s.nodes[i]; n.ns != nil {
		n.ns.Shutdown()
		n.ns.WaitForShutdown()
	}
}

// Start starts a stopped server i again, at the same address, with its data.
func (s *Server) Start(tb testing.TB, i int) {
	tb.Helper()
	s.startNode(tb, i)
	if !s.nodes[i].ns.ReadyForConnections(patience()) {
		tb.Fatalf("bustest: server %s is not ready", s.nodes[i].opts.ServerName)
	}
}

// Restart stops server i and starts it again, at the same address.
func (s *Server) Restart(tb testing.TB, i int) {
	tb.Helper()
	if addr, ok := s.nodes[i].ns.Addr().(*net.TCPAddr); ok {
		s.nodes[i].opts.Port = addr.Port
	}
	s.Stop(i)
	s.Start(tb, i)
}

// NATS gives the server itself, for tests that need its inside.
func (s *Server) NATS(i int) *server.Server { return s.nodes[i].ns }

// URL is the address of the first server.
func (s *Server) URL() string { return s.nodes[0].ns.ClientURL() }

// URLs are the addresses of all servers, comma separated.
func (s *Server) URLs() string {
	var urls strings.Builder
	for i, n := range s.nodes {
		if i > 0 {
			urls.WriteString(",")
		}
		urls.WriteString(n.ns.ClientURL())
	}
	return urls.String()
}

// Config is how to connect to the server.
func (s *Server) Config() bus.Config {
	c := bus.Config{Name: "test", SyncAlways: s.nodes[0].opts.SyncAlways, FakeTime: s.fake}
	if s.fake {
		c.InProcess = s.nodes[0].ns
	} else {
		c.URL = s.URLs()
	}
	return c
}

// Connect gives a connection that is closed by cleanup.
func (s *Server) Connect(tb testing.TB) *bus.Bus {
	tb.Helper()
	b, err := bus.Connect(tb.Context(), s.Config())
	if err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	tb.Cleanup(b.Close)
	return b
}

// Bus gives a connection to a server that has all streams and buckets,
// replicated in a cluster.
func (s *Server) Bus(tb testing.TB) *bus.Bus {
	tb.Helper()
	b := s.Connect(tb)
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	if err := b.Provision(ctx, bus.Provisioning{Replicas: min(len(s.nodes), 3)}); err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	return b
}

// Eventually waits until ok says true, and fails once Patience is over; in a bubble,
// once 20 s are over. Prefer a signal.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	within := patience()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			tb.Fatalf("%s: not within %s", what, within)
		case <-tick.C:
		}
	}
}

func freePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // a TCP listener's
}
