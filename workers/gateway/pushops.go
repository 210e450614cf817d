package gateway

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/emptypb"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// The operations on push notification configs.

func (w *Worker) pushable() error {
	if w.push == nil {
		return faultf(kindNoPush, "push notifications are not supported here; follow the task by SubscribeToTask or GetTask")
	}
	return nil
}

// hooksAge is how long the gateway believes what it knows of the workers that deliver
// push notifications, and hooksGone how long none may answer, as while one is being
// replaced.
const (
	hooksAge  = 10 * time.Second
	hooksGone = 2 * time.Minute
)

// delivers reports whether a worker is there that delivers push notifications.
func (w *Worker) delivers(ctx context.Context) bool {
	if w.push == nil {
		return false
	}
	seen, err := w.hooks.get(time.Now(), hooksAge, func() (time.Time, error) {
		_, err := w.cfg.Bus.ServiceFigures(context.WithoutCancel(ctx), "webhooks")
		switch {
		case errors.Is(err, bus.ErrNoResponders):
			return w.hooks.value, nil
		case err != nil:
			return w.hooks.value, err
		}
		return time.Now(), nil
	})
	return err != nil || time.Since(seen) < hooksGone // in doubt there is one: deliveries wait
}

// pushed is a visible task, for an operation on its configs.
func (w *Worker) pushed(ctx context.Context, c *call, tenant, task string) (*picture, error) {
	if err := w.pushable(); err != nil {
		return nil, err
	}
	agent, err := tenantOf(tenant)
	if err != nil {
		return nil, err
	}
	if task == "" {
		return nil, badField("taskId", "it is missing")
	}
	return w.visible(ctx, c, agent, task)
}

// keepEnded is how long the gateway reckons with the records of an ended task:
// routers look for those to purge from time to time.
const keepEnded = fleet.KeepEnded + time.Minute

// until is when the records of a task may be gone of which ev is the latest.
func until(ev *fleet.Event) time.Time {
	if ev.State.Terminal() {
		return ev.Time.Add(keepEnded)
	}
	return ev.Facts.Deadline.Add(fleet.KeepOverdue)
}

// newPush is a client's config for a task, of which the receiver knows the
// records up to sent.
func newPush(c *call, in *a2apb.TaskPushNotificationConfig, ev *fleet.Event, sent uint64) *pushConfig {
	return &pushConfig{
		ID: pick(in.GetId(), idOfPush(c, in, ev.TaskID)), TaskID: ev.TaskID, From: c.from, Tenant: in.GetTenant(), URL: in.GetUrl(), Token: in.GetToken(),
		Scheme: in.GetAuthentication().GetScheme(), Credentials: in.GetAuthentication().GetCredentials(),
		Reports: c.wantsReports(), Sent: sent, Until: until(ev),
	}
}

// idOfPush is the id of a config that has none: the same for the same caller and
// receiver, so that a repeat makes no second one.
func idOfPush(c *call, in *a2apb.TaskPushNotificationConfig, task subjects.TaskID) string {
	return uuid.NewSHA1(idsOfKeys, []byte(strings.Join([]string{
		"push", string(c.from), string(task), in.GetUrl(), in.GetToken(), in.GetAuthentication().GetScheme(), in.GetAuthentication().GetCredentials(),
	}, "\x00"))).String()
}

// checkPush refuses what cannot be a config.
func (w *Worker) checkPush(ctx context.Context, c *call, in *a2apb.TaskPushNotificationConfig) error {
	if err := w.pushable(); err != nil {
		return err
	}
	if !w.delivers(ctx) {
		return faultf(kindNoPush, "no worker delivers push notifications just now; follow the task by SubscribeToTask or GetTask")
	}
	if in.GetUrl() == "" {
		return badField("url", "it is missing")
	}
	if len(in.GetId()) > maxForeignID {
		return badField("id", "it is too long")
	}
	return newPush(c, in, &fleet.Event{TaskID: "probe"}, 0).check(w.cfg.PushEndpoint)
}

func (p *pushConfig) proto() *a2apb.TaskPushNotificationConfig {
	out := &a2apb.TaskPushNotificationConfig{Tenant: p.Tenant, Id: p.ID, TaskId: string(p.TaskID), Url: p.URL, Token: p.Token}
	if p.Scheme != "" {
		out.Authentication = &a2apb.AuthenticationInfo{Scheme: p.Scheme, Credentials: p.Credentials}
	}
	return out
}

// createPush is the operation CreateTaskPushNotificationConfig. The receiver is
// told what happens from now on.
func (w *Worker) createPush(ctx context.Context, c *call, req *a2apb.TaskPushNotificationConfig) (*a2apb.TaskPushNotificationConfig, error) {
	if err := w.checkPush(ctx, c, req); err != nil {
		return nil, err
	}
	p, err := w.pushed(ctx, c, req.GetTenant(), req.GetTaskId())
	if err != nil {
		return nil, err
	}
	cfg := newPush(c, req, p.last, p.seq)
	cfg.Done = p.last.State.Terminal()
	if err := w.push.set(ctx, cfg); err != nil {
		return nil, err
	}
	return cfg.proto(), nil
}

func noConfig() error { return faultf(kindTaskNotFound, "there is no such push notification config") }

// getPush is the operation GetTaskPushNotificationConfig.
func (w *Worker) getPush(ctx context.Context, c *call, req *a2apb.GetTaskPushNotificationConfigRequest) (*a2apb.TaskPushNotificationConfig, error) {
	if _, err := w.pushed(ctx, c, req.GetTenant(), req.GetTaskId()); err != nil {
		return nil, err
	}
	all, err := w.push.list(ctx, c.from, subjects.TaskID(req.GetTaskId()))
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(p pushConfig) bool { return p.ID == req.GetId() })
	if i < 0 {
		return nil, noConfig()
	}
	return all[i].proto(), nil
}

// listPush is the operation ListTaskPushNotificationConfigs.
func (w *Worker) listPush(ctx context.Context, c *call, req *a2apb.ListTaskPushNotificationConfigsRequest) (*a2apb.ListTaskPushNotificationConfigsResponse, error) {
	if _, err := w.pushed(ctx, c, req.GetTenant(), req.GetTaskId()); err != nil {
		return nil, err
	}
	if req.GetPageSize() < 0 {
		return nil, badField("pageSize", "expected 0 or more")
	}
	after, err := parsePushToken(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	all, err := w.push.list(ctx, c.from, subjects.TaskID(req.GetTaskId()))
	if err != nil {
		return nil, err
	}
	out := &a2apb.ListTaskPushNotificationConfigsResponse{}
	for i := range all {
		if req.GetPageToken() != "" && all[i].ID <= after {
			continue
		}
		if n := int(req.GetPageSize()); n > 0 && len(out.Configs) == n {
			out.NextPageToken = pushToken(out.Configs[n-1].GetId())
			break
		}
		out.Configs = append(out.Configs, all[i].proto())
	}
	return out, nil
}

// pushMark begins the page tokens of push notification configs.
const pushMark = "push 1 "

// pushToken is where a page of configs ends: behind the one of this id.
func pushToken(id string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(pushMark + id))
}

func parsePushToken(token string) (after string, err error) {
	if token == "" {
		return "", nil
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(token)
	after, ok := strings.CutPrefix(string(data), pushMark)
	if err != nil || !ok || len(after) > maxForeignID {
		return "", badField("pageToken", "it is none that this gateway gave")
	}
	return after, nil
}

// list reads a caller's own configs of a task, in the order of their ids: whoever
// else sees the task is not told what they hold.
func (p *pusher) list(ctx context.Context, from subjects.AgentID, task subjects.TaskID) ([]pushConfig, error) {
	all, err := p.stored(ctx, task)
	if err != nil {
		return nil, err
	}
	var out []pushConfig
	for _, k := range all {
		if k.From == from {
			out = append(out, k.pushConfig)
		}
	}
	slices.SortFunc(out, func(a, b pushConfig) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// deletePush is the operation DeleteTaskPushNotificationConfig.
func (w *Worker) deletePush(ctx context.Context, c *call, req *a2apb.DeleteTaskPushNotificationConfigRequest) (*emptypb.Empty, error) {
	if _, err := w.pushed(ctx, c, req.GetTenant(), req.GetTaskId()); err != nil {
		return nil, err
	}
	if err := w.push.remove(ctx, c.from, subjects.TaskID(req.GetTaskId()), req.GetId()); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}
