package runs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"path/filepath"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

// Bounds of a document that is read through the API.
const (
	maxDocument = 1 << 20   // bytes of one that a message holds
	partSize    = 512 << 10 // bytes of a part
)

// leaveFor is how long it is tried to leave a document where it is to be.
const leaveFor = time.Minute

// document writes the document of a run that has ended, piece by piece. It
// follows from what is stored alone.
func (w *Worker) document(ctx context.Context, rec *run.Record, to io.Writer) error {
	p := &printer{to: to}
	p.head(&run.Output{
		Header: fleet.Header{Type: run.TypeOutput, ProtocolVersion: fleet.Version},
		RunID:  rec.RunID, TaskType: rec.Definition.TaskType, Description: rec.Definition.Description,
		State: rec.State, Reason: rec.Reason, Created: rec.Created, Ended: *rec.Ended, Tokens: rec.Tokens,
	})
	for i := range rec.Definition.Agents {
		node := &rec.Definition.Agents[i]
		r := run.Result{Node: node.Name(), Status: rec.Nodes[node.Name()]}
		if node.FanOut == nil {
			// What comes in after a run has given a task up does not count.
			if r.State == run.Done || r.State == run.Failed {
				res, err := w.result(ctx, rec.RunID, r.TaskID)
				if err != nil {
					return err
				}
				r.Result = res
			}
			p.result(i, &r)
			p.endItems(0)
			continue
		}
		items, err := w.latest(ctx, rec, r.Node)
		if err != nil {
			return err
		}
		p.result(i, &r)
		for k, it := range items {
			if it.Result, err = w.itemResult(ctx, rec.RunID, it); err != nil {
				return err
			}
			p.item(k, &it)
		}
		p.endItems(len(items))
	}
	p.tail()
	return p.err
}

// printer prints a document.
type printer struct {
	to  io.Writer
	err error
}

func (p *printer) print(parts ...string) {
	for _, s := range parts {
		if p.err == nil {
			_, p.err = io.WriteString(p.to, s)
		}
	}
}

// value is v as indented JSON, without the last line's brackets.
func (p *printer) value(v any, prefix, cut string) string {
	raw, err := fleet.Encode(v)
	var b bytes.Buffer
	if err == nil {
		err = json.Indent(&b, raw, prefix, "  ")
	}
	if err != nil {
		p.err = errors.Join(p.err, err)
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte(cut)))
}

func (p *printer) head(o *run.Output) {
	o.Results = []run.Result{}
	p.print(p.value(o, "", "]\n}"))
}

func (p *printer) separate(k int) {
	if k > 0 {
		p.print(",")
	}
}

// result prints a node, without the end.
func (p *printer) result(k int, r *run.Result) {
	p.separate(k)
	p.print("\n    ", p.value(r, "    ", "\n    }"))
}

func (p *printer) item(k int, i *run.Item) {
	if k == 0 {
		p.print(",\n      \"each\": [")
	}
	p.separate(k)
	p.print("\n        ", p.value(i, "        ", ""))
}

func (p *printer) endItems(n int) {
	if n > 0 {
		p.print("\n      ]")
	}
	p.print("\n    }")
}

func (p *printer) tail() { p.print("\n  ]\n}\n") }

// page is a part of a document.
type page struct {
	data []byte
	size int64 // of the whole
}

// window keeps of what is written to it the bytes from..from+most.
type window struct {
	page
	from, most int64
}

func (b *window) Write(data []byte) (int, error) {
	lo := min(max(b.from-b.size, 0), int64(len(data)))
	hi := min(max(b.from+b.most-b.size, lo), int64(len(data)))
	b.data = append(b.data, data[lo:hi]...)
	b.size += int64(len(data))
	return len(data), nil
}

// page is the part of a run's document from an offset on.
func (w *Worker) page(ctx context.Context, rec *run.Record, from, most int64) (page, error) {
	b := &window{from: from, most: most}
	err := w.document(ctx, rec, b)
	return b.page, err
}

// publishOutput tells whoever listens what a run has come to, if a message
// holds it.
func (d *driver) publishOutput(ctx context.Context, rec *run.Record) {
	// A driver is stopped when its run has ended, and that is now.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*callTry)
	defer cancel()
	p, err := d.page(ctx, rec, 0, maxDocument)
	if err == nil && p.size <= maxDocument {
		err = d.cfg.Bus.Publish(subjects.RunEvent(rec.RunID), p.data, bus.Header{subjects.HeaderKind: {kindOutput}})
	}
	if err != nil {
		d.log.Debug("output is not published; run output has it", slog.Any("error", err))
	}
}

const kindOutput = "output"

// checkLocation says whether a run may leave its document somewhere. That it
// does not lead out of the directory is the definition's to check, and that of
// the system for each file.
func (w *Worker) checkLocation(at string) error {
	switch {
	case at == "":
		return nil
	case w.out == nil:
		return subjects.Errorf(subjects.CodeInvalidMessage, "this fleet writes no files").At("/output_location").
			WithRemedy("leave it out, and read the document with run output; or start the workers with --run-output DIR")
	}
	return nil
}

// leaveOutput leaves a run's document where it is to be, and tries for a while:
// a run ends without its file rather than never.
func (d *driver) leaveOutput(ctx context.Context, rec *run.Record) error {
	err := d.writeOutput(ctx, rec)
	if err == nil {
		return nil
	}
	if d.unwritten.IsZero() {
		d.unwritten = time.Now()
	}
	if ctx.Err() != nil || time.Since(d.unwritten) < leaveFor {
		return err
	}
	d.log.Error("the run ends without its file; run output has the document",
		slog.String("output_location", rec.Definition.OutputLocation), slog.Any("error", err))
	return nil
}

// writeOutput leaves a run's document where it is to be: whole or not at all.
func (w *Worker) writeOutput(ctx context.Context, rec *run.Record) error {
	at := rec.Definition.OutputLocation
	if at == "" || w.out == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	at = filepath.FromSlash(path.Clean(at))
	if dir := filepath.Dir(at); dir != "." {
		if err := w.out.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("make the directory of the output: %w", err)
		}
	}
	temp := at + "." + string(rec.RunID) + "." + string(w.cfg.ID) + ".tmp"
	if err := w.writeFile(ctx, rec, temp); err != nil {
		return errors.Join(fmt.Errorf("write the output: %w", err), w.out.Remove(temp))
	}
	if err := w.out.Rename(temp, at); err != nil {
		return errors.Join(fmt.Errorf("write the output: %w", err), w.out.Remove(temp))
	}
	return nil
}

func (w *Worker) writeFile(ctx context.Context, rec *run.Record, name string) error {
	f, err := w.out.Create(name)
	if err != nil {
		return err
	}
	err = w.document(ctx, rec, f)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
