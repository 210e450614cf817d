package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"parley/workers"
)

// Profiles of a server.
const (
	r1Lazy = "r1-lazy"
	r1Sync = "r1-sync"
	r3Sync = "r3-sync"
)

// Roles of a child process.
const (
	roleLean   = "lean"
	roleFleet  = "fleet"
	roleServer = "server"
	roleFail   = "failing" // agents whose tasks all fail at once
	roleAgents = "agents"  // those of a fleet that has them apart
	roleA2A    = "a2a"     // a fleet behind its gateway
	roleSDK    = "a2a-sdk" // the official SDK's own server
)

// spec tells a child process what to do.
type spec struct {
	Program string `json:"-"` // the child; absent: this program once more

	Role     string  `json:"role"`
	Profile  string  `json:"profile"`
	Commit   string  `json:"commit"` // auto, direct or grouped; the floor: direct or grouped
	Tasks    int     `json:"tasks"`  // of the throughput run
	Rate     float64 `json:"rate"`   // per second; not 0: measure latency instead
	InFlight int     `json:"in_flight"`
	Routers  int     `json:"routers"`
	Agents   int     `json:"agents"`
	Apart    bool    `json:"apart"`   // agents have a process of their own
	Waiting  int     `json:"waiting"` // tasks that nobody can do, dispatched before
	Classes  int     `json:"classes"` // of the waiting ones

	Run     string `json:"run"`     // what of a run is measured, "" nothing; see runs.go
	Storm   string `json:"storm"`   // what fails beside, "" nothing; see storm.go
	Failing int    `json:"failing"` // tasks of the storm

	URL     string `json:"url"`   // memory: the server
	Dir     string `json:"dir"`   // server: its data
	Base    string `json:"base"`  // where temporary data goes
	Store   string `json:"store"` // the program of a peer's store
	CPU     string `json:"cpu"`   // files of profiles
	Allocs  string `json:"allocs"`
	Mutex   string `json:"mutex"`
	Markers bool   `json:"markers"` // mark begin and end for strace
	Tuned   bool   `json:"tuned"`   // collect garbage at parley's pace, not at Go's
}

// result is what a child found.
type result struct {
	Tasks   int     `json:"tasks"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"`    // seconds of user and system time
	Writes  float64 `json:"writes"` // durable, per task
	P50     float64 `json:"p50"`    // ms, of latency
	P99     float64 `json:"p99"`
	Max     float64 `json:"max"`
	Whole50 float64 `json:"whole_p50"` // ms, dispatch → outcome of tasks that take workTakes
	Whole99 float64 `json:"whole_p99"`
	Prefill float64 `json:"prefill"` // waiting tasks dispatched per second
	RSS     int64   `json:"rss"`     // at the end, bytes
	MsgsIn  float64 `json:"msgs_in"` // that the servers took from clients and each other, per task
	BytesIn float64 `json:"bytes_in"`
	Checked int     `json:"checked"` // outcomes read again by task get
	Fsyncs  float64 `json:"fsyncs"`  // per task, -1 unknown
}

func (r result) perSecond() float64 { return float64(r.Tasks) / r.Seconds }

// cpuPerTask is in microseconds.
func (r result) cpuPerTask() float64 { return r.CPU / float64(r.Tasks) * 1e6 }

// childTimeout bounds one measurement.
const childTimeout = 15 * time.Minute

// run runs one measurement in a process of its own, behind wrapper if there is
// one.
func run(ctx context.Context, s spec, wrapper ...string) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, childTimeout)
	defer cancel()
	cmd, err := child(ctx, s, wrapper...)
	if err != nil {
		return result{}, err
	}
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		return result{}, fmt.Errorf("%s on %s: %w", s.Role, s.Profile, err)
	}
	var r result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return result{}, fmt.Errorf("%s on %s said %q: %w", s.Role, s.Profile, out.String(), err)
	}
	return r, nil
}

// child is this program once more, or another one, with its spec as argument.
func child(ctx context.Context, s spec, wrapper ...string) (*exec.Cmd, error) {
	program := s.Program
	if program == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find myself: %w", err)
		}
		program = self
	}
	arg, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode spec: %w", err)
	}
	args := append(wrapper, program, "-child", string(arg))
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	// A child of a killed parent would go on and disturb the next run.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

// beChild does what arg says and writes the result to out.
func beChild(ctx context.Context, arg string, in io.Reader, out io.Writer) error {
	var s spec
	if err := json.Unmarshal([]byte(arg), &s); err != nil {
		return fmt.Errorf("decode spec: %w", err)
	}
	if s.Tuned { // as parley itself does
		tuned, stop := context.WithCancel(ctx)
		var tuning sync.WaitGroup
		tuning.Go(func() { workers.TuneMemory(tuned) })
		defer tuning.Wait()
		defer stop()
	}
	switch s.Role {
	case roleLean, roleFleet:
		r, err := measure(ctx, s)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(r)
	case roleA2A, roleSDK:
		return beA2A(ctx, s, out)
	case roleServer:
		return beServer(s, in, out)
	case roleAgents:
		return beAgents(ctx, s, in, out)
	case roleFail:
		return beFailing(ctx, s, in, out)
	}
	return errors.New("unknown role " + s.Role)
}

// usage is the user and system time of this process so far.
func usage() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// status reads a field of /proc/PID/status that is given in kB, as bytes.
func status(pid int, field string) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			var kb int64
			if _, err := fmt.Sscan(rest, &kb); err == nil {
				return kb << 10
			}
		}
	}
	return 0
}
