package escalation

import (
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Backoff is the pace of retries. Zero fields take their defaults.
type Backoff struct {
	Base       time.Duration // before the first retry; default 1 s
	Max        time.Duration // between retries; default 1 min
	Multiplier float64       // from retry to retry; default 2
	Jitter     float64       // plus or minus this part; default 0.2, negative = none
	LossBase   time.Duration // after the second loss in a row; default 10 s
	LossMax    time.Duration // after later ones; default 5 min
}

func (b Backoff) withDefaults() Backoff {
	if b.Base <= 0 {
		b.Base = time.Second
	}
	if b.Max <= 0 {
		b.Max = time.Minute
	}
	if b.Multiplier < 1 {
		b.Multiplier = 2
	}
	switch {
	case b.Jitter == 0:
		b.Jitter = 0.2
	case b.Jitter < 0:
		b.Jitter = 0
	}
	if b.LossBase <= 0 {
		b.LossBase = 10 * time.Second
	}
	if b.LossMax <= 0 {
		b.LossMax = 5 * time.Minute
	}
	return b
}

// LossDelay is how long a task waits after the nth loss in a row: nothing after
// the first, then LossBase, doubled by each further one up to LossMax.
func (b Backoff) LossDelay(n int) time.Duration {
	if n < 2 {
		return 0
	}
	b = b.withDefaults()
	d := b.LossBase
	for range n - 2 {
		if d *= 2; d >= b.LossMax {
			break
		}
	}
	return min(d, b.LossMax)
}

// stopped is a clock that stands: the backoff library needs one, this package has
// none.
type stopped struct{}

func (stopped) Now() time.Time { return time.Time{} }

// Delay is how long to wait before retry n, from 0: exponential, at most Max,
// with a jitter that seed and n alone decide.
func (b Backoff) Delay(n int, seed uint64) time.Duration {
	b = b.withDefaults()
	e := backoff.ExponentialBackOff{
		InitialInterval: b.Base, MaxInterval: b.Max, Multiplier: b.Multiplier,
		Stop: backoff.Stop, Clock: stopped{},
	}
	e.Reset()
	d := e.NextBackOff()
	for range n {
		if d >= b.Max {
			break
		}
		d = e.NextBackOff()
	}
	d = min(d, b.Max)
	// A number in [-1, 1) from seed and n (the finalizer of SplitMix64).
	z := seed + uint64(n+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	unit := float64(z>>11)/(1<<52) - 1
	return max(0, d+time.Duration(unit*b.Jitter*float64(d)))
}
