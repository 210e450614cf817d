// Package pool runs functions on goroutines that it keeps: a new goroutine has
// a small stack, which decoding and encoding make it grow, again and again.
package pool

import "sync"

// Pool runs functions. How many run at a time is up to whoever calls Go.
type Pool struct {
	work chan func()
	idle chan struct{}  // one for each that may wait for more
	end  chan struct{}  // closed when none is to wait any more
	wg   sync.WaitGroup // functions that run
	all  sync.WaitGroup // goroutines
}

// New returns a Pool that keeps as many as idle goroutines for the next.
func New(idle int) *Pool {
	return &Pool{work: make(chan func()), idle: make(chan struct{}, idle), end: make(chan struct{})}
}

// Go runs f at once, on a goroutine that waits or a new one.
func (p *Pool) Go(f func()) {
	p.wg.Add(1)
	select {
	case p.work <- f:
	default:
		p.all.Go(func() { p.run(f) })
	}
}

func (p *Pool) run(f func()) {
	for {
		p.call(f)
		select {
		case p.idle <- struct{}{}:
		default:
			return
		}
		select {
		case f = <-p.work:
			<-p.idle
		case <-p.end:
			return
		}
	}
}

// call counts f as done even if it ends its goroutine.
func (p *Pool) call(f func()) {
	defer p.wg.Done()
	f()
}

// Wait waits until everything that was run has returned, and ends the
// goroutines. Call it once; what is run after it is not waited for.
func (p *Pool) Wait() {
	p.wg.Wait()
	close(p.end)
	p.all.Wait()
}
