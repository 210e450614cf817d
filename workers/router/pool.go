package router

import "sync"

// pool runs functions on goroutines that it keeps for the next: a new goroutine
// has a small stack, which JSON makes it grow, again and again. The number of
// those that run is bounded by whoever calls Go.
type pool struct {
	work chan func()
	idle chan struct{}  // one for each that may wait for more
	wg   sync.WaitGroup // functions that run
	all  sync.WaitGroup // goroutines
}

func newPool(idle int) *pool {
	return &pool{work: make(chan func()), idle: make(chan struct{}, idle)}
}

// Go runs f at once, on a goroutine that waits or a new one.
func (p *pool) Go(f func()) {
	p.wg.Add(1)
	select {
	case p.work <- f:
	default:
		p.all.Go(func() { p.run(f) })
	}
}

func (p *pool) run(f func()) {
	for ok := true; ok; {
		f()
		p.wg.Done()
		select {
		case p.idle <- struct{}{}:
			f, ok = <-p.work
			<-p.idle
		default:
			return
		}
	}
}

// Wait waits until everything that was run has returned, and ends the
// goroutines. Nothing may be run after it.
func (p *pool) Wait() {
	p.wg.Wait()
	close(p.work)
	p.all.Wait()
}
