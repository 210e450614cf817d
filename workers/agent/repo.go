package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"parley/subjects/fleet"
)

const (
	repoTimeout = time.Second      // of one git status before an offer is answered: the router waits 2 s
	repoSlow    = 20 * time.Second // of one on the interval
	repoEvery   = 5 * time.Second  // at least
	repoOutput  = 1 << 20          // bytes of its output that are read
)

// watchRepo looks at the work tree until life ends, on the heartbeat's interval
// but at least every repoEvery.
func (w *Worker) watchRepo(life context.Context) {
	if w.cfg.Repo == "" {
		return
	}
	t := time.NewTicker(min(w.cfg.Heartbeat, repoEvery))
	defer t.Stop()
	for {
		w.lookAtRepoFor(life, repoSlow)
		select {
		case <-life.Done():
			return
		case <-t.C:
		}
	}
}

// lookAtRepo brings what is known of the work tree up to date, quickly.
func (w *Worker) lookAtRepo(ctx context.Context) {
	if w.cfg.Repo != "" {
		w.lookAtRepoFor(ctx, repoTimeout)
	}
}

func (w *Worker) lookAtRepoFor(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	r, err := gitStatus(ctx, w.cfg.Repo, w.cfg.Env)
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) || ctx.Err() != nil && d == repoTimeout {
			return // what is known stands; the watch has more patience
		}
		if w.state.get().repo != nil {
			w.log.Warn("read the work tree", slog.Any("error", err))
		}
	}
	w.state.setRepo(r)
}

// gitStatus asks git for the state of a work tree.
func gitStatus(ctx context.Context, dir string, env []string) (*fleet.RepoState, error) {
	out, errs := &head{max: repoOutput}, &head{max: maxMessage}
	p, err := startProcess(spec{
		argv: []string{"git", "-C", dir, "status", "--porcelain=v2", "--branch"},
		// No lock is taken in a tree that others work in.
		env:    append(childEnv(env, nil), "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C", "GIT_TERMINAL_PROMPT=0"),
		stdout: out, stderr: errs,
	})
	if err != nil {
		return nil, err
	}
	if end := p.wait(ctx, 0); end.err() != nil {
		return nil, fmt.Errorf("git status in %s: %w: %s", dir, end.err(), strings.TrimSpace(string(errs.data)))
	}
	return parseStatus(out.data), nil
}

// parseStatus reads git status --porcelain=v2 --branch.
func parseStatus(out []byte) *fleet.RepoState {
	r := &fleet.RepoState{Clean: true}
	for line := range bytes.Lines(out) {
		head, isHead := bytes.CutPrefix(line, []byte("# "))
		if branch, ok := bytes.CutPrefix(head, []byte("branch.head ")); isHead && ok {
			r.Branch = string(bytes.TrimSpace(branch))
		} else if !isHead && len(bytes.TrimSpace(line)) > 0 {
			r.Clean = false
		}
	}
	return r
}
