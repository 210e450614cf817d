package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// stage is where the demo is told.
type stage struct {
	app     *app        // whose output it is told on
	exe     string      // this program
	environ []string    // of every process
	hide    [][2]string // what is long in commands, and what to show for it
	act     string      // the one being played
}

// begin opens an act.
func (s *stage) begin(n int, title string) {
	s.act = fmt.Sprintf("in act %d: %s", n, title)
	s.app.print("")
	s.app.print(string(s.app.paint(bold, fmt.Sprintf("%d. %s", n, title))))
}

// say tells something.
func (s *stage) say(format string, args ...any) { s.app.print(fmt.Sprintf(format, args...)) }

// check claims something, which must be so.
func (s *stage) check(ok bool, format string, args ...any) error {
	claim := fmt.Sprintf(format, args...)
	if !ok {
		return fmt.Errorf("it is not so that %s", claim)
	}
	s.app.print(string(s.app.paint(green, "✓ ")) + claim)
	return nil
}

// typed shows a command as a person would type it.
func (s *stage) typed(args ...string) {
	words := make([]string, len(args))
	for i, arg := range args {
		for _, h := range s.hide {
			arg = strings.ReplaceAll(arg, h[0], h[1])
		}
		words[i] = quoted(arg)
	}
	s.app.print(string(s.app.paint(blue, "$ "+strings.Join(words, " "))))
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// quoted is a word as a shell reads it back.
func quoted(word string) string {
	switch {
	case plainWord.MatchString(word):
		return word
	case !strings.ContainsAny(word, "\"$`\\!\n"):
		return `"` + word + `"`
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// parley shows a command of this program, runs it, and wants its exit code.
func (s *stage) parley(ctx context.Context, exit int, args ...string) error {
	s.typed(append([]string{"parley"}, args...)...)
	cmd := exec.CommandContext(ctx, s.exe, args...)
	cmd.Env = append(slices.Clip(s.environ), "PARLEY_LOG_LEVEL=error")
	cmd.Stdout, cmd.Stderr = s.app.stdout, s.app.stdout
	err := cmd.Run()
	_, ended := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case broken(cmd.ProcessState):
		return fmt.Errorf("nobody reads on: %w", context.Canceled)
	case err != nil && !ended:
		return fmt.Errorf("parley %s: %w", args[0], err)
	case cmd.ProcessState.ExitCode() != exit:
		return fmt.Errorf("parley %s: %s, want exit code %d", strings.Join(args[:2], " "), cmd.ProcessState, exit)
	}
	return nil
}

// broken reports whether a process ended because nobody reads what it writes.
func broken(p *os.ProcessState) bool {
	if p == nil {
		return false
	}
	status, ok := p.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGPIPE
}

// breathe lets a person read; nobody else has to wait.
func (s *stage) breathe(ctx context.Context) {
	if isTerminal(s.app.stdout) {
		waitUntil(ctx, time.Now().Add(demoBreath))
	}
}

// waitUntil waits for a time, or for the end of ctx.
func waitUntil(ctx context.Context, at time.Time) {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
