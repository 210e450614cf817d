package bus

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func writes(ctx context.Context, names ...string) []*write {
	var ws []*write
	for i, name := range names {
		ws = append(ws, &write{Record: Record{Subject: name, WriteID: strconv.Itoa(i), Data: make([]byte, 10)}, ctx: ctx})
	}
	return ws
}

func names(ws []*write) string {
	var s []string
	for _, w := range ws {
		s = append(s, w.Subject+w.WriteID)
	}
	return strings.Join(s, " ")
}

func TestTake(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	gone, cancel := context.WithCancel(ctx)
	cancel()
	for _, tt := range []struct {
		name               string
		queue              []*write
		limit, bytes       int
		batch, rest, given string
	}{
		{"all", writes(ctx, "a", "b"), 9, 99, "a0 b1", "", ""},
		{"limit", writes(ctx, "a", "b", "c"), 2, 99, "a0 b1", "c2", ""},
		{"one per subject", writes(ctx, "a", "a", "b", "a"), 9, 99, "a0 b2", "a1 a3", ""},
		{"limit after repeats", writes(ctx, "a", "a", "b", "c"), 2, 99, "a0 b2", "a1 c3", ""},
		{"bytes", writes(ctx, "a", "b", "c"), 9, 15, "a0 b1", "c2", ""},
		{"always one", writes(ctx, "a", "b"), 9, 1, "a0", "b1", ""},
		{"gone", append(writes(gone, "x"), writes(ctx, "a")...), 9, 99, "a0", "", "x0"},
	} {
		q := queue(tt.queue)
		batch, given := q.take(tt.limit, tt.bytes)
		got := []string{names(batch), names(q), names(given)}
		if diff := cmp.Diff([]string{tt.batch, tt.rest, tt.given}, got); diff != "" {
			t.Errorf("%s: batch, rest, gone (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Whatever the queue: nothing is lost or doubled, a subject keeps its order,
// and no batch has a subject twice.
func TestTakeProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q := queue(writes(t.Context(), rapid.SliceOf(rapid.SampledFrom([]string{"a", "b", "c", "d"})).Draw(t, "queue")...))
		want := map[string][]string{}
		for _, w := range q {
			want[w.Subject] = append(want[w.Subject], w.WriteID)
		}
		limit, bytes := rapid.IntRange(1, 5).Draw(t, "limit"), rapid.IntRange(1, 60).Draw(t, "bytes")
		got := map[string][]string{}
		for len(q) > 0 {
			batch, _ := q.take(limit, bytes)
			if len(batch) == 0 || len(batch) > limit {
				t.Fatalf("batch of %d, limit %d", len(batch), limit)
			}
			seen := map[string]bool{}
			for _, w := range batch {
				if seen[w.Subject] {
					t.Fatalf("%s is twice in a batch", w.Subject)
				}
				seen[w.Subject] = true
				got[w.Subject] = append(got[w.Subject], w.WriteID)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("writes per subject (-want +got):\n%s", diff)
		}
	})
}

func TestSortOut(t *testing.T) {
	t.Parallel()
	batch := writes(t.Context(), "free", "same", "mine", "stale", "behind", "purged")
	for i, expected := range []uint64{0, 7, 7, 7, 9, 9} {
		batch[i].Expected = expected
	}
	s := sortOut(batch, map[string]place{
		"same": {7, "x"}, "mine": {8, "2"}, "stale": {8, "x"}, "behind": {8, "x"},
	})
	got := []string{names(s.again), names(s.stored), names(s.stale), names(s.unclear)}
	if diff := cmp.Diff([]string{"free0 same1", "mine2", "stale3", "behind4 purged5"}, got); diff != "" {
		t.Errorf("again, stored, stale, unclear (-want +got):\n%s", diff)
	}
}

func TestParseAck(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]ack{
		`{"stream":"S","seq":12}`:                              {Stream: "S", Seq: 12},
		`{"stream":"S", "seq": 12}`:                            {Stream: "S", Seq: 12},
		`{"stream":"S","seq": 12}`:                             {Stream: "S", Seq: 12},
		`{"stream":"S","seq":12,"duplicate": true}`:            {Stream: "S", Seq: 12, Duplicate: true},
		`{"stream":"S","domain":"hub","seq":12}`:               {Stream: "S", Seq: 12},
		`{"stream":"S","seq":12,"batch":"b","count":3}`:        {Stream: "S", Seq: 12, Batch: "b", Count: 3},
		`{"type":"io.nats.pub_ack","stream":"S","seq":1}`:      {Stream: "S", Seq: 1},
		`{"stream":"S\"x","seq":18446744073709551615}`:         {Stream: `S"x`, Seq: 18446744073709551615},
		`{"error":{"code":400,"err_code":10071},"stream":"S"}`: {},
		`{"stream":"S","seq":12`:                               {},
		`{"stream":"S","seq":}`:                                {},
		`{"accepted":true}`:                                    {},
		``:                                                     {},
	} {
		got, err := parseAck([]byte(in))
		if (err != nil) != (want == ack{}) {
			t.Errorf("parseAck(%s) = %v", in, err)
		}
		if diff := cmp.Diff(want, got); err == nil && diff != "" {
			t.Errorf("parseAck(%s) (-want +got):\n%s", in, diff)
		}
	}
}

func FuzzParseDelivery(f *testing.F) {
	f.Add("$JS.ACK.S.C.1.22.333.1700000000000000000.4")
	f.Add("$JS.ACK.hub.HASH.S.C.1.22.333.1700000000000000000.4")
	f.Add("$JS.ACK.hub.HASH.S.C.1.22.333.1700000000000000000.4.token")
	f.Add("$JS.ACK.S.C.1.22.x.1.4")
	f.Fuzz(func(t *testing.T, reply string) {
		if d, err := parseDelivery(reply); err != nil && d != (delivery{}) {
			t.Errorf("parseDelivery(%q) = %+v with error %v", reply, d, err)
		}
	})
}

func TestParseDelivery(t *testing.T) {
	t.Parallel()
	want := delivery{delivered: 1, stream: 22, consumer: 333, pending: 4, time: 1700000000000000000}
	for _, reply := range []string{
		"$JS.ACK.S.C.1.22.333.1700000000000000000.4",
		"$JS.ACK.hub.HASH.S.C.1.22.333.1700000000000000000.4",
		"$JS.ACK._.HASH.S.C.1.22.333.1700000000000000000.4.token",
	} {
		if got, err := parseDelivery(reply); err != nil || got != want {
			t.Errorf("parseDelivery(%q) = %+v, %v, want %+v", reply, got, err, want)
		}
	}
	for _, reply := range []string{"", "_INBOX.x", "$JS.ACK.", "$JS.ACK.S.C.1.2.3.4", "$JS.ACK.S.C.1.22.x.1.4", "$JS.ACK.S.C.1.22.-3.1.4"} {
		if got, err := parseDelivery(reply); err == nil {
			t.Errorf("parseDelivery(%q) = %+v, want an error", reply, got)
		}
	}
}

func TestTTLSeconds(t *testing.T) {
	t.Parallel()
	for in, want := range map[time.Duration]string{
		1: "1s", time.Second: "1s", time.Second + 1: "2s", 25 * time.Hour: "90000s",
	} {
		if got := ttlSeconds(in); got != want {
			t.Errorf("ttlSeconds(%v) = %s, want %s", in, got, want)
		}
	}
}

func TestVersionAtLeast(t *testing.T) {
	t.Parallel()
	for have, want := range map[string]bool{
		"2.15.1": true, "2.15.2": true, "2.15.1-RC.1": true, "2.16.0": true, "3.0.0": true,
		"2.15.0": false, "2.14.9": false, "": false, "dev": false, "2.15": false,
	} {
		if got := versionAtLeast(have, minVersion); got != want {
			t.Errorf("versionAtLeast(%q) = %t, want %t", have, got, want)
		}
	}
}
