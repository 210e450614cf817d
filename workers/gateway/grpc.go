package gateway

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
)

// rpcServer serves the gRPC binding, on the port of the others.
type rpcServer struct {
	a2apb.UnimplementedA2AServiceServer
	w *Worker
}

func newGRPC(w *Worker) *grpc.Server {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxBody), grpc.ForceServerCodecV2(sameBytes{encoding.GetCodecV2(grpcproto.Name)}))
	own := &rpcServer{w: w}
	a2apb.RegisterA2AServiceServer(s, own)
	if !w.cfg.NoLegacy {
		own.legacyGRPC().RegisterWith(s)
	}
	return s
}

// sameBytes is the codec of protocol buffers that writes the same message with the
// same bytes: maps in the order of their keys.
type sameBytes struct{ encoding.CodecV2 }

// Marshal writes a message.
func (c sameBytes) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(data)}, nil
}

// grpcParams are the service parameters of gRPC: metadata.
type grpcParams metadata.MD

func (p grpcParams) Values(name string) []string { return metadata.MD(p).Get(name) }

// admitGRPC admits a gRPC call; the extensions that count go into the header.
func (s *rpcServer) admitGRPC(ctx context.Context, legacy bool) (*call, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	var p peer
	if info, ok := grpcpeer.FromContext(ctx); ok {
		p.address = info.Addr.String()
		if tls, ok := info.AuthInfo.(credentials.TLSInfo); ok && len(tls.State.VerifiedChains) > 0 {
			state := tls.State
			p = peerOf(&http.Request{TLS: &state, RemoteAddr: p.address})
		}
	}
	c, err := s.w.admit(ctx, grpcParams(md), p, func() error {
		if legacy {
			return nil
		}
		return checkVersion(first(grpcParams(md), headerVersion))
	})
	if err != nil {
		return nil, err
	}
	authority := ""
	if v := md.Get(":authority"); len(v) > 0 {
		authority = v[0]
	}
	c.base = s.w.baseOf(&http.Request{Host: authority})
	c.activated = func(uris []string) {
		if err := grpc.SetHeader(ctx, metadata.Pairs(strings.ToLower(headerExtensions), strings.Join(uris, ","))); err != nil {
			s.w.log.Debug("set a gRPC header", slog.Any("error", err))
		}
	}
	c.activate(c.active)
	return c, nil
}

// refuse is an error as gRPC tells it.
func (s *rpcServer) refuse(ctx context.Context, err error) error {
	f := asFault(err)
	if f.kind == kindInternal {
		s.w.log.Error("answer a gRPC call", slog.Any("error", f.reason()))
	}
	_ = grpc.SetHeader(ctx, metadata.Pairs(strings.ToLower(headerVersion), protocolVersion))
	return f.grpcError(time.Now())
}

// do runs a unary operation.
func do[R proto.Message](ctx context.Context, s *rpcServer, name string, req proto.Message) (R, error) {
	var none R
	_ = grpc.SetHeader(ctx, metadata.Pairs(strings.ToLower(headerVersion), protocolVersion))
	ctx, cancel := s.w.during(ctx)
	defer cancel()
	c, err := s.admitGRPC(ctx, false)
	if err != nil {
		return none, s.refuse(ctx, err)
	}
	res, err := s.w.ops[name].unary(ctx, c, req)
	if err != nil {
		return none, s.refuse(ctx, err)
	}
	r, _ := res.(R)
	return r, nil
}

// run runs a streaming operation.
func (s *rpcServer) run(stream grpc.ServerStreamingServer[a2apb.StreamResponse], name string, req proto.Message) error {
	ctx, cancel := s.w.during(stream.Context())
	defer cancel()
	c, err := s.admitGRPC(ctx, false)
	if err == nil {
		err = s.w.ops[name].stream(ctx, c, req, func(f frame) error {
			if f.msg == nil {
				return stream.SendHeader(nil)
			}
			return stream.Send(f.msg)
		})
	}
	if err != nil {
		return s.refuse(ctx, err)
	}
	return nil
}

// SendMessage and those below are the operations of the service.
func (s *rpcServer) SendMessage(ctx context.Context, req *a2apb.SendMessageRequest) (*a2apb.SendMessageResponse, error) {
	return do[*a2apb.SendMessageResponse](ctx, s, opSend, req)
}

// SendStreamingMessage serves the operation of its name.
func (s *rpcServer) SendStreamingMessage(req *a2apb.SendMessageRequest, stream grpc.ServerStreamingServer[a2apb.StreamResponse]) error {
	return s.run(stream, opStream, req)
}

// GetTask serves the operation of its name.
func (s *rpcServer) GetTask(ctx context.Context, req *a2apb.GetTaskRequest) (*a2apb.Task, error) {
	return do[*a2apb.Task](ctx, s, opGet, req)
}

// ListTasks serves the operation of its name.
func (s *rpcServer) ListTasks(ctx context.Context, req *a2apb.ListTasksRequest) (*a2apb.ListTasksResponse, error) {
	return do[*a2apb.ListTasksResponse](ctx, s, opList, req)
}

// CancelTask serves the operation of its name.
func (s *rpcServer) CancelTask(ctx context.Context, req *a2apb.CancelTaskRequest) (*a2apb.Task, error) {
	return do[*a2apb.Task](ctx, s, opCancel, req)
}

// SubscribeToTask serves the operation of its name.
func (s *rpcServer) SubscribeToTask(req *a2apb.SubscribeToTaskRequest, stream grpc.ServerStreamingServer[a2apb.StreamResponse]) error {
	return s.run(stream, opSubscribe, req)
}

// CreateTaskPushNotificationConfig serves the operation of its name.
func (s *rpcServer) CreateTaskPushNotificationConfig(ctx context.Context, req *a2apb.TaskPushNotificationConfig) (*a2apb.TaskPushNotificationConfig, error) {
	return do[*a2apb.TaskPushNotificationConfig](ctx, s, opCreatePush, req)
}

// GetTaskPushNotificationConfig serves the operation of its name.
func (s *rpcServer) GetTaskPushNotificationConfig(ctx context.Context, req *a2apb.GetTaskPushNotificationConfigRequest) (*a2apb.TaskPushNotificationConfig, error) {
	return do[*a2apb.TaskPushNotificationConfig](ctx, s, opGetPush, req)
}

// ListTaskPushNotificationConfigs serves the operation of its name.
func (s *rpcServer) ListTaskPushNotificationConfigs(ctx context.Context, req *a2apb.ListTaskPushNotificationConfigsRequest) (*a2apb.ListTaskPushNotificationConfigsResponse, error) {
	return do[*a2apb.ListTaskPushNotificationConfigsResponse](ctx, s, opListPush, req)
}

// DeleteTaskPushNotificationConfig serves the operation of its name.
func (s *rpcServer) DeleteTaskPushNotificationConfig(ctx context.Context, req *a2apb.DeleteTaskPushNotificationConfigRequest) (*emptypb.Empty, error) {
	return do[*emptypb.Empty](ctx, s, opDeletePush, req)
}

// GetExtendedAgentCard serves the operation of its name.
func (s *rpcServer) GetExtendedAgentCard(ctx context.Context, req *a2apb.GetExtendedAgentCardRequest) (*a2apb.AgentCard, error) {
	return do[*a2apb.AgentCard](ctx, s, opCard, req)
}
