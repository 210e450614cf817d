//go:build unix && !linux

package agent

import (
	"os"
	"syscall"
)

// ownGroup makes a command lead a process group of its own. It does not die
// with this process: only Linux has that.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func awaitExit(*os.Process) bool { return false }

// groupLives reports whether there is anybody in the group that leader led.
func groupLives(leader *os.Process) bool { return syscall.Kill(-leader.Pid, 0) == nil }
