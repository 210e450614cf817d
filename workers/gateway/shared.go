package gateway

import (
	"math"
	"sync"
	"time"
)

// forever is the age that an answer may have which stays true.
const forever time.Duration = math.MaxInt64

// shared is an answer that callers share: one of them asks, and those who come
// meanwhile hear what it hears, also where that is an error. Somebody who does
// not answer so holds nobody up for longer than the first.
type shared[T any] struct {
	mu    sync.Mutex // guards what follows
	value T
	err   error
	at    time.Time // when it came; zero: never
}

// get returns the answer to a caller who came then. It may be as old as age,
// unless it is an error.
func (s *shared[T]) get(came time.Time, age time.Duration, ask func() (T, error)) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.After(came) || !s.at.IsZero() && s.err == nil && came.Sub(s.at) < age {
		return s.value, s.err
	}
	s.value, s.err = ask()
	s.at = time.Now()
	return s.value, s.err
}
