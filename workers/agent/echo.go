package agent

import (
	"context"
	"time"

	"parley/subjects/fleet"
)

// Echo is a handler that answers with the brief, spends nothing, and takes
// Delay: for tests and benchmarks.
type Echo struct{ Delay time.Duration }

var _ Handler = Echo{}

// Handle waits for Delay and answers.
func (e Echo) Handle(ctx context.Context, t *Task) (fleet.Result, error) {
	if e.Delay > 0 {
		if err := pause(ctx, e.Delay); err != nil {
			return fleet.Result{}, err
		}
	}
	return Text(t.Dispatch.Brief), nil
}

// Text is a done result with s as its output.
func Text(s string) fleet.Result {
	return fleet.Result{Status: fleet.StatusDone, Output: fleet.MustEncode(s)}
}
