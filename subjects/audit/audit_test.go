package audit_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"parley/subjects"
	"parley/subjects/audit"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

func line(text string) string {
	return audit.Line(&handshake.LogLine{
		Timestamp: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC), AgentID: "a", EventType: "x",
		Data: fleet.MustEncode(map[string]string{"text": text}),
	})
}

// chain is three blocks of two lines each.
func chain() []*audit.Block {
	var list []*audit.Block
	var prev *audit.Block
	for i := range 3 {
		prev = audit.Seal(prev, "2026-11-21", audit.Positions{"S": uint64(i)}, []string{line(strconv.Itoa(i)), line("x\u2028\u009b<&>")})
		list = append(list, prev)
	}
	return list
}

// check walks a chain as a reader does: from what is stored.
func check(blocks []*audit.Block) error {
	var prev *audit.Block
	for _, b := range blocks {
		stored, err := audit.Decode(fleet.MustEncode(b))
		if err == nil {
			err = audit.Check(prev, stored)
		}
		if err != nil {
			return err
		}
		prev = stored
	}
	return nil
}

func TestChain(t *testing.T) {
	t.Parallel()
	if err := check(chain()); err != nil {
		t.Errorf("a chain as it was made: %v", err)
	}
	if err := check(chain()[1:]); err != nil {
		t.Errorf("a chain whose oldest blocks are too old: %v", err)
	}
	for name, c := range map[string]struct {
		tamper func([]*audit.Block) []*audit.Block
		want   string
	}{
		"changed": {func(l []*audit.Block) []*audit.Block {
			l[1].Lines[0] = line("forged")
			return l
		}, "lines 3 to 4 of 2026-11-21 has been changed"},
		"a line out": {func(l []*audit.Block) []*audit.Block {
			l[1].Lines = l[1].Lines[1:]
			return l
		}, "has been changed"},
		"a block out": {func(l []*audit.Block) []*audit.Block { return slices.Delete(l, 1, 2) }, "lines 3 to 4 are missing"},
		"put in its place": {func(l []*audit.Block) []*audit.Block {
			l[1] = audit.Seal(l[0], l[1].Day, l[1].Positions, []string{line("a"), line("b")})
			return l
		}, "lines 5 to 6 does not follow"},
		"moved": {func(l []*audit.Block) []*audit.Block {
			l[2].Day = "2026-11-22"
			return l
		}, "has been changed"},
	} {
		if err := check(c.tamper(chain())); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestLinesAreHarmless: no text of an agent steers a terminal or ends a line,
// and all of it can be read back.
func TestLinesAreHarmless(t *testing.T) {
	t.Parallel()
	const text = "a\x1b[31m\n\r\x07b\u009b31m\u2028\u202ec\u2066d\x7f\u200fé✓"
	l := line(text)
	for _, r := range l {
		if r < ' ' || r >= 0x7f && r <= 0x9f || strings.ContainsRune("\u2028\u2029\u202e\u2066\u200f", r) {
			t.Errorf("the line has %U: %q", r, l)
		}
	}
	got, err := handshake.DecodeLogLine([]byte(l))
	if err != nil {
		t.Fatal(err)
	}
	var data map[string]string
	if err := json.Unmarshal(got.Data, &data); err != nil || data["text"] != text {
		t.Errorf("read back %q, %v, want %q", data["text"], err, text)
	}
}

func TestDecodeRead(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"limit":101}`, `{"limit":-1}`, `{"wait_seconds":61}`, `{"since":"now"}`, `[`} {
		if _, err := audit.DecodeRead([]byte(text)); subjects.CodeOf(err) != subjects.CodeInvalidMessage {
			t.Errorf("%s: %v, want invalid_message", text, err)
		}
	}
	if r, err := audit.DecodeRead([]byte(`{"after_seq":3,"since":"2026-11-21T00:00:00Z"}`)); err != nil || r.AfterSeq != 3 {
		t.Errorf("read %+v, %v", r, err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range chain() {
		f.Add(fleet.MustEncode(b))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := audit.Decode(data)
		if err != nil {
			return
		}
		if audit.Check(nil, b) != nil {
			return
		}
		again, err := audit.Decode(fleet.MustEncode(b))
		if err != nil || audit.Check(nil, again) != nil {
			t.Fatalf("a block that counts does not when it is written again: %v", err)
		}
	})
}
