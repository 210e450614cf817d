package sessions

import (
	"log/slog"
	"testing"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/handshake"
)

// TestAppendAfterDelete: an append that was let in before its session was deleted,
// at a worker that knows nothing of its context, is no first version.
func TestAppendAfterDelete(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	w, err := New(Config{Bus: b, Version: "1.2.3", Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, w)
	version, _, err := w.append(t.Context(), &handshake.Record{SessionID: "a2a-20261122T013040Z-1316f1515ff0700ccc61bf660d9562d4"}, nil)
	if subjects.CodeOf(err) != subjects.CodeNotFound {
		t.Errorf("append = version %d, %v, want not_found", version, err)
	}
}
