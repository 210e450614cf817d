package schedule

import (
	"strings"
	"time"

	"github.com/netresearch/go-cron"

	"parley/subjects"
)

// Clock says when a schedule is due. Make it with Definition.Clock.
type Clock struct {
	cron   cron.Schedule
	zone   *time.Location
	every  time.Duration
	anchor time.Time
	at     time.Time
}

// fields are the dialect of JetStream's message schedules, in which the
// seconds may be left out: a day is due if either of its two fields says so,
// unless one of them is *.
const fields = cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor | cron.DowOrDom

// Clock is the clock of a schedule that was created at a time. The error, an
// *subjects.Error, says what is wrong with the definition.
func (d *Definition) Clock(created time.Time) (Clock, error) {
	switch {
	case d.Cron != "":
		return cronClock(d.Cron, d.TimeZone)
	case d.EverySeconds > 0:
		return Clock{every: seconds(d.EverySeconds), anchor: created.UTC()}, nil
	case d.At != nil:
		return Clock{at: d.At.UTC()}, nil
	}
	return Clock{}, subjects.Errorf(subjects.CodeInvalidMessage, "it is due at no time").At("/cron").
		WithRemedy("send one of cron, every_seconds, at")
}

func cronClock(expr, zone string) (Clock, error) {
	loc, err := time.LoadLocation(zone) // "" is UTC
	if err != nil || strings.EqualFold(zone, "local") {
		return Clock{}, subjects.Errorf(subjects.CodeInvalidMessage, "%q is not a time zone", zone).At("/time_zone").
			WithRemedy("use a name of the IANA database, such as Europe/Berlin")
	}
	wrong := func(err error) error {
		return subjects.Errorf(subjects.CodeInvalidMessage, "%q is not a cron expression: %w", expr, err).At("/cron").
			WithRemedy(`use minute hour day month weekday, as in "0 9 * * 1-5", with the seconds before them if need be; or @hourly, @daily, @weekly, @monthly, @yearly`)
	}
	lower := strings.ToLower(strings.TrimSpace(expr))
	if strings.HasPrefix(lower, "tz=") || strings.HasPrefix(lower, "cron_tz=") {
		return Clock{}, wrong(errZone)
	}
	if strings.HasPrefix(lower, "@every") {
		return Clock{}, wrong(errEvery)
	}
	p, err := cron.TryNewParser(fields)
	if err != nil {
		return Clock{}, wrong(err)
	}
	s, err := p.Parse(expr)
	if err != nil {
		return Clock{}, wrong(err)
	}
	c := Clock{cron: s, zone: loc}
	if c.Next(time.Unix(0, 0)).IsZero() {
		return Clock{}, wrong(errNever)
	}
	return c, nil
}

// Next is the first time after t; zero: there is none.
func (c Clock) Next(t time.Time) time.Time {
	switch {
	case c.cron != nil:
		if next := c.cron.Next(t.In(c.zone)); !next.IsZero() {
			return c.skipped(t, next).UTC()
		}
	case c.every > 0:
		if t.Before(c.anchor) {
			return c.anchor.Add(c.every)
		}
		since := t.Sub(c.anchor)
		return t.Add(c.every - since%c.every)
	case t.Before(c.at):
		return c.at
	}
	return time.Time{}
}

// skipped is the first time after t and before next that the clocks of the zone
// skip as they go forward, by the clocks of before; next, if there is none. A
// cron expression by itself leaves out a skipped midnight, and half an hour.
func (c Clock) skipped(t, next time.Time) time.Time {
	change, end := t.In(c.zone).ZoneBounds()
	for {
		if !change.IsZero() {
			_, was := change.Add(-1).Zone()
			_, is := change.Zone()
			from := change.Add(-1)
			if t.After(from) {
				from = t
			}
			// What is skipped lies, by the clocks of before, within that time of the change.
			over := change.Add(time.Duration(is-was) * time.Second)
			if n := c.cron.Next(from.In(time.FixedZone("", was))); from.Before(over) && n.Before(over) && n.Before(next) && !n.IsZero() {
				return n
			}
		}
		if end.IsZero() || !end.Before(next) {
			return next
		}
		change, end = end.ZoneBounds()
	}
}

// countMost bounds how many times are counted one by one.
const countMost = 100_000

// Passed is the last time after one time and up to another, and how many there
// are; none is zero and 0. Of a great many, those long ago are not counted.
func (c Clock) Passed(after, upTo time.Time) (last time.Time, n int) {
	if c.every > 0 {
		n = int(c.ticks(upTo) - c.ticks(after))
		if n <= 0 {
			return time.Time{}, 0
		}
		return c.anchor.Add(time.Duration(c.ticks(upTo)) * c.every), n
	}
	for t := c.Next(after); !t.IsZero() && !t.After(upTo); t = c.Next(t) {
		if last, n = t, n+1; n == countMost {
			if late := upTo.Add(-time.Hour); t.Before(late) {
				t = late
			}
		}
	}
	return last, n
}

// ticks counts the times up to t of a clock that beats evenly.
func (c Clock) ticks(t time.Time) int64 {
	return int64(max(t.Sub(c.anchor), 0) / c.every)
}
