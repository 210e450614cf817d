//go:build !unix

package agent

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

var (
	termSignal = os.Kill // there is no gentler way
	killSignal = os.Kill
)

func isExecutable(fs.FileInfo) bool { return true }

func ownGroup() *syscall.SysProcAttr { return nil }

func awaitExit(*os.Process) bool { return false }

func groupLives(*os.Process) bool { return false }

// signalGroup ends the process alone: there are no groups.
func signalGroup(leader *os.Process, _ os.Signal) error { return leader.Kill() }

func describe(state *os.ProcessState) string { return fmt.Sprintf("exit status %d", state.ExitCode()) }
