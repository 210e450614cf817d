//go:build unix && !linux

package e2e_test

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }
