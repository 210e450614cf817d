package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"parley/test/rig"
)

var (
	seedFlag    = flag.Uint64("e2e.seed", 0, "seed of whatever is random; 0 takes a new one")
	tasksFlag   = flag.Int("e2e.tasks", 2000, "tasks of TestKillsWhileWorking")
	chaosFlag   = flag.Duration("e2e.chaos", 25*time.Second, "how long TestKillsWhileWorking kills")
	stormFlag   = flag.Int("e2e.storm", 1500, "tasks of TestStorm")
	appendsFlag = flag.Int("e2e.appends", 400, "appends of TestAppenders")
	pointFlag   = flag.String("e2e.point", "", "of TestCrashPoints: sweep this point alone")
	raceFlag    = flag.Bool("e2e.race", false, "build the binaries under test with the race detector")
	fixtureFlag = flag.String("e2e.fixture", "", "of TestUpgrade: keep data under this name")
	parleyFlag  = flag.String("e2e.parley", "", "the parley that is tested, instead of this build's")
	keepFlag    = flag.String("e2e.keep", "", "keep journals, logs and data in this directory")
)

func TestMain(m *testing.M) {
	// This binary is also the agents of the fleet under test.
	if path := os.Getenv(rig.AgentsEnv); path != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := rig.RunAgents(ctx, path); err != nil {
			fmt.Fprintln(os.Stderr, "agents:", err)
			os.Exit(1)
		}
		return
	}
	// And a NATS server by a configuration file.
	if path := os.Getenv(brokerEnv); path != "" {
		if err := runBroker(path); err != nil {
			fmt.Fprintln(os.Stderr, "broker:", err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "parley-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries.dir = dir
	if *seedFlag == 0 {
		*seedFlag = uint64(time.Now().UnixNano())
	}
	fmt.Printf("e2e: seed %d (repeat with -e2e.seed=%d)\n", *seedFlag, *seedFlag)
	return m.Run()
}
