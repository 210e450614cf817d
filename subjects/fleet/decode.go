package fleet

import (
	"bytes"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"parley/subjects"
)

// DecodeAnnounce reads a SESSION_ANNOUNCE.
func DecodeAnnounce(data []byte) (*Announce, error) {
	return decode[Announce](data, TypeAnnounce, strict)
}

// DecodeHeartbeat reads a HEARTBEAT.
func DecodeHeartbeat(data []byte) (*Heartbeat, error) {
	return decode[Heartbeat](data, TypeHeartbeat, strict)
}

// DecodeDispatch reads a TASK_DISPATCH: JSON, or a plain-text brief with inline
// hints when it does not begin with {. An absent priority is Normal and
// "urgent" is Critical afterwards. The deadline depends on the clock: see
// Dispatch.DeadlineAt.
func DecodeDispatch(data []byte) (*Dispatch, error) {
	if head := bytes.TrimLeft(data, " \t\r\n"); len(head) > 0 && head[0] != '{' {
		return decodeText(data)
	}
	return decode[Dispatch](data, TypeDispatch, strict)
}

// DecodeOffer reads an offer: a TASK_DISPATCH in JSON with the attempt, and with
// what was tried before. It may be longer than the dispatch that it repeats.
func DecodeOffer(data []byte) (*Dispatch, error) {
	d, err := decode[Dispatch](data, TypeDispatch, limits{size: 2 * MaxMessage, depth: MaxDepth})
	if err == nil && d.Attempt == 0 {
		return nil, invalid("/attempt", "expected an attempt, counted from 1, got nothing")
	}
	return d, err
}

// DecodeResult reads a TASK_RESULT in JSON. ReadResult also takes prose.
func DecodeResult(data []byte) (*Result, error) {
	return decode[Result](data, TypeResult, strict)
}

// DecodeAck reads a HANDSHAKE_ACK. An offer may be answered with a TASK_RESULT
// instead (see TypeOf), which is refused here at /type.
func DecodeAck(data []byte) (*Ack, error) {
	a, err := decode[Ack](data, TypeAck, strict)
	if err != nil || a.Accepted {
		return a, err
	}
	for name, value := range members(data) {
		if name == "accepted" && value.Kind() == 'f' {
			return a, nil
		}
	}
	return nil, invalid("/accepted", "expected true or false, got nothing").
		WithRemedy(`answer an offer with {"accepted":true}, {"accepted":false} or a TASK_RESULT`)
}

// IsAck reports whether the reply to an offer is meant for a HANDSHAKE_ACK, well
// formed or not.
func IsAck(data []byte) bool {
	for name := range members(data) {
		if name == "accepted" {
			return true
		}
	}
	return false
}

// DecodeProgress reads a TASK_PROGRESS.
func DecodeProgress(data []byte) (*Progress, error) {
	return decode[Progress](data, TypeProgress, strict)
}

// DecodeControl reads a control message.
func DecodeControl(data []byte) (*Control, error) {
	return decode[Control](data, TypeControl, strict)
}

// DecodeEvent reads a record. Records are written by the fleet's own workers
// alone, so types, ids and order are checked, the messages inside are not; they
// may be longer than MaxMessage, as they wrap one.
func DecodeEvent(data []byte) (*Event, error) {
	return decode[Event](data, TypeEvent, trusted)
}

// DecodeAgentEvent reads an AGENT_EVENT.
func DecodeAgentEvent(data []byte) (*AgentEvent, error) {
	return decode[AgentEvent](data, TypeAgentEvent, strict)
}

// DecodeControlReply reads the reply to a control message.
func DecodeControlReply(data []byte) (*ControlReply, error) {
	if err := strict.check(data); err != nil {
		return nil, err
	}
	r := new(ControlReply)
	if err := unmarshal(data, r); err != nil {
		return nil, err
	}
	return r, nil
}

// encoding writes equal values to equal bytes, and mends text that is not
// UTF-8 (the output of a tool, say) instead of failing on it.
var encoding = json.JoinOptions(json.Deterministic(true), jsontext.AllowInvalidUTF8(true))

// Encode writes v as JSON. It fails only when raw JSON inside v is not JSON.
func Encode(v any) ([]byte, error) {
	b, err := json.Marshal(v, encoding)
	if err != nil {
		return nil, wrap(subjects.Errorf(subjects.CodeInternal, "encode %T", v), err)
	}
	return b, nil
}

// fits refuses text that is longer than a message once it is quoted as JSON:
// from there on it travels as JSON. v is the message, size the text's.
func fits(v any, size int) error {
	const growth = 8 // more than quoting can do, with room for what is around it
	if size < MaxMessage/growth {
		return nil
	}
	b, err := Encode(v)
	if err == nil && len(b) > MaxMessage {
		err = tooLarge(len(b))
	}
	return err
}

// MustEncode is Encode for values of our own making, which always encode.
func MustEncode(v any) []byte {
	b, err := Encode(v)
	if err != nil {
		panic(subjects.AsError(err).Err)
	}
	return b
}
