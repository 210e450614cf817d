package agent

import (
	"errors"
	"os"
	"syscall"
	"unsafe"
)

// ownGroup makes a command lead a process group of its own, and die with the
// thread that started it.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit waits until p has ended and leaves it unreaped, so that no other
// process can get its id; false when that is not possible.
func awaitExit(p *os.Process) bool {
	const (
		idPID   = 1 // P_PID
		options = syscall.WEXITED | syscall.WNOWAIT
	)
	var info [128]byte // siginfo_t; nobody reads it
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, idPID, uintptr(p.Pid),
			uintptr(unsafe.Pointer(&info)), options, 0, 0) //nolint:gosec // waitid wants room for siginfo_t
		if !errors.Is(errno, syscall.EINTR) {
			return errno == 0
		}
	}
}
