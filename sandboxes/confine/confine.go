// Package confine runs programs that must not harm: those an agent wrote, and those that read what an agent wrote.
//
// A program gets copies of some files in a folder of its own and nothing else of the machine but the programs and libraries
// of /usr, which it cannot change. It has no network, sees no other process, is an ordinary user without capabilities, and has
// limits on time, memory, processes, files and output. Nothing of it is left when it ends.
//
// Package container has the driver that uses a Docker engine.
package confine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"
)

// ErrUnavailable is wrapped by the errors of Local where this machine cannot confine programs.
var ErrUnavailable = errors.New("programs cannot be confined on this machine")

// Runner runs programs, each in a confinement of its own. Its methods may be called concurrently.
type Runner interface {
	// Run runs a program to its end. Whatever the program does is an Output. An error is ctx's error when ctx ended, and
	// else says why the program could not be run or watched. Either way nothing of it still runs.
	Run(ctx context.Context, p Program) (Output, error)
	// Close ends what is held ready. It may be called twice.
	Close() error
}

// Program is what to run. Its standard input is empty.
type Program struct {
	Args  []string          // the program, by its path or by its name in Tools/bin or /usr/bin, and its arguments
	Files map[string]string // what is in its working folder, Work, by path in it
	Time  time.Duration     // how long it may take, MaxTime unless given
}

// Output is what a program did.
type Output struct {
	Exit           int // its exit code, or 128 and the signal that ended it
	Stdout, Stderr string
	Over           string // the limit for which it was ended, "time" or "output", if it was
}

// Limits on a program. What goes over one on memory, processes or files is refused, and how that ends is the program's own.
const (
	Memory    = 256 << 20 // bytes of address space for each process
	Processes = 16        // and threads, at one time
	OpenFiles = 128       // for each process
	FileSize  = 8 << 20   // bytes of one file
	Space     = 16 << 20  // bytes of all files in Work, and as many in /tmp
	MaxOutput = 1 << 20   // bytes of the standard output, and as many of the standard error
	MaxTime   = 10 * time.Second
)

const (
	Work  = "/work"  // the working folder. What a program writes there is gone with it
	Tools = "/tools" // programs of fixed versions, which make deps installs
)

// Env is the environment of a program, on every machine.
func Env() []string {
	return []string{"PATH=" + Tools + "/bin:/usr/bin", "PWD=" + Work, "HOME=/tmp", "TMPDIR=/tmp", "LANG=C.UTF-8", "TZ=UTC", "PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1",
		"RAYON_NUM_THREADS=2"} // else as many threads as the machine has processors, which may be more than Processes
}

// maxFiles bounds the files of a program: each takes an open file to hand it over.
const maxFiles = 500

// Check says what is wrong with a program, and lists its files in order. It is for drivers.
func (p Program) Check() (files []string, err error) {
	if len(p.Args) == 0 || p.Args[0] == "" {
		return nil, errors.New("no program is named")
	}
	if strings.Contains(strings.Join(p.Args, ""), "\x00") {
		return nil, errors.New("a NUL in an argument")
	}
	if len(p.Files) > maxFiles {
		return nil, fmt.Errorf("%d files, more than %d", len(p.Files), maxFiles)
	}
	size := 0
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		if !fs.ValidPath(name) || name == "." || strings.ContainsRune(name, 0) {
			return nil, fmt.Errorf("%.60q is no path of a file", name)
		}
		for at, c := range name {
			if _, also := p.Files[name[:at]]; c == '/' && also {
				return nil, fmt.Errorf("%.60q is a file and a folder", name[:at])
			}
		}
		size += len(p.Files[name])
	}
	if size > Space/2 {
		return nil, fmt.Errorf("%d bytes of files, more than %d", size, Space/2)
	}
	return slices.Sorted(maps.Keys(p.Files)), nil
}

// Capped keeps the first MaxOutput bytes that are written to it. It is for drivers.
type Capped struct {
	Full func() // called when more is written

	b []byte
}

func (c *Capped) Write(b []byte) (int, error) {
	n := min(len(b), MaxOutput-len(c.b))
	c.b = append(c.b, b[:n]...)
	if n < len(b) {
		c.Full()
	}
	return len(b), nil
}

func (c *Capped) String() string { return string(c.b) }

// Ended is why a program was ended, as the cause of its context's end. It is for drivers.
type Ended string

func (e Ended) Error() string { return "the program is over its limit of " + string(e) }

// Limit gives a context that ends when a program has had its time, or when what it returns is called. It is for drivers.
func (p Program) Limit(ctx context.Context) (limited context.Context, full func(), stop func()) {
	t := p.Time
	if t <= 0 {
		t = MaxTime
	}
	ctx, end := context.WithCancelCause(ctx)
	timer := time.AfterFunc(t, func() { end(Ended("time")) })
	return ctx, func() { end(Ended("output")) }, func() { timer.Stop(); end(nil) }
}

// Over names the limit that has ended a context of Limit, if one has. It is for drivers.
func Over(limited context.Context) string {
	e, _ := errors.AsType[Ended](context.Cause(limited))
	return string(e)
}
