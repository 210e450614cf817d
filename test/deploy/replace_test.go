package deploy_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"parley/test/deploy"
)

// TestReplaceServer loses a server of three for good, and puts one of a new name in
// its place, as the guide on operating says: streams get their third copy there,
// with all that was acknowledged.
func TestReplaceServer(t *testing.T) {
	s := site(t)
	all := run(t, s, "cluster-1", "cluster-2", "cluster-3")
	nc := connect(t, s, "cluster-1", deploy.Worker)
	stream(t, nc, 3)
	all[2].Shutdown()
	all[2].WaitForShutdown()

	// It is at the address of the lost one, so that the routes need no change.
	text := read(t, s.Config("cluster-3"))
	file := filepath.Join(filepath.Dir(s.Config("cluster-3")), "cluster-4.conf")
	if err := os.WriteFile(file, []byte(strings.Replace(text, "server_name: n3", "server_name: n4", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	opts.StoreDir = t.TempDir()
	reached(t, "n4", begin(t, "n4", opts))
	wait(t, "a new server that is well", func() bool { return answers(t, s.Monitor("cluster-3")+"/healthz") })

	sys := connect(t, s, "cluster-2", deploy.System)
	wait(t, "an end of the lost server", func() bool {
		m, rerr := sys.Request("$JS.API.SERVER.REMOVE", []byte(`{"peer":"n3"}`), 5*time.Second)
		return rerr == nil && strings.Contains(string(m.Data), `"success":true`)
	})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "a third copy on the new server", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		kept, err := js.Stream(ctx, "S")
		if err != nil {
			return false
		}
		c := kept.CachedInfo().Cluster
		names := []string{c.Leader}
		for _, r := range c.Replicas {
			if !r.Current {
				return false
			}
			names = append(names, r.Name)
		}
		slices.Sort(names)
		return slices.Equal(names, []string{"n1", "n2", "n4"}) && kept.CachedInfo().State.Msgs == 1
	})
}

// answers reports whether a page answers with 200.
func answers(t *testing.T, page string) bool {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, page, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}
