package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// Bus is what the harness needs of the fleet's bus; *bus.Bus is one.
type Bus interface {
	Publish(subject string, data []byte, h bus.Header) error
	RequestUntil(ctx context.Context, subject string, data []byte, h bus.Header,
		try time.Duration, retry func(bus.Msg) bool) (bus.Msg, error)
	Store(ctx context.Context, subject string, data []byte, msgID string, h bus.Header) (uint64, error)
	Subscribe(subject, queue string, fn func(bus.Msg)) (*bus.Subscription, error)
}

var _ Bus = (*bus.Bus)(nil)

// Handler does the work of a task. It must return soon after ctx is canceled;
// context.Cause(ctx) says why it was: ErrCanceled, ErrSuperseded, ErrTimeout,
// ErrDeadline, ErrBudget or ErrStopping.
//
// The harness fills whatever identifies the result, and StatusDone when Status
// is empty. A handler that returns an error has failed: with *Fail it chooses
// the code, with Blocked it says that it cannot do the task, and any other
// error is agent_error, worth another try. What the Result then holds of tokens
// and artifacts still counts. A panic is such an error too.
type Handler interface {
	Handle(ctx context.Context, t *Task) (fleet.Result, error)
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, t *Task) (fleet.Result, error)

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, t *Task) (fleet.Result, error) { return f(ctx, t) }

// Config is an agent instance. ID, Bus and Handler are required.
type Config struct {
	ID       subjects.AgentID
	Instance subjects.InstanceID // absent: a random token

	Model         string
	ModelTier     string
	Tiers         []string // of the fleet, least first; absent haiku, sonnet, opus
	ContextWindow int64    // tokens
	AgentType     string   // virtual | registered
	Tools         []string
	Skills        []json.RawMessage // A2A skills
	Labels        map[string]string

	MaxParallel int           // tasks at once; absent 1
	Heartbeat   time.Duration // absent 10 s
	Grace       time.Duration // for the work in hand when Run's context ends; absent 30 s, negative none
	HandIn      time.Duration // after that, for results that nobody answers; absent 10 s
	MinProgress time.Duration // between two progress messages of a task; absent 200 ms

	// Only says which offers are taken up at all; the others are answered as by an
	// agent that is busy, which costs their tasks nothing. nil: all of them.
	Only func(offer *fleet.Dispatch) bool

	// HoldLimits has offers refused as rate_limited, with the time of the reset,
	// while a limit holds that the Handler has met (a *Fail of that code, with
	// ResetAt or RetryAfter), instead of starting what would meet it again. A task
	// that is done ends the limit.
	HoldLimits bool

	Repo  string    // a git work tree, "" for none
	MCP   MCPConfig // the MCP servers of the agent
	Spool string    // directory for results not yet handed in, one per instance; "" for none
	Env   []string  // NAME=value, for git and for MCP servers; see AllowEnv

	// Orphans has the spools taken of instances that are gone, one after the other,
	// and keeps everybody else from each of them until take returns. It is called
	// when the instance starts, and then every minute, if it has a Spool itself.
	// Nil: nobody leaves any.
	Orphans func(take func(dir string)) error

	Bus     Bus
	Log     *slog.Logger // nil discards
	Handler Handler

	// Watch looks after whoever really does the work, where that is somebody
	// else, until ctx ends, and tells how they are. Until it has told that they
	// are well no task is taken. Nil: the agent itself does the work.
	Watch func(ctx context.Context, tell func(Condition))

	Inbox       Inbox // takes messages of other agents; nil: there are none here
	MaxMessages int   // messages at once, beside the tasks; absent 1
}

const (
	defaultGrace       = 30 * time.Second
	defaultHandIn      = 10 * time.Second
	defaultMinProgress = 200 * time.Millisecond

	maxHeartbeat = time.Hour
	minHeartbeat = 100 * time.Millisecond
	maxParallel  = 10000
)

func (c Config) withDefaults() Config {
	c.Instance = cmp.Or(c.Instance, subjects.InstanceID(strings.ToLower(rand.Text()[:12])))
	c.MaxParallel = cmp.Or(c.MaxParallel, 1)
	c.Heartbeat = cmp.Or(c.Heartbeat, fleet.DefaultHeartbeat)
	c.Grace = max(cmp.Or(c.Grace, defaultGrace), 0)
	c.HandIn = cmp.Or(c.HandIn, defaultHandIn)
	c.MinProgress = cmp.Or(c.MinProgress, defaultMinProgress)
	c.MCP = c.MCP.withDefaults()
	c.MaxMessages = cmp.Or(c.MaxMessages, 1)
	if c.Tiers == nil {
		c.Tiers = []string{"haiku", "sonnet", "opus"}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	if _, err := subjects.ParseAgentID(string(c.ID)); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	if _, err := subjects.ParseInstanceID(string(c.Instance)); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	switch {
	case c.Bus == nil:
		return errors.New("agent: Config.Bus is nil")
	case c.Handler == nil:
		return errors.New("agent: Config.Handler is nil")
	case c.MaxParallel < 1 || c.MaxParallel > maxParallel:
		return fmt.Errorf("agent: Config.MaxParallel is %d, want 1 to %d", c.MaxParallel, maxParallel)
	case c.Heartbeat < minHeartbeat || c.Heartbeat > maxHeartbeat:
		return fmt.Errorf("agent: Config.Heartbeat is %s, want %s to %s", c.Heartbeat, minHeartbeat, maxHeartbeat)
	case c.MaxMessages < 1 || c.MaxMessages > maxParallel:
		return fmt.Errorf("agent: Config.MaxMessages is %d, want 1 to %d", c.MaxMessages, maxParallel)
	case c.HandIn < 0, c.MinProgress < 0:
		return errors.New("agent: Config.HandIn and Config.MinProgress must not be negative")
	}
	return c.MCP.validate()
}
