//go:build unix && !linux

package process

import "syscall"

// grouped puts a program into a process group of its own.
func grouped() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
