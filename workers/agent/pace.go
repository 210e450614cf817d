package agent

import (
	"sync"
	"time"
)

// pace lets progress through at a bounded rate: of what comes faster, the
// latest of each kind is sent once the time is up, or when the pace is closed.
type pace struct {
	every time.Duration  // fixed
	send  func(progress) // fixed; called with mu held, so in order

	mu      sync.Mutex
	last    time.Time
	pending *progress
	timer   *time.Timer
	closed  bool
}

func (p *pace) add(g progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if was := p.pending; was != nil {
		if g.text == "" {
			g.text = was.text
		}
		if g.percent == nil {
			g.percent = was.percent
		}
		if g.tokens == nil {
			g.tokens = was.tokens
		}
	}
	p.pending = &g
	wait := p.every - time.Since(p.last)
	switch {
	case wait <= 0:
		p.flushLocked()
	case p.timer == nil:
		p.timer = time.AfterFunc(wait, p.flush)
	}
}

func (p *pace) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flushLocked()
}

func (p *pace) flushLocked() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	if p.pending == nil || p.closed {
		return
	}
	p.send(*p.pending)
	p.pending, p.last = nil, time.Now()
}

// close sends what is pending; what comes later is dropped.
func (p *pace) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flushLocked()
	p.closed = true
}
