package a2anats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"github.com/a2aproject/a2a-go/v2/a2apb/v1/pbconv"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// Silence is how long a call may say nothing: gateways say alive every 15 s.
// After it the call is lost.
const Silence = 45 * time.Second

// Config is what a Transport needs.
type Config struct {
	Bus  *bus.Bus         // required
	From subjects.AgentID // required: who calls, as the NATS credentials allow
	Root string           // of the subjects; absent: Root, or what the card says
}

// Transport speaks A2A over NATS for the official SDK's client. It is safe for
// concurrent use.
type Transport struct{ cfg Config }

var _ a2aclient.Transport = (*Transport)(nil)

// New checks cfg and makes a Transport.
func New(cfg Config) (*Transport, error) {
	if cfg.Bus == nil {
		return nil, errors.New("a2anats: no bus")
	}
	if _, err := subjects.ParseAgentID(string(cfg.From)); err != nil {
		return nil, fmt.Errorf("a2anats: who calls: %w", err)
	}
	if cfg.Root == "" {
		cfg.Root = Root
	}
	return &Transport{cfg: cfg}, nil
}

// With gives a client of the SDK this binding, for agents whose cards name it.
// The connection is the caller's, whatever server a card names.
func With(cfg Config) a2aclient.FactoryOption {
	return a2aclient.WithTransport(Binding, a2aclient.TransportFactoryFn(
		func(_ context.Context, _ *a2a.AgentCard, i *a2a.AgentInterface) (a2aclient.Transport, error) {
			at := cfg
			u, err := url.Parse(i.URL)
			if err != nil {
				return nil, fmt.Errorf("a2anats: %w", err)
			}
			if root := strings.Trim(u.Path, "/"); root != "" && at.Root == "" {
				at.Root = root
			}
			return New(at)
		}))
}

// Destroy does nothing: the connection is the caller's.
func (t *Transport) Destroy() error { return nil }

// open begins a call.
func (t *Transport) open(op string, params a2aclient.ServiceParams, req proto.Message, after string) (*bus.Conversation, error) {
	data, err := protojson.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("a2anats: encode %s: %w", op, err)
	}
	h := bus.Header{}
	for name, values := range params {
		for _, known := range []string{HeaderVersion, HeaderExtensions, HeaderIdempotent, HeaderLastEvent, HeaderTrace} {
			if strings.EqualFold(name, known) {
				name = known
			}
		}
		h[name] = append(h[name], values...)
	}
	if h.Get(HeaderVersion) == "" {
		h.Set(HeaderVersion, string(a2a.Version))
	}
	if after != "" {
		h.Set(HeaderLastEvent, after)
	}
	c, err := t.cfg.Bus.Converse(Subject(t.cfg.Root, t.cfg.From, op), data, h)
	if err != nil {
		return nil, fmt.Errorf("a2anats: %w", err)
	}
	return c, nil
}

// errLost says that a call has no end: its gateway is gone.
var errLost = errors.New("the gateway says nothing any more")

// next is the next frame that says something; alive ones are confirmed.
func (t *Transport) next(ctx context.Context, c *bus.Conversation) (bus.Msg, error) {
	for {
		waiting, cancel := context.WithTimeout(ctx, Silence)
		m, err := c.Next(waiting)
		cancel()
		switch {
		case err != nil && ctx.Err() == nil && errors.Is(err, bus.ErrTimeout):
			return m, errLost
		case err != nil:
			return m, err
		}
		switch m.Header.Get(HeaderFrame) {
		case FrameAlive:
			if err := t.confirm(m); err != nil {
				return m, err
			}
		case FrameError:
			return m, failure(m.Data)
		case "": // it did not reach a gateway
			return m, refusal(m.Data)
		default:
			return m, nil
		}
	}
}

// confirm says that an alive frame was read, under the caller's own subject.
func (t *Transport) confirm(m bus.Msg) error {
	if strings.HasPrefix(m.Reply, Subject(t.cfg.Root, t.cfg.From, "confirm")+".") {
		return t.cfg.Bus.Publish(m.Reply, nil, nil)
	}
	return m.Respond(nil, nil)
}

// refusal reads what a fleet answers to a message that it does not take.
func refusal(data []byte) error {
	_, err := fleet.DecodeReply[struct{}](data)
	switch code := subjects.CodeOf(err); code {
	case "":
		return a2a.NewError(a2a.ErrInvalidAgentResponse, "a reply without a frame")
	case subjects.CodeAuthFailed:
		return a2a.NewError(a2a.ErrUnauthenticated, err.Error())
	case subjects.CodeForbidden:
		return a2a.NewError(a2a.ErrUnauthorized, err.Error())
	default:
		return a2a.NewError(a2a.ErrServerError, err.Error())
	}
}

// request is a unary operation with what goes beside its message.
type request struct {
	t      *Transport
	op     string
	params a2aclient.ServiceParams
}

// call carries it out.
func (r request) call(ctx context.Context, req, res proto.Message) error {
	op := r.op
	c, err := r.t.open(op, r.params, req, "")
	if err != nil {
		return err
	}
	defer c.Close()
	m, err := r.t.next(ctx, c)
	if err != nil {
		return told(op, err)
	}
	if kind := m.Header.Get(HeaderFrame); kind != FrameResponse {
		return fmt.Errorf("a2anats: %s: %w: a frame %q", op, a2a.ErrInvalidAgentResponse, kind)
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(m.Data, res); err != nil {
		return fmt.Errorf("a2anats: %s: %w: %w", op, a2a.ErrInvalidAgentResponse, err)
	}
	return nil
}

// told is an error of a call; those of the protocol stay as they are.
func told(op string, err error) error {
	if e, ok := errors.AsType[*a2a.Error](err); ok {
		return e
	}
	return fmt.Errorf("a2anats: %s: %w", op, err)
}

// failure reads an error frame.
func failure(data []byte) error {
	var f struct {
		Error struct {
			Status  string `json:"status"`
			Message string `json:"message"`
			Details []struct {
				Reason   string            `json:"reason"`
				Metadata map[string]string `json:"metadata"`
			} `json:"details"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return a2a.NewError(a2a.ErrInvalidAgentResponse, "an error that is not JSON")
	}
	reason, meta := f.Error.Status, map[string]string(nil)
	for _, d := range f.Error.Details {
		if d.Reason != "" {
			reason, meta = d.Reason, d.Metadata
		}
	}
	kind := sentinel(reason)
	return a2a.NewError(kind, f.Error.Message).WithErrorInfoMeta(meta).WithDetails(map[string]any{"reason": reason})
}

// sentinel is the SDK's error of a reason.
func sentinel(reason string) error {
	for _, err := range []error{
		a2a.ErrParseError, a2a.ErrInvalidRequest, a2a.ErrMethodNotFound, a2a.ErrInvalidParams, a2a.ErrInternalError,
		a2a.ErrTaskNotFound, a2a.ErrTaskNotCancelable, a2a.ErrPushNotificationNotSupported, a2a.ErrUnsupportedOperation,
		a2a.ErrUnsupportedContentType, a2a.ErrInvalidAgentResponse, a2a.ErrExtendedCardNotConfigured,
		a2a.ErrExtensionSupportRequired, a2a.ErrVersionNotSupported, a2a.ErrUnauthenticated, a2a.ErrUnauthorized,
	} {
		if a2a.ErrorReason(err) == reason {
			return err
		}
	}
	return a2a.ErrServerError
}

// convert makes one of the SDK's requests one of the wire's, and an answer one
// of the SDK's.
func convert[Q, P any, A proto.Message, R any](ctx context.Context, to request, req Q,
	encode func(Q) (P, error), answer A, decode func(A) (R, error),
) (R, error) {
	var none R
	q, err := encode(req)
	if err != nil {
		return none, fmt.Errorf("a2anats: %s: %w", to.op, err)
	}
	m, ok := any(q).(proto.Message)
	if !ok {
		return none, fmt.Errorf("a2anats: %s: %T is no message", to.op, q)
	}
	if err := to.call(ctx, m, answer); err != nil {
		return none, err
	}
	return decode(answer)
}

// GetTask calls the operation of its name.
func (t *Transport) GetTask(ctx context.Context, p a2aclient.ServiceParams, req *a2a.GetTaskRequest) (*a2a.Task, error) {
	return convert(ctx, request{t, "GetTask", p}, req, pbconv.ToProtoGetTaskRequest, new(a2apb.Task), pbconv.FromProtoTask)
}

// ListTasks calls the operation of its name.
func (t *Transport) ListTasks(ctx context.Context, p a2aclient.ServiceParams, req *a2a.ListTasksRequest) (*a2a.ListTasksResponse, error) {
	return convert(ctx, request{t, "ListTasks", p}, req, pbconv.ToProtoListTasksRequest, new(a2apb.ListTasksResponse), pbconv.FromProtoListTasksResponse)
}

// CancelTask calls the operation of its name.
func (t *Transport) CancelTask(ctx context.Context, p a2aclient.ServiceParams, req *a2a.CancelTaskRequest) (*a2a.Task, error) {
	return convert(ctx, request{t, "CancelTask", p}, req, pbconv.ToProtoCancelTaskRequest, new(a2apb.Task), pbconv.FromProtoTask)
}

// SendMessage calls the operation of its name. It is not repeated when its
// gateway is lost: whoever repeats it sends an Idempotency-Key.
func (t *Transport) SendMessage(ctx context.Context, p a2aclient.ServiceParams, req *a2a.SendMessageRequest) (a2a.SendMessageResult, error) {
	return convert(ctx, request{t, "SendMessage", p}, req, pbconv.ToProtoSendMessageRequest, new(a2apb.SendMessageResponse), pbconv.FromProtoSendMessageResponse)
}

// GetTaskPushConfig calls GetTaskPushNotificationConfig.
func (t *Transport) GetTaskPushConfig(ctx context.Context, p a2aclient.ServiceParams, req *a2a.GetTaskPushConfigRequest) (*a2a.PushConfig, error) {
	return convert(ctx, request{t, "GetTaskPushNotificationConfig", p}, req, pbconv.ToProtoGetTaskPushConfigRequest, new(a2apb.TaskPushNotificationConfig), pbconv.FromProtoTaskPushConfig)
}

// ListTaskPushConfigs calls ListTaskPushNotificationConfigs.
func (t *Transport) ListTaskPushConfigs(ctx context.Context, p a2aclient.ServiceParams, req *a2a.ListTaskPushConfigRequest) ([]*a2a.PushConfig, error) {
	r, err := convert(ctx, request{t, "ListTaskPushNotificationConfigs", p}, req, pbconv.ToProtoListTaskPushConfigRequest,
		new(a2apb.ListTaskPushNotificationConfigsResponse), pbconv.FromProtoListTaskPushConfigResponse)
	if err != nil {
		return nil, err
	}
	return r.Configs, nil
}

// CreateTaskPushConfig calls CreateTaskPushNotificationConfig.
func (t *Transport) CreateTaskPushConfig(ctx context.Context, p a2aclient.ServiceParams, req *a2a.PushConfig) (*a2a.PushConfig, error) {
	return convert(ctx, request{t, "CreateTaskPushNotificationConfig", p}, req, pbconv.ToProtoTaskPushConfig, new(a2apb.TaskPushNotificationConfig), pbconv.FromProtoTaskPushConfig)
}

// DeleteTaskPushConfig calls DeleteTaskPushNotificationConfig.
func (t *Transport) DeleteTaskPushConfig(ctx context.Context, p a2aclient.ServiceParams, req *a2a.DeleteTaskPushConfigRequest) error {
	_, err := convert(ctx, request{t, "DeleteTaskPushNotificationConfig", p}, req, pbconv.ToProtoDeleteTaskPushConfigRequest, new(emptypb.Empty), nothing)
	return err
}

func nothing(*emptypb.Empty) (struct{}, error) { return struct{}{}, nil }

// GetExtendedAgentCard calls the operation of its name.
func (t *Transport) GetExtendedAgentCard(ctx context.Context, p a2aclient.ServiceParams, req *a2a.GetExtendedAgentCardRequest) (*a2a.AgentCard, error) {
	return convert(ctx, request{t, "GetExtendedAgentCard", p}, req, pbconv.ToProtoGetExtendedAgentCardRequest, new(a2apb.AgentCard), pbconv.FromProtoAgentCard)
}

// Card asks for the public card of the fleet, or of an agent, over NATS.
func (t *Transport) Card(ctx context.Context, agent subjects.AgentID) (*a2a.AgentCard, error) {
	req := &a2a.GetExtendedAgentCardRequest{Tenant: string(agent)}
	return convert(ctx, request{t, CardOperation, nil}, req, pbconv.ToProtoGetExtendedAgentCardRequest, new(a2apb.AgentCard), pbconv.FromProtoAgentCard)
}

// SendStreamingMessage calls the operation of its name. When its gateway is
// lost after the task is known, the stream goes on at another one.
func (t *Transport) SendStreamingMessage(ctx context.Context, p a2aclient.ServiceParams, req *a2a.SendMessageRequest) iter.Seq2[a2a.Event, error] {
	q, err := pbconv.ToProtoSendMessageRequest(req)
	if err != nil {
		return failed(fmt.Errorf("a2anats: SendStreamingMessage: %w", err))
	}
	s := &stream{t: t, params: p, op: "SendStreamingMessage", req: q, sending: true, tenant: q.GetTenant()}
	return s.events(ctx)
}

// SubscribeToTask calls the operation of its name. When its gateway is lost, the
// stream goes on at another one.
func (t *Transport) SubscribeToTask(ctx context.Context, p a2aclient.ServiceParams, req *a2a.SubscribeToTaskRequest) iter.Seq2[a2a.Event, error] {
	q, err := pbconv.ToProtoSubscribeToTaskRequest(req)
	if err != nil {
		return failed(fmt.Errorf("a2anats: SubscribeToTask: %w", err))
	}
	s := &stream{t: t, params: p, op: "SubscribeToTask", req: q, tenant: q.GetTenant(), task: q.GetId()}
	return s.events(ctx)
}

func failed(err error) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) { yield(nil, err) }
}
