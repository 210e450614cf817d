package agent_test //nolint:testableexamples // it runs until it is told to stop

import (
	"context"
	"os"
	"os/signal"
	"strings"

	"parley/bus"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
	"parley/workers/agent"
)

// shout is an agent that shouts, whole.
func shout(ctx context.Context, b *bus.Bus) error {
	w, err := agent.New(agent.Config{ID: "shouter", MaxParallel: 4, Bus: b, Handler: agent.HandlerFunc(
		func(_ context.Context, t *agent.Task) (fleet.Result, error) {
			return agent.Text(strings.ToUpper(t.Dispatch.Brief)), nil
		})})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// echoes answers every message with what it says.
func echoes(_ context.Context, m *mesh.Message) (agent.LetterReply, error) {
	return agent.LetterReply{Text: "I saw: " + m.Text}, nil
}

var _ agent.Inbox = agent.InboxFunc(echoes)

func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b, err := bus.Connect(ctx, bus.Config{URL: "nats://127.0.0.1:4222"})
	if err != nil {
		panic(err)
	}
	defer b.Close()
	if err := shout(ctx, b); err != nil {
		panic(err)
	}
}
