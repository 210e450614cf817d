package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"parley/workers/agent"
)

// errHeld: another process holds a spool.
var errHeld = errors.New("another process holds it")

// spool gives cfg the directory for results that are not handed in yet: flag, or
// the first below --data that no other process of the agent holds, so that a new
// one finds what its predecessor left. free gives it back.
func (a *app) spool(flag string, cfg *agent.Config) (free func(), err error) {
	switch flag {
	case "off":
		return func() {}, nil
	case "":
	default:
		// The lock is inside: what is around may be read-only.
		if free, err = hold(flag, filepath.Join(flag, "lock")); err == nil {
			cfg.Spool = flag
		}
		return free, err
	}
	base := filepath.Join(a.conf.Data, "spool", string(cfg.ID))
	for n := range 10_000 {
		dir := filepath.Join(base, strconv.Itoa(n))
		free, err := hold(dir, dir+".lock")
		if errors.Is(err, errHeld) {
			continue
		}
		if err != nil {
			return nil, err
		}
		cfg.Spool = dir
		cfg.Orphans = func(take func(string)) error { return orphans(base, dir, take) }
		return free, nil
	}
	return nil, fmt.Errorf("%s: every place is taken", base)
}

// hold makes a spool this process's own, by a lock that ends with it.
func hold(dir, lock string) (free func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(lock, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := tryLock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), f.Close())
	}
	return func() { _ = f.Close() }, nil // which frees the lock
}

// orphans has the spools below base taken that no process holds any more; own is
// this one's. Each is held meanwhile.
func orphans(base, own string, take func(dir string)) error {
	list, err := os.ReadDir(base)
	for _, e := range list {
		dir := filepath.Join(base, e.Name())
		if !e.IsDir() || dir == own {
			continue
		}
		free, holdErr := hold(dir, dir+".lock")
		if errors.Is(holdErr, errHeld) {
			continue
		}
		if holdErr != nil {
			err = errors.Join(err, holdErr)
			continue
		}
		take(dir)
		free()
	}
	return err
}
