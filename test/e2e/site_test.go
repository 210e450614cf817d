package e2e_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"parley/test/deploy"
)

// brokerEnv names the configuration file of the NATS server that this binary
// is to be.
const brokerEnv = "PARLEY_E2E_BROKER"

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

// siteUnderTest is a site of deploy/ as processes.
type siteUnderTest struct {
	*deploy.Site
	tb  testing.TB
	dir string
}

func newSite(tb testing.TB) siteUnderTest {
	tb.Helper()
	dir := tb.TempDir()
	return siteUnderTest{deploy.NewSite(tb, dir), tb, dir}
}

// broker starts a NATS server by the file that ships.
func (s siteUnderTest) broker(node string) *process {
	s.tb.Helper()
	self, err := os.Executable()
	if err != nil {
		s.tb.Fatal(err)
	}
	return start(s.tb, s.dir, program{name: node, path: self, env: append([]string{brokerEnv + "=" + s.Config(node)}, s.Env...)})
}

// cluster starts the three NATS servers of a cluster and waits until each is
// well.
func (s siteUnderTest) cluster() (nodes []string, brokers map[string]*process) {
	s.tb.Helper()
	nodes = []string{"cluster-1", "cluster-2", "cluster-3"}
	brokers = map[string]*process{}
	for _, n := range nodes {
		brokers[n] = s.broker(n)
	}
	for _, n := range nodes {
		s.well(s.Monitor(n) + "/healthz")
	}
	return nodes, brokers
}

// ask reports whether a page answers with 200.
func (s siteUnderTest) ask(ctx context.Context, page string) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, page, http.NoBody)
	if err != nil {
		s.tb.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// post sends JSON to a page, and gives the answer.
func (s siteUnderTest) post(t *testing.T, page, body string) string {
	t.Helper()
	return s.fetch(t, http.MethodPost, page, body)
}

// get reads a page.
func (s siteUnderTest) get(t *testing.T, page string) string {
	t.Helper()
	return s.fetch(t, http.MethodGet, page, "")
}

func (s siteUnderTest) fetch(t *testing.T, method, page, body string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, page, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("A2A-Version", "1.0")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatalf("%s: %v", page, err)
	}
	return string(text)
}

// well waits until a page answers with 200.
func (s siteUnderTest) well(page string) {
	s.tb.Helper()
	s.until(page, func(ctx context.Context) bool { return s.ask(ctx, page) })
}

// until asks until ok.
func (s siteUnderTest) until(what string, ok func(context.Context) bool) {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(s.tb.Context(), 2*patience)
	defer cancel()
	for !ok(ctx) {
		if pause(ctx, pollSite) != nil {
			s.tb.Fatalf("no %s within %s", what, 2*patience)
		}
	}
}

// env is how a user reaches nodes.
func (s siteUnderTest) env(user string, nodes ...string) []string {
	var urls []string
	for _, n := range nodes {
		urls = append(urls, s.URL(n))
	}
	env := []string{"PARLEY_SERVER=" + strings.Join(urls, ","), "PARLEY_TIMEOUT=30s"}
	if strings.HasPrefix(urls[0], "tls") {
		env = append(env, "PARLEY_TLSCA="+s.CA)
	}
	if user == "" {
		return env
	}
	return append(env, "PARLEY_USER="+user, "PARLEY_PASSWORD="+deploy.Password(user))
}

// parley starts a process of the project's program.
func (s siteUnderTest) parley(name string, env []string, args ...string) *process {
	s.tb.Helper()
	return start(s.tb, s.dir, program{name: name, path: parleyBinary(s.tb), env: env, args: args})
}

// does runs a command of the project's to its end, and gives what it printed.
func (s siteUnderTest) does(env []string, args ...string) string {
	s.tb.Helper()
	p := s.parley("parley-"+strings.Join(args[:2], "-"), env, args...)
	if !p.ended(3 * patience) {
		s.tb.Fatalf("parley %q does not end", args)
	}
	out, _ := p.printed()
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		s.tb.Fatalf("parley %q: exit %d\n%s\n%s", args, code, out, tail(p.log, 4000))
	}
	return out
}

// wipe removes what a node has kept.
func (s siteUnderTest) wipe(node string) {
	s.tb.Helper()
	if _, err := os.Stat(filepath.Join(s.Data(node), "jetstream")); err != nil {
		s.tb.Fatal(err) // it is somewhere else
	}
	if err := os.RemoveAll(s.Data(node)); err != nil {
		s.tb.Fatal(err)
	}
}
