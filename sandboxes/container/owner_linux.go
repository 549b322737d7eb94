package container

import (
	"os"
	"strconv"
	"strings"
)

// self names this process so that no other process ever has the same name: its number, its start time, the namespace
// that the number belongs to, the boot.
func self() string { return owner(strconv.Itoa(os.Getpid())) }

// owner names a living process, and is empty where there is none of that number.
func owner(pid string) string {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return ""
	}
	// "pid (name) state ...": the name may hold anything, and start is the 20th word after it.
	words := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(words) < 20 || words[0] == "Z" {
		return ""
	}
	return pid + "/" + words[19] + "/" + here()
}

// here names the namespace of process numbers that this process lives in, and the machine's boot.
func here() string {
	ns, _ := os.Readlink("/proc/self/ns/pid")
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return ns + "/" + strings.TrimSpace(string(boot))
}

// gone says whether an owner is known to be dead. Owners in another namespace cannot be seen from here, and those of
// another boot are dead only if they lived on this machine.
func gone(o string, local bool) bool {
	w := strings.SplitN(o, "/", 4)
	h := strings.SplitN(here(), "/", 2)
	switch {
	case len(w) < 4:
		return false
	case w[3] != h[1]:
		return local
	case w[2] != h[0]:
		return false
	}
	return owner(w[0]) != o
}
