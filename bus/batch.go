package bus

import "context"

// The pure half of the group committer: which writes go into the next batch,
// and what a look at the stream says about a batch that was refused or lost.

// Limits of a batch. The server takes 1000 messages.
const (
	maxBatch      = 900
	maxBatchBytes = 8 << 20
)

// write is one record on its way through the committer.
type write struct {
	Record
	ctx    context.Context //nolint:containedctx // the caller's, to drop what nobody waits for
	result chan outcome    // capacity 1, gets exactly one
}

// outcome is what the committer tells a writer.
type outcome struct {
	verdict verdict
	seq     uint64 // with verdictStored
	err     error  // with verdictFailed and verdictLook
}

// verdict says what became of a write.
type verdict int

const (
	verdictStored verdict = iota
	verdictLook           // refused as stale: the writer looks what is there
	verdictAlone          // the batch cannot be had: the writer sends it by itself
	verdictFailed         // err is final
)

// queue holds the writes that wait, in the order in which they came.
type queue []*write

// take removes and returns the next batch: at most limit writes and bytes (but
// always one), at most one per subject, each with its caller still waiting.
// Writes on a subject that the batch has already stay, in their order; those
// that nobody waits for are returned as gone.
func (q *queue) take(limit, bytes int) (batch, gone []*write) {
	taken := make(map[string]struct{}, min(limit, len(*q)))
	rest := (*q)[:0]
	for i, w := range *q {
		if len(batch) == limit || (bytes <= 0 && len(batch) > 0) {
			rest = append(rest, (*q)[i:]...)
			break
		}
		if w.ctx.Err() != nil {
			gone = append(gone, w)
			continue
		}
		if _, ok := taken[w.Subject]; ok {
			rest = append(rest, w)
			continue
		}
		taken[w.Subject] = struct{}{}
		batch = append(batch, w)
		bytes -= len(w.Data)
	}
	clear((*q)[len(rest):])
	*q = rest
	return batch, gone
}

// place is where a subject is: its last sequence, and who wrote it.
type place struct {
	seq     uint64
	writeID string
}

// sorted is a batch after a look.
type sorted struct {
	again   []*write // nothing has followed what they expect: commit again
	stored  []*write // stored after all
	stale   []*write // something else followed
	unclear []*write // behind what they expect: purged, or an old replica answered
}

// sortOut sorts a batch by the last place of each subject (none = no message).
func sortOut(batch []*write, last map[string]place) sorted {
	var s sorted
	for _, w := range batch {
		switch at := last[w.Subject]; {
		case at.seq == w.Expected:
			s.again = append(s.again, w)
		case at.seq < w.Expected:
			s.unclear = append(s.unclear, w)
		case w.WriteID != "" && at.writeID == w.WriteID:
			s.stored = append(s.stored, w)
		default:
			s.stale = append(s.stale, w)
		}
	}
	return s
}
