package bus

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// TestNotThere: that nothing is there to be deleted shows that a stream commits;
// what else prevents it shows that it does not.
func TestNotThere(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code jetstream.ErrorCode
		said string
		want bool
	}{
		{10057, "stream store EOF", true},
		{10057, "write /data/jetstream/$G/streams/FLEET_TASKS/msgs/1.blk: no space left on device", false},
		{10057, "write 1.blk: input/output error", false},
		{10057, "unexpected EOF", false},
		{10057, "store is closed", false},
		{10057, "stream closed", false},
		{10057, "message delete not permitted", false},
		{10057, "", false},
		{10059, "stream store EOF", false},
	} {
		if got := isNotThere(&jetstream.APIError{ErrorCode: tt.code, Description: tt.said}); got != tt.want {
			t.Errorf("%d %q is that nothing is there: %t, want %t", tt.code, tt.said, got, tt.want)
		}
	}
}
