//go:build !linux

package agent

import (
	"errors"
	"log/slog"
	"os"
	"syscall"
)

// AdoptOrphans does nothing: only Linux has that.
func AdoptOrphans() error { return nil }

func thisProcess() owner { return owner{pid: os.Getpid()} }

func (o owner) lives() bool {
	p, err := os.FindProcess(o.pid)
	if err != nil {
		return false
	}
	return !errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone)
}

func killMarked(func(mark string) bool) int { return 0 }

func signalMarked(func(mark string) bool, os.Signal, int) int { return 0 }

func reapAdopted(map[int]uint64, func(pid int) bool) map[int]uint64 { return nil }

func startGuard(owner, *slog.Logger) (release func()) { return func() {} }
