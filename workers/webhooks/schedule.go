package webhooks

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Schedule says when a delivery is tried again. The zero value is replaced by
// a default.
type Schedule struct {
	Attempts int             // at most so many, 0 = until the delivery's not_after
	Base     time.Duration   // first wait of an exponential backoff, doubled each time; or
	Steps    []time.Duration // the waits after the first attempt, the second, …; the last one repeats
	Refused  bool            // go on after an answer that no repeat will change (a 404, say): it may be repaired
}

// Jitter is how far a wait strays, as a part of it, so that what failed
// together does not come back together.
const Jitter = 0.2

// MaxRetryAfter bounds what a receiver may ask for by Retry-After.
const MaxRetryAfter = time.Hour

// Human is the default for what a person must hear of: at once, then after
// 5 s, 30 s, 2 m, 5 m, then every 10 m until the delivery's not_after.
func Human() Schedule {
	return Schedule{
		Steps:   []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute},
		Refused: true,
	}
}

// Push is the default for what a program listens to: three attempts, 1 s and
// 2 s apart.
func Push() Schedule { return Schedule{Attempts: 3, Base: time.Second} }

func (s Schedule) zero() bool { return s.Attempts == 0 && s.Base == 0 && len(s.Steps) == 0 }

func (s Schedule) validate() error {
	switch {
	case s.Attempts < 0 || s.Base < 0:
		return fmt.Errorf("attempts %d and base %s must not be negative", s.Attempts, s.Base)
	case s.Base == 0 && len(s.Steps) == 0:
		return errors.New("a schedule needs a base or steps")
	case s.Base > 0 && len(s.Steps) > 0:
		return errors.New("a schedule has a base or steps, not both")
	}
	for _, d := range s.Steps {
		if d <= 0 {
			return fmt.Errorf("step %s: a wait must be positive", d)
		}
	}
	return nil
}

// wait is the time between the attempt-th attempt, from 1, and the next; stray
// is the jitter, 0 for none.
func (s Schedule) wait(attempt int, stray float64) time.Duration {
	bo := &backoff.ExponentialBackOff{
		InitialInterval: s.Base, Multiplier: 2, RandomizationFactor: stray,
		MaxInterval: time.Hour, Stop: backoff.Stop, Clock: backoff.SystemClock,
	}
	n := attempt
	if len(s.Steps) > 0 {
		bo.InitialInterval, n = s.Steps[min(attempt, len(s.Steps))-1], 1
	}
	bo.Reset()
	var d time.Duration
	for range min(max(n, 1), 64) {
		d = bo.NextBackOff()
	}
	return d
}

// outcome is how one exchange ended.
type outcome struct {
	status     int // 0: there was no answer
	err        *fleet.Reason
	refused    bool          // a repeat of the same is answered the same
	retryAfter time.Duration // what the receiver asked for, 0 = nothing
	took       time.Duration
}

func (o outcome) ok() bool { return o.err == nil }

// next is what becomes of a delivery whose attempt ended with o at now. It sets
// everything in st that follows.
func (s Schedule) next(st *fleet.DeliveryState, o outcome, now time.Time, stray float64) {
	st.Sending, st.NextAt, st.HoldUntil = nil, nil, nil
	st.Updated, st.Status, st.Error, st.DurationMS = now, o.status, o.err, o.took.Milliseconds()
	if o.ok() {
		st.State = fleet.DeliveryDelivered
		return
	}
	at := now.Add(s.wait(st.Attempts, stray))
	if o.retryAfter > 0 {
		hold := now.Add(min(o.retryAfter, MaxRetryAfter))
		st.HoldUntil = &hold
		if at.Before(hold) {
			at = hold
		}
	}
	switch {
	case o.refused && !s.Refused,
		s.Attempts > 0 && st.Attempts >= s.Attempts,
		at.After(st.NotAfter):
		st.State = fleet.DeliveryDead
	default:
		st.State, st.NextAt = fleet.DeliveryPending, &at
	}
}

// answered is what an HTTP status means.
func answered(status int, retryAfter time.Duration) outcome {
	o := outcome{status: status}
	fail := func(code subjects.Code, says string) {
		o.err = &fleet.Reason{Code: code, Message: fmt.Sprintf("answered %d %s%s", status, http.StatusText(status), says)}
	}
	switch {
	case status >= 200 && status < 300:
	case status >= 300 && status < 400:
		o.refused = true
		fail(subjects.CodeInvalidMessage, ": redirects are not followed, configure the address it moved to")
	case status == http.StatusTooManyRequests:
		o.retryAfter = retryAfter
		fail(subjects.CodeRateLimited, "")
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status >= 500:
		o.retryAfter = retryAfter
		fail(subjects.CodeUnavailable, "")
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		o.refused = true
		fail(subjects.CodeAuthFailed, ": check the endpoint's headers and secret")
	case status == http.StatusNotFound, status == http.StatusGone:
		o.refused = true
		fail(subjects.CodeNotFound, ": check the endpoint's address, and that its workflow is active")
	default:
		o.refused = true
		fail(subjects.CodeInvalidMessage, "")
	}
	return o
}

// parseRetryAfter reads seconds or a date; 0 when it is neither, or has passed.
func parseRetryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(strings.TrimSpace(value), 10, 63); err == nil {
		return time.Duration(min(seconds, uint64(MaxRetryAfter/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}
