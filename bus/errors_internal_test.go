package bus

import (
	"errors"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
)

// TestJetStreamErrors holds the table against the server's own: no code is
// misspelt, and none that speaks of something missing, of a server that is
// not ready, or of too much at once is taken for a refusal.
func TestJetStreamErrors(t *testing.T) {
	t.Parallel()
	for code := range jsErrors {
		if server.ApiErrors[server.ErrorIdentifier(code)] == nil {
			t.Errorf("the server knows no error %d", code)
		}
	}
	refusals := map[server.ErrorIdentifier]string{
		server.JSStreamTemplateNotFoundErr:  "templates are gone",
		server.JSClusterUnSupportFeatureErr: "waiting does not help",
		server.JSClusterRequiredErr:         "waiting does not help",
		server.JSNoAccountErr:               "waiting does not help",
		server.JSPeerRemapErr:               "of the system account alone",
		server.JSStreamSequenceNotMatchErr:  "between replicas",
	}
	for id, e := range server.ApiErrors {
		var want []error
		switch e.Code {
		case 404:
			want = []error{ErrNotFound}
		case 409, 429:
			want = []error{ErrNoResponders}
		case 503:
			want = []error{ErrNoResponders, ErrFull}
		default:
			continue
		}
		got := apiError(&jetstream.APIError{Code: e.Code, ErrorCode: jetstream.ErrorCode(e.ErrCode), Description: e.Description})
		ok := refusals[id] != ""
		for _, w := range want {
			ok = ok || errors.Is(got, w)
		}
		if !ok {
			t.Errorf("%d, %q (%d), is %v, want one of %v", e.ErrCode, e.Description, e.Code, got, want)
		}
	}
	for id, want := range map[server.ErrorIdentifier]error{
		server.JSStreamWrongLastSequenceErrF:        ErrConflict,
		server.JSStreamWrongLastSequenceConstantErr: errInProcess,
		server.JSStreamStoreFailedF:                 ErrFull,
		server.JSStorageResourcesExceededErr:        ErrFull,
		server.JSSequenceNotFoundErrF:               ErrNotFound,
		server.JSConsumerDoesNotExist:               ErrNotFound,
		server.JSStreamNameExistErr:                 ErrExists,
		server.JSConsumerAlreadyExists:              ErrExists,
		server.JSClusterNotLeaderErr:                ErrNoResponders,
		server.JSStreamOfflineErr:                   ErrNoResponders,
		server.JSStreamMsgDeleteFailedF:             errRefused,
		server.JSStreamOfflineReasonErrF:            errRefused,
		server.JSStreamMessageExceedsMaximumErr:     errRefused,
	} {
		e := server.ApiErrors[id]
		if got := apiError(&jetstream.APIError{ErrorCode: jetstream.ErrorCode(e.ErrCode)}); !errors.Is(got, want) {
			t.Errorf("%d, %q, is %v, want %v", e.ErrCode, e.Description, got, want)
		}
	}
}
