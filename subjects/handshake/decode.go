package handshake

import (
	"strings"

	"parley/subjects"
	"parley/subjects/fleet"
)

// DecodeSession reads a session record.
func DecodeSession(data []byte) (*Session, error) { return decode[Session](data) }

// DecodeInit reads a handshake_init.
func DecodeInit(data []byte) (*Init, error) { return decodeMessage[Init](data, TypeInit) }

// DecodeAck reads a handshake_ack.
func DecodeAck(data []byte) (*Ack, error) { return decodeMessage[Ack](data, TypeAck) }

// DecodeExchange reads a context_exchange.
func DecodeExchange(data []byte) (*Exchange, error) {
	return decodeMessage[Exchange](data, TypeExchange)
}

// DecodeContext reads the context of a session.
func DecodeContext(data []byte) (*ContextView, error) { return decode[ContextView](data) }

// DecodeEntry reads one entry of a context.
func DecodeEntry(data []byte) (*Entry, error) { return decode[Entry](data) }

// DecodeIdentity reads an agent's identity.
func DecodeIdentity(data []byte) (*Identity, error) { return decode[Identity](data) }

// DecodeLogLine reads a line of the log.
func DecodeLogLine(data []byte) (*LogLine, error) { return decode[LogLine](data) }

// DecodeRequest reads the request of a session API call.
func DecodeRequest[T any, M interface {
	*T
	Request
}](data []byte) (*T, error) {
	return decode[T, M](data)
}

// Request is what every type that is read here can do, the requests of the
// session API among them; no type outside of this package is one.
type Request interface {
	// check adds every problem of the decoded message and settles its defaults.
	check(p *problems)
}

func decode[T any, M interface {
	*T
	Request
}](data []byte) (*T, error) {
	v, err := fleet.DecodeRequest[T](data)
	if err != nil {
		return nil, err
	}
	var p problems
	M(&v).check(&p)
	if err := p.err(); err != nil {
		return nil, err
	}
	return &v, nil
}

// decodeMessage judges version and type before anything else.
func decodeMessage[T any, M interface {
	*T
	Request
}](data []byte, typ string) (*T, error) {
	h, err := fleet.DecodeRequest[Header](data)
	if err != nil {
		return nil, err
	}
	if err := h.judge(typ); err != nil {
		return nil, err
	}
	return decode[T, M](data)
}

// judge refuses another version or type.
func (h *Header) judge(typ string) *subjects.Error {
	if !spoken(h.ProtocolVersion) {
		return subjects.Errorf(subjects.CodeVersionMismatch, "protocol_version %q is not spoken here", clip(h.ProtocolVersion)).
			At("/protocol_version").WithRemedy("send version " + Version + "; every 1.x is accepted")
	}
	if h.MessageType != typ {
		return invalid("/message_type", "expected %q, got %q", typ, clip(h.MessageType))
	}
	return nil
}

// spoken reports whether v is 1 or 1.x or 1.x.y.
func spoken(v string) bool {
	parts := strings.Split(v, ".")
	if parts[0] != "1" || len(parts) > 3 {
		return false
	}
	for _, part := range parts[1:] {
		if part == "" || len(part) > 9 || strings.Trim(part, "0123456789") != "" {
			return false
		}
	}
	return true
}
