package audit

import (
	"errors"
	"fmt"
	"time"
)

// Foreign is an entry of the audit's stream that is not part of the audit. It
// hides nothing: what comes after it follows what came before it.
type Foreign struct {
	Seq    uint64    `json:"seq"` // in the stream
	Time   time.Time `json:"time"`
	Bytes  int       `json:"bytes"`
	Reason string    `json:"reason"`
}

func (f Foreign) String() string { return fmt.Sprintf("number %d: %s", f.Seq, f.Reason) }

// Chain follows the blocks of an audit in the order in which they are stored.
//
// An entry that is neither sealed nor linked to the last block is foreign. One
// that is either, and does not follow, is in doubt: it is foreign if a later
// block follows the last one, and otherwise it shows that the audit was changed.
// The zero value is a chain that begins with the first sealed block.
type Chain struct {
	Last    *Block    // the last block that follows; nil: there is none
	Foreign []Foreign // the first maxForeign of those that are certain
	More    int       // foreign entries beyond those

	doubts  []Foreign
	cut     int   // doubts beyond maxForeign
	doubt   error // what is wrong with the first of them
	changed error // what no later block heals
	oldest  *Block
}

// maxForeign bounds the foreign entries that are remembered.
const maxForeign = 100

// Verdict is what a Chain makes of an entry.
type Verdict int

// The verdicts.
const (
	Follows   Verdict = iota // it is the next block
	Doubtful                 // it is foreign, or the audit was changed
	IsForeign                // it is not of the audit
)

// Add takes in the next entry: b as Decode gave it, and where it is.
func (c *Chain) Add(b *Block, at Foreign) Verdict {
	err := Check(c.Last, b)
	if err == nil {
		if c.Last == nil && c.oldest != nil && c.oldest.Hash == b.Prev {
			c.changed = Check(nil, c.oldest)
		}
		c.settle()
		c.Last = b
		return Follows
	}
	at.Reason = err.Error()
	sealed := b.sum() == b.Hash
	switch {
	case c.Last == nil && b.First > 0 && b.Hash != "": // changed, or none
		c.oldest = b
	case c.Last == nil, !sealed && !b.follows(c.Last), sealed && b.First < c.Last.Next():
		at.Reason = "no block of this audit"
		c.AddForeign(at)
		return IsForeign
	}
	if c.doubt == nil {
		c.doubt = err
	}
	if len(c.doubts) < maxForeign {
		c.doubts = append(c.doubts, at)
	} else {
		c.cut++
	}
	return Doubtful
}

// AddForeign takes in an entry that is no block at all.
func (c *Chain) AddForeign(f Foreign) {
	if len(c.Foreign) < maxForeign {
		c.Foreign = append(c.Foreign, f)
	} else {
		c.More++
	}
}

// settle makes foreign what was in doubt: a block follows.
func (c *Chain) settle() {
	for _, f := range c.doubts {
		c.AddForeign(f)
	}
	c.More += c.cut
	c.doubts, c.cut, c.doubt = nil, 0, nil
}

// Broken says why the entries so far are not an audit as it was written; nil if
// they are.
func (c *Chain) Broken() error {
	if c.changed != nil {
		return c.changed
	}
	return c.doubt
}

// follows reports whether b says, at least in part, that it comes after prev.
func (b *Block) follows(prev *Block) bool { return b.Prev == prev.Hash || b.First == prev.Next() }

// maxNested bounds the members of a block that this version does not know: a
// reply has room for them.
const maxNested = 64

// nested reports whether a member is an object or list of many parts.
func nested(b *Block) error {
	n := 0
	for _, raw := range b.Unknown {
		for _, c := range raw {
			if c == '{' || c == '[' {
				n++
			}
		}
	}
	if n > maxNested {
		return errors.New("a block with members that no version writes")
	}
	return nil
}
