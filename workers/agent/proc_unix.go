//go:build unix

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

const (
	termSignal = syscall.SIGTERM
	killSignal = syscall.SIGKILL
)

func isExecutable(info fs.FileInfo) bool { return info.Mode()&0o111 != 0 }

// signalGroup sends sig to the process group that leader leads.
func signalGroup(leader *os.Process, sig os.Signal) error {
	s, ok := sig.(syscall.Signal)
	if !ok {
		return errors.New("not a signal of this system")
	}
	return syscall.Kill(-leader.Pid, s)
}

// describe tells how a process ended.
func describe(state *os.ProcessState) string {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return fmt.Sprintf("killed by %s (%s)", signalName(ws.Signal()), ws.Signal())
	}
	return fmt.Sprintf("exit status %d", state.ExitCode())
}

// signals names what commands usually die of.
var signals = map[syscall.Signal]string{
	syscall.SIGABRT: "SIGABRT", syscall.SIGBUS: "SIGBUS", syscall.SIGFPE: "SIGFPE", syscall.SIGHUP: "SIGHUP",
	syscall.SIGILL: "SIGILL", syscall.SIGINT: "SIGINT", syscall.SIGKILL: "SIGKILL", syscall.SIGPIPE: "SIGPIPE",
	syscall.SIGQUIT: "SIGQUIT", syscall.SIGSEGV: "SIGSEGV", syscall.SIGTERM: "SIGTERM",
}

func signalName(s syscall.Signal) string {
	return cmp.Or(signals[s], fmt.Sprintf("signal %d", int(s)))
}
