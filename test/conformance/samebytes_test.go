package conformance_test

import (
	"bytes"
	"testing"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// keepBytes is the codec of protocol buffers that keeps what came over the wire.
type keepBytes struct {
	encoding.CodecV2
	got *[][]byte
}

// Unmarshal keeps data and reads it.
func (k keepBytes) Unmarshal(data mem.BufferSlice, v any) error {
	*k.got = append(*k.got, data.Materialize())
	return k.CodecV2.Unmarshal(data, v)
}

// TestSameBytes: over gRPC the same task has the same bytes, whatever maps are in it.
func TestSameBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := &client{T: t, w: w, b: grpcBinding{}, at: w.open, h: v10}
	m := say("echo")
	m.Message.Metadata = object(map[string]any{"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0, "f": 6.0, "g": 7.0, "h": 8.0})
	id := c.send(m).GetId()
	var got [][]byte
	conn := dial(t, w.open)
	for range 10 {
		_, err := a2apb.NewA2AServiceClient(conn).GetTask(outgoing(t.Context(), v10), &a2apb.GetTaskRequest{Id: id},
			grpc.ForceCodecV2(keepBytes{encoding.GetCodecV2(proto.Name), &got}))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got[0], got[len(got)-1]) {
			t.Fatalf("answer %d differs from the first one", len(got))
		}
	}
}
