package runs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

// Bounds of what is stored, and read at once.
const (
	maxInline = 4 << 10  // bytes of a result in its chunk; a larger one is stored by itself
	maxGather = 16 << 20 // bytes of the outputs of a fan-out together
)

// storeResult stores what a task has come to; it is stored once.
func (w *Worker) storeResult(ctx context.Context, r subjects.RunID, task subjects.TaskID, res *fleet.Result) error {
	err := w.storeOnce(ctx, subjects.RunResult(r, task), res)
	if errors.Is(err, bus.ErrConflict) {
		return nil // stored before
	}
	return err
}

func (w *Worker) storeOnce(ctx context.Context, subject string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, 2*callTry)
	defer cancel()
	_, err := w.records.Write(ctx, bus.Record{Subject: subject, WriteID: uuid.NewString(), Data: fleet.MustEncode(v), TTL: keepResults})
	return err
}

// clear drops what an earlier run of that name has come to, which is kept for
// longer than its record: it would count as what the new one has.
func (w *Worker) clear(ctx context.Context, r subjects.RunID) error {
	_, err := w.cfg.Bus.Last(ctx, subjects.StreamRuns, subjects.Run(r))
	if !errors.Is(err, bus.ErrNotFound) {
		return err // it is there still: this is a repeat, or a conflict
	}
	old := w.now().Add(-time.Hour) // what somebody else stores who starts it now is not
	var last uint64
	for more := true; more; {
		var left []bus.Msg
		if left, more, err = w.cfg.Bus.History(ctx, subjects.StreamRuns, subjects.RunResult(r, "*"), last+1, 256); err != nil {
			return err
		}
		for _, m := range left {
			if m.Time.After(old) {
				more = false
				break
			}
			last = m.Seq
		}
	}
	if last == 0 {
		return nil
	}
	return w.cfg.Bus.PurgeUpTo(ctx, subjects.StreamRuns, subjects.RunResult(r, "*"), last)
}

// longDefinition is how many bytes a definition has at least that is kept beside
// the records of its run: each of them would have it once more.
const longDefinition = 8 << 10

func definitionSubject(r subjects.RunID, hash string) string {
	return subjects.RunResult(r, hashed("definition %s", hash))
}

// storeDefinition stores a long definition, and returns its hash; "" for others,
// which are in the records.
func (w *Worker) storeDefinition(ctx context.Context, r subjects.RunID, definition []byte) (hash string, err error) {
	if len(definition) < longDefinition {
		return "", nil
	}
	sum := sha256.Sum256(definition)
	hash = hex.EncodeToString(sum[:])
	err = w.storeOnce(ctx, definitionSubject(r, hash), json.RawMessage(definition))
	if errors.Is(err, bus.ErrConflict) {
		return hash, nil // stored before
	}
	return hash, err
}

// decodeRecord reads a stored record, with its definition.
func (w *Worker) decodeRecord(ctx context.Context, data []byte) (*run.Record, error) {
	r, err := run.DecodeRecord(data)
	if err != nil || r.DefinitionHash == "" || len(r.Definition.Agents) > 0 {
		return r, err
	}
	w.mu.Lock()
	l := w.runs[r.RunID]
	known := l != nil && l.rec != nil && l.rec.DefinitionHash == r.DefinitionHash
	if known {
		r.Definition = l.rec.Definition
	}
	w.mu.Unlock()
	if known {
		return r, nil
	}
	m, err := w.cfg.Bus.Last(ctx, subjects.StreamRuns, definitionSubject(r.RunID, r.DefinitionHash))
	if err != nil {
		return nil, fmt.Errorf("read the definition of run %s: %w", r.RunID, err)
	}
	d, err := fleet.DecodeStored[run.Definition](m.Data)
	if err != nil {
		return nil, err
	}
	r.Definition = *d
	return r, nil
}

// result is what a task has come to; nil when it has not.
func (w *Worker) result(ctx context.Context, r subjects.RunID, task subjects.TaskID) (*fleet.Result, error) {
	if task == "" {
		return nil, nil //nolint:nilnil // never begun
	}
	m, err := w.cfg.Bus.Last(ctx, subjects.StreamRuns, subjects.RunResult(r, task))
	if errors.Is(err, bus.ErrNotFound) {
		return nil, nil //nolint:nilnil // it has none
	}
	if err != nil {
		return nil, err
	}
	return fleet.DecodeStored[fleet.Result](m.Data)
}

func chunkSubject(r subjects.RunID, n run.NodeID, k int) string {
	return subjects.RunResult(r, hashed("chunk %s %s %d", r, n, k))
}

// storeChunk stores as many of items as fit as the kth chunk of a node, and
// says how many. ErrConflict: there is a kth chunk.
func (w *Worker) storeChunk(ctx context.Context, r subjects.RunID, n run.NodeID, k int, items []run.Item) (int, error) {
	c := run.Chunk{Node: n}
	for size := 0; len(c.Items) < len(items) && size < chunkBytes; {
		i := items[len(c.Items)]
		if res := fleet.MustEncode(i.Result); len(res) > maxInline {
			if err := w.storeResult(ctx, r, i.TaskID, i.Result); err != nil {
				return 0, err
			}
			i.Result = nil
		} else {
			size += len(res)
		}
		size += maxStatusBytes
		c.Items = append(c.Items, i)
	}
	if err := w.storeOnce(ctx, chunkSubject(r, n, k), &c); err != nil {
		return 0, err
	}
	return len(c.Items), nil
}

const maxStatusBytes = 400 // about

// readChunks gives the chunks of a node from one on, up to another; -1: to the
// last.
func (w *Worker) readChunks(ctx context.Context, r subjects.RunID, n run.NodeID, from, to int) (list []run.Chunk, err error) {
	for k := from; k != to; k++ {
		m, err := w.cfg.Bus.Last(ctx, subjects.StreamRuns, chunkSubject(r, n, k))
		if errors.Is(err, bus.ErrNotFound) {
			break
		}
		if err != nil {
			return nil, err
		}
		c, err := fleet.DecodeStored[run.Chunk](m.Data)
		if err != nil {
			return nil, err
		}
		list = append(list, *c)
	}
	return list, nil
}

// latest gives what became of each item of a node, by index: success for good,
// or the last end there was. Items that never ended are not there. Results
// stored by themselves are left out.
func (w *Worker) latest(ctx context.Context, rec *run.Record, name run.NodeID) (list []run.Item, err error) {
	n := rec.Nodes[name].Items
	if n == nil {
		return nil, nil
	}
	chunks, err := w.readChunks(ctx, rec.RunID, name, 0, n.Chunks)
	if err != nil {
		return nil, err
	}
	byIndex := map[int]run.Item{}
	for _, c := range chunks {
		for _, i := range c.Items {
			if was, there := byIndex[i.Index]; !there || was.State != run.Done && i.Generation > was.Generation {
				byIndex[i.Index] = i
			}
		}
	}
	for i := range n.Total {
		if it, there := byIndex[i]; there {
			list = append(list, it)
		}
	}
	return list, nil
}

// itemResult is the whole result of an item.
func (w *Worker) itemResult(ctx context.Context, r subjects.RunID, i run.Item) (*fleet.Result, error) {
	if i.Result != nil {
		return i.Result, nil
	}
	return w.result(ctx, r, i.TaskID)
}

// outputOf is the output of a node that has ended: of a fan-out the list of
// those of its items, null for one that has none. It is nil for no node, and
// for one that has no output; what was there and is lost is an error for good.
func (d *driver) outputOf(ctx context.Context, rec *run.Record, name run.NodeID) (json.RawMessage, error) {
	n, known := rec.Nodes[name]
	if !known {
		return nil, nil
	}
	var node *run.Node
	for i := range rec.Definition.Agents {
		if rec.Definition.Agents[i].Name() == name {
			node = &rec.Definition.Agents[i]
		}
	}
	if node.FanOut == nil {
		res, err := d.resultOf(ctx, rec, n)
		switch {
		case err != nil:
			return nil, err
		case res != nil:
			return res.Output, nil
		case n.State == run.Done:
			return nil, lost(name)
		}
		return nil, nil
	}
	if n.Items == nil {
		return nil, nil
	}
	items, err := d.latest(ctx, rec, name)
	if err != nil {
		return nil, err
	}
	outputs, size, done := make([]json.RawMessage, n.Items.Total), 0, 0
	for i := range outputs {
		outputs[i] = json.RawMessage("null")
	}
	for _, i := range items {
		if i.State != run.Done || i.Index >= len(outputs) {
			continue
		}
		res, err := d.itemResult(ctx, rec.RunID, i)
		if err != nil {
			return nil, err
		}
		if res == nil {
			break
		}
		if done++; len(res.Output) == 0 {
			continue
		}
		outputs[i.Index] = res.Output
		if size += len(res.Output); size > maxGather {
			return nil, subjects.Errorf(subjects.CodePayloadTooLarge, "the outputs of %s have more than %d bytes together", name, maxGather).
				WithRemedy("have its items answer with less")
		}
	}
	if done < n.Items.Done {
		return nil, lost(name)
	}
	return fleet.MustEncode(outputs), nil
}

// lost refuses what needs the output of a node: without it would be another task.
func lost(name run.NodeID) error {
	return subjects.Errorf(subjects.CodeNotFound, "what %s has come to is not kept any more", name).
		WithRemedy("start the run anew: parley run rerun RUN")
}
