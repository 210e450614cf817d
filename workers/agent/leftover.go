package agent

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// taskMark is the variable that marks a command and whatever it starts, in
// process groups and sessions of their own too: OWNER.RANDOM.
const taskMark = "PARLEY_TASK_MARK"

// tempPrefix begins the names of directories in ExecConfig.TempDir; the owner
// follows.
const tempPrefix = "parley-"

// sweepEvery is how often leftovers of dead agents are looked for.
const sweepEvery = time.Minute

// owner names a process among all that were ever started in its PID namespace.
type owner struct {
	space uint64 // the namespace; 0 where there is none
	pid   int
	start uint64 // when it was started; 0 where that is not known
}

func (o owner) String() string { return fmt.Sprintf("%d-%d-%d", o.space, o.pid, o.start) }

// parseOwner reads the owner that s begins with, up to sep.
func parseOwner(s, sep string) (o owner, ok bool) {
	s, _, ok = strings.Cut(s, sep)
	if !ok {
		return owner{}, false
	}
	space, rest, _ := strings.Cut(s, "-")
	pid, start, _ := strings.Cut(rest, "-")
	var errs [3]error
	o.space, errs[0] = strconv.ParseUint(space, 10, 64)
	o.pid, errs[1] = strconv.Atoi(pid)
	o.start, errs[2] = strconv.ParseUint(start, 10, 64)
	return o, errs == [3]error{} && o.pid > 0
}

// dead reports whether the process that o names is surely gone: one of another
// namespace may live.
func (o owner) dead(own owner) bool { return o.space == own.space && o != own && !o.lives() }

// sweepLeftovers ends what agents that are dead have left on this machine: processes
// that carry their mark, and directories in temp.
func sweepLeftovers(own owner, temp string, log *slog.Logger) {
	killed := killMarked(func(mark string) bool {
		o, ok := parseOwner(mark, ".")
		return ok && o.dead(own)
	})
	if killed > 0 {
		log.Warn("processes of dead agents were killed", slog.Int("processes", killed))
	}
	list, err := os.ReadDir(temp)
	if err != nil {
		return
	}
	for _, e := range list {
		rest, ours := strings.CutPrefix(e.Name(), tempPrefix)
		i := strings.LastIndexByte(rest, '-')
		if !ours || i < 0 || !e.IsDir() {
			continue
		}
		if o, ok := parseOwner(rest[:i]+"/", "/"); ok && o.dead(own) {
			if err := os.RemoveAll(filepath.Join(temp, e.Name())); err != nil {
				log.Debug("remove a directory of a dead agent", slog.Any("error", err))
			}
		}
	}
}

// attend ends what dead agents have left behind, now and every minute until ctx
// ends, and has e's own commands ended should this process be killed. The Worker
// that runs e calls it.
func (e *Exec) attend(ctx context.Context, log *slog.Logger) {
	release := startGuard(e.own, log)
	defer release()
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	var zombies map[int]uint64
	for {
		sweepLeftovers(e.own, e.cfg.TempDir, log)
		zombies = reapAdopted(zombies, e.leads)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// newMark is the mark of one more command.
func (e *Exec) newMark() string { return e.own.String() + "." + rand.Text() }

// leads reports whether a process leads a command that e runs.
func (e *Exec) leads(pid int) bool {
	_, yes := e.leaders.Load(pid)
	return yes
}
