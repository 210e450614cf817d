package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// spool keeps results on disk from before they are sent until they are
// answered: one file each, named task.epoch.attempt.json, put there by an
// atomic rename.
type spool struct{ dir string }

const (
	spoolSuffix = ".json"
	spoolTemp   = ".tmp-"
	spoolBad    = ".bad" // appended to what cannot be read
)

// adoptEvery is how often spools are looked for whose instance is gone.
const adoptEvery = time.Minute

// leftoversFirst is how long a new instance waits for the results of its
// predecessor to be answered before it announces itself; after that they go on
// in the background.
const leftoversFirst = 5 * time.Second

func openSpool(dir string) (*spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the spool: %w", err)
	}
	return &spool{dir}, nil
}

func spoolName(r *fleet.Result) string {
	return fmt.Sprintf("%s.%d.%d%s", r.TaskID, r.Epoch, r.Attempt, spoolSuffix)
}

// put stores a result; it is on disk when put returns.
func (s *spool) put(name string, data []byte) (err error) {
	f, err := os.CreateTemp(s.dir, spoolTemp)
	if err != nil {
		return fmt.Errorf("write a spool file: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write a spool file: %w", err)
	}
	if err := os.Rename(f.Name(), filepath.Join(s.dir, name)); err != nil {
		return fmt.Errorf("write a spool file: %w", err)
	}
	return s.sync()
}

// epochFile keeps the last epoch.
const epochFile = "epoch"

// epoch is that of a new process: later than those before it, also where the
// clock was set back since.
func (s *spool) epoch(now int64) (int64, error) {
	data, err := os.ReadFile(filepath.Join(s.dir, epochFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("read the last epoch: %w", err)
	}
	if last, err := strconv.ParseInt(string(data), 10, 64); err == nil && last >= now {
		now = last + 1
	}
	return now, s.put(epochFile, strconv.AppendInt(nil, now, 10))
}

// sync makes renames and removals last.
func (s *spool) sync() error {
	d, err := os.Open(s.dir)
	if err != nil {
		return fmt.Errorf("sync the spool: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}

// remove drops an answered result. Should it come back after a crash, it is
// answered as late.
func (s *spool) remove(name string, log *slog.Logger) {
	if err := os.Remove(filepath.Join(s.dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("remove a spool file", slog.String("file", name), slog.Any("error", err))
	}
}

// leftover is a result that an earlier process could not hand in.
type leftover struct {
	file   string
	data   []byte
	result *fleet.Result
}

// leftovers reads what is in the spool of agent, by name. A file that is no
// result is put aside; what another agent has left there stays.
func (s *spool) leftovers(agent subjects.AgentID, log *slog.Logger) ([]leftover, error) {
	names, err := filepath.Glob(filepath.Join(globQuote(s.dir), "*"+spoolSuffix))
	if err != nil {
		return nil, fmt.Errorf("list the spool: %w", err)
	}
	var list []leftover
	for _, path := range names {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the spool: %w", err)
		}
		r, err := fleet.DecodeResult(data)
		if err == nil && (r.TaskID == "" || r.AgentID == "") {
			err = errors.New("it names no task, or no agent")
		}
		if err != nil {
			log.Error("put aside a spool file that is no result", slog.String("file", path), slog.Any("error", err))
			if err := os.Rename(path, path+spoolBad); err != nil {
				return nil, fmt.Errorf("put aside a spool file: %w", err)
			}
			continue
		}
		if r.AgentID != agent {
			log.Warn("leave a result of another agent in the spool", slog.String("file", path), slog.String("of", string(r.AgentID)))
			continue
		}
		list = append(list, leftover{filepath.Base(path), data, r})
	}
	slices.SortFunc(list, func(x, y leftover) int { return strings.Compare(x.file, y.file) })
	return list, nil
}

// globQuote makes a path one that Glob takes literally.
func globQuote(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// sendLeftovers hands in what an earlier process could not, and what other
// instances have left that are gone. It returns when all has been tried, or after
// a while, or when ctx ends; what is left, or comes later, goes on until life ends.
func (w *Worker) sendLeftovers(ctx, life context.Context) {
	if w.spool == nil {
		return
	}
	list := w.leftovers(w.spool)
	done := make(chan struct{})
	w.wg.Go(func() {
		list = w.tryEach(life, w.spool, list)
		w.wg.Go(func() {
			for len(list) > 0 && pause(life, requestTry) == nil {
				list = w.tryEach(life, w.spool, list)
			}
		})
		w.adopt(life)
		close(done)
		for w.cfg.Orphans != nil && pause(life, adoptEvery) == nil {
			w.adopt(life)
		}
	})
	first, cancel := context.WithTimeout(ctx, leftoversFirst)
	defer cancel()
	select {
	case <-done:
	case <-first.Done():
	}
}

// adopt hands in what instances have left that are gone.
func (w *Worker) adopt(life context.Context) {
	if w.cfg.Orphans == nil {
		return
	}
	err := w.cfg.Orphans(func(dir string) {
		s := &spool{dir}
		w.tryEach(life, s, w.leftovers(s))
	})
	if err != nil {
		w.log.Error("look for spools of instances that are gone", slog.Any("error", err))
	}
}

func (w *Worker) leftovers(s *spool) []leftover {
	list, err := s.leftovers(w.cfg.ID, w.log)
	if err != nil {
		w.log.Error("read the spool", slog.Any("error", err))
	}
	return list
}

// tryEach hands in what is in list, one after the other, and returns those that
// were not answered, of which none keeps the others waiting for long.
func (w *Worker) tryEach(life context.Context, s *spool, list []leftover) (left []leftover) {
	for _, l := range list {
		if !w.sendLeftover(life, s, l) {
			left = append(left, l)
		}
	}
	return left
}

// sendLeftover reports whether l has been answered.
func (w *Worker) sendLeftover(life context.Context, s *spool, l leftover) bool {
	log := w.log.With(slog.String("task_id", string(l.result.TaskID)), slog.Int("attempt", l.result.Attempt))
	try, cancel := context.WithTimeout(life, requestTry)
	defer cancel()
	m, err := w.cfg.Bus.RequestUntil(try, subjects.Result(w.cfg.ID, l.result.TaskID), l.data, messageID(), requestTry, func(m bus.Msg) bool {
		_, again := answer(m)
		return again
	})
	if err != nil {
		if life.Err() == nil && !errors.Is(err, bus.ErrClosed) {
			log.Warn("hand in a result of an earlier process", slog.Any("error", err))
		}
		return false
	}
	said, _ := answer(m)
	log.Info("result of an earlier process was answered", slog.Any("answer", said))
	s.remove(l.file, w.log)
	return true
}
