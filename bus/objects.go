package bus

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/nats-io/nats.go/jetstream"
)

// Objects is a NATS object store: values larger than a message.
type Objects struct {
	b      *Bus
	bucket string
	store  jetstream.ObjectStore
}

// Objects opens a bucket; ErrNotFound when it does not exist.
func (b *Bus) Objects(ctx context.Context, bucket string) (*Objects, error) {
	ctx, cancel := withDefaultTimeout(ctx, readTry)
	defer cancel()
	store, err := b.js.ObjectStore(ctx, bucket)
	if err != nil {
		return nil, fmt.Errorf("open object store %s: %w", bucket, mapError(err))
	}
	return &Objects{b: b, bucket: bucket, store: store}, nil
}

// Put stores what r gives under name. Until all is stored, readers get what
// was there before.
func (o *Objects) Put(ctx context.Context, name string, r io.Reader) error {
	_, err := o.store.Put(ctx, jetstream.ObjectMeta{Name: name}, r)
	return wrap("put object "+name, err)
}

// PutOnly is Put of the only object of its bucket: what was left there by those
// who broke off goes, too. Where it has left no room (ErrFull) everything goes,
// and the next one has room.
func (o *Objects) PutOnly(ctx context.Context, name string, r io.Reader) error {
	stream := "OBJ_" + o.bucket
	before, err := o.b.StreamState(ctx, stream)
	if err != nil {
		return wrap("put object "+name, err)
	}
	err = o.Put(ctx, name, r)
	switch last := before.LastSeq; {
	case errors.Is(err, ErrFull):
		return errors.Join(err, o.b.Purge(ctx, stream, "$O."+o.bucket+".C.>"))
	case err != nil:
		return err
	default:
		return o.b.PurgeUpTo(ctx, stream, "$O."+o.bucket+".C.>", last)
	}
}

// Get opens the object; ErrNotFound when there is none. The last Read checks
// the digest: an object that is replaced while it is read ends with an error,
// not with io.EOF.
func (o *Objects) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	result, err := o.store.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("get object %s: %w", name, mapError(err))
	}
	return &object{ObjectResult: result, name: name}, nil
}

// Delete drops the object; it is a success when there is none.
func (o *Objects) Delete(ctx context.Context, name string) error {
	err := mapError(o.store.Delete(ctx, name))
	if err == nil || errors.Is(err, ErrNotFound) {
		return nil
	}
	return fmt.Errorf("delete object %s: %w", name, err)
}

// Names lists the objects there are.
func (o *Objects) Names(ctx context.Context) ([]string, error) {
	list, err := o.store.List(ctx)
	if errors.Is(err, jetstream.ErrNoObjectsFound) {
		return nil, nil
	}
	if err != nil {
		return nil, wrap("list objects", err)
	}
	names := make([]string, len(list))
	for i, info := range list {
		names[i] = info.Name
	}
	return names, nil
}

type object struct {
	jetstream.ObjectResult
	name string
}

func (o *object) Read(p []byte) (int, error) {
	n, err := o.ObjectResult.Read(p)
	if err == io.EOF { //nolint:errorlint // Read's contract is io.EOF itself
		return n, io.EOF
	}
	return n, wrap("read object "+o.name, err)
}
