package pool_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"parley/bus/pool"
)

func TestPool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := pool.New(2)
		var ran atomic.Int64
		for range 3 {
			release := make(chan struct{})
			for range 10 { // all at the same time, however few are kept
				p.Go(func() { <-release; ran.Add(1) })
			}
			p.Go(func() { <-release; ran.Add(1); runtime.Goexit() })
			synctest.Wait()
			close(release)
			synctest.Wait()
		}
		p.Wait() // and synctest sees that no goroutine is left
		if ran.Load() != 33 {
			t.Errorf("%d functions ran, want 33", ran.Load())
		}
	})
}
