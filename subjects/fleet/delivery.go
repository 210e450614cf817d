package fleet

import (
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"parley/subjects"
)

// TypeDelivery and TypeDeliveryState are the types of Delivery and
// DeliveryState.
const (
	TypeDelivery      = "WEBHOOK_DELIVERY"
	TypeDeliveryState = "WEBHOOK_STATE"
)

// Values of Delivery.Schedule.
const (
	ScheduleHuman = "human" // somebody must hear of it: tried for a day
	SchedulePush  = "push"  // a program listens: a few tries
)

// DefaultNotAfter is how long a delivery is tried that does not say it.
const DefaultNotAfter = 24 * time.Hour

// Bounds of a delivery.
const (
	maxURL         = 2048 // bytes
	maxHeaders     = 16
	maxHeaderValue = 4096 // bytes
)

// Delivery asks for one HTTP POST to a webhook. Store it on
// subjects.Webhook(Order, DeliveryID) with its DeliveryID as Nats-Msg-Id; from
// then on it is the webhooks worker's, which answers for it with a
// DeliveryState.
//
// It goes to a configured endpoint, by name: address, headers and secret are
// in the configuration of the worker and never travel. Or it goes to a URL of
// its own with headers of its own, which may hold what the owner of that URL
// gave us for it (a push token); an Endpoint beside it lends the URL its
// signing secret, its allow list and its schedule. Such an endpoint has no URL.
type Delivery struct {
	Header
	DeliveryID  subjects.DeliveryID `json:"delivery_id"`
	Endpoint    string              `json:"endpoint,omitempty"` // one token
	URL         string              `json:"url,omitempty"`
	Headers     map[string]string   `json:"headers,omitempty"`      // with URL only
	ContentType string              `json:"content_type,omitempty"` // absent application/json
	Body        json.RawMessage     `json:"body"`                   // sent as these very bytes in every attempt
	Order       string              `json:"order"`                  // one token
	Schedule    string              `json:"schedule,omitempty"`     // absent human
	NotAfter    *time.Time          `json:"not_after,omitempty"`    // absent 24 h after it was stored
	TaskID      subjects.TaskID     `json:"task_id,omitempty"`
	Traceparent string              `json:"traceparent,omitempty"` // absent: it is part of no trace
	Unknown     Unknown             `json:",unknown"`
}

// The life of a delivery. Pending becomes one of the others; a dead one that
// is replayed is pending again.
const (
	DeliveryPending   = "pending"
	DeliveryDelivered = "delivered" // the receiver said 2xx
	DeliveryDead      = "dead"      // no attempt is left: see Error, replay or drop it
	DeliveryDropped   = "dropped"   // an operator gave it up
)

// DeliveryStates lists the states of a delivery.
func DeliveryStates() []string {
	return []string{DeliveryPending, DeliveryDelivered, DeliveryDead, DeliveryDropped}
}

// DeliveryState is what has become of a delivery so far, without its body and
// without anything secret. The last one of subjects.WebhookEvent(DeliveryID)
// counts; a delivery that has none waits for its first attempt.
type DeliveryState struct {
	Header
	DeliveryID subjects.DeliveryID `json:"delivery_id"`
	State      string              `json:"state"`
	Endpoint   string              `json:"endpoint"` // its name, or the URL's origin
	Order      string              `json:"order"`
	Schedule   string              `json:"schedule"`
	TaskID     subjects.TaskID     `json:"task_id,omitempty"`
	Queued     time.Time           `json:"queued"`  // when the delivery was stored
	Updated    time.Time           `json:"updated"` // when this was written
	NotAfter   time.Time           `json:"not_after"`
	Attempts   int                 `json:"attempts"` // begun ones, the one under way included
	Sending    *Sending            `json:"sending,omitempty"`
	NextAt     *time.Time          `json:"next_at,omitempty"`    // pending: not before then
	HoldUntil  *time.Time          `json:"hold_until,omitempty"` // the receiver asked for quiet until then
	Status     int                 `json:"status,omitzero"`      // HTTP status of the last attempt
	Error      *Reason             `json:"error,omitempty"`      // why the last attempt failed
	DurationMS int64               `json:"duration_ms,omitzero"` // of the last attempt
	Replays    int                 `json:"replays,omitzero"`     // how often an operator replayed it
	By         subjects.AgentID    `json:"by,omitempty"`         // the operator who replayed or dropped it

	Traceparent string  `json:"traceparent,omitempty"` // as the delivery has it
	Unknown     Unknown `json:",unknown"`
}

// Sending says who has an attempt in hand. Unless it tells how that ended
// within the lease, the attempt counts as lost and another one may begin.
type Sending struct {
	By           string  `json:"by"`
	LeaseSeconds float64 `json:"lease_seconds"`
}

// Trace is the delivery's.
func (s *DeliveryState) Trace() Trace { return TraceOf(s.DeliveryID, s.Traceparent) }

// Post numbers the attempt, over all replays.
func (s *DeliveryState) Post() int { return s.Replays<<16 + s.Attempts }

// DecodeDelivery reads a WEBHOOK_DELIVERY. Absent content_type and schedule
// have their defaults afterwards; an absent not_after depends on the clock.
func DecodeDelivery(data []byte) (*Delivery, error) {
	return decode[Delivery](data, TypeDelivery, strict)
}

// DecodeDeliveryState reads a WEBHOOK_STATE.
func DecodeDeliveryState(data []byte) (*DeliveryState, error) {
	return decode[DeliveryState](data, TypeDeliveryState, strict)
}

// Target names where d goes, for people and for grouping: the endpoint's name,
// or the origin (scheme and host) of its URL, which holds nothing secret.
func (d *Delivery) Target() string {
	if d.URL == "" {
		return d.Endpoint
	}
	u, err := url.Parse(d.URL)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Scheme + "://" + u.Host)
}

func (d *Delivery) check(p *problems) {
	p.token("/delivery_id", "delivery_id", string(d.DeliveryID), true)
	p.token("/endpoint", "endpoint", d.Endpoint, false)
	p.token("/order", "order", d.Order, true)
	p.taskID("/task_id", d.TaskID, false)
	p.Traceparent("/traceparent", d.Traceparent)
	if d.Endpoint == "" && d.URL == "" {
		p.invalid("/endpoint", "expected an endpoint or a url, got neither")
	}
	if d.URL != "" {
		p.webhookURL("/url", d.URL)
	}
	if len(d.Headers) > 0 && d.URL == "" {
		p.add(invalid("/headers", "headers go with a url of the delivery's own").
			WithRemedy("leave them out: those of an endpoint are in its configuration"))
	}
	p.httpHeaders("/headers", d.Headers)
	switch {
	case d.ContentType == "":
		d.ContentType = "application/json"
	case len(d.ContentType) > maxName || !printable(d.ContentType, ' ') || !strings.Contains(d.ContentType, "/"):
		p.invalid("/content_type", "expected a media type, got %q", clip(d.ContentType))
	}
	if len(d.Body) == 0 || null(d.Body) {
		p.invalid("/body", "expected what is to be sent, got nothing")
	}
	p.oneOf("/schedule", d.Schedule, ScheduleHuman, SchedulePush)
	if d.Schedule == "" {
		d.Schedule = ScheduleHuman
	}
}

func (s *DeliveryState) check(p *problems) {
	p.token("/delivery_id", "delivery_id", string(s.DeliveryID), true)
	p.token("/order", "order", s.Order, true)
	p.taskID("/task_id", s.TaskID, false)
	p.Traceparent("/traceparent", s.Traceparent)
	p.oneOf("/state", s.State, DeliveryStates()...)
	if s.State == "" {
		p.invalid("/state", "expected a state of a delivery, got nothing")
	}
	p.oneOf("/schedule", s.Schedule, ScheduleHuman, SchedulePush)
	p.counted("/attempts", int64(s.Attempts), maxCount)
	p.reason("/error", s.Error)
}

// token checks an identifier that has no type of its own.
func (p *problems) token(pointer, kind, s string, required bool) {
	switch {
	case s == "" && required:
		p.missing(pointer)
	case s != "" && !subjects.ValidToken(s):
		p.add(subjects.Errorf(subjects.CodeInvalidID, "%s %q is not an identifier", kind, clip(s)).At(pointer).
			WithRemedy("use 1 to 64 of the characters A-Z a-z 0-9 _ -"))
	}
}

// webhookURL checks an address. What it says never repeats more than its
// beginning is safe to show: the scheme.
func (p *problems) webhookURL(pointer, s string) {
	u, err := url.Parse(s)
	switch {
	case len(s) > maxURL:
		p.invalid(pointer, "expected at most %d bytes, got %d", maxURL, len(s))
	case err != nil || !printable(s, '!'):
		p.invalid(pointer, "expected a URL")
	case u.Scheme != "https" && u.Scheme != "http":
		p.invalid(pointer, "expected an https or http URL, got scheme %q", clip(u.Scheme))
	case u.Hostname() == "" || u.Opaque != "":
		p.invalid(pointer, "expected a URL with a host")
	case u.User != nil:
		p.add(invalid(pointer, "a URL must not hold a password").WithRemedy("send it as a header"))
	case u.Fragment != "":
		p.invalid(pointer, "a URL that is called has no fragment (#)")
	}
}

// httpHeaders checks names and values of headers, and leaves those alone that
// are the worker's or the connection's.
func (p *problems) httpHeaders(pointer string, headers map[string]string) {
	if len(headers) > maxHeaders {
		p.invalid(pointer, "expected at most %d headers, got %d", maxHeaders, len(headers))
		return
	}
	for _, name := range sortedKeys(headers) {
		if why := BadHeader(name, headers[name]); why != "" {
			p.invalid(member(pointer, name), "%s", why)
		}
	}
}

// BadHeader says why a webhook cannot have a header, "" when it can.
func BadHeader(name, value string) string {
	const separators = `()<>@,;:\"/[]?={}`
	switch lower := strings.ToLower(name); {
	case name == "" || len(name) > maxName || !printable(name, '!') || strings.ContainsAny(name, separators):
		return "expected the name of an HTTP header"
	case strings.HasPrefix(lower, "webhook-"):
		return "webhook-… headers are the signature's"
	case lower == "host", lower == "content-length", lower == "content-type", lower == "transfer-encoding",
		lower == "connection", lower == "upgrade", lower == "trailer", lower == "te", lower == "expect",
		lower == "user-agent", lower == "idempotency-key", lower == "proxy-authorization":
		return "this header is not the sender's to choose"
	case len(value) > maxHeaderValue || !printable(value, ' '):
		return "expected a value of printable ASCII characters"
	}
	return ""
}
