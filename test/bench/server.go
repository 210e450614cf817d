package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const serverReady = 30 * time.Second

// servers are one server, or three that form a cluster, in this process.
type servers struct {
	nodes []*server.Server
	sync  bool
}

// startServers starts what profile names, with its data under dir.
func startServers(profile, dir string) (*servers, error) {
	s := &servers{sync: profile != r1Lazy}
	n := 1
	if profile == r3Sync {
		n = 3
	}
	routes := make([]*url.URL, n)
	for i := range routes {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		routes[i] = &url.URL{Scheme: "nats-route", Host: fmt.Sprintf("127.0.0.1:%d", port)}
	}
	for i := range n {
		o := &server.Options{
			ServerName: fmt.Sprintf("n%d", i+1), Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true,
			MaxPayload: 4 << 20, MaxPending: 256 << 20, // as package bus/embedded has it
			JetStream: true, StoreDir: filepath.Join(dir, fmt.Sprintf("n%d", i+1)), JetStreamMaxStore: 60 << 30,
			SyncAlways: s.sync,
		}
		if n > 1 {
			var port int
			if _, err := fmt.Sscan(routes[i].Port(), &port); err != nil {
				return nil, fmt.Errorf("route port: %w", err)
			}
			o.Cluster = server.ClusterOpts{Name: "bench", Host: "127.0.0.1", Port: port}
			o.Routes = routes
		}
		ns, err := server.NewServer(o)
		if err != nil {
			s.stop()
			return nil, fmt.Errorf("start server: %w", err)
		}
		s.nodes = append(s.nodes, ns)
		ns.Start()
	}
	if err := s.await(); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// await waits for connections and, in a cluster, for a leader.
func (s *servers) await() error {
	for _, ns := range s.nodes {
		if !ns.ReadyForConnections(serverReady) {
			return fmt.Errorf("server %s is not ready", ns.Name())
		}
	}
	deadline := time.After(serverReady)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for len(s.nodes) > 1 {
		for _, ns := range s.nodes {
			if ns.JetStreamIsLeader() && len(ns.JetStreamClusterPeers()) == len(s.nodes) {
				return nil
			}
		}
		select {
		case <-deadline:
			return errors.New("the cluster has no leader")
		case <-tick.C:
		}
	}
	return nil
}

func (s *servers) url() string   { return s.nodes[0].ClientURL() }
func (s *servers) replicas() int { return len(s.nodes) }

// traffic is what the servers have taken in so far.
func (s *servers) traffic() (msgs, bytes float64) {
	for _, ns := range s.nodes {
		if v, err := ns.Varz(nil); err == nil {
			msgs, bytes = msgs+float64(v.InMsgs), bytes+float64(v.InBytes)
		}
	}
	return msgs, bytes
}

func (s *servers) stop() {
	for _, ns := range s.nodes {
		ns.Shutdown()
		ns.WaitForShutdown()
	}
}

// lead makes the server that the clients talk to the leader of stream, on both
// sides, so that chance does not add a hop to one of them.
func (s *servers) lead(ctx context.Context, nc *nats.Conn, stream string) error {
	if len(s.nodes) == 1 {
		return nil
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 100 {
		if s.nodes[0].JetStreamIsStreamLeader("$G", stream) {
			return nil
		}
		body := []byte(`{"placement":{"preferred":"` + s.nodes[0].Name() + `"}}`)
		if _, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+stream, body); err != nil {
			return fmt.Errorf("move leader of %s: %w", stream, err)
		}
		for range 20 {
			<-tick.C
			if s.nodes[0].JetStreamIsStreamLeader("$G", stream) {
				return nil
			}
		}
	}
	return fmt.Errorf("%s does not become leader of %s", s.nodes[0].Name(), stream)
}

// stored is how many messages were ever stored in all streams.
func stored(ctx context.Context, nc *nats.Conn) (uint64, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, fmt.Errorf("count messages: %w", err)
	}
	var n uint64
	list := js.ListStreams(ctx)
	for info := range list.Info() {
		n += info.State.LastSeq
	}
	if err := list.Err(); err != nil {
		return 0, fmt.Errorf("count messages: %w", err)
	}
	return n, nil
}

func freePort() (int, error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = l.Close() }()
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("find a free port: got %s", l.Addr())
	}
	return a.Port, nil
}

// beServer is a server on its own: it says its URL and runs until in ends.
func beServer(s spec, in io.Reader, out io.Writer) error {
	srv, err := startServers(s.Profile, s.Dir)
	if err != nil {
		return err
	}
	defer srv.stop()
	if err := json.NewEncoder(out).Encode(srv.url()); err != nil {
		return fmt.Errorf("say the URL: %w", err)
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// tempDir makes a directory for the data of one measurement; the function
// removes it.
func tempDir(base string) (string, func(), error) {
	dir, err := os.MkdirTemp(base, "parley-bench-")
	if err != nil {
		return "", nil, fmt.Errorf("make data directory: %w", err)
	}
	return dir, func() { _ = os.RemoveAll(dir) }, nil
}
