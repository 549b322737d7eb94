// Package owner names processes, so that what one has left behind can be told from what one still uses.
package owner

import "os"

// Self names this process so that no other process ever has the same name. It can be part of a file's name. It is empty where
// processes have no name that lasts, which is everywhere but on Linux.
func Self() string { return Of(os.Getpid()) }
