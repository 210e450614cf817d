package callout

import (
	"sync"

	"golang.org/x/time/rate"

	"parley/subjects"
)

// looks bounds how often the store is asked about somebody whose message in a
// stream is refused by what is known here: what is known may be older.
type looks struct {
	all *rate.Limiter

	mu sync.Mutex
	by map[subjects.AgentID]*rate.Limiter
}

// How many looks there are, for all and for one author of many bad messages.
const (
	streamLooksPerSecond = 100
	streamLooksAtOnce    = 200
	authorLooksPerSecond = 2
	authorLooksAtOnce    = 10
	maxAuthors           = 1 << 12 // whose looks are counted
)

func newLooks() *looks {
	return &looks{all: rate.NewLimiter(streamLooksPerSecond, streamLooksAtOnce), by: map[subjects.AgentID]*rate.Limiter{}}
}

// allow reports whether the store may be asked about author. An author that has
// used up their own looks is judged by what is known; the error is that there is
// none left for anybody now, and the message is to be judged later.
func (l *looks) allow(author subjects.AgentID) (bool, error) {
	l.mu.Lock()
	own := l.by[author]
	if own == nil {
		if len(l.by) >= maxAuthors {
			clear(l.by)
		}
		own = rate.NewLimiter(authorLooksPerSecond, authorLooksAtOnce)
		l.by[author] = own
	}
	l.mu.Unlock()
	switch {
	case !own.Allow():
		return false, nil
	case !l.all.Allow():
		return false, subjects.Errorf(subjects.CodeUnavailable, "too many messages are refused to look each time whether that is right")
	}
	return true, nil
}
