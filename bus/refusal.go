package bus

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"parley/subjects"
)

// refusal is the wire form of an error.
func (r *service) refusal(subject string, err error) *nats.Msg {
	e := AsError(err)
	if _, ours := errors.AsType[*subjects.Error](err); !ours {
		level := slog.LevelError
		if e.Code == subjects.CodeUnavailable {
			level = slog.LevelWarn // the store is away: the caller repeats
		}
		r.b.log.Log(context.Background(), level, "endpoint failed", slog.String("subject", subject), slog.Any("error", err))
	}
	if r.b.cfg.Refused != nil {
		r.b.cfg.Refused(subject, e)
	}
	data, h := Refusal(e)
	return &nats.Msg{Data: data, Header: nats.Header(h)}
}

// Refusal is the answer to a request that is refused: {"error":{…}}, with the
// headers Nats-Service-Error and Nats-Service-Error-Code.
func Refusal(err error) ([]byte, Header) {
	e := AsError(err)
	data, merr := json.Marshal(map[string]*subjects.Error{"error": e})
	if merr != nil {
		data = []byte(`{"error":{"code":"internal","message":"an internal error"}}`)
	}
	_, _, _, status := subjects.CodeInfo(e.Code)
	return data, Header{
		micro.ErrorHeader:     {reasonLine(string(e.Code) + ": " + e.Message)},
		micro.ErrorCodeHeader: {strconv.Itoa(status)},
	}
}

// AsError is what a caller hears of an error: one of the contract as it is, of a
// bus that is away or full that it may be asked again, and of all else that it
// is internal.
func AsError(err error) *subjects.Error {
	if e, ours := errors.AsType[*subjects.Error](err); ours {
		return e
	}
	for _, again := range []error{ErrNoResponders, ErrTimeout, ErrFull, ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, again) {
			e := subjects.Errorf(subjects.CodeUnavailable, "the fleet's store does not answer now").
				WithRemedy("repeat the request").RetryAfter(time.Second)
			e.Err = err
			return e
		}
	}
	return subjects.AsError(err)
}
