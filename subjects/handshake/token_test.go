package handshake_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

var (
	noon = time.Date(2025, 11, 22, 12, 0, 0, 0, time.UTC)
	old  = handshake.Key{ID: "k1", Secret: bytes.Repeat([]byte{1}, 32), Created: noon}
	cur  = handshake.Key{ID: "k2", Secret: bytes.Repeat([]byte{2}, 32), Created: noon}
)

const (
	ours   subjects.SessionID = "a2a-20251122T120000Z-7f3a9c21"
	theirs subjects.SessionID = "a2a-20251122T120000Z-7f3a9c22"
)

// TestTokenVector holds the form for those who check tokens elsewhere.
func TestTokenVector(t *testing.T) {
	t.Parallel()
	const want = "parley1.k1.1763816400.3rrAdXryq85JIMRfCYOk1H4n06zfbOPmICGA7jpp1ZI"
	got := handshake.NewToken(handshake.Keys{old}, ours, noon.Add(handshake.TokenLife))
	if got != want {
		t.Errorf("token %s, want %s", got, want)
	}
}

func TestCheckToken(t *testing.T) {
	t.Parallel()
	both := handshake.Keys{cur, old}
	token := handshake.NewToken(both, ours, noon.Add(time.Hour))
	parts := strings.Split(token, ".")
	later := strings.Join([]string{parts[0], parts[1], "1999999999", parts[3]}, ".")
	for _, c := range []struct {
		name  string
		keys  handshake.Keys
		id    subjects.SessionID
		token string
		at    time.Time
		want  subjects.Code
	}{
		{"good", both, ours, token, noon, ""},
		{"to the last second", both, ours, token, noon.Add(time.Hour - time.Second), ""},
		{"over", both, ours, token, noon.Add(time.Hour), subjects.CodeSessionExpired},
		{"of an older key", both, ours, handshake.NewToken(handshake.Keys{old}, ours, noon.Add(time.Hour)), noon, ""},
		{"of a key that went", handshake.Keys{cur}, ours, handshake.NewToken(handshake.Keys{old}, ours, noon.Add(time.Hour)), noon, subjects.CodeAuthFailed},
		{"of another session", both, theirs, token, noon, subjects.CodeAuthFailed},
		{"made to last", both, ours, later, noon, subjects.CodeAuthFailed},
		{"of another key's name", both, ours, strings.Replace(token, ".k2.", ".k1.", 1), noon, subjects.CodeAuthFailed},
		{"of another scheme", both, ours, strings.Replace(token, "parley1", "parley0", 1), noon, subjects.CodeAuthFailed},
		{"none", both, ours, "", noon, subjects.CodeAuthFailed},
		{"dots", both, ours, "...", noon, subjects.CodeAuthFailed},
		{"no keys", nil, ours, token, noon, subjects.CodeAuthFailed},
	} {
		err := handshake.CheckToken(c.keys, c.id, c.token, c.at)
		if subjects.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err != nil && len(c.token) > 20 && strings.Contains(err.Error(), parts[3]) {
			t.Errorf("%s: the error shows the token", c.name)
		}
	}
}

// TestCanonicalIsInjective: different fields, different bytes, wherever they
// are cut.
func TestCanonicalIsInjective(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		fields := rapid.SliceOfN(rapid.StringN(0, 6, -1), 1, 5)
		a, b := fields.Draw(t, "a"), fields.Draw(t, "b")
		same := bytes.Equal(handshake.Canonical(a...), handshake.Canonical(b...))
		if same != slices.Equal(a, b) {
			t.Fatalf("%q and %q", a, b)
		}
	})
	if bytes.Equal(handshake.Canonical("ab", "c"), handshake.Canonical("a", "bc")) {
		t.Error("ab+c and a+bc are the same")
	}
}

func record(version uint64, output string) handshake.Record {
	return handshake.Record{
		SessionID: ours, Version: version, Time: noon,
		Entry:      handshake.Entry{AgentID: "a", ExecutionTime: noon, Status: "completed", Output: fleet.MustEncode(output)},
		SharedData: map[string]json.RawMessage{fmt.Sprintf("k%d", version%2): fleet.MustEncode(version)},
	}
}

func TestFold(t *testing.T) {
	t.Parallel()
	third := record(3, "z")
	third.Constraints = &handshake.Constraints{MaxExecutionTime: 5}
	third.Metadata = map[string]json.RawMessage{"m": []byte(`1`)}
	v := handshake.Fold(ours, []handshake.Record{record(1, "x"), record(2, "y"), third})
	c := v.Context
	if len(c.PreviousAgents) != 3 || c.Version != 3 || c.PreviousAgents[1].Version != 2 {
		t.Errorf("entries %+v at version %d, want 3", c.PreviousAgents, c.Version)
	}
	if string(c.SharedData["k1"]) != "3" || string(c.SharedData["k0"]) != "2" || c.Constraints.MaxExecutionTime != 5 || string(c.Metadata["m"]) != "1" {
		t.Errorf("context %+v, want the latest word on each name", c)
	}
	if _, err := handshake.DecodeContext(fleet.MustEncode(v)); err != nil {
		t.Errorf("what is folded does not decode: %v", err)
	}
}

// TestBoundKeepsTheNewest: what has to go goes oldest first, and says so.
func TestBoundKeepsTheNewest(t *testing.T) {
	t.Parallel()
	var records []handshake.Record
	for i := range 50 {
		records = append(records, record(uint64(i+1), strings.Repeat("x", 1000)))
	}
	for _, size := range []int{100_000, 30_000, 5_000, 2_000} {
		v := handshake.Fold(ours, records)
		if !v.Bound(size) || len(fleet.MustEncode(v)) > size {
			t.Errorf("%d bytes, want at most %d", len(fleet.MustEncode(v)), size)
		}
		list := v.Context.PreviousAgents
		last := list[len(list)-1]
		if last.Version != 50 || size >= 30_000 && last.Omitted {
			t.Errorf("within %d bytes the newest entry is %+v", size, last)
		}
		if size == 30_000 && (!list[0].Omitted || len(list) != 50) {
			t.Errorf("within %d bytes there are %d entries, the oldest %+v", size, len(list), list[0])
		}
		if size == 2_000 && string(v.Context.Metadata["omitted_up_to_version"]) != strconv.FormatUint(list[0].Version-1, 10) {
			t.Errorf("omitted %s, the oldest entry is %d", v.Context.Metadata["omitted_up_to_version"], list[0].Version)
		}
	}
}
