package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"parley/test/deploy"
)

// guarded is a fleet whose broker asks everybody who they are: parley up --auth,
// parley up --callout, or parley serve at a cluster that asks.
type guarded struct {
	tb    testing.TB
	dir   string
	auth  string // "": the callout is asked
	url   string
	up    *process
	upEnv []string
	leaf  string // where leaf nodes connect, with cluster
}

// newAsking starts the fleet of parley up --callout.
func newAsking(tb testing.TB, env ...string) *guarded {
	tb.Helper()
	g := &guarded{tb: tb, dir: tb.TempDir()}
	address := deploy.FreeAddress(tb)
	g.url = "nats://" + address
	g.up = g.start("up", env, "up", "--callout", "--data", filepath.Join(g.dir, "jetstream"),
		"--port", address[strings.LastIndexByte(address, ':')+1:], "--http", "off", "--max-store", "256MiB", "-o", "json")
	g.up.waitOutput("banner", func(s string) bool { return strings.Contains(s, "\n}") })
	return g
}

// newClustered makes identities for a tenant, and starts three servers by the
// configuration that parley auth writes, and the workers at them.
func newClustered(tb testing.TB) *guarded {
	tb.Helper()
	g := newIdentities(tb, "default")
	g.cluster()
	g.upEnv = []string{"PARLEY_CREDS=" + g.creds("default", "worker"), "PARLEY_SERVER=" + g.url, "PARLEY_TIMEOUT=60s", "PARLEY_LOG_FORMAT=json"}
	g.eventually("the cluster", func() bool {
		nc, err := g.dial("worker")
		if err == nil {
			nc.Close()
		}
		return err == nil
	})
	g.up = g.start("serve", g.upEnv, "serve", "--http", "off", "--replicas", "3", "--max-store", "128MiB")
	g.ready()
	return g
}

// ready waits until the workers serve.
func (g *guarded) ready() {
	g.tb.Helper()
	if g.upEnv == nil {
		g.up.waitOutput("banner", func(s string) bool { return strings.Contains(s, "\n}") })
		return
	}
	g.eventually("ready workers", func() bool { return strings.Contains(tail(g.up.log, 1<<20), `"msg":"ready"`) })
}

// restart kills the workers, and starts them again.
func (g *guarded) restart() {
	g.tb.Helper()
	g.up.kill()
	g.up = g.start(g.up.name+"-again", g.upEnv, g.up.cmd.Args[1:]...)
	g.ready()
}

// identity is the file with the identity of somebody whom the callout lets in.
func (g *guarded) identity(id string) string {
	if id == "operator" {
		return filepath.Join(g.dir, "jetstream", "callout", "operator.identity.json")
	}
	return filepath.Join(g.dir, id+".identity.json")
}

// newGuarded makes identities for tenants, and starts the fleet of the first
// one. env is beside a bare environment.
func newGuarded(tb testing.TB, env []string, tenants ...string) *guarded {
	tb.Helper()
	g := newIdentities(tb, tenants...)
	address := deploy.FreeAddress(tb) // the same after a restart
	g.url = "nats://" + address
	g.up = g.start("up", env, "up", "--auth", g.auth, "--tenant", tenants[0], "--data", filepath.Join(g.dir, "jetstream"),
		"--port", address[strings.LastIndexByte(address, ':')+1:], "--http", "off", "--max-store", "256MiB", "-o", "json")
	g.up.waitOutput("banner", func(s string) bool { return strings.Contains(s, "\n}") })
	return g
}

// newIdentities makes identities, and starts nothing.
func newIdentities(tb testing.TB, tenants ...string) *guarded {
	tb.Helper()
	dir := tb.TempDir()
	g := &guarded{tb: tb, dir: dir, auth: filepath.Join(dir, "auth")}
	g.must(g.run(nil, "auth", "init", g.auth, "--tenants", strings.Join(tenants, ",")))
	return g
}

// start runs parley as a process of its own.
func (g *guarded) start(name string, env []string, args ...string) *process {
	g.tb.Helper()
	return start(g.tb, g.dir, program{name: name, path: parleyBinary(g.tb), env: env, args: args})
}

// did is what came of a command.
type did struct {
	args           []string
	code           int
	stdout, stderr string
}

// run runs a command of parley's to its end.
func (g *guarded) run(env []string, args ...string) did {
	g.tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.tb.Context()), 3*patience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, parleyBinary(g.tb), args...)
	cmd.Env = bareEnv(g.dir, append([]string{"PARLEY_AUTH=" + g.auth, "PARLEY_SERVER=" + g.url, "PARLEY_TIMEOUT=10s"}, env...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, exit := errors.AsType[*exec.ExitError](err); err != nil && !exit {
		g.tb.Fatalf("parley %q: %v", args, err)
	}
	return did{args, cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// must fails the test unless the command succeeded, and gives what it printed.
func (g *guarded) must(d did) string {
	g.tb.Helper()
	if d.code != 0 {
		g.tb.Fatalf("parley %q: exit %d\n%s\n%s", d.args, d.code, d.stdout, d.stderr)
	}
	return d.stdout
}

// as runs a command with somebody's credentials.
func (g *guarded) as(id string, args ...string) did {
	g.tb.Helper()
	return g.run(g.proof(id), args...)
}

// proof is what somebody's environment holds to prove who they are.
func (g *guarded) proof(id string) []string {
	if g.auth == "" {
		return []string{"PARLEY_IDENTITY=" + g.identity(id)}
	}
	return []string{"PARLEY_CREDS=" + g.creds(tenantOf(id))}
}

// tenantOf splits tenant/id.
func tenantOf(id string) (tenant, name string) {
	tenant, name, ok := strings.Cut(id, "/")
	if !ok {
		return "default", tenant
	}
	return tenant, name
}

func (g *guarded) creds(tenant, id string) string {
	return filepath.Join(g.auth, "creds", tenant, id+".creds")
}

// agent starts an agent that echoes, with its own credentials.
func (g *guarded) agent(id string) *process {
	g.tb.Helper()
	tenant, name := tenantOf(id)
	return g.start("agent-"+tenant+"-"+name, append(g.proof(id), "PARLEY_SERVER="+g.url),
		"agent", "run", "--id", name, "--driver", "echo", "--heartbeat", "500ms", "--data", filepath.Join(g.dir, tenant+"-"+name))
}

// dial connects with the stock client.
func (g *guarded) dial(id string, opts ...nats.Option) (*nats.Conn, error) {
	tenant, name := tenantOf(id)
	own := []nats.Option{nats.Timeout(10 * time.Second), nats.Name("e2e " + name)}
	switch {
	case g.auth != "":
		own = append(own, nats.UserCredentials(g.creds(tenant, name)))
	case name == "worker":
		key, err := nats.NkeyOptionFromSeed(filepath.Join(g.dir, "jetstream", "callout", "worker.nk"))
		if err != nil {
			return nil, err
		}
		own = append(own, key)
	default:
		key := g.key(name)
		own = append(own, nats.UserInfoHandler(func() (string, string) { return name, proveAs(name, key, time.Now()).Password() }))
	}
	if name != "worker" {
		own = append(own, nats.CustomInboxPrefix("_INBOX_"+name))
	}
	return nats.Connect(g.url, append(own, opts...)...)
}

func (g *guarded) connect(id string, opts ...nats.Option) *nats.Conn {
	g.tb.Helper()
	nc, err := g.dial(id, opts...)
	if err != nil {
		g.tb.Fatalf("%s: %v", id, err)
	}
	g.tb.Cleanup(nc.Close)
	return nc
}

// eventually asks until ok.
func (g *guarded) eventually(what string, ok func() bool) {
	g.tb.Helper()
	ctx, cancel := context.WithTimeout(g.tb.Context(), 2*patience)
	defer cancel()
	for !ok() {
		if pause(ctx, 50*time.Millisecond) != nil {
			g.tb.Fatalf("no %s within %s", what, 2*patience)
		}
	}
}

// audit is what the audit holds, as lines.
func (g *guarded) audit(args ...string) string {
	g.tb.Helper()
	return g.must(g.as("operator", append([]string{"audit", "export", "--since", "1h"}, args...)...))
}

// cluster starts three servers by the directory's own configuration.
func (g *guarded) cluster() []*process {
	g.tb.Helper()
	self, err := os.Executable()
	if err != nil {
		g.tb.Fatal(err)
	}
	read := func(name string) string {
		data, rerr := os.ReadFile(filepath.Join(g.auth, name))
		if rerr != nil {
			g.tb.Fatal(rerr)
		}
		return string(data)
	}
	var clients, routes, urls, names []string
	for range 3 {
		clients, routes = append(clients, deploy.FreeAddress(g.tb)), append(routes, deploy.FreeAddress(g.tb))
	}
	for i := range 3 {
		urls, names = append(urls, "nats://"+clients[i]), append(names, "nats://"+routes[i])
	}
	g.url = strings.Join(urls, ",")
	var all []*process
	for i := range 3 {
		home := filepath.Join(g.dir, fmt.Sprintf("node%d", i))
		if err := os.MkdirAll(home, 0o700); err != nil {
			g.tb.Fatal(err)
		}
		replace := func(text string, pairs ...string) string {
			for j := 0; j < len(pairs); j += 2 {
				if !strings.Contains(text, pairs[j]) {
					g.tb.Fatalf("the configuration has no %q", pairs[j])
				}
			}
			return strings.NewReplacer(pairs...).Replace(text)
		}
		port := func(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }
		conf := replace(read("nats.conf"), "server_name: parley", fmt.Sprintf("server_name: n%d", i), "port: 4222", "port: "+port(clients[i]),
			"http: 127.0.0.1:8222", "", filepath.Join(g.auth, "data"), filepath.Join(home, "data"))
		if i == 0 {
			g.leaf = deploy.FreeAddress(g.tb)
			conf += fmt.Sprintf("\nleafnodes { listen: %q }\n", g.leaf)
		}
		conf += fmt.Sprintf("\ncluster {\n name: fleet\n listen: %q\n routes: [%s]\n}\n", routes[i], `"`+strings.Join(names, `", "`)+`"`)
		for name, text := range map[string]string{
			"nats.conf": conf, "operator.conf": replace(read("operator.conf"), filepath.Join(g.auth, "accounts"), filepath.Join(home, "accounts")),
		} {
			if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
				g.tb.Fatal(err)
			}
		}
		all = append(all, start(g.tb, g.dir, program{name: fmt.Sprintf("node%d", i), path: self, env: []string{brokerEnv + "=" + filepath.Join(home, "nats.conf")}}))
	}
	return all
}

// edge starts a leaf node with somebody's credentials, and gives where agents
// connect to it.
func (g *guarded) edge(id string) string {
	g.tb.Helper()
	self, err := os.Executable()
	if err != nil {
		g.tb.Fatal(err)
	}
	address, path := deploy.FreeAddress(g.tb), filepath.Join(g.dir, "leaf.conf")
	tenant, name := tenantOf(id)
	conf := fmt.Sprintf("server_name: leaf\nlisten: %q\nmax_payload: 4MB\nleafnodes { remotes: [ { url: \"nats-leaf://%s\", credentials: %q } ] }\n",
		address, g.leaf, g.creds(tenant, name))
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		g.tb.Fatal(err)
	}
	start(g.tb, g.dir, program{name: "leaf", path: self, env: []string{brokerEnv + "=" + path}})
	return "nats://" + address
}

// readFile reads a file of one line.
func readFile(path string) (string, error) {
	data, err := os.ReadFile(path)
	return strings.TrimSpace(string(data)), err
}
