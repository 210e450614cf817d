package a2anats_test

import (
	"context"
	"fmt"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"

	"parley/bus"
	"parley/workers/gateway/a2anats"
)

// A client of the official SDK speaks to a fleet over NATS.
func Example() { //nolint:testableexamples // it needs a fleet
	ctx := context.Background()
	b, err := bus.Connect(ctx, bus.Config{URL: "nats://127.0.0.1:4222", Name: "alice"})
	if err != nil {
		return // no fleet is there
	}
	defer b.Close()
	transport, err := a2anats.New(a2anats.Config{Bus: b, From: "alice"})
	if err != nil {
		return
	}
	card, err := transport.Card(ctx, "")
	if err != nil {
		return
	}
	client, err := a2aclient.NewFromCard(ctx, card, a2anats.With(a2anats.Config{Bus: b, From: "alice"}))
	if err != nil {
		return
	}
	defer func() { _ = client.Destroy() }()
	hello := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("hello"))
	for event, err := range client.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: hello}) {
		fmt.Println(event, err)
	}
}
