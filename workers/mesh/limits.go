package mesh

import "time"

// bucket is a token bucket whose clock is that of the messages: every worker
// that reads the same messages comes to the same verdicts.
type bucket struct {
	left float64
	at   time.Time
}

// take takes one of perMinute tokens at now; wait is how long until there is
// one if there is none.
func (b *bucket) take(perMinute int, now time.Time) (wait time.Duration) {
	b.fill(perMinute, now)
	if b.left < 1 {
		return time.Duration((1 - b.left) / float64(perMinute) * float64(time.Minute))
	}
	b.left--
	return 0
}

// wait is how long until there is a token, which is not taken.
func (b *bucket) wait(perMinute int, now time.Time) time.Duration {
	look := *b
	return look.take(perMinute, now)
}

func (b *bucket) fill(perMinute int, now time.Time) {
	most := float64(perMinute)
	switch {
	case b.at.IsZero():
		b.left = most
	case now.After(b.at):
		b.left = min(most, b.left+most*now.Sub(b.at).Minutes())
	default:
		return
	}
	b.at = now
}
