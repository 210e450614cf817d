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

// walk walks a chain as a reader does: from what is stored.
func walk(t *testing.T, blocks []*audit.Block) *audit.Chain {
	t.Helper()
	c := new(audit.Chain)
	for i, b := range blocks {
		stored, err := audit.Decode(fleet.MustEncode(b))
		if err != nil {
			t.Fatal(err)
		}
		c.Add(stored, audit.Foreign{Seq: uint64(i + 1)})
	}
	return c
}

// TestForeign: what others put into the stream is named, wherever it is, and
// hides nothing; what was done to the audit itself is still found beside it.
func TestForeign(t *testing.T) {
	t.Parallel()
	l := chain()
	fork := audit.Seal(l[0], l[1].Day, nil, []string{line("fork")})
	far := audit.Seal(nil, l[1].Day, nil, []string{line("far")})
	far.First = 1000
	mock := &audit.Block{First: l[1].Next(), Prev: l[1].Hash, Hash: "x", Lines: []string{"{}"}}
	lost := *l[0]
	lost.Lines = []string{line("other"), l[0].Lines[1]}
	for name, c := range map[string]struct {
		blocks  []*audit.Block
		foreign []uint64
		broken  string
	}{
		"empty objects":          {[]*audit.Block{{}, l[0], {}, l[1], {}, {}, l[2], {}}, []uint64{1, 3, 5, 6, 8}, ""},
		"an old block again":     {[]*audit.Block{l[0], l[1], l[0], l[2]}, []uint64{3}, ""},
		"the last one again":     {[]*audit.Block{l[0], l[1], l[2], l[2]}, []uint64{4}, ""},
		"a fork":                 {[]*audit.Block{l[0], l[1], fork, l[2]}, []uint64{3}, ""},
		"a fork at the end":      {[]*audit.Block{l[0], l[1], l[2], fork}, []uint64{4}, ""},
		"one that looks like it": {[]*audit.Block{l[0], l[1], mock, l[2]}, []uint64{3}, ""},
		"numbers far away":       {[]*audit.Block{l[0], far, l[1], l[2]}, []uint64{2}, ""},
		"changed beside foreign": {[]*audit.Block{l[0], {}, l[2], {}}, []uint64{2, 4}, "lines 3 to 4 are missing"},
		"the oldest is changed":  {[]*audit.Block{&lost, l[1], l[2]}, []uint64{1}, "lines 1 to 2 of 2026-11-21 has been changed"},
		"the newest is changed":  {[]*audit.Block{l[0], l[1], {First: 5, Prev: l[2].Prev, Hash: l[2].Hash}}, nil, "has been changed"},
	} {
		got := walk(t, c.blocks)
		var seqs []uint64
		for _, f := range got.Foreign {
			seqs = append(seqs, f.Seq)
		}
		text := ""
		if err := got.Broken(); err != nil {
			text = err.Error()
		}
		if !slices.Equal(seqs, c.foreign) || !strings.Contains(text, c.broken) || (text == "") != (c.broken == "") {
			t.Errorf("%s: foreign %v and %q, want %v and %q", name, seqs, text, c.foreign, c.broken)
		}
	}
	many := walk(t, append(slices.Repeat([]*audit.Block{{}}, 1000), l...))
	if len(many.Foreign)+many.More != 1000 || len(many.Foreign) > 100 || many.Broken() != nil || many.Last.Next() != 7 {
		t.Errorf("of 1000 foreign ones %d are named, and %d counted: %v", len(many.Foreign), many.More, many.Broken())
	}
	if _, err := audit.Decode([]byte(`{"x":` + strings.Repeat("[", 65) + strings.Repeat("]", 65) + "}")); err == nil {
		t.Error("a block that no reply has room for is one")
	}
}

func TestChain(t *testing.T) {
	t.Parallel()
	if err := walk(t, chain()).Broken(); err != nil {
		t.Errorf("a chain as it was made: %v", err)
	}
	if err := walk(t, chain()[1:]).Broken(); err != nil {
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
		if err := walk(t, c.tamper(chain())).Broken(); err == nil || !strings.Contains(err.Error(), c.want) {
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
		// Whatever it is, the blocks around it are found.
		whole := chain()
		c := new(audit.Chain)
		for i, block := range []*audit.Block{whole[0], b, whole[1], whole[2]} {
			c.Add(block, audit.Foreign{Seq: uint64(i)})
		}
		if c.Broken() != nil && audit.Check(whole[0], b) != nil {
			t.Fatalf("it hides the blocks around it: %v", c.Broken())
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
