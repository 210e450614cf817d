package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"parley/bus"
	"parley/bus/embedded"
	"parley/workers/agent"
	"parley/workers/gateway"
	"parley/workers/registry"
	"parley/workers/router"
)

// a2aCallers send at the same time where throughput is measured.
const a2aCallers = 64

// a2aBody is a blocking SendMessage.
const a2aBody = `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hello"}]}}}`

// sdkEcho is the official SDK's server's agent.
type sdkEcho struct{}

func (sdkEcho) Execute(_ context.Context, x *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		for _, ev := range []a2a.Event{
			a2a.NewSubmittedTask(x, x.Message), a2a.NewStatusUpdateEvent(x, a2a.TaskStateWorking, nil),
			a2a.NewArtifactEvent(x, a2a.NewTextPart("hello")), a2a.NewStatusUpdateEvent(x, a2a.TaskStateCompleted, nil),
		} {
			if !yield(ev, nil) {
				return
			}
		}
	}
}

func (sdkEcho) Cancel(context.Context, *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(func(a2a.Event, error) bool) {}
}

// beA2A serves an agent that echoes, and measures how it answers: one caller's
// latency, and how many sends many of them get through.
func beA2A(ctx context.Context, s spec, out io.Writer) error {
	handler, end := a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(sdkEcho{})), func() error { return nil }
	if s.Role == roleA2A {
		var err error
		if handler, end, err = a2aFleet(ctx, s); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	r, err := a2aMeasure(ctx, "http://"+l.Addr().String()+"/a2a", s)
	err = errors.Join(err, server.Close())
	<-served
	if err = errors.Join(err, end()); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(r)
}

// a2aFleet is a fleet as parley up runs it, and its gateway.
func a2aFleet(ctx context.Context, s spec) (handler http.Handler, end func() error, err error) {
	dir, err := os.MkdirTemp(s.Base, "parley-bench-")
	if err != nil {
		return nil, nil, err
	}
	srv, err := embedded.Start(embedded.Options{Dir: filepath.Join(dir, "js"), Host: "127.0.0.1", Port: -1, NoSyncAlways: s.Profile == r1Lazy, Quiet: true, Log: quietLog(os.Stderr)})
	if err != nil {
		return nil, nil, err
	}
	b, err := bus.Connect(ctx, bus.Config{InProcess: srv, Name: "up", SyncAlways: srv.SyncAlways(), Log: quietLog(os.Stderr)})
	if err != nil {
		return nil, nil, err
	}
	outside, err := bus.Connect(ctx, bus.Config{URL: srv.URL(), Name: "agent", Log: quietLog(os.Stderr)})
	if err != nil {
		return nil, nil, err
	}
	if err := b.Provision(ctx, bus.Provisioning{Room: srv.Room()}); err != nil {
		return nil, nil, err
	}
	rt, err1 := router.New(router.Config{Bus: b, Log: quietLog(os.Stderr)})
	rg, err2 := registry.New(registry.Config{Bus: b, Log: quietLog(os.Stderr)})
	gw, err3 := gateway.New(gateway.Config{Bus: b, Log: quietLog(os.Stderr)})
	ag, err4 := agent.New(agent.Config{ID: "echo", Bus: outside, MaxParallel: 2 * a2aCallers, Handler: agent.Echo{}, Log: quietLog(os.Stderr)})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, nil, err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for _, do := range []func(context.Context) error{rt.Run, rg.Run, gw.Run, ag.Run} {
		all.Go(func() {
			err := do(run)
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
		})
	}
	mux := http.NewServeMux()
	for pattern, page := range gw.Handlers() {
		mux.Handle(pattern, page)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); rt.Ready() != nil || rg.Ready() != nil || gw.Ready() != nil; <-tick.C {
		if time.Since(begin) > serverReady {
			stop()
			return nil, nil, errors.New("the fleet does not get ready")
		}
	}
	return mux, func() error {
		stop()
		all.Wait()
		outside.Close()
		b.Close()
		srv.Close()
		return errors.Join(failed, os.RemoveAll(dir))
	}, nil
}

// a2aMeasure sends one after the other, and then many at once.
func a2aMeasure(ctx context.Context, url string, s spec) (result, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: a2aCallers}, Timeout: patience}
	defer client.CloseIdleConnections()
	send := func() (float64, error) {
		begin := time.Now()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(a2aBody))
		if err != nil {
			return 0, err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("A2A-Version", "1.0")
		res, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err == nil && !bytes.Contains(body, []byte("TASK_STATE_COMPLETED")) {
			err = fmt.Errorf("SendMessage gave %d %s", res.StatusCode, body)
		}
		return time.Since(begin).Seconds() * 1e3, err
	}
	for range 100 { // everybody is warm by now
		if _, err := send(); err != nil {
			return result{}, err
		}
	}
	took := make([]float64, s.Tasks/4)
	for i := range took {
		var err error
		if took[i], err = send(); err != nil {
			return result{}, err
		}
	}
	slices.Sort(took)
	r := result{Tasks: s.Tasks, P50: took[len(took)/2], P99: took[len(took)*99/100], Max: took[len(took)-1]}
	var all sync.WaitGroup
	failed := make(chan error, a2aCallers)
	begin, before := time.Now(), usage()
	for i := range a2aCallers {
		all.Go(func() {
			for range (s.Tasks + i) / a2aCallers {
				if _, err := send(); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	all.Wait()
	r.Seconds, r.CPU = time.Since(begin).Seconds(), (usage() - before).Seconds()
	select {
	case err := <-failed:
		return r, err
	default:
		return r, nil
	}
}

// a2aPart compares the gateway, with every record on the disk, with the
// official SDK's own server, which keeps its tasks in memory.
func a2aPart(ctx context.Context, o options, p *page) error {
	p.section(fmt.Sprintf("A2A: blocking SendMessage over JSON-RPC to an agent that echoes; latency of one caller in ms, throughput of %d", a2aCallers))
	kinds := []struct{ name, role, profile string }{
		{"official SDK, in memory", roleSDK, ""}, {"Parley, " + r1Sync, roleA2A, r1Sync}, {"Parley, " + r1Lazy, roleA2A, r1Lazy},
	}
	p50, p99, rate, cpu := make([]spread, len(kinds)), make([]spread, len(kinds)), make([]spread, len(kinds)), make([]spread, len(kinds))
	for round := range o.rounds {
		for i, k := range kinds {
			s := o.spec(k.role, k.profile)
			s.Tasks = min(o.tasks, 8000)
			r, err := run(ctx, s)
			if err != nil {
				return err
			}
			p50[i], p99[i], rate[i], cpu[i] = append(p50[i], r.P50), append(p99[i], r.P99), append(rate[i], r.perSecond()), append(cpu[i], r.cpuPerTask())
			p.say("a2a %s, round %d: p50 %s ms, %.0f sends/s", k.name, round+1, ms(r.P50), r.perSecond())
			p.record("a2a", map[string]any{"variant": k.name, "round": round + 1, "p50_ms": r.P50, "p99_ms": r.P99, "sends_per_second": r.perSecond(), "cpu_us_per_send": r.cpuPerTask()})
		}
	}
	var rows [][]string
	for i, k := range kinds {
		rows = append(rows, []string{
			k.name, ms(p50[i].median()), ms(p99[i].median()), rate[i].String(), thousands(cpu[i].median()),
			fmt.Sprintf("%.2f×", p50[i].median()/p50[0].median()), percent(rate[i].median() / rate[0].median()),
		})
	}
	p.table([]string{"", "p50", "p99", "sends/s", "CPU µs", "p50 of the SDK's", "sends/s of the SDK's"}, rows)
	slow, share := p50[1].median()/p50[0].median(), rate[1].median()/rate[0].median()
	p.target("A2A: SendMessage's p50, every record on the disk, of the SDK's in memory", fmt.Sprintf("%.2f×", slow), "≤ 3×", slow <= 3)
	p.target("A2A: SendMessage's throughput, of the SDK's in memory", percent(share), "≥ 30 %", share >= 0.3)
	return nil
}
