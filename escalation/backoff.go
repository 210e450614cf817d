package escalation

import (
	"cmp"
	"time"

	"github.com/cenkalti/backoff/v4"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Backoff is the pace of retries. Zero fields take their defaults.
type Backoff struct {
	Base       time.Duration // before the first retry; default 1 s
	Max        time.Duration // between retries; default 1 min
	Multiplier float64       // from retry to retry; default 2
	Jitter     float64       // plus or minus this part; default 0.2, negative = none
	CoolDown   time.Duration // of an agent that said rate_limited; default 1 min
	Rest       time.Duration // of one that blocked, was lost or failed for good; default 5 s
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
	if b.CoolDown <= 0 {
		b.CoolDown = time.Minute
	}
	if b.Rest <= 0 {
		b.Rest = 5 * time.Second
	}
	return b
}

// rest is how long an agent that failed so is left alone by all tasks; asked is
// what it asked for.
func (b Backoff) rest(a fleet.Attempt, asked time.Duration) time.Duration {
	b = b.withDefaults()
	switch {
	case a.Code == subjects.CodeAgentBusy, a.Code == subjects.CodeBudgetExhausted: // it has not failed
		return 0
	case a.Code == subjects.CodeRateLimited:
		return cmp.Or(max(asked, 0), b.CoolDown)
	case !retryable(a):
		return max(asked, b.Rest)
	}
	return 0
}

// stopped is a clock that stands: the backoff library needs one, the ladder has
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
