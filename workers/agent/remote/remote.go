package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	grpcv0 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	grpcv1 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"github.com/a2aproject/a2a-go/v2/a2apb/v1/pbconv"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

const (
	defaultCardPath = "/.well-known/agent-card.json"
	oldCardPath     = "/.well-known/agent.json" // of version 0.2
)

// Config is a remote agent. Identity is required.
type Config struct {
	Identity *Identity
	Getenv   func(string) string                   // where secrets are; nil: there are none
	Proxy    func(*http.Request) (*url.URL, error) // nil: none
	TLS      *tls.Config                           // nil: the system's authorities
	Trace    string                                // W3C traceparent of what is asked outside of tasks; "" for none

	Poll     time.Duration // between looks at the card; absent 30 s
	Timeout  time.Duration // for one answer that does not wait for work; absent 30 s
	Idle     time.Duration // for a stream in which nothing comes, until it is taken up anew; absent 2 min
	Patience time.Duration // with an agent that cannot be reached in the middle of a task; absent 2 min

	Log *slog.Logger // nil discards
}

func (c Config) withDefaults() Config {
	c.Poll = cmp.Or(c.Poll, 30*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	c.Idle = cmp.Or(c.Idle, 2*time.Minute)
	c.Patience = cmp.Or(c.Patience, 2*time.Minute)
	if c.Getenv == nil {
		c.Getenv = func(string) string { return "" }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Remote is an A2A agent somewhere else. New is required.
type Remote struct {
	// fixed after New
	cfg  Config
	log  *slog.Logger
	http *http.Client

	mu   sync.Mutex
	card *a2a.AgentCard // the latest; nil: none yet
}

var _ agent.Handler = (*Remote)(nil)

// New checks c. It asks nobody yet.
func New(c Config) (*Remote, error) {
	c = c.withDefaults()
	switch {
	case c.Identity == nil:
		return nil, errors.New("remote: Config.Identity is nil")
	case c.Poll < 0 || c.Timeout < 0 || c.Idle < 0 || c.Patience < 0:
		return nil, errors.New("remote: a time in Config is negative")
	}
	if err := c.Identity.Check(); err != nil {
		return nil, err
	}
	base := &http.Transport{
		Proxy: c.Proxy, TLSClientConfig: c.TLS.Clone(), ForceAttemptHTTP2: true,
		DialContext:         (&net.Dialer{Timeout: c.Timeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: c.Timeout, MaxIdleConnsPerHost: 16, IdleConnTimeout: 90 * time.Second,
	}
	r := &Remote{cfg: c, log: c.Log.With(slog.String("component", "remote"), slog.String("identity", c.Identity.ID))}
	r.http = &http.Client{Transport: &wire{base: base}, CheckRedirect: r.redirect}
	return r, nil
}

// redirect follows no redirect to a host that the operator has not named, nor
// one that gives up TLS.
func (r *Remote) redirect(req *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return errors.New("too many redirects")
	case !slices.Contains(r.cfg.Identity.hosts(), strings.ToLower(req.URL.Hostname())):
		return subjects.Errorf(subjects.CodeHostNotAllowed, "it redirects to another host, %s", req.URL.Hostname())
	case via[0].URL.Scheme == "https" && req.URL.Scheme != "https":
		return subjects.Errorf(subjects.CodeHostNotAllowed, "it redirects to an address without TLS")
	}
	return nil
}

// fetch gets the card.
func (r *Remote) fetch(ctx context.Context) (*a2a.AgentCard, error) {
	t := r.cfg.Identity.Transports.Card
	if t == nil {
		return r.bare(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	name, value, err := t.Auth.header(r.cfg.Getenv)
	if err != nil {
		return nil, err
	}
	resolver := &agentcard.Resolver{Client: r.http, CardParser: parseCard}
	get := func(path string) (*a2a.AgentCard, error) {
		options := []agentcard.ResolveOption{agentcard.WithPath(path)}
		if name != "" {
			options = append(options, agentcard.WithRequestHeader(name, value))
		}
		return resolver.Resolve(ctx, t.URL, options...)
	}
	card, err := get(orElse(t.Path, defaultCardPath))
	if missing, ok := errors.AsType[*agentcard.ErrStatusNotOK](err); ok && missing.StatusCode == http.StatusNotFound && t.Path == "" {
		old, oldErr := get(oldCardPath)
		if noOld, ok := errors.AsType[*agentcard.ErrStatusNotOK](oldErr); oldErr == nil || !ok || noOld.StatusCode != http.StatusNotFound {
			card, err = old, oldErr // the card is there, if it cannot be read
		}
	}
	if err != nil {
		return nil, fmt.Errorf("get the card: %w", err)
	}
	return card, nil
}

// parseCard reads a card of version 1.0 or 0.3.
func parseCard(data []byte) (card *a2a.AgentCard, err error) {
	if len(data) > maxCard {
		return nil, fmt.Errorf("the card has %d bytes, at most %d are read", len(data), maxCard)
	}
	defer func() { // it is a stranger's, and the SDK trusts it
		if p := recover(); p != nil {
			card, err = nil, fmt.Errorf("the card cannot be read: %v", p)
		}
	}()
	for _, parse := range []agentcard.Parser{protoCard, agentcard.DefaultCardParser, a2av0.NewAgentCardParser()} {
		var parsed *a2a.AgentCard
		if parsed, err = parse(data); err == nil && len(parsed.SupportedInterfaces) > 0 {
			card = parsed
			break
		}
	}
	if err == nil && card == nil {
		err = errors.New("it names no interface")
	}
	if err != nil {
		return nil, err
	}
	card.SupportedInterfaces = slices.DeleteFunc(card.SupportedInterfaces, func(i *a2a.AgentInterface) bool { return i == nil })
	if card.Name == "" || len(card.SupportedInterfaces) == 0 {
		return nil, errors.New("it is no agent's card: it needs a name and supportedInterfaces")
	}
	return card, nil
}

// protoCard reads a card as the specification has it, in ProtoJSON: the SDK's own
// types read security requirements in another form only.
func protoCard(data []byte) (*a2a.AgentCard, error) {
	m := new(a2apb.AgentCard)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, m); err != nil {
		return nil, err
	}
	return pbconv.FromProtoAgentCard(m)
}

// bare stands for the card of an agent that has none, if the agent answers.
func (r *Remote) bare(ctx context.Context) (*a2a.AgentCard, error) {
	id := r.cfg.Identity
	card := &a2a.AgentCard{Name: orElse(id.Name, id.ID), Capabilities: a2a.AgentCapabilities{Streaming: true}, SupportedInterfaces: []*a2a.AgentInterface{
		{URL: id.Transports.RPC.URL, ProtocolBinding: a2a.TransportProtocolJSONRPC, ProtocolVersion: a2a.Version},
	}}
	c, err := r.connect(ctx, card, "")
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Destroy() }()
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	if _, err := c.GetTask(ctx, &a2a.GetTaskRequest{ID: "00000000-0000-0000-0000-000000000000"}); err != nil && !isProtocol(err) {
		return nil, err
	}
	return card, nil
}

// current is the latest card; where there is none yet, it is fetched.
func (r *Remote) current(ctx context.Context) (*a2a.AgentCard, error) {
	r.mu.Lock()
	card := r.card
	r.mu.Unlock()
	if card != nil {
		return card, nil
	}
	card, err := r.fetch(ctx)
	if err == nil {
		r.keep(card)
	}
	return card, err
}

func (r *Remote) keep(card *a2a.AgentCard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.card = card
}

// connect is a client of what the card prefers, of what may be used. Its calls
// are part of a trace, if there is one.
func (r *Remote) connect(ctx context.Context, card *a2a.AgentCard, trace string) (*a2aclient.Client, error) {
	some, refused := r.usable(card)
	if len(some) == 0 {
		return nil, subjects.Errorf(subjects.CodeHostNotAllowed, "the card has no interface that can be used: %s", strings.Join(refused, "; ")).
			WithRemedy("name the agent's address in transports.a2a_rpc of its identity, if it is to be trusted")
	}
	t := r.cfg.Identity.Transports
	auth := t.Card
	if t.RPC != nil {
		auth = t.RPC
	}
	name, value, err := auth.Auth.header(r.cfg.Getenv)
	if err != nil {
		return nil, err
	}
	mine := *card
	mine.SupportedInterfaces = some
	rest03, rpc03 := a2av0.RESTTransportConfig{Client: r.http}, a2av0.JSONRPCTransportConfig{Client: r.http}
	c, err := a2aclient.NewFromCard(
		ctx, &mine, a2aclient.WithDefaultsDisabled(),
		a2aclient.WithJSONRPCTransport(r.http), a2aclient.WithRESTTransport(r.http),
		a2aclient.WithTransport(a2a.TransportProtocolGRPC, r.dialer(grpcv1.NewGRPCTransport)),
		a2av0.WithJSONRPCTransport(rpc03), a2av0.WithRESTTransport(rest03),
		a2aclient.WithCompatTransport(a2av0.Version, a2a.TransportProtocolGRPC, r.dialer(grpcv0.NewGRPCTransport)),
		a2aclient.WithCallInterceptors(&prove{name: name, value: value, trace: trace, extensions: declared(card)}),
	)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return c, nil
}

// prove adds the headers that prove who we are, say of which trace the request is,
// and activate the extensions that the agent shares with us.
type prove struct {
	a2aclient.PassthroughInterceptor
	name, value, trace string
	extensions         string // that are activated, as a header
}

// Before adds them to a request.
func (p *prove) Before(ctx context.Context, req *a2aclient.Request) (context.Context, any, error) {
	if p.name != "" {
		req.ServiceParams[p.name] = []string{p.value}
	}
	if p.extensions != "" {
		req.ServiceParams[headerExtensions] = []string{p.extensions}
	}
	if p.trace != "" {
		req.ServiceParams[headerTrace] = []string{p.trace}
	}
	return ctx, nil, nil
}

// declared are the extensions of ours that a card declares, as a header.
func declared(card *a2a.AgentCard) string {
	return strings.Join(slices.DeleteFunc([]string{fleet.ContractURI, fleet.RouteURI}, func(uri string) bool { return !speaks(card, uri) }), ",")
}

// speaks reports whether a card declares an extension.
func speaks(card *a2a.AgentCard, uri string) bool {
	return slices.ContainsFunc(card.Capabilities.Extensions, func(e a2a.AgentExtension) bool { return e.URI == uri })
}

// dialer makes connections of gRPC; make is the SDK's for one version.
func (r *Remote) dialer(wrap func(*grpc.ClientConn) a2aclient.Transport) a2aclient.TransportFactory {
	return a2aclient.TransportFactoryFn(func(_ context.Context, _ *a2a.AgentCard, i *a2a.AgentInterface) (a2aclient.Transport, error) {
		host, secure := r.endpoint(i)
		creds := insecure.NewCredentials()
		if secure {
			creds = credentials.NewTLS(r.cfg.TLS.Clone())
		}
		conn, err := grpc.NewClient("dns:///"+host, grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
		if err != nil {
			return nil, err
		}
		return wrap(conn), nil
	})
}

// secure reports whether the operator reaches the agent by TLS.
func (r *Remote) secure() bool {
	t := r.cfg.Identity.Transports
	return t.Card == nil || strings.HasPrefix(t.Card.URL, "https:")
}

// endpoint is the authority of an interface, and whether it speaks TLS. An
// interface of gRPC may have no scheme: then it does as the card's server does.
func (r *Remote) endpoint(i *a2a.AgentInterface) (authority string, tls bool) {
	if i.ProtocolBinding == a2a.TransportProtocolGRPC && !strings.Contains(i.URL, "://") {
		return strings.TrimPrefix(i.URL, "dns:"), r.secure()
	}
	u, err := url.Parse(i.URL)
	if err != nil {
		return "", false
	}
	return u.Host, u.Scheme == "https" || u.Scheme == "grpcs"
}

// usable are the interfaces of a card that may and can be used, in its order,
// and why the others may not.
func (r *Remote) usable(card *a2a.AgentCard) (some []*a2a.AgentInterface, refused []string) {
	id := r.cfg.Identity
	hosts := id.hosts()
	for _, i := range card.SupportedInterfaces {
		authority, secure := r.endpoint(i)
		host := authority
		if h, _, err := net.SplitHostPort(authority); err == nil {
			host = h
		}
		host = strings.ToLower(strings.Trim(host, "[]"))
		major, _, _ := strings.Cut(string(i.ProtocolVersion), ".")
		known := i.ProtocolBinding == a2a.TransportProtocolJSONRPC || i.ProtocolBinding == a2a.TransportProtocolHTTPJSON || i.ProtocolBinding == a2a.TransportProtocolGRPC
		why := ""
		switch {
		case id.Transports.RPC != nil && strings.TrimRight(i.URL, "/") != strings.TrimRight(id.Transports.RPC.URL, "/"):
			why = "the identity names another one"
		case !known || major != "1" && !strings.HasPrefix(string(i.ProtocolVersion), "0.3"):
			why = fmt.Sprintf("%s %s is not spoken here", i.ProtocolBinding, i.ProtocolVersion)
		case host == "" || !slices.Contains(hosts, host):
			why = "it is on another host than the card"
		case r.secure() && !secure:
			why = "it has no TLS, the card's has"
		}
		if why != "" {
			refused = append(refused, i.URL+": "+why)
			continue
		}
		some = append(some, i)
	}
	if rpc := id.Transports.RPC; len(some) == 0 && rpc != nil {
		version := a2a.Version
		if len(card.SupportedInterfaces) > 0 {
			version = card.SupportedInterfaces[0].ProtocolVersion
		}
		some = []*a2a.AgentInterface{{URL: rpc.URL, ProtocolBinding: a2a.TransportProtocolJSONRPC, ProtocolVersion: version}}
	}
	return some, refused
}

// Watch looks at the card until ctx ends and tells how the agent is.
func (r *Remote) Watch(ctx context.Context, tell func(agent.Condition)) {
	t := time.NewTicker(r.cfg.Poll)
	defer t.Stop()
	for {
		c := agent.Condition{Name: "a2a"}
		card, err := r.fetch(ctx)
		if err == nil {
			if some, refused := r.usable(card); len(some) == 0 {
				err = errors.New("no interface of its card can be used: " + strings.Join(refused, "; "))
			}
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			c.Down = "the remote agent cannot be reached: " + err.Error()
		} else {
			r.keep(card)
			c.Skills = skillsOf(card)
		}
		tell(c)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// skillsOf are the card's skills, as an announce has them.
func skillsOf(card *a2a.AgentCard) []json.RawMessage {
	const most = 64
	out := []json.RawMessage{}
	for _, s := range card.Skills[:min(len(card.Skills), most)] {
		s.SecurityRequirements = nil
		if data, err := json.Marshal(s); err == nil && s.ID != "" {
			out = append(out, data)
		}
	}
	return out
}
