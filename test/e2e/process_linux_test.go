package e2e_test

import "syscall"

// dieWithParent ends a child when the test binary is killed.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
