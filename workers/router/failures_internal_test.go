package router

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Of thousands that fail at once, some are taken in at once, the others at a
// pace, and no more wait than there is room for.
func TestFailuresAreTakenInAtAPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFailures()
		var taken atomic.Int64
		began := time.Now()
		let := 0
		of := make(map[subjects.AgentID]int)
		for i := range 10_000 {
			agent := subjects.AgentID([]string{"x", "y"}[i/5000])
			if f.turn(t.Context(), agent, func(f func()) { go f() }, func() { taken.Add(1) }) {
				of[agent]++
				let++
			}
		}
		synctest.Wait()
		if got := taken.Load(); got != failuresAtOnce || let < maxFailures || let > maxFailures+failuresAtOnce {
			t.Errorf("of 10 000 %d were let wait and %d taken in at once, want about %d and %d", let, got, maxFailures, failuresAtOnce)
		}
		if of["y"] < maxFailures/2 {
			t.Errorf("%d of the second agent were let wait, want half of %d", of["y"], maxFailures)
		}
		for taken.Load() < int64(let) {
			time.Sleep(time.Second / failuresPerSecond)
			synctest.Wait()
		}
		want := time.Duration(let-failuresAtOnce) * time.Second / failuresPerSecond
		if got := time.Since(began); got < want || got > want+time.Second/10 {
			t.Errorf("%d failures were taken in within %s, want %s", let, got, want)
		}
	})
}

// Where failures take long they come more slowly, down to a least pace, and
// come as before when they do not.
func TestThePaceOfFailuresYields(t *testing.T) {
	t.Parallel()
	f := newFailures()
	want := func(limit rate.Limit) {
		t.Helper()
		if got := f.pace.Limit(); got != limit {
			t.Errorf("%v a second are taken in, want %v", got, limit)
		}
	}
	f.took(longFailure)
	want(failuresPerSecond)
	f.took(longFailure + 1)
	want(failuresPerSecond / 2)
	for range 10 {
		f.took(time.Second)
	}
	want(fewestPerSecond)
	f.took(time.Millisecond)
	want(fewestPerSecond + 1)
	for range failuresPerSecond {
		f.took(time.Millisecond)
	}
	want(failuresPerSecond)
}

// Nobody waits longer than the router has.
func TestFailuresDoNotOutwaitTheRouter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFailures()
		f.pace.SetLimit(1e-6)
		f.pace.AllowN(time.Now(), failuresAtOnce)
		ctx, cancel := context.WithCancel(t.Context())
		taken := make(chan struct{})
		if !f.turn(ctx, "x", func(f func()) { go f() }, func() { close(taken) }) {
			t.Fatal("there is no room for one")
		}
		synctest.Wait()
		select {
		case <-taken:
			t.Error("it was taken in before its turn")
		default:
		}
		cancel()
		<-taken
	})
}

// The guide tells the pace.
func TestThePaceOfFailuresIsTold(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../docs/guide/escalation.md")
	want := fmt.Sprintf("takes in %d at once and then %d a second, down to %d where one takes longer than %s",
		failuresAtOnce, failuresPerSecond, fewestPerSecond, longFailure)
	if err != nil || !strings.Contains(strings.ReplaceAll(string(guide), "\n", " "), want) {
		t.Errorf("the guide does not say %q (%v)", want, err)
	}
}

func TestIsFailure(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		r    fleet.Result
		want bool
	}{
		{fleet.Result{Status: fleet.StatusDone}, false},
		{fleet.Result{Status: fleet.StatusPartial}, false},
		{fleet.Result{Status: fleet.StatusError}, true},
		{fleet.Result{Status: fleet.StatusError, Error: &fleet.ResultError{Code: subjects.CodeAgentError}}, true},
		{fleet.Result{Status: fleet.StatusError, Error: &fleet.ResultError{Code: subjects.CodeAgentBusy}}, false},
		{fleet.Result{Status: fleet.StatusBlocked}, true},
	} {
		if got := isFailure(&tt.r); got != tt.want {
			t.Errorf("isFailure(%s, %v) = %t", tt.r.Status, tt.r.Error, got)
		}
	}
}
