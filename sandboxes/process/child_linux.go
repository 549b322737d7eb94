package process

import "syscall"

// grouped puts a program into a process group of its own, and makes it die with the thread that started it.
func grouped() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
