package bus

import (
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Header holds a message's headers. Names are case-sensitive, as on the wire.
type Header map[string][]string

// Get returns the first value of name, "" when there is none.
func (h Header) Get(name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set replaces the values of name. It panics on a nil Header.
func (h Header) Set(name, value string) { h[name] = []string{value} }

// Msg is a message that came in. Reply is set for requests; Stream, Seq, Time,
// Delivered and Pending only for stored messages.
type Msg struct {
	Subject string
	Reply   string
	Header  Header
	Data    []byte

	Stream    string
	Seq       uint64    // stream sequence
	Time      time.Time // when it was stored, UTC
	Delivered uint64    // how often, from 1
	Pending   uint64    // how many follow for this consumer

	nc *nats.Conn
}

// Respond answers a request. Without a reply subject it does nothing.
func (m Msg) Respond(data []byte, h Header) error {
	if m.nc == nil || !answerable(m.Reply) {
		return nil
	}
	return wrap("respond", m.nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header(h), Data: data}))
}

// RespondAt answers a request with a message that wants an answer itself, at
// the subject confirm.
func (m Msg) RespondAt(confirm string, data []byte, h Header) error {
	if m.nc == nil || !answerable(m.Reply) {
		return nil
	}
	return wrap("respond", m.nc.PublishMsg(&nats.Msg{Subject: m.Reply, Reply: confirm, Header: nats.Header(h), Data: data}))
}

// Unheard reports whether m is the server's word that nobody listens where a
// request was sent.
func (m Msg) Unheard() bool { return len(m.Data) == 0 && m.Header.Get(statusHeader) == noResponders }

const (
	statusHeader = "Status"
	noResponders = "503"
)

// answerable reports whether a request may be answered at reply. Whoever asks
// names it, and the answer is written with the rights of who answers: so it must
// not be a subject of the fleet, whose streams would store it, nor one of
// JetStream's.
func answerable(reply string) bool {
	return reply != "" && !strings.HasPrefix(reply, "$") && !strings.HasPrefix(reply, "fleet.")
}

func fromNATS(nc *nats.Conn, m *nats.Msg) Msg {
	return Msg{Subject: m.Subject, Reply: m.Reply, Header: Header(m.Header), Data: m.Data, nc: nc}
}

const ackPrefix = "$JS.ACK."

// delivery is what the reply subject of a delivered message tells.
type delivery struct {
	delivered, stream, consumer, pending uint64
	time                                 int64
}

// parseDelivery reads
//
//	$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<ns>.<pending>
//
// or its second form, which has <domain>.<account> before the stream and one
// token more at the end. It does not allocate.
func parseDelivery(reply string) (delivery, error) {
	rest, ok := strings.CutPrefix(reply, ackPrefix)
	if !ok {
		return delivery{}, fmt.Errorf("reply subject %q is not of a stored message", reply)
	}
	skip := 2
	if n := strings.Count(rest, "."); n >= 8 {
		skip = 4
	} else if n < 6 {
		return delivery{}, fmt.Errorf("reply subject %q has too few tokens", reply)
	}
	for range skip {
		_, rest, _ = strings.Cut(rest, ".")
	}
	var n [5]uint64
	for i := range n {
		var token string
		token, rest, _ = strings.Cut(rest, ".")
		for _, c := range []byte(token) {
			if c < '0' || c > '9' {
				return delivery{}, fmt.Errorf("reply subject %q has no number at token %d", reply, skip+i+2)
			}
			n[i] = n[i]*10 + uint64(c-'0')
		}
	}
	return delivery{delivered: n[0], stream: n[1], consumer: n[2], time: int64(n[3]), pending: n[4]}, nil
}

// unixNano is the UTC time of a server's nanosecond stamp.
func unixNano(ns int64) time.Time { return time.Unix(0, ns).UTC() }
