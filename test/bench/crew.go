package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"

	"parley/bus"
)

// crew is agents in a process of their own, as those of a fleet are.
type crew struct {
	cmd  *exec.Cmd
	say  io.WriteCloser
	said *bufio.Reader
}

// startCrew starts the agents of s, which is their role's.
func startCrew(ctx context.Context, s spec) (*crew, error) {
	s.CPU, s.Allocs, s.Mutex = "", "", ""
	cmd, err := child(ctx, s)
	if err != nil {
		return nil, err
	}
	c := &crew{cmd: cmd}
	if c.say, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.said = bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start agents: %w", err)
	}
	return c, nil
}

// hear waits for the next line that they say.
func (c *crew) hear(what string) error {
	if _, err := c.said.ReadString('\n'); err != nil {
		return fmt.Errorf("agents: %s: %w", what, err)
	}
	return nil
}

func (c *crew) close() {
	_ = c.say.Close()
	_ = c.cmd.Wait() // what became of them is in the tasks
}

// beAgents is the agents of s: they say when the fleet knows of all of them, and
// end with their input.
func beAgents(ctx context.Context, s spec, in io.Reader, out io.Writer) error {
	p := &parley{meter: newMeter()}
	defer p.close()
	run, cancel := context.WithCancel(ctx)
	p.cancel = cancel
	err := p.startAgents(run, s, func() (*bus.Bus, error) {
		b, err := bus.Connect(run, bus.Config{URL: s.URL, Name: "agent", Log: quietLog(os.Stderr)})
		if err == nil {
			p.buses = append(p.buses, b)
		}
		return b, err
	})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	_, _ = bufio.NewReader(in).ReadString('\n')
	return p.failure()
}
