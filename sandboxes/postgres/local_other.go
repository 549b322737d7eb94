//go:build unix && !linux

package postgres

import (
	"os"
	"syscall"
)

// unprivileged makes a program run as nobody where we are root.
func unprivileged() *syscall.SysProcAttr {
	if os.Getuid() != 0 {
		return nil
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

// freeMemory has nothing to do where the system's numbers for it are not known.
func freeMemory(string) {}
