package files

import (
	"syscall"
)

// roomy is how much memory must be free for trees to lie there.
const roomy = 256 << 20

// memory is a folder in memory, empty where there is none with room.
func memory() string {
	const dir = "/dev/shm"
	const tmpfs = 0x01021994
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil || st.Type != tmpfs || st.Bavail*uint64(st.Bsize) < roomy {
		return ""
	}
	return dir
}
