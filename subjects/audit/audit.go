// Package audit holds the form of the audit: log lines in blocks, each sealed
// with a hash that covers the one before it, so that nothing can be changed or
// taken out unseen without writing everything after it anew.
//
// Everything here is pure: blocks are made by the audit's worker, and checked by
// whoever reads them.
package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// Positions is how far the audit has read each of its sources, by stream.
type Positions map[string]uint64

// Block is some lines of one day, sealed.
type Block struct {
	First     uint64        `json:"first"` // number of the first line, from 1
	Day       string        `json:"day"`   // UTC, 2026-11-21
	Prev      string        `json:"prev"`  // hash of the block before, "" for the first
	Hash      string        `json:"hash"`
	Positions Positions     `json:"positions"`
	Lines     []string      `json:"lines"` // each a log line in JSON, byte for byte as it was sealed
	Unknown   fleet.Unknown `json:",unknown"`
}

// Next is the number of the line that follows the block.
func (b *Block) Next() uint64 { return b.First + uint64(len(b.Lines)) }

// dayLayout is the form of Block.Day.
const dayLayout = "2006-01-02"

// Day is the day of t.
func Day(t time.Time) string { return t.UTC().Format(dayLayout) }

// Seal puts lines behind prev (nil: they are the first).
func Seal(prev *Block, day string, positions Positions, lines []string) *Block {
	b := &Block{First: 1, Day: day, Positions: positions, Lines: lines}
	if prev != nil {
		b.First, b.Prev = prev.Next(), prev.Hash
	}
	b.Hash = b.sum()
	return b
}

// sum is the block's hash: SHA-256 over the length-prefixed fields.
func (b *Block) sum() string {
	fields := []string{"parley/audit/v1", b.Prev, b.Day, strconv.FormatUint(b.First, 10), string(fleet.MustEncode(b.Positions))}
	fields = append(fields, b.Lines...)
	sum := sha256.Sum256(handshake.Canonical(fields...))
	return hex.EncodeToString(sum[:])
}

// Decode reads a block as it is stored.
func Decode(data []byte) (*Block, error) {
	b, err := fleet.DecodeStored[Block](data)
	if err == nil {
		err = nested(b)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Check says what is wrong with b as the block after prev; nil for prev when b
// is the oldest that there is.
func Check(prev, b *Block) error {
	if prev != nil && b.First != prev.Next() {
		return fmt.Errorf("lines %d to %d are missing", prev.Next(), b.First-1)
	}
	if prev != nil && b.Prev != prev.Hash {
		return fmt.Errorf("the block of lines %d to %d does not follow the one before it", b.First, b.Next()-1)
	}
	if b.sum() != b.Hash {
		return fmt.Errorf("the block of lines %d to %d of %s has been changed", b.First, b.Next()-1, b.Day)
	}
	return nil
}

// Line is a log line as the audit keeps it: what could steer a terminal, or end
// a line, is escaped.
func Line(l *handshake.LogLine) string {
	if len(l.Data) == 0 {
		l.Data = json.RawMessage("{}")
	}
	return Escape(string(fleet.MustEncode(l)))
}

// Escape writes as \u… what of JSON text a terminal or a reader of lines may
// take for more than text: C1 controls, line separators, marks of direction.
func Escape(text string) string {
	if !strings.ContainsFunc(text, harmful) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if harmful(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func harmful(r rune) bool {
	return r >= 0x7f && r <= 0x9f || r == '\u2028' || r == '\u2029' || r == '\u061c' ||
		r >= '\u200e' && r <= '\u200f' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069'
}

// Bounds of a read.
const (
	MaxLimit = 100
	MaxWait  = 60
)

// Read asks for blocks: audit read.
type Read struct {
	AfterSeq    uint64    `json:"after_seq,omitzero"`    // of ReadReply.Seq
	Since       time.Time `json:"since,omitzero"`        // only blocks of that day on
	Limit       int       `json:"limit,omitzero"`        // absent and at most 100
	WaitSeconds float64   `json:"wait_seconds,omitzero"` // for the next one; at most 60
}

// ReadReply is some blocks; More says that the next page is not empty. A block
// may be one that does not follow the one before it: see Chain.
type ReadReply struct {
	Blocks  []json.RawMessage `json:"blocks"`
	Places  []Place           `json:"places"`            // of the blocks in the stream, one for each
	Foreign []Foreign         `json:"foreign,omitempty"` // entries in between that are no blocks
	Seq     uint64            `json:"seq"`               // to ask for what follows
	More    bool              `json:"more,omitzero"`
}

// Place is where an entry of the audit's stream is.
type Place struct {
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
}

// DecodeRead reads a Read.
func DecodeRead(data []byte) (*Read, error) {
	r, err := fleet.DecodeRequest[Read](data)
	if err != nil {
		return nil, err
	}
	if r.Limit < 0 || r.Limit > MaxLimit {
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "expected 0 to %d, got %d", MaxLimit, r.Limit).At("/limit")
	}
	if r.WaitSeconds < 0 || r.WaitSeconds > MaxWait {
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "expected 0 to %d, got %g", MaxWait, r.WaitSeconds).At("/wait_seconds")
	}
	return &r, nil
}
