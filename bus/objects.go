package bus

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	chunkSize  = 128 << 10 // bytes of an object in one message, at most
	maxUnacked = 32        // such messages that wait for their acknowledgement
	// strayAge is how old what belongs to no object must be to be left over, and
	// not to be of a Put that is under way.
	strayAge = 10 * time.Minute
)

// Objects is a NATS object store: values larger than a message. The stock tools
// (nats object …) read and write it, too.
type Objects struct {
	b      *Bus
	bucket string
	stream string // OBJ_<bucket>
}

// Objects opens a bucket; ErrNotFound when it does not exist.
func (b *Bus) Objects(ctx context.Context, bucket string) (*Objects, error) {
	o := &Objects{b: b, bucket: bucket, stream: "OBJ_" + bucket}
	if _, err := b.StreamState(ctx, o.stream); err != nil {
		return nil, fmt.Errorf("open object store %s: %w", bucket, err)
	}
	return o, nil
}

// chunks is the subject of an object's data, ">" for those of all; meta is that
// of what is said of an object, by the name's code, and by ">" of all.
func (o *Objects) chunks(nuid string) string { return "$O." + o.bucket + ".C." + nuid }
func (o *Objects) meta(token string) string  { return "$O." + o.bucket + ".M." + token }

func encodeName(name string) string { return base64.URLEncoding.EncodeToString([]byte(name)) }

// info is what is said of an object, and its place in the stream. What cannot be
// read names no data.
func (o *Objects) info(ctx context.Context, name string) (jetstream.ObjectInfo, uint64, error) {
	m, err := o.b.Last(ctx, o.stream, o.meta(encodeName(name)))
	return decodeInfo(m.Data), m.Seq, err
}

func decodeInfo(data []byte) (info jetstream.ObjectInfo) {
	if json.Unmarshal(data, &info) != nil || info.Deleted {
		return jetstream.ObjectInfo{}
	}
	return info
}

// Put stores what r gives under name. Until all is stored, readers get what
// was there before, and so they do when it fails. (The client's own Put says
// that there is an object although its data was refused.)
func (o *Objects) Put(ctx context.Context, name string, r io.Reader) error {
	before, _, err := o.info(ctx, name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("put object %s: %w", name, err)
	}
	info := jetstream.ObjectInfo{Bucket: o.bucket, NUID: rand.Text()}
	info.Name, info.Opts = name, &jetstream.ObjectMetaOptions{ChunkSize: chunkSize}
	over := ""
	if err = o.putChunks(ctx, &info, r); err != nil {
		over = info.NUID
	} else if err = o.putInfo(ctx, &info); err == nil {
		over = before.NUID
	} else if errors.Is(err, ErrFull) { // otherwise it may be there
		over = info.NUID
	}
	if over != "" {
		later, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTry)
		defer cancel()
		_ = o.b.Purge(later, o.stream, o.chunks(over)) // where it fails it is stray, see DropStrays
	}
	return wrap("put object "+name, err)
}

// putChunks stores the data, and notes in info what it was.
func (o *Objects) putChunks(ctx context.Context, info *jetstream.ObjectInfo, r io.Reader) error {
	acks, err := o.b.nc.SubscribeSync(o.b.nc.NewInbox())
	if err != nil {
		return mapError(err)
	}
	defer func() { _ = acks.Unsubscribe() }()
	sum, chunk, acked := sha256.New(), make([]byte, chunkSize), uint32(0)
	var failed error // then what is on its way is awaited, so that it can be purged
	for end := false; !end || acked < info.Chunks; {
		if end || info.Chunks-acked == maxUnacked {
			err := awaitAck(ctx, acks)
			if errors.Is(err, ErrTimeout) || errors.Is(err, context.Canceled) {
				return err
			}
			acked++
			failed, end = cmp.Or(failed, err), end || err != nil
			continue
		}
		if ctx.Err() != nil {
			return mapError(ctx.Err())
		}
		n, err := r.Read(chunk)
		if n > 0 {
			m := &nats.Msg{Subject: o.chunks(info.NUID), Reply: acks.Subject, Data: chunk[:n]}
			if err := o.b.nc.PublishMsg(m); err != nil {
				return mapError(err)
			}
			_, _ = sum.Write(chunk[:n]) // never fails
			info.Size, info.Chunks = info.Size+uint64(n), info.Chunks+1
		}
		end = err != nil
		if end && err != io.EOF {
			failed = cmp.Or(failed, err)
		}
	}
	if failed != nil {
		return failed
	}
	info.Digest = "SHA-256=" + base64.URLEncoding.EncodeToString(sum.Sum(nil))
	return nil
}

// awaitAck takes the next acknowledgement.
func awaitAck(ctx context.Context, acks *nats.Subscription) error {
	ctx, cancel := context.WithTimeout(ctx, storeTry)
	defer cancel()
	m, err := acks.NextMsgWithContext(ctx)
	switch {
	case err != nil:
		return mapError(err)
	case Header(m.Header).Get("Status") == "503":
		return ErrNoResponders
	}
	_, err = parseAck(m.Data)
	return err
}

// putInfo says that an object is there, in the place of what was said before.
func (o *Objects) putInfo(ctx context.Context, info *jetstream.ObjectInfo) error {
	data, err := json.Marshal(info)
	if err != nil {
		return err
	}
	_, err = o.b.publishStored(ctx, &nats.Msg{
		Subject: o.meta(encodeName(info.Name)), Data: data,
		Header: nats.Header{jetstream.MsgRollup: {jetstream.MsgRollupSubject}},
	})
	return err
}

// PutOnly is Put of the only object of its bucket: what was left there by those
// who broke off goes, too. Where it has left no room (ErrFull) everything goes,
// the object that is there first, and the next one has room.
func (o *Objects) PutOnly(ctx context.Context, name string, r io.Reader) error {
	before, err := o.b.StreamState(ctx, o.stream)
	if err != nil {
		return wrap("put object "+name, err)
	}
	err = o.Put(ctx, name, r)
	switch last := before.LastSeq; {
	case errors.Is(err, ErrFull):
		return errors.Join(err, o.Delete(ctx, name), o.b.Purge(ctx, o.stream, o.chunks(">")))
	case err != nil:
		return err
	default:
		return o.b.PurgeUpTo(ctx, o.stream, o.chunks(">"), last)
	}
}

// Keep is Put of what may be there already: then nothing is written.
func (o *Objects) Keep(ctx context.Context, name string, data []byte) error {
	info, _, err := o.info(ctx, name)
	sum := sha256.Sum256(data)
	if err == nil && info.Digest == "SHA-256="+base64.URLEncoding.EncodeToString(sum[:]) {
		var there map[string]uint64
		there, err = o.b.Subjects(ctx, o.stream, o.chunks(info.NUID))
		if err == nil && there[o.chunks(info.NUID)] == uint64(info.Chunks) {
			return nil
		}
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("put object %s: %w", name, err)
	}
	return o.Put(ctx, name, bytes.NewReader(data))
}

// Get opens the object, as the leader knows it; ErrNotFound when there is none.
// It is read while ctx lasts. The last Read checks the digest: an object whose
// data is gone, or goes while it is read, as when it is replaced, ends with an
// error, and not with io.EOF.
func (o *Objects) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	info, _, err := o.info(ctx, name)
	if err == nil && info.NUID == "" { // another tool has deleted it
		err = ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("get object %s: %w", name, err)
	}
	return &object{ctx: ctx, o: o, info: info, sum: sha256.New()}, nil
}

// Delete drops the object; it is a success when there is none. It leaves no mark
// of it, and needs no room.
func (o *Objects) Delete(ctx context.Context, name string) error {
	info, seq, err := o.info(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err == nil {
		err = o.b.PurgeUpTo(ctx, o.stream, o.meta(encodeName(name)), seq)
	}
	if err == nil && info.NUID != "" {
		err = o.b.Purge(ctx, o.stream, o.chunks(info.NUID))
	}
	return wrap("delete object "+name, err)
}

// Names lists the objects there are, in alphabetical order, and those that other
// tools have deleted, which leave a mark: Delete removes it.
func (o *Objects) Names(ctx context.Context) ([]string, error) {
	all, err := o.b.Subjects(ctx, o.stream, o.meta(">"))
	if err != nil {
		return nil, wrap("list objects", err)
	}
	names := make([]string, 0, len(all))
	for subject := range all {
		name, err := base64.URLEncoding.DecodeString(strings.TrimPrefix(subject, o.meta("")))
		if err == nil {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

// DropStrays deletes data that belongs to no object: what those have left who
// broke off while they put or deleted one. It is not for buckets in which a Put
// takes minutes.
func (o *Objects) DropStrays(ctx context.Context) error {
	stray, err := o.b.Subjects(ctx, o.stream, o.chunks(">"))
	if err != nil || len(stray) == 0 {
		return wrap("look for stray data", err)
	}
	for from, more := uint64(1), true; more; { // after that: what was put meanwhile is not among them
		var metas []Msg
		if metas, more, err = o.b.History(ctx, o.stream, o.meta(">"), from, 256); err != nil {
			return wrap("look for stray data", err)
		}
		for _, m := range metas {
			from = m.Seq + 1
			delete(stray, o.chunks(decodeInfo(m.Data).NUID))
		}
	}
	for subject := range stray {
		m, err := o.b.Last(ctx, o.stream, subject)
		if err == nil && o.b.Now().Sub(m.Time) > strayAge {
			err = o.b.PurgeUpTo(ctx, o.stream, subject, m.Seq)
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return wrap("drop stray data", err)
		}
	}
	return nil
}

// Subjects are the subjects of what a stream holds that filter matches, with how
// many messages each has, as the stream's leader knows it.
func (b *Bus) Subjects(ctx context.Context, stream, filter string) (map[string]uint64, error) {
	all := make(map[string]uint64)
	for {
		var resp struct {
			State jetstream.StreamState `json:"state"`
			Total int                   `json:"total"`
			Error *jetstream.APIError   `json:"error"`
		}
		req := struct {
			Filter string `json:"subjects_filter"`
			Offset int    `json:"offset,omitempty"`
		}{filter, len(all)}
		if err := b.apiCall(ctx, "STREAM.INFO."+stream, req, &resp, &resp.Error); err != nil {
			return nil, fmt.Errorf("subjects of %s: %w", stream, err)
		}
		had := len(all)
		maps.Copy(all, resp.State.Subjects)
		if len(all) == had || len(all) >= resp.Total {
			return all, nil
		}
	}
}

// readAhead is how much of an object is read at once.
const readAhead = 1 << 20

// object is an object that is being read.
type object struct {
	ctx  context.Context //nolint:containedctx // of this reading alone
	o    *Objects
	info jetstream.ObjectInfo
	next uint64 // sequence from which its data is to be read
	read uint32 // chunks
	msgs []Msg  // that were read ahead
	rest []byte // of the last one
	sum  hash.Hash
}

func (r *object) Close() error { return nil }

func (r *object) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.read == r.info.Chunks {
			if r.info.Digest != "SHA-256="+base64.URLEncoding.EncodeToString(r.sum.Sum(nil)) {
				return 0, fmt.Errorf("read object %s: it is not what was put", r.info.Name)
			}
			return 0, io.EOF
		}
		if err := r.more(); err != nil {
			return 0, wrap("read object "+r.info.Name, err)
		}
		r.rest, r.msgs = r.msgs[0].Data, r.msgs[1:]
		r.read++
		_, _ = r.sum.Write(r.rest) // never fails
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// more sees to it that there is a chunk to read. An answer may be lost: it asks a
// few times.
func (r *object) more() error {
	if len(r.msgs) > 0 {
		return nil
	}
	bo := newBackoff(100*time.Millisecond, time.Second)
	for again := 3; ; again-- {
		err := r.ask()
		lost := errors.Is(err, ErrTimeout) || errors.Is(err, ErrNoResponders)
		if !lost || again == 0 || wait(r.ctx, bo) != nil {
			return err
		}
	}
}

// ask reads what follows. A copy may lag; what the leader does not have either is
// gone.
func (r *object) ask() (err error) {
	subject := r.o.chunks(r.info.NUID)
	r.msgs, _, err = r.o.b.directBatch(r.ctx, r.o.stream, getRequest{
		NextFor: subject, Seq: max(r.next, 1), Batch: int(r.info.Chunks - r.read), MaxBytes: readAhead,
	})
	if err == nil && len(r.msgs) == 0 {
		var m Msg
		m, err = r.o.b.nextFor(r.ctx, r.o.stream, subject, r.next)
		r.msgs = []Msg{m}
	}
	if err != nil {
		r.msgs = nil
		return err
	}
	r.next = r.msgs[len(r.msgs)-1].Seq + 1
	return nil
}
