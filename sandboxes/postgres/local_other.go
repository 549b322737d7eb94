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

// bury has nothing to do where the system does not show what a server has left.
func bury(string) {}
