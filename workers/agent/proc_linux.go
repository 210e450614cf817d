package agent

import (
	"bytes"
	"errors"
	"os"
	"strconv"
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

// groupLives reports whether anybody in the group that leader leads still runs.
// Those that have ended, and that nobody has waited for yet, do not.
func groupLives(leader *os.Process) bool {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return true // who knows
	}
	group := strconv.Itoa(leader.Pid)
	for _, one := range all {
		stat, err := os.ReadFile("/proc/" + one.Name() + "/stat")
		if err != nil {
			continue // no process, or none any more
		}
		// pid (command) state parent group …, and a command's name may hold anything.
		f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(f) > 2 && string(f[2]) == group && f[0][0] != 'Z' && f[0][0] != 'X' {
			return true
		}
	}
	return false
}
