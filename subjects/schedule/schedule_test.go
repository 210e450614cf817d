package schedule_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/schedule"
	"parley/subjects/schematest"
)

// validate holds data against a schema.
var validate = schematest.Validator(schedule.Schemas(), schedule.Schema)

const task = `"dispatch":{"brief":"x"}`

var accepted = []string{
	`{"name":"a","cron":"0 9 * * 1-5","time_zone":"Europe/Berlin",` + task + `}`,
	`{"type":"SCHEDULE","protocol_version":"2.0","name":"a","cron":"*/10 0 9 * * MON-FRI","run":{"agents":[{"agent_id":"isa","dependencies":[]}]}}`,
	`{"name":"a","cron":"@daily","overlap":"queue","missed":"skip","grace_seconds":5,"message":{"to":"isa","text":"x"}}`,
	`{"name":"a","every_seconds":1.5,"overlap":"cancel","x-more":1,` + task + `}`,
	`{"name":"a","at":"2031-05-31T21:00:00Z","cron":null,"message":null,` + task + `}`,
}

var refused = []struct {
	in      string
	code    subjects.Code
	pointer string
}{
	{``, subjects.CodeInvalidMessage, ""},
	{`[]`, subjects.CodeInvalidMessage, ""},
	{`{"every_seconds":60,` + task + `}`, subjects.CodeInvalidID, "/name"},
	{`{"name":"a.b","every_seconds":60,` + task + `}`, subjects.CodeInvalidID, "/name"},
	{`{"name":"a",` + task + `}`, subjects.CodeInvalidMessage, "/cron"},
	{`{"name":"a","cron":"* * * * *","every_seconds":60,` + task + `}`, subjects.CodeInvalidMessage, "/cron"},
	{`{"name":"a","cron":"* * *",` + task + `}`, subjects.CodeInvalidMessage, "/cron"},
	{`{"name":"a","cron":"61 * * * *",` + task + `}`, subjects.CodeInvalidMessage, "/cron"},
	{`{"name":"a","cron":"0 0 30 2 *",` + task + `}`, subjects.CodeInvalidMessage, "/cron"},
	{`{"name":"a","cron":"@every 1h",` + task + `}`, subjects.CodeInvalidMessage, "/cron"},
	{`{"name":"a","cron":"TZ=Europe/Berlin 0 9 * * *",` + task + `}`, subjects.CodeInvalidMessage, "/cron"},
	{`{"name":"a","cron":"@reboot",` + task + `}`, subjects.CodeInvalidMessage, "/cron"},
	{`{"name":"a","cron":"0 9 * * *","time_zone":"Mars/Base",` + task + `}`, subjects.CodeInvalidMessage, "/time_zone"},
	{`{"name":"a","cron":"0 9 * * *","time_zone":"Local",` + task + `}`, subjects.CodeInvalidMessage, "/time_zone"},
	{`{"name":"a","every_seconds":60,"time_zone":"UTC",` + task + `}`, subjects.CodeInvalidMessage, "/time_zone"},
	{`{"name":"a","every_seconds":0.5,` + task + `}`, subjects.CodeInvalidMessage, "/every_seconds"},
	{`{"name":"a","every_seconds":-1,` + task + `}`, subjects.CodeInvalidMessage, "/every_seconds"},
	{`{"name":"a","every_seconds":60,"missed":"all",` + task + `}`, subjects.CodeInvalidMessage, "/missed"},
	{`{"name":"a","every_seconds":60,"overlap":"allow",` + task + `}`, subjects.CodeInvalidMessage, "/overlap"},
	{`{"name":"a","every_seconds":60}`, subjects.CodeInvalidMessage, "/dispatch"},
	{`{"name":"a","every_seconds":60,"message":{"to":"isa","text":"x"},` + task + `}`, subjects.CodeInvalidMessage, "/dispatch"},
	{`{"name":"a","every_seconds":60,"dispatch":"x"}`, subjects.CodeInvalidMessage, "/dispatch"},
	{`{"name":"a","every_seconds":60,"dispatch":{"task":{"priority":"now"}}}`, subjects.CodeInvalidMessage, "/dispatch/task/priority"},
	{`{"name":"a","every_seconds":60,"dispatch":{"brief":"x","task":{"result_schema":{"type":"nonsense"}}}}`, subjects.CodeInvalidMessage, "/dispatch/task/result_schema"},
	{`{"name":"a","every_seconds":60,"run":{"agents":[{"id":"a","result_schema":{"type":"nonsense"}}]}}`, subjects.CodeInvalidMessage, "/run/agents/0/result_schema"},
	{`{"name":"a","every_seconds":60,"dispatch":{"brief":"x","task":{"task_id":"t"}}}`, subjects.CodeInvalidMessage, "/dispatch/task/task_id"},
	{`{"name":"a","every_seconds":60,"dispatch":{"brief":"x","task":{"idempotency_key":"t"}}}`, subjects.CodeInvalidMessage, "/dispatch/task/idempotency_key"},
	{`{"name":"a","every_seconds":60,"dispatch":{"brief":"x","deadline":"2031-05-31T21:00:00Z"}}`, subjects.CodeInvalidMessage, "/dispatch/deadline"},
	{`{"name":"a","every_seconds":60,"run":{"agents":[]}}`, subjects.CodeInvalidMessage, "/run/agents"},
	{`{"name":"a","every_seconds":60,"run":{"task_id":"r","agents":[{"agent_id":"isa","dependencies":[]}]}}`, subjects.CodeInvalidMessage, "/run/task_id"},
	{`{"name":"a","every_seconds":60,"message":{"text":"x"}}`, subjects.CodeInvalidID, "/message/to"},
	{`{"name":"a","every_seconds":60,"message":{"to":"isa","text":"x","message_id":"m"}}`, subjects.CodeInvalidMessage, "/message/message_id"},
	{`{"name":"a","every_seconds":60,"overlap":"cancel","message":{"to":"isa","text":"x"}}`, subjects.CodeInvalidMessage, "/overlap"},
}

func TestDecode(t *testing.T) {
	t.Parallel()
	for _, in := range accepted {
		d, err := schedule.Decode([]byte(in))
		if err != nil {
			t.Errorf("Decode(%s): %v", in, err)
			continue
		}
		if d.Missed == "" || d.Overlap == "" {
			t.Errorf("Decode(%s) has no policy: %+v", in, d)
		}
		if err := validate(t, "schedule", []byte(in)); err != nil {
			t.Errorf("the schema refuses %s: %v", in, err)
		}
		again, err := schedule.Decode(fleet.MustEncode(d))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(d, again); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
	for _, tt := range refused {
		_, err := schedule.Decode([]byte(tt.in))
		e := subjects.AsError(err)
		if err == nil || e.Code != tt.code || e.Pointer != tt.pointer {
			t.Errorf("Decode(%s) = %v, want %s at %s", tt.in, err, tt.code, tt.pointer)
		}
	}
	_, err := schedule.Decode([]byte(`{"name":"a.b","every_seconds":0.5,"dispatch":{"task":{"priority":"now","token_budget":-1}}}`))
	var at []string
	for _, e := range append([]*subjects.Error{subjects.AsError(err)}, subjects.AsError(err).Also...) {
		at = append(at, e.Pointer)
	}
	want := []string{"/name", "/every_seconds", "/dispatch/task/priority", "/dispatch/task/token_budget", "/dispatch/brief"}
	if diff := cmp.Diff(want, at); diff != "" {
		t.Errorf("all problems at once (-want +got):\n%s", diff)
	}
}

func FuzzDecode(f *testing.F) {
	for _, in := range accepted {
		f.Add([]byte(in))
	}
	for _, tt := range refused {
		f.Add([]byte(tt.in))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := schedule.Decode(data)
		if err != nil {
			if e := subjects.AsError(err); e.Code == subjects.CodeInternal || e.Message == "" {
				t.Errorf("%+v", err)
			}
			return
		}
		if err := validate(t, "schedule", data); err != nil {
			t.Errorf("the schema refuses what is accepted: %v", err)
		}
		again, err := schedule.Decode(fleet.MustEncode(d))
		if err != nil {
			t.Fatalf("%s: %v", fleet.MustEncode(d), err)
		}
		if diff := cmp.Diff(d, again); diff != "" {
			t.Error(diff)
		}
		if c, err := d.Clock(time.Unix(1e9, 0)); err != nil || d.At == nil && c.Next(time.Unix(1e9, 0)).IsZero() {
			t.Errorf("its clock: %v", err)
		}
	})
}

func clock(tb testing.TB, in string, created time.Time) schedule.Clock {
	tb.Helper()
	d, err := schedule.Decode([]byte(`{"name":"a",` + in + `,` + task + `}`))
	if err != nil {
		tb.Fatal(err)
	}
	c, err := d.Clock(created)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return t
}

func TestClock(t *testing.T) {
	t.Parallel()
	created := at("2026-03-28T00:00:00Z")
	for _, tt := range []struct {
		when string
		want string // the first times after created
	}{
		{`"cron":"0 9 * * 1-5"`, "03-30T09:00 03-31T09:00 04-01T09:00"},
		{`"cron":"30 0 0 1 1,4 *"`, "04-01T00:00:30 2027-01-01T00:00:30"},
		{`"cron":"0 0 13 * FRI"`, "04-03T00:00 04-10T00:00 04-13T00:00"},
		{`"cron":"@weekly"`, "03-29T00:00 04-05T00:00"},
		// The clocks go forward at 02:00: what they skip comes right after.
		{`"cron":"30 2 * * *","time_zone":"Europe/Berlin"`, "03-28T01:30 03-29T01:30 03-30T00:30"},
		{`"cron":"0 9 * * *","time_zone":"Europe/Berlin"`, "03-28T08:00 03-29T07:00 03-30T07:00"},
		{`"every_seconds":5400`, "03-28T01:30 03-28T03:00 03-28T04:30"},
		{`"at":"2026-03-28T10:00:00+02:00"`, "03-28T08:00 never"},
	} {
		c := clock(t, tt.when, created)
		next := created
		for w := range strings.FieldsSeq(tt.want) {
			next = c.Next(next)
			if w == "never" {
				if !next.IsZero() {
					t.Errorf("%s: %s, want never", tt.when, next)
				}
				break
			}
			if got := next.Format("2006-01-02T15:04:05"); !strings.Contains(got, w) || next.Location() != time.UTC {
				t.Errorf("%s: %s, want %s", tt.when, got, w)
			}
		}
	}
	// They go back: an hour, and what is due in it, comes twice.
	c := clock(t, `"cron":"30 2 * * *","time_zone":"Europe/Berlin"`, created)
	first := c.Next(at("2026-10-24T22:00:00Z"))
	if second := c.Next(first); !first.Equal(at("2026-10-25T00:30:00Z")) || !second.Equal(at("2026-10-25T01:30:00Z")) {
		t.Errorf("the clocks go back: %s, %s", first, second)
	}
}

// Passed is what one gets by counting one by one.
func TestPassed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		created := at("2026-01-01T00:00:00Z").Add(time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "ns")))
		when := rapid.SampledFrom([]string{
			`"every_seconds":1`, `"every_seconds":61.25`, `"cron":"*/7 * * * *"`, `"cron":"*/20 3 * * * *"`, `"at":"2026-01-01T01:00:00Z"`,
		}).Draw(t, "clock")
		d, err := schedule.Decode([]byte(`{"name":"a",` + when + `,` + task + `}`))
		if err != nil {
			t.Fatal(err)
		}
		c, err := d.Clock(created)
		if err != nil {
			t.Fatal(err)
		}
		after := created.Add(time.Duration(rapid.IntRange(0, 3600_000).Draw(t, "after")) * time.Millisecond)
		upTo := after.Add(time.Duration(rapid.IntRange(-1000, 7200_000).Draw(t, "span")) * time.Millisecond)
		last, n := c.Passed(after, upTo)
		var all []time.Time
		for next := c.Next(after); !next.IsZero() && !next.After(upTo); next = c.Next(next) {
			all = append(all, next)
		}
		want := time.Time{}
		if len(all) > 0 {
			want = all[len(all)-1]
		}
		if n != len(all) || !last.Equal(want) || !slices.IsSortedFunc(all, time.Time.Compare) {
			t.Fatalf("Passed(%s, %s) = %s, %d, want %s, %d", after, upTo, last, n, want, len(all))
		}
	})
	// A second's clock that was away for ten years is read at once.
	c := clock(t, `"cron":"* * * * * *"`, time.Time{})
	if last, n := c.Passed(at("2016-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z")); !last.Equal(at("2026-01-01T00:00:00Z")) || n < 100_000 {
		t.Errorf("Passed = %s, %d", last, n)
	}
}

// The same time of the same schedule is the same task, and no other one is.
func TestID(t *testing.T) {
	t.Parallel()
	r := schedule.Record{From: "ann", Definition: schedule.Definition{Name: "s"}, Generation: 1}
	when := at("2026-01-01T00:00:00Z")
	id := r.Due(when).ID
	if !subjects.ValidToken(id) || r.Due(when.In(time.FixedZone("x", 3600))).ID != id {
		t.Errorf("ID %q", id)
	}
	for _, other := range []schedule.Record{
		{From: "bob", Definition: r.Definition, Generation: 1},
		{From: "ann", Definition: schedule.Definition{Name: "t"}, Generation: 1},
		{From: "ann", Definition: r.Definition, Generation: 2},
	} {
		if other.Due(when).ID == id {
			t.Errorf("%+v has the same id", other)
		}
	}
	if r.Due(when.Add(time.Nanosecond)).ID == id {
		t.Error("another time has the same id")
	}
}

// TestSkippedTimes: where clocks go forward, a time that is skipped comes right
// after, at midnight and where they skip half an hour as well.
func TestSkippedTimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cron, zone, from string
		want             []string // by the clocks there
	}{
		{"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{"29 03:30", "30 02:30"}},
		{"*/20 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{"29 03:00", "29 03:20", "29 03:40", "30 02:00"}},
		{"0 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", []string{"29 03:00", "29 04:00", "29 05:00"}},
		{"0 0 * * *", "Africa/Cairo", "2026-04-22T12:00:00Z", []string{"23 00:00", "24 01:00", "25 00:00"}},
		{"*/30 0,1 * * *", "Africa/Cairo", "2026-04-23T12:00:00Z", []string{"24 01:00", "24 01:30", "25 00:00"}},
		{"@daily", "Asia/Beirut", "2026-03-28T12:00:00Z", []string{"29 01:00", "30 00:00"}},
		{"59 23 * * *", "Asia/Beirut", "2026-03-28T12:00:00Z", []string{"28 23:59", "29 23:59"}},
		{"10 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", []string{"04 02:40", "05 02:10"}},
		{"0 9 * * *", "Pacific/Apia", "2011-12-29T10:30:00Z", []string{"29 09:00", "31 09:00", "01 09:00"}},
		{"0 0 29 2 *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{"29 00:00"}},
	} {
		d := schedule.Definition{Cron: c.cron, TimeZone: c.zone}
		clock, err := d.Clock(time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, c.from)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for range c.want {
			at = clock.Next(at)
			got = append(got, at.In(zone).Format("02 15:04"))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s in %s from %s: %v, want %v", c.cron, c.zone, c.from, got, c.want)
		}
	}
}
