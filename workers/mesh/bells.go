package mesh

import (
	"sync"

	"parley/subjects"
)

// bells wake the calls that wait for something. A bell rings when something may
// have changed; whoever waits looks for himself. The zero value is ready.
type bells struct {
	mu     sync.Mutex
	closed bool                              // guarded by mu
	hang   map[string]map[chan struct{}]bool // guarded by mu; waiters by bell
}

func inboxBell(a subjects.AgentID) string { return "inbox " + string(a) }

func messageBell(k key) string { return string(k.from) + " " + string(k.id) }

// wait returns a channel that gets a note whenever one of the bells rings, and
// is closed when they ring no more; stop takes it away.
func (b *bells) wait(names ...string) (rung <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		close(c)
		return c, func() {}
	}
	if b.hang == nil {
		b.hang = map[string]map[chan struct{}]bool{}
	}
	for _, n := range names {
		if b.hang[n] == nil {
			b.hang[n] = map[chan struct{}]bool{}
		}
		b.hang[n][c] = true
	}
	return c, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, n := range names {
			if delete(b.hang[n], c); len(b.hang[n]) == 0 {
				delete(b.hang, n)
			}
		}
	}
}

func (b *bells) ring(names ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	for _, n := range names {
		for c := range b.hang[n] {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
}

// close wakes every waiter for good.
func (b *bells) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, waiters := range b.hang {
		for c := range waiters {
			select {
			case <-c:
			default:
			}
			select {
			case <-c: // closed for another bell
			default:
				close(c)
			}
		}
	}
}
