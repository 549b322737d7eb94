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

// freeMemory removes the shared memory segment of a server that was killed, and so could not do it itself: line 7 of
// its postmaster.pid says key and number.
func freeMemory(data string) {
	pidFile, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil { // the server ended in good order
		return
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
