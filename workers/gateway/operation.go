package gateway

import (
	"context"

	"google.golang.org/protobuf/proto"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
)

// operation is one of the eleven operations, the same for every binding.
// Exactly one of unary and stream is set.
type operation struct {
	request func() proto.Message
	unary   func(ctx context.Context, c *call, req proto.Message) (proto.Message, error)
	stream  func(ctx context.Context, c *call, req proto.Message, send func(frame) error) error
}

// message is a pointer to a request.
type message[T any] interface {
	*T
	proto.Message
}

func unary[Q any, P message[Q], R proto.Message](do func(context.Context, *call, P) (R, error)) *operation {
	return &operation{
		request: func() proto.Message { return P(new(Q)) },
		unary: func(ctx context.Context, c *call, req proto.Message) (proto.Message, error) {
			q, _ := req.(P)
			r, err := do(ctx, c, q)
			if err != nil {
				return nil, err
			}
			return r, nil
		},
	}
}

func streaming[Q any, P message[Q]](do func(context.Context, *call, P, func(frame) error) error) *operation {
	return &operation{
		request: func() proto.Message { return P(new(Q)) },
		stream: func(ctx context.Context, c *call, req proto.Message, send func(frame) error) error {
			q, _ := req.(P)
			return do(ctx, c, q, send)
		},
	}
}

// Names of the operations, which are JSON-RPC's methods and gRPC's, too.
const (
	opSend       = "SendMessage"
	opStream     = "SendStreamingMessage"
	opGet        = "GetTask"
	opList       = "ListTasks"
	opCancel     = "CancelTask"
	opSubscribe  = "SubscribeToTask"
	opCreatePush = "CreateTaskPushNotificationConfig"
	opGetPush    = "GetTaskPushNotificationConfig"
	opListPush   = "ListTaskPushNotificationConfigs"
	opDeletePush = "DeleteTaskPushNotificationConfig"
	opCard       = "GetExtendedAgentCard"
)

// operations is the table of what this gateway can do.
func (w *Worker) operations() map[string]*operation {
	all := map[string]*operation{
		opSend:       unary[a2apb.SendMessageRequest](w.sendMessage),
		opStream:     streaming[a2apb.SendMessageRequest](w.sendStreamingMessage),
		opGet:        unary[a2apb.GetTaskRequest](w.getTask),
		opList:       unary[a2apb.ListTasksRequest](w.listTasks),
		opCancel:     unary[a2apb.CancelTaskRequest](w.cancelTask),
		opSubscribe:  streaming[a2apb.SubscribeToTaskRequest](w.subscribeToTask),
		opCreatePush: unary[a2apb.TaskPushNotificationConfig](w.createPush),
		opGetPush:    unary[a2apb.GetTaskPushNotificationConfigRequest](w.getPush),
		opListPush:   unary[a2apb.ListTaskPushNotificationConfigsRequest](w.listPush),
		opDeletePush: unary[a2apb.DeleteTaskPushNotificationConfigRequest](w.deletePush),
		opCard:       unary[a2apb.GetExtendedAgentCardRequest](w.getExtendedAgentCard),
	}
	if w.cfg.NoStreaming {
		for _, op := range all {
			if op.stream != nil {
				op.stream = func(context.Context, *call, proto.Message, func(frame) error) error {
					return faultf(kindUnsupported, "streams are not served here; send without one, and ask by GetTask")
				}
			}
		}
	}
	return all
}
