package owner

import (
	"os"
	"strconv"
	"strings"
)

// Of names a living process: the namespace that its number belongs to, that number, when it was started, and the boot. It is
// empty where there is none of that number.
func Of(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// "pid (name) state ...": the name may hold anything, and the start is the 20th word after it.
	words := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(words) < 20 || words[0] == "Z" {
		return ""
	}
	return space() + "-" + strconv.Itoa(pid) + "-" + words[19] + "-" + boot()
}

// space names the namespace of process numbers that this process lives in.
func space() string {
	ns, _ := os.Readlink("/proc/self/ns/pid") // "pid:[4026531836]"
	return strings.Trim(ns, "pid:[]")
}

func boot() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}

// Gone says whether the process of a name is known to be dead. Those of another namespace cannot be seen from here, and those of
// another boot are dead only if here says that they lived on this machine.
func Gone(name string, here bool) bool {
	w := strings.SplitN(name, "-", 4)
	if len(w) < 4 {
		return false
	}
	pid, err := strconv.Atoi(w[1])
	switch {
	case err != nil:
		return false
	case w[3] != boot():
		return here
	case w[0] != space():
		return false
	}
	return Of(pid) != name
}
