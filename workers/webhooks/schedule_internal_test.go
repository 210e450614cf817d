package webhooks

import (
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"parley/subjects/fleet"
)

// play has every attempt of a delivery fail with o, and returns when each
// began, and the last state.
func play(s Schedule, o outcome, stray float64) ([]time.Duration, fleet.DeliveryState) {
	start := time.Unix(1e9, 0).UTC()
	st := fleet.DeliveryState{State: fleet.DeliveryPending, NotAfter: start.Add(fleet.DefaultNotAfter)}
	now := start
	var at []time.Duration
	for st.State == fleet.DeliveryPending {
		at = append(at, now.Sub(start))
		st.Attempts++
		s.next(&st, o, now, stray)
		if st.NextAt != nil {
			now = *st.NextAt
		}
	}
	return at, st
}

func TestSchedulesAsPromised(t *testing.T) {
	t.Parallel()
	down := answered(503, 0)
	at, st := play(Human(), down, 0)
	want := []time.Duration{0, 5 * time.Second, 35 * time.Second, 155 * time.Second, 455 * time.Second, 1055 * time.Second, 1655 * time.Second}
	if !slices.Equal(at[:len(want)], want) {
		t.Errorf("human: attempts at %v, want %v", at[:len(want)], want)
	}
	last := at[len(at)-1]
	if st.State != fleet.DeliveryDead || len(at) != 148 || last > 24*time.Hour || last < 24*time.Hour-10*time.Minute {
		t.Errorf("human: %s after %d attempts, the last at %v; want dead after 148, the last within 10 m of 24 h", st.State, len(at), last)
	}
	at, st = play(Push(), down, 0)
	if want := []time.Duration{0, time.Second, 3 * time.Second}; !slices.Equal(at, want) || st.State != fleet.DeliveryDead {
		t.Errorf("push: %s, attempts at %v, want dead, %v", st.State, at, want)
	}
	at, _ = play(Schedule{Attempts: 4, Base: 100 * time.Millisecond}, down, 0)
	if want := []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond, 700 * time.Millisecond}; !slices.Equal(at, want) {
		t.Errorf("configured: attempts at %v, want %v", at, want)
	}
}

func TestJitterStaysWithinItsBounds(t *testing.T) {
	t.Parallel()
	differ := false
	for range 1000 {
		for n, want := range Human().Steps {
			got := Human().wait(n+1, Jitter)
			if d := float64(got-want) / float64(want); d < -Jitter-0.001 || d > Jitter+0.001 {
				t.Fatalf("wait after attempt %d is %v, want %v ± 20 %%", n+1, got, want)
			}
			differ = differ || got != want
		}
	}
	if !differ {
		t.Error("no wait strays")
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status      int
		push, human string
		hold        bool
	}{
		{200, "delivered", "delivered", false},
		{204, "delivered", "delivered", false},
		{301, "dead", "pending", false},
		{400, "dead", "pending", false},
		{401, "dead", "pending", false},
		{404, "dead", "pending", false},
		{408, "pending", "pending", true},
		{410, "dead", "pending", false},
		{422, "dead", "pending", false},
		{425, "pending", "pending", true},
		{429, "pending", "pending", true},
		{500, "pending", "pending", true},
		{503, "pending", "pending", true},
	} {
		t.Run(strconv.Itoa(tt.status), func(t *testing.T) {
			t.Parallel()
			now := time.Unix(1e9, 0).UTC()
			for kind, want := range map[string]string{fleet.SchedulePush: tt.push, fleet.ScheduleHuman: tt.human} {
				s := map[string]Schedule{fleet.SchedulePush: Push(), fleet.ScheduleHuman: Human()}[kind]
				st := fleet.DeliveryState{Attempts: 1, NotAfter: now.Add(time.Hour), Sending: &fleet.Sending{}}
				s.next(&st, answered(tt.status, 20*time.Minute), now, 0)
				if st.State != want || st.Status != tt.status || st.Sending != nil || (st.Error == nil) != (want == "delivered") {
					t.Errorf("%s: %+v, want %s", kind, st, want)
				}
				if held := st.NextAt != nil && st.NextAt.Equal(now.Add(20*time.Minute)) && st.HoldUntil != nil; held != (tt.hold && want == "pending") {
					t.Errorf("%s: next at %v, hold until %v; honours Retry-After: %v, want %v", kind, st.NextAt, st.HoldUntil, held, tt.hold)
				}
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 31, 21, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"120": 2 * time.Minute, " 7 ": 7 * time.Second, "0": 0, "-5": 0, "1m": 0, "soon": 0, "": 0, "1.5": 0,
		"99999999999": MaxRetryAfter, "18446744073709551616": 0,
		now.Add(90 * time.Second).Format(http.TimeFormat): 90 * time.Second,
		now.Add(-time.Minute).Format(http.TimeFormat):     0,
	} {
		if got := parseRetryAfter(value, now); got != want {
			t.Errorf("parseRetryAfter(%q) = %v, want %v", value, got, want)
		}
	}
	// However long the receiver asks for, it is an hour at most.
	st := fleet.DeliveryState{Attempts: 1, NotAfter: now.Add(24 * time.Hour)}
	Push().next(&st, answered(429, 10*time.Hour), now, 0)
	if !st.NextAt.Equal(now.Add(MaxRetryAfter)) {
		t.Errorf("next at %v, want an hour from now", st.NextAt)
	}
}

func TestScheduleValidate(t *testing.T) {
	t.Parallel()
	for _, s := range []Schedule{
		{}, {Attempts: -1, Base: 1}, {Base: -1}, {Base: 1, Steps: []time.Duration{1}}, {Steps: []time.Duration{0}},
	} {
		if s.validate() == nil {
			t.Errorf("%+v is accepted", s)
		}
	}
}
