//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// brokerEnv names the configuration file of the NATS server that this program
// is to be.
const brokerEnv = "PARLEY_CHAOS_BROKER"

// runBroker is nats-server -c path.
func runBroker(path string) error {
	opts, err := server.ProcessConfigFile(path)
	if err != nil {
		return err
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	ns.ConfigureLogger()
	if err := server.Run(ns); err != nil {
		return err
	}
	ns.WaitForShutdown()
	return nil
}

// cluster is three servers.
type cluster struct {
	w     *world
	nodes map[string]*process
	ports map[string][3]int // client, route, monitor
	nc    *nats.Conn        // ours, to whichever lives
	js    jetstream.JetStream
}

func newCluster(w *world, self string, lazy bool) (*cluster, error) {
	c := &cluster{w: w, nodes: map[string]*process{}, ports: map[string][3]int{}}
	for _, n := range nodeNames {
		ports := [3]int{4222, 6222, 8222}
		if !w.nets {
			for i := range ports {
				p, err := freePort()
				if err != nil {
					return nil, err
				}
				ports[i] = p
			}
		}
		c.ports[n] = ports
	}
	for _, n := range nodeNames {
		conf := filepath.Join(w.dir, n+".conf")
		if err := os.WriteFile(conf, []byte(c.config(n, lazy)), 0o600); err != nil {
			return nil, err
		}
		c.nodes[n] = &process{name: n, place: n, args: []string{self}, env: []string{brokerEnv + "=" + conf}, dir: w.dir}
	}
	return c, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, errors.New("not a TCP address")
	}
	return addr.Port, nil
}

// config is a server's configuration: that of deploy/nats/cluster.conf as far
// as what is kept goes.
func (c *cluster) config(n string, lazy bool) string {
	var routes []string
	for _, o := range nodeNames {
		routes = append(routes, fmt.Sprintf("nats://%s:%d", c.w.ip(o), c.ports[o][1]))
	}
	sync := "always"
	if lazy {
		sync = "2m"
	}
	return fmt.Sprintf(`server_name: %s
listen: "%s:%d"
http: "%s:%d"
ping_interval: "5s"
ping_max: 2
write_deadline: "5s"
jetstream { store_dir: %q, sync_interval: %s, max_file_store: 16GB, max_memory_store: 64MB }
cluster { name: chaos, listen: "%s:%d", no_advertise: true, routes: [%s] }
`, n, c.w.ip(n), c.ports[n][0], c.w.ip(n), c.ports[n][2], c.w.disk(n), sync, c.w.ip(n), c.ports[n][1], strings.Join(routes, ", "))
}

// urls are where clients reach the servers, the one named first.
func (c *cluster) urls(first int) string {
	var all []string
	for i := range nodeNames {
		n := nodeNames[(first+i)%len(nodeNames)]
		all = append(all, "nats://"+c.w.ip(n)+":"+strconv.Itoa(c.ports[n][0]))
	}
	return strings.Join(all, ",")
}

// start starts all servers, and connects.
func (c *cluster) start(ctx context.Context) error {
	for _, n := range nodeNames {
		if err := c.nodes[n].start(c.w); err != nil {
			return err
		}
	}
	for _, n := range nodeNames {
		if err := c.awaitNode(ctx, n, time.Minute); err != nil {
			return err
		}
	}
	nc, err := nats.Connect(c.urls(0), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.Timeout(2*time.Second),
		nats.PingInterval(2*time.Second), nats.MaxPingsOutstanding(2), nats.Name("chaos"), nats.RetryOnFailedConnect(true))
	if err != nil {
		return err
	}
	c.nc = nc
	c.js, err = jetstream.New(nc)
	return err
}

// awaitNode waits until a server says that it is well.
func (c *cluster) awaitNode(ctx context.Context, n string, within time.Duration) error {
	ctx, cancel := c.w.machine.patient(ctx, within)
	defer cancel()
	page := fmt.Sprintf("http://%s:%d/healthz", c.w.ip(n), c.ports[n][2])
	var last error
	for {
		if last = well(ctx, page); last == nil {
			return nil
		}
		if pause(ctx, 200*time.Millisecond) != nil {
			return fmt.Errorf("%s is not well within %s: %w", n, within, last)
		}
	}
}

// well asks a page, which answers 200.
func well(ctx context.Context, page string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, page, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", page, answer.Status)
	}
	return nil
}

// leader is the server that leads a stream now, "" where nobody says.
func (c *cluster) leader(ctx context.Context, stream string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	m, err := c.nc.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+stream, nil)
	if err != nil {
		return ""
	}
	var info struct {
		Cluster struct {
			Leader string `json:"leader"`
		} `json:"cluster"`
	}
	_ = json.Unmarshal(m.Data, &info)
	return info.Cluster.Leader
}

// stepDown makes another server lead a stream: to, where it is named.
func (c *cluster) stepDown(ctx context.Context, stream, to string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var body []byte
	if to != "" {
		body = fmt.Appendf(nil, `{"placement":{"preferred":%q}}`, to)
	}
	m, err := c.nc.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+stream, body)
	if err != nil {
		return err
	}
	var answer struct {
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return err
	}
	if answer.Error != nil {
		return errors.New(answer.Error.Description)
	}
	return nil
}

// lead makes a server the leader of a stream, and waits until it is.
func (c *cluster) lead(ctx context.Context, stream, node string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var last error
	for c.leader(ctx, stream) != node {
		last = c.stepDown(ctx, stream, node)
		for range 20 {
			if c.leader(ctx, stream) == node {
				return nil
			}
			_ = pause(ctx, 50*time.Millisecond)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s does not come to lead %s: %w", node, stream, last)
		}
	}
	return nil
}

// canaryStream is where servers are tried.
const canaryStream = "CHAOS_CANARY"

// makeCanary makes the stream in which servers are tried.
func (c *cluster) makeCanary(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := c.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: canaryStream, Subjects: []string{"chaos.canary"}, Replicas: 3, MaxMsgs: 1000})
		if err == nil {
			return nil
		}
		if pause(ctx, 200*time.Millisecond) != nil {
			return fmt.Errorf("the cluster takes no stream: %w", err)
		}
	}
}

// awaitCanary waits until a write is acknowledged and read again.
func (c *cluster) awaitCanary(ctx context.Context, within time.Duration) error {
	ctx, cancel := c.w.machine.patient(ctx, within)
	defer cancel()
	var last error
	for {
		try, end := context.WithTimeout(ctx, 2*time.Second)
		a, err := c.js.Publish(try, "chaos.canary", []byte("sing"))
		if err == nil {
			var s jetstream.Stream
			if s, err = c.js.Stream(try, canaryStream); err == nil {
				_, err = s.GetMsg(try, a.Sequence)
			}
		}
		end()
		if last = err; err == nil {
			return nil
		}
		if pause(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("no canary within %s: %w", within, last)
		}
	}
}
