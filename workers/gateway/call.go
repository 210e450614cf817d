package gateway

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// The protocol that is served here, and the headers that go with it.
const (
	protocolVersion = "1.0"

	headerVersion    = "A2A-Version"
	headerExtensions = "A2A-Extensions"
	headerIdempotent = "Idempotency-Key"
	headerLastEvent  = "Last-Event-ID"

	headerTraceparent = "traceparent"
)

// anonymous is who everybody is where nobody is asked.
const anonymous subjects.AgentID = "a2a"

// call is who calls, and what the request says beside its message.
type call struct {
	from        subjects.AgentID
	extensions  []string // asked for
	active      []string // that count
	key         string   // idempotency key
	lastEventID string
	traceparent string         // W3C trace context; "" where it is none
	base        base           // where the caller reached us
	activated   func([]string) // tells the client, before the answer
}

// activate makes extensions count, and tells the client.
func (c *call) activate(uris []string) {
	c.active = uris
	if len(uris) > 0 && c.activated != nil {
		c.activated(uris)
	}
}

// wantsReports reports whether the caller has activated the extension by which tasks
// tell how they are.
func (c *call) wantsReports() bool { return slices.Contains(c.active, ContractURI) }

// params are the service parameters of a request: headers, or gRPC metadata.
type params interface{ Values(name string) []string }

// first is the first value of a parameter.
func first(p params, name string) string {
	if v := p.Values(name); len(v) > 0 {
		return v[0]
	}
	return ""
}

// admit says who calls and whether they may. version checks that of the request.
func (w *Worker) admit(ctx context.Context, p params, peer peer, version func() error) (*call, error) {
	if err := w.serving(); err != nil {
		return nil, err
	}
	id, err := w.auth.identify(ctx, p, peer)
	if err != nil {
		return nil, err
	}
	return w.admitAs(id, p, version)
}

// serving refuses calls while the gateway cannot answer them.
func (w *Worker) serving() error {
	if w.ready.Load() {
		return nil
	}
	f := faultf(kindUnavailable, "the gateway is starting or stopping; repeat the call")
	f.retry = time.Second
	return f
}

// admitAs admits a caller whose identity is proved.
func (w *Worker) admitAs(id subjects.AgentID, p params, version func() error) (*call, error) {
	if err := w.serving(); err != nil {
		return nil, err
	}
	if err := w.limits.take(id); err != nil {
		return nil, err
	}
	if err := version(); err != nil {
		return nil, err
	}
	c := &call{
		from: id, extensions: splitList(slices.Concat(p.Values(headerExtensions), p.Values(legacyExtensions))),
		key: first(p, headerIdempotent), lastEventID: first(p, headerLastEvent),
	}
	if t := first(p, headerTraceparent); fleet.ValidTraceparent(t) {
		c.traceparent = t // what is none is passed over, as W3C has it
	}
	if slices.Contains(c.extensions, ContractURI) {
		c.active = []string{ContractURI}
	}
	return c, nil
}

// during is ctx until the gateway stops.
func (w *Worker) during(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(w.work, func() { cancel(errDraining) })
	return ctx, func() { stop(); cancel(nil) }
}

// splitList reads a header that may come several times, with commas in it.
func splitList(values []string) []string {
	var out []string
	for _, v := range values {
		for item := range strings.SplitSeq(v, ",") {
			if item = strings.TrimSpace(item); item != "" {
				out = append(out, item)
			}
		}
	}
	return out
}

// checkVersion refuses a version that is not spoken here. A request without one
// is of version 0.3.
func checkVersion(v string) error {
	major, minor, ok := strings.Cut(strings.TrimSpace(v), ".")
	minor, _, _ = strings.Cut(minor, ".")
	if ok && major+"."+minor == protocolVersion {
		return nil
	}
	said := "version " + strconv.Quote(clip(v)) + " is not supported"
	if v == "" {
		said = "the request names no version, which means 0.3, and is none of that version"
	}
	f := faultf(kindVersion, said+": send the header "+headerVersion+": "+protocolVersion)
	f.meta = map[string]string{"supportedVersions": protocolVersion}
	return f
}

// peer is what the transport knows of a client.
type peer struct {
	certified []certificate // verified client certificates
	address   string
}

type certificate struct{ subject, fingerprint string }

func peerOf(r *http.Request) peer {
	p := peer{address: r.RemoteAddr}
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return p
	}
	leaf := r.TLS.PeerCertificates[0]
	p.certified = append(p.certified, certificate{subject: leaf.Subject.String(), fingerprint: leaf.Issuer.String()})
	return p
}
