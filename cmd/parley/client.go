package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// patience is how long a call waits for a worker where there is none, so that
// one which is just being replaced is not taken for a fleet without workers.
const patience = time.Second

// client asks the fleet's API as somebody.
type client struct {
	bus     *bus.Bus
	from    subjects.AgentID
	timeout time.Duration
	server  string     // for messages
	header  bus.Header // of its requests
}

// busConfig says how id reaches NATS by the settings.
func (a *app) busConfig(name string, id subjects.AgentID) bus.Config {
	c := a.conf
	cfg := bus.Config{
		URL: c.Server, Creds: c.Creds, NKey: c.NKey,
		User: c.User, Password: c.Password, Token: c.Token,
		CA: c.TLSCA, Cert: c.TLSCert, Key: c.TLSKey, TLSFirst: c.TLSFirst,
		Name: name, InboxPrefix: c.InboxPrefix, ConnectTimeout: time.Duration(c.Timeout),
	}
	switch {
	case c.Context != "":
		cfg.URL, cfg.Context = "", contextPath(a.getenv, c.Context) // it has its own URL, and its inbox prefix
	case cfg.InboxPrefix == "":
		cfg.InboxPrefix = subjects.InboxPrefix(id)
	}
	return cfg
}

// connect reaches the fleet as a client.
func (a *app) connect(ctx context.Context) (*client, error) {
	me, err := a.identity()
	if err != nil {
		return nil, err
	}
	if me != nil && a.conf.As == defaultConfig(a.getenv).As {
		a.conf.As = string(me.AgentID)
	}
	cfg := a.busConfig("parley "+a.conf.As, subjects.AgentID(a.conf.As))
	if err := me.use(&cfg, subjects.AgentID(a.conf.As)); err != nil {
		return nil, err
	}
	cfg.ConnectTimeout = min(cfg.ConnectTimeout, 2*time.Second)
	cfg.Log = a.clientLog()
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		return nil, a.noServer(err)
	}
	me.sign(b)
	c := &client{
		bus: b, from: subjects.AgentID(a.conf.As), timeout: time.Duration(a.conf.Timeout), server: a.serverName(),
	}
	if t := a.trace(); t != "" {
		c.header = bus.Header{subjects.HeaderTraceparent: {t}}
	}
	return c, nil
}

func (a *app) serverName() string {
	if a.conf.Context != "" {
		return "context " + a.conf.Context
	}
	return bus.Redacted(a.conf.Server)
}

// noServer says what to do where NATS cannot be reached.
func (a *app) noServer(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	p := &problem{
		what: "cannot reach NATS at " + a.serverName() + " (unavailable)", where: err.Error(),
		exit: codeExit(subjects.CodeUnavailable), err: err,
	}
	if errors.Is(err, bus.ErrDenied) {
		p.what, p.exit = "NATS at "+a.serverName()+" does not let us in (auth_failed)", codeExit(subjects.CodeAuthFailed)
		return p.next("give --identity, --creds, --nkey, --user and --password, or --context NAME")
	}
	if errors.Is(err, bus.ErrTLS) {
		return p.next("--tlsca names the authority that the server's certificate is of, --tlscert and --tlskey a certificate of your own; a server that speaks TLS first needs --tlsfirst")
	}
	return p.next("parley up  starts a fleet on this machine; --server or --context names another")
}

// reply is what an API call answered: decoded, and as it came.
type reply[T any] struct {
	value T
	raw   []byte
}

// call asks noun.verb. A refusal is the error, a *subjects.Error. The request
// must be safe to repeat.
func call[T any](ctx context.Context, c *client, noun, verb string, req any) (reply[T], error) {
	data, err := fleet.Encode(req)
	if err != nil {
		return reply[T]{}, err
	}
	return callRaw[T](ctx, c, noun, verb, data)
}

func callRaw[T any](ctx context.Context, c *client, noun, verb string, data []byte) (reply[T], error) {
	m, err := c.request(ctx, subjects.API(c.from, noun, verb), data)
	if err != nil {
		return reply[T]{}, c.unanswered(err, noun, verb)
	}
	v, err := fleet.DecodeReply[T](m.Data)
	if err != nil {
		return reply[T]{}, err
	}
	return reply[T]{value: v, raw: m.Data}, nil
}

// agents asks for agent list, all pages of it.
func (c *client) agents(ctx context.Context, q fleet.AgentList) (reply[fleet.AgentListReply], error) {
	var r reply[fleet.AgentListReply]
	pages := 0
	all, err := fleet.AllAgents(q, func(q fleet.AgentList) (page fleet.AgentListReply, err error) {
		pages++
		r, err = call[fleet.AgentListReply](ctx, c, "agent", "list", q)
		return r.value, err
	})
	if err != nil || pages == 1 {
		return r, err
	}
	r.value = fleet.AgentListReply{Agents: all}
	r.raw, err = fleet.Encode(r.value)
	return r, err
}

// alerts asks for escalation list, all pages of it.
func (c *client) alerts(ctx context.Context, q fleet.EscalationList) (reply[fleet.EscalationListReply], error) {
	var r reply[fleet.EscalationListReply]
	pages := 0
	all, err := fleet.AllAlerts(q, func(q fleet.EscalationList) (page fleet.EscalationListReply, err error) {
		pages++
		r, err = call[fleet.EscalationListReply](ctx, c, "escalation", "list", q)
		return r.value, err
	})
	if err != nil || pages == 1 {
		return r, err
	}
	r.value = all
	r.raw, err = fleet.Encode(r.value)
	return r, err
}

// dispatchTry is how long a dispatch waits for its answer before it is sent again:
// who was about to answer may have gone. It has an id, so it is one task.
const dispatchTry = 8 * time.Second

// request asks once, and again where that may help: briefly while nobody is
// there, until the time-out while the answer is to repeat.
func (c *client) request(ctx context.Context, subject string, data []byte) (bus.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	try := c.timeout
	if subject == subjects.API(c.from, "task", "dispatch") {
		try = dispatchTry
	}
	first, done := context.WithTimeout(ctx, try)
	m, err := c.bus.Request(first, subject, data, c.header)
	done()
	var last bus.Msg
	again := func(m bus.Msg) bool {
		last = m
		return repeat(m.Data)
	}
	switch {
	case errors.Is(err, bus.ErrNoResponders):
		soon, stop := context.WithTimeout(ctx, patience)
		defer stop()
		m, err = c.bus.RequestUntil(soon, subject, data, c.header, 0, again)
	case err == nil && again(m), errors.Is(err, bus.ErrTimeout) && ctx.Err() == nil:
		m, err = c.bus.RequestUntil(ctx, subject, data, c.header, try, again)
	}
	if err != nil && last.Data != nil {
		return last, nil // the refusal says more than the time-out
	}
	return m, err
}

// repeat reports whether a reply asks for the request to be repeated.
func repeat(data []byte) bool {
	var r struct {
		Error *struct {
			Code subjects.Code `json:"code"`
		} `json:"error"`
	}
	return json.Unmarshal(data, &r) == nil && r.Error != nil && r.Error.Code == subjects.CodeUnavailable
}

// unanswered says what to do where no worker answers.
func (c *client) unanswered(err error, noun, verb string) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	worker := "router"
	switch {
	case noun == "agent" && verb == "list":
		worker = "registry"
	case noun == "escalation":
		worker = "escalation"
	case noun == "webhook":
		worker = "webhooks"
	case noun == "audit":
		worker = "audit"
	case noun == "identity":
		worker = "callout"
	case noun == "session":
		worker = "sessions"
	case noun == "run":
		worker = "runs"
	case noun == "schedule":
		worker = "schedules"
	case noun == "mesh", noun == "a2e":
		worker = noun
	}
	p := &problem{exit: codeExit(subjects.CodeUnavailable), err: err}
	switch {
	case errors.Is(err, bus.ErrNoResponders):
		p.what = "no " + worker + " is there to answer " + noun + " " + verb + " (unavailable)"
		p.where = "connected to " + c.server + ", where nobody listens on " + subjects.APIPattern(noun, verb)
		return p.next("parley serve --workers " + worker + "  starts one; parley up starts everything on this machine")
	case errors.Is(err, bus.ErrTimeout):
		p.what = "no answer to " + noun + " " + verb + " within " + cmp.Or(roughly(c.timeout), "time") + " (unavailable)"
		if look := lookFirst(noun, verb); look != "" {
			p.where = "it may have been done all the same, and a repeat would do it again"
			return p.next(look + "  tells whether it was done")
		}
		p.where = "it may have been done all the same; repeating it is safe"
		return p.next("repeat the command, with a longer --timeout if need be")
	case errors.Is(err, bus.ErrDenied):
		p.what = "these credentials may not ask as " + string(c.from) + " (forbidden)"
		p.exit = codeExit(subjects.CodeForbidden)
		return p.next("name yourself with --as, or use that identity's credentials")
	}
	return err
}
