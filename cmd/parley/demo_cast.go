package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"parley/subjects/fleet"
)

// demoAgent is an agent that the demo runs: a process of its own.
type demoAgent struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	done   chan struct{} // closed when it has ended
	err    error         // how; valid once done
	killed bool
}

// demoGone is how long an agent may take to end before it is killed.
const demoGone = 30 * time.Second

// demoPace are the arguments of every agent that make the story quick and its
// tables narrow.
func demoPace() []string {
	return []string{"--instance", "main", "--heartbeat", "1s", "--mcp-timeout", "1s", "--one-off"}
}

// hire starts an agent. told are the arguments that the story shows.
func (d *demo) hire(id string, told, work []string) error {
	args := append([]string{"agent", "run", "--id", id}, told...)
	shown := args
	if len(work) > 0 {
		shown = append(append([]string{}, args...), append([]string{"--"}, work...)...)
	}
	d.typed(append([]string{"parley"}, shown...)...)
	args = append([]string{"demo"}, args...)
	args = append(args, demoPace()...)
	if len(work) > 0 {
		args = append(append(args, "--"), work...)
	}
	log, err := os.Create(d.path(id + ".log"))
	if err != nil {
		return fmt.Errorf("start %s: %w", id, err)
	}
	defer log.Close()                   //nolint:errcheck // the process has it
	cmd := exec.Command(d.exe, args...) //nolint:noctx // this program; leave and gone end it
	cmd.Env, cmd.Dir = d.environ, d.dir // what it leaves goes with the directory
	cmd.Stdout, cmd.Stderr = log, log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start %s: %w", id, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", id, err)
	}
	agent := &demoAgent{cmd: cmd, stdin: stdin, done: make(chan struct{})}
	go func() { // gone waits for it
		defer close(agent.done)
		agent.err = cmd.Wait()
	}()
	d.agents[id] = agent
	return nil
}

// kill ends the agent as a power cut would.
func (p *demoAgent) kill() error {
	p.killed = true
	return p.cmd.Process.Kill()
}

// leave asks the agent to go.
func (p *demoAgent) leave() { _ = p.stdin.Close() } // it may have gone already

// gone waits until the agent has ended.
func (p *demoAgent) gone() error {
	over := time.NewTimer(demoGone)
	defer over.Stop()
	select {
	case <-p.done:
		return nil
	case <-over.C:
	}
	err := p.cmd.Process.Kill()
	<-p.done
	return errors.Join(fmt.Errorf("agent process %d had to be killed", p.cmd.Process.Pid), err)
}

// errDemoEnd is how an agent has ended that did not fail.
var errDemoEnd = errors.New("by itself")

// alive is an error if an agent has ended that nobody ended.
func (d *demo) alive() error {
	for id, p := range d.agents {
		select {
		case <-p.done:
			if !p.killed {
				return fmt.Errorf("agent %s has ended: %w", id, cmp.Or(p.err, errDemoEnd))
			}
		default:
		}
	}
	return nil
}

// demoAgent makes the command that the demo's agents are: agent run, which also
// ends with its standard input, that is with the demo, however that ends.
func (a *app) demoAgent() *cobra.Command {
	return &cobra.Command{
		Use: "agent", Short: "Run an agent of the demo", Hidden: true, DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			go func() { // ends with the input, or with the process
				_, _ = io.Copy(io.Discard, a.stdin)
				cancel()
			}()
			p := a.process
			p.args, p.stdin = append([]string{"agent"}, args...), strings.NewReader("")
			if exit := run(ctx, p); exit != exitOK {
				return &problem{what: "the agent ended", exit: exit}
			}
			return nil
		},
	}
}

// demoTakes says in a brief how long the work is to take.
var demoTakes = regexp.MustCompile(`\(takes ([0-9a-z]+)\)`)

// demoFails says in a brief how many attempts are to fail.
var demoFails = regexp.MustCompile(`\(fails ([1-9]) times\)`)

// pidFile is where a process of the demo says that it works on a task.
func pidFile(tmp, task string, attempt int) string {
	return filepath.Join(tmp, fmt.Sprintf("%s.%d.pid", task, attempt))
}

// demoWork makes the command that does a task in the demo.
func (a *app) demoWork() *cobra.Command {
	return &cobra.Command{
		Use: "work", Short: "Do a task of the demo", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			brief, err := io.ReadAll(a.stdin)
			if err != nil {
				return failed("read the brief: %w", err)
			}
			var takes time.Duration
			if m := demoTakes.FindSubmatch(brief); m != nil {
				if takes, err = time.ParseDuration(string(m[1])); err != nil {
					return failed("read the brief: %w", err)
				}
			}
			if a.getenv("PARLEY_MESSAGE_ID") != "" { // somebody asks
				a.print(demoAnswer)
				return nil
			}
			task := a.getenv("PARLEY_TASK_ID")
			attempt, err := strconv.Atoi(a.getenv("PARLEY_ATTEMPT"))
			if err != nil {
				return failed("read PARLEY_ATTEMPT: %w", err)
			}
			path := pidFile(a.getenv("TMPDIR"), task, attempt)
			if err := os.WriteFile(path+"~", strconv.AppendInt(nil, int64(os.Getpid()), 10), 0o600); err != nil {
				return failed("say that it works: %w", err)
			}
			if err := os.Rename(path+"~", path); err != nil {
				return failed("say that it works: %w", err)
			}
			if m := demoFails.FindSubmatch(brief); m != nil && attempt <= int(m[1][0]-'0') {
				return failed("port 80 is taken")
			}
			a.notice("process %d is at it", os.Getpid())
			used := ""
			if m := demoAsks.FindSubmatch(brief); m != nil {
				if used, err = a.askInDemo(cmd.Context(), string(m[1])); err != nil {
					return err
				}
				used = " " + used
			}
			if err := toil(cmd.Context(), takes); err != nil {
				return err
			}
			a.print(fmt.Sprintf(`It went well. {"type":"TASK_RESULT","protocol_version":"2.0","task_id":%q,`+
				`"status":"done","tokens_spent":1200,"next_steps":[],"blocked_reason":null,`+
				`"output":"Finished, in attempt %d.%s"}`, task, attempt, used))
			return nil
		},
	}
}

// toil takes its time, unless it is told to stop or its parent has gone.
func toil(ctx context.Context, takes time.Duration) error {
	parent := os.Getppid()
	over := time.NewTimer(takes)
	defer over.Stop()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-over.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			if os.Getppid() != parent {
				return failed("the agent has gone")
			}
		}
	}
}

// demoMCP makes a little MCP server over standard input and output; with --hang
// it hears everything and answers nothing.
func (a *app) demoMCP() *cobra.Command {
	var hang bool
	cmd := &cobra.Command{
		Use: "mcp", Short: "Serve MCP in the demo", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if hang {
				_, err := io.Copy(io.Discard, a.stdin)
				return err
			}
			server := mcp.NewServer(&mcp.Implementation{Name: "parley-demo", Version: fleet.Version}, nil)
			tool := &mcp.Tool{Name: "pull_request", Description: "Shows a pull request"}
			mcp.AddTool(server, tool, func(_ context.Context, _ *mcp.CallToolRequest, in pullRequest) (*mcp.CallToolResult, any, error) {
				text := fmt.Sprintf("Pull request %d: one line changed.", in.Number)
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
			})
			return server.Run(cmd.Context(), &mcp.StdioTransport{})
		},
	}
	cmd.Flags().BoolVar(&hang, "hang", false, "answer nothing")
	return cmd
}

// pullRequest is what the demo's MCP tool is asked.
type pullRequest struct {
	Number int `json:"number" jsonschema:"its number"`
}

// workerPID is the process that works on a task, 0 as long as there is none.
func (d *demo) workerPID(task string, attempt int) (int, error) {
	data, err := os.ReadFile(pidFile(d.path("tmp"), task, attempt))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(bytes.TrimSpace(data)))
}

// lives reports whether there is a process pid that has not ended. One that nobody
// has waited for yet has ended.
func lives(pid int) bool {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		if _, after, ok := strings.Cut(string(stat), ") "); ok && strings.HasPrefix(after, "Z") {
			return false
		}
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	defer p.Release() //nolint:errcheck // nothing depends on it
	return p.Signal(syscall.Signal(0)) == nil
}
