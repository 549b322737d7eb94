package postgres

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// unprivileged makes a program die with the thread that started it, and run as nobody where we are root.
func unprivileged() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Getuid() == 0 {
		a.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return a
}

// bury removes what a server that was killed has left running and in memory. Its sessions notice their loss only when they
// wait for something; they work in its data folder. The shared memory segment is named by line 7 of its postmaster.pid.
func bury(data string) {
	pidFile, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil { // the server ended in good order
		return
	}
	folders, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is a good one
	for _, f := range folders {
		if at, err := os.Readlink(f); err == nil && at == data {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		}
	}
	lines := bytes.Split(pidFile, []byte("\n"))
	if len(lines) < 7 {
		return
	}
	if f := bytes.Fields(lines[6]); len(f) == 2 {
		if id, err := strconv.Atoi(string(f[1])); err == nil {
			const ipcRemove = 0
			syscall.Syscall(syscall.SYS_SHMCTL, uintptr(id), ipcRemove, 0) // what cannot be removed is 56 bytes
		}
	}
}
