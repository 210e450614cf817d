package sessions

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/handshake"
)

// partName is the object that holds a part: session, digest, index.
func partName(id subjects.SessionID, digest string, index int) string {
	return string(id) + "/" + digest + "/" + strconv.Itoa(index)
}

func (w *Worker) put(ctx context.Context, from subjects.AgentID, r *handshake.Put) (any, error) {
	if _, err := w.use(ctx, from, r.SessionID, r.Token); err != nil {
		return nil, err
	}
	if int64(r.Index)*handshake.PartSize+int64(len(r.Data)) > w.cfg.MaxOutput {
		return nil, w.tooLarge("/index")
	}
	if err := w.outputs.Keep(ctx, partName(r.SessionID, r.Digest, r.Index), r.Data); err != nil {
		return nil, outputError(err)
	}
	crash.Point("after_output")
	return &handshake.PutReply{Digest: r.Digest, Index: r.Index}, nil
}

// errNoRoom is the cause of a refusal for want of room for an output.
var errNoRoom = errors.New("no room for an output")

func outputError(err error) error {
	if !errors.Is(err, bus.ErrFull) {
		return unavailable(err)
	}
	e := subjects.Errorf(subjects.CodeRateLimited, "the store of outputs is full").RetryAfter(time.Minute).
		WithRemedy("have sessions that are done deleted, or an operator raise the limit of OBJ_" + subjects.ObjectsOutputs)
	e.Err = errNoRoom
	return e
}

func (w *Worker) tooLarge(pointer string) error {
	e := subjects.Errorf(subjects.CodePayloadTooLarge, "an output may have %d bytes", w.cfg.MaxOutput).At(pointer).
		WithRemedy("keep it elsewhere and append where it is (output_file), or have the operator raise the limit")
	e.Err = errNoRoom
	return e
}

func (w *Worker) fetch(ctx context.Context, from subjects.AgentID, r *handshake.Fetch) (any, error) {
	if _, err := w.use(ctx, from, r.SessionID, r.Token); err != nil {
		return nil, err
	}
	data, err := w.part(ctx, r.SessionID, r.Digest, r.Index)
	if err != nil {
		return nil, err
	}
	return &handshake.FetchReply{Digest: r.Digest, Index: r.Index, Data: data}, nil
}

// part reads one part.
func (w *Worker) part(ctx context.Context, id subjects.SessionID, digest string, index int) ([]byte, error) {
	r, err := w.outputs.Get(ctx, partName(id, digest, index))
	if err == nil {
		defer func() { _ = r.Close() }()
		var data []byte
		if data, err = io.ReadAll(r); err == nil {
			return data, nil
		}
	}
	if errors.Is(err, bus.ErrNotFound) {
		return nil, subjects.Errorf(subjects.CodeNotFound, "there is no part %d of output %s in session %s", index, digest, id).At("/digest")
	}
	return nil, unavailable(err)
}

// settleOutput puts a large output aside, and checks one that was put there.
func (w *Worker) settleOutput(ctx context.Context, id subjects.SessionID, e *handshake.Entry) error {
	if e.Stored != nil {
		return w.verifyStored(ctx, id, e.Stored)
	}
	if len(e.Output) <= handshake.MaxInline {
		return nil
	}
	data := []byte(e.Output)
	var text string
	if json.Unmarshal(e.Output, &text) == nil {
		data = []byte(text) // a text is kept as it is, not quoted
	}
	if int64(len(data)) > w.cfg.MaxOutput {
		return w.tooLarge("/entry/output")
	}
	sum := sha256.Sum256(data)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	for i := 0; i*handshake.PartSize < len(data); i++ {
		part := data[i*handshake.PartSize : min((i+1)*handshake.PartSize, len(data))]
		if err := w.outputs.Keep(ctx, partName(id, digest, i), part); err != nil {
			return outputError(err)
		}
	}
	crash.Point("after_output")
	e.Output, e.Stored = nil, &handshake.Stored{Digest: digest, Size: int64(len(data))}
	return nil
}

// verifyStored reads all parts: they must be what the digest says, and hold no
// secret.
func (w *Worker) verifyStored(ctx context.Context, id subjects.SessionID, s *handshake.Stored) error {
	if s.Size > w.cfg.MaxOutput {
		return w.tooLarge("/entry/stored/size")
	}
	done, err := w.verify.take(ctx)
	if err != nil {
		return err
	}
	defer done()
	data := make([]byte, 0, s.Size)
	for i := 0; int64(len(data)) < s.Size; i++ {
		part, err := w.part(ctx, id, s.Digest, i)
		if err != nil {
			return err
		}
		if want := min(s.Size-int64(len(data)), handshake.PartSize); int64(len(part)) != want {
			return subjects.Errorf(subjects.CodeInvalidMessage, "part %d has %d bytes, expected %d", i, len(part), want).
				At("/entry/stored/size").WithRemedy(fmt.Sprintf("put the output in parts of %d bytes, the last one shorter", handshake.PartSize))
		}
		data = append(data, part...)
	}
	if sum := sha256.Sum256(data); "sha256:"+hex.EncodeToString(sum[:]) != s.Digest {
		return subjects.Errorf(subjects.CodeInvalidMessage, "the parts do not have this digest").At("/entry/stored/digest").
			WithRemedy("put the parts again")
	}
	return within(ctx, scanTime+time.Duration(s.Size>>20)*scanMiB, func(ctx context.Context) error {
		found, err := w.scanner.Text(ctx, string(data))
		if err == nil && len(found) > 0 {
			err = secretError(found)
		}
		return err
	})
}
