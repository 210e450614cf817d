package e2e_test

import (
	"context"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// registryPoints are the crash points of what a registry stores.
var registryPoints = []string{"after_retire", "after_progress"}

// TestRegistryCrash has a registry die, or lose the acknowledgement, as it stores
// that an agent is gone for good, or what an agent has told, and another one take
// over: both are kept.
func TestRegistryCrash(t *testing.T) {
	sweep(t, registryPoints, func(t *testing.T, point string) {
		f := newFleet(t, "router")
		first := f.serve("registry-1", crashBinary(t), "registry", nil, crashEnv(point))
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		operator := boss{NC: f.nc, Name: "operator"}
		if _, err := operator.Call(ctx, "agent", "list", map[string]string{}); err != nil { // it serves
			t.Fatal(err)
		}
		acted := make(chan error, 1)
		go func() {
			if point == "after_progress" {
				acted <- f.nc.Publish("fleet.progress.a.t", []byte(`{"text":"half of it"}`))
				return
			}
			_, err := operator.Call(ctx, "agent", "forget", map[string]string{"agent_id": "ghost"})
			acted <- err
		}()
		dies(t, first, point)
		f.serve("registry-2", crashBinary(t), "registry", nil)
		if err := <-acted; err != nil {
			t.Fatal(err)
		}
		if point != "after_progress" {
			if has := f.kept(t, "FLEET_AGENTS"); len(has) != 1 || !strings.HasPrefix(has[0], "retired.ghost=") {
				t.Errorf("FLEET_AGENTS has %v, want that ghost is gone", has)
			}
			return
		}
		js, err := jetstream.New(f.nc)
		if err != nil {
			t.Fatal(err)
		}
		until(t, "the progress", func() bool {
			s, err := js.Stream(ctx, "FLEET_PROGRESS")
			return err == nil && s.CachedInfo().State.Msgs == 1
		})
	})
}
