//go:build linux

package confine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes/confine"
	"github.com/mcpgym/mcpgym/sandboxes/container"
)

// driver is a way to run programs. Its name is what MCPGYM_REQUIRE calls what it needs.
type driver struct {
	name   string
	open   func(context.Context) (confine.Runner, error)
	shared func() (confine.Runner, error) // that of all tests
}

func newDriver(name string, open func(context.Context) (confine.Runner, error)) driver {
	return driver{name, open, sync.OnceValues(func() (confine.Runner, error) {
		r, err := open(context.Background())
		if err == nil {
			closing = append(closing, r)
		}
		return r, err
	})}
}

var (
	drivers = []driver{newDriver("lint", confine.Local), newDriver("docker", func(ctx context.Context) (confine.Runner, error) {
		return container.Programs(ctx, container.ToolsImage)
	})}
	closing []confine.Runner // what TestMain closes
)

const roleEnv = "MCPGYM_CONFINE_TEST_ROLE"

// The test binary also plays a process that a test kills.
func TestMain(m *testing.M) {
	for _, d := range drivers {
		if os.Getenv(roleEnv) == d.name {
			own(d)
		}
	}
	code := m.Run()
	for _, r := range closing {
		if err := r.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// runner skips the test where what the driver needs is missing, or fails it where that is required.
func (d driver) runner(t testing.TB) confine.Runner {
	t.Helper()
	r, err := d.shared()
	missing := errors.Is(err, confine.ErrUnavailable) || errors.Is(err, container.ErrNoEngine) || errors.Is(err, container.ErrNoImage)
	if missing && !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), d.name) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return r
}

// onDrivers runs a test with each driver, with -short on the first alone: what the race detector looks for is the same on all.
func onDrivers(t *testing.T, test func(t *testing.T, r confine.Runner)) {
	for i, d := range drivers {
		if i > 0 && testing.Short() {
			break
		}
		t.Run(d.name, func(t *testing.T) { test(t, d.runner(t)) })
	}
}

func run(t testing.TB, r confine.Runner, p confine.Program) confine.Output {
	t.Helper()
	out, err := r.Run(t.Context(), p)
	require.NoError(t, err)
	return out
}

func shell(script string) confine.Program { return confine.Program{Args: []string{"sh", "-c", script}} }

func python(script string) confine.Program {
	return confine.Program{Args: []string{"python3", "-S", "-c", script}}
}

var marks atomic.Int64

// mark gives a number for "sleep" that no other process has, so that it can be found.
func mark() string { return fmt.Sprintf("98765.%d%d", os.Getpid(), marks.Add(1)) }

// alive lists the processes of the machine whose arguments have a mark in them.
func alive(t testing.TB, mark string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, f := range all {
		line, _ := os.ReadFile(f) // it may have ended
		if bytes.Contains(line, []byte(mark)) {
			found = append(found, f)
		}
	}
	return found
}

func TestPrograms(t *testing.T) {
	files := map[string]string{"a.txt": "A\n", "d/e/b.txt": "B", strings.Repeat("long/", 30) + "c": "C", "-x ' \n\".txt": "D"}
	for _, c := range []struct {
		name string
		p    confine.Program
		want confine.Output
	}{
		{"nothing", confine.Program{Args: []string{"true"}}, confine.Output{}},
		{"by its path", confine.Program{Args: []string{"/usr/bin/cat", "a.txt", "d/e/b.txt"}}, confine.Output{Stdout: "A\nB"}},
		{"a long path", confine.Program{Args: []string{"cat", strings.Repeat("long/", 30) + "c", "./-x ' \n\".txt"}}, confine.Output{Stdout: "CD"}},
		{"both outputs and an exit code", shell("echo out; echo err >&2; exit 7"), confine.Output{Exit: 7, Stdout: "out\n", Stderr: "err\n"}},
		{"arguments as they are", confine.Program{Args: []string{"sh", "-c", `printf '%s|' "$@"`, "0", "", "a b", "it's", "$HOME\n`x`\\"}},
			confine.Output{Stdout: "|a b|it's|$HOME\n`x`\\|"}},
		{"an empty input", shell("cat; echo end"), confine.Output{Stdout: "end\n"}},
		{"a signal", shell("kill -9 $$"), confine.Output{Exit: 137}},
		{"files can be changed", shell("echo X >a.txt; mkdir n; echo Y >n/y; cat a.txt n/y"), confine.Output{Stdout: "X\nY\n"}},
		{"Python", python("import json, os, unittest; print(json.dumps([os.getcwd(), os.listdir('/tmp'), os.getuid()]))"), confine.Output{Stdout: "[\"/work\", [], 65534]\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onDrivers(t, func(t *testing.T, r confine.Runner) {
				c.p.Files = files
				require.Equal(t, c.want, run(t, r, c.p))
			})
		})
	}
	require.Equal(t, "A\n", files["a.txt"])
}

func TestEnvironment(t *testing.T) {
	t.Setenv("MCPGYM_SECRET", "swordfish")
	onDrivers(t, func(t *testing.T, r confine.Runner) {
		out := run(t, r, python("import os; print('\\n'.join(sorted('='.join(v) for v in os.environ.items())))"))
		want := slices.Sorted(slices.Values(confine.Env()))
		require.Equal(t, strings.Join(want, "\n")+"\n", out.Stdout, "%s", out.Stderr)
		out = run(t, r, shell("cat /proc/[0-9]*/environ"))
		require.NotContains(t, out.Stdout, "swordfish")
	})
}

func TestRefused(t *testing.T) {
	many := map[string]string{}
	for i := range 501 {
		many[fmt.Sprint(i)] = ""
	}
	onDrivers(t, func(t *testing.T, r confine.Runner) {
		for want, p := range map[string]confine.Program{
			"no program is named":              {},
			"a NUL in an argument":             {Args: []string{"true", "a\x00b"}},
			"no path of a file":                {Args: []string{"true"}, Files: map[string]string{"../x": ""}},
			`"/x" is no path of a file`:        {Args: []string{"true"}, Files: map[string]string{"/x": ""}},
			`"." is no path of a file`:         {Args: []string{"true"}, Files: map[string]string{".": ""}},
			`"a" is a file and a folder`:       {Args: []string{"true"}, Files: map[string]string{"a/b/c": "", "a": ""}},
			"501 files, more than 500":         {Args: []string{"true"}, Files: many},
			"8388609 bytes of files":           {Args: []string{"true"}, Files: map[string]string{"x": strings.Repeat("x", 8<<20+1)}},
			`"a\x00" is no path of a file`:     {Args: []string{"true"}, Files: map[string]string{"a\x00": ""}},
			`"a//b" is no path of a file`:      {Args: []string{"true"}, Files: map[string]string{"a//b": ""}},
			`"a/../../b" is no path of a file`: {Args: []string{"true"}, Files: map[string]string{"a/../../b": ""}},
		} {
			_, err := r.Run(t.Context(), p)
			require.ErrorContains(t, err, want)
		}
		// It still serves.
		require.Zero(t, run(t, r, shell("true")))
		require.Equal(t, 127, run(t, r, confine.Program{Args: []string{"no-such-program"}}).Exit)
	})
}

// What a program may not do, as C132 and what is like it.
func TestHostile(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("swordfish"), 0o644))
	require.NoError(t, os.Chmod(filepath.Dir(secret), 0o755))
	id := mark()
	for _, c := range []struct {
		name  string
		p     confine.Program
		check func(t *testing.T, out confine.Output)
	}{
		{"C132 fork bomb", confine.Program{Args: shell("f() { f | f & }; f; sleep " + id).Args, Time: time.Second}, func(t *testing.T, out confine.Output) {
			require.NotZero(t, out.Exit)
		}},
		{"C132 more processes than may be", shell("i=0; while [ $i -lt 40 ]; do sleep " + id + " & i=$((i+1)); echo $i; done"), func(t *testing.T, out confine.Output) {
			require.Contains(t, out.Stdout, "\n10\n")
			require.NotContains(t, out.Stdout, "\n20\n")
			require.Contains(t, out.Stderr, "Cannot fork")
		}},
		{"C132 huge allocation", python("x = bytearray(1 << 30)"), func(t *testing.T, out confine.Output) {
			require.Equal(t, 1, out.Exit)
			require.Contains(t, out.Stderr, "MemoryError")
		}},
		{"endless loop", confine.Program{Args: shell("while :; do :; done").Args, Time: 300 * time.Millisecond}, func(t *testing.T, out confine.Output) {
			require.Equal(t, "time", out.Over)
			require.Equal(t, 137, out.Exit)
		}},
		{"endless sleep", confine.Program{Args: shell("trap '' TERM INT HUP; echo on; sleep " + id).Args, Time: 300 * time.Millisecond}, func(t *testing.T, out confine.Output) {
			require.Equal(t, confine.Output{Exit: 137, Stdout: "on\n", Over: "time"}, out)
		}},
		{"endless output", python("while True: print('x' * 1000)"), func(t *testing.T, out confine.Output) {
			require.Equal(t, "output", out.Over)
			require.Len(t, out.Stdout, confine.MaxOutput)
		}},
		{"endless errors", python("import sys\nwhile True: print('x' * 1000, file=sys.stderr)"), func(t *testing.T, out confine.Output) {
			require.Equal(t, "output", out.Over)
			require.Len(t, out.Stderr, confine.MaxOutput)
		}},
		{"large file", shell("cat /dev/zero >x; ls -l x 2>/dev/null || cat x | wc -c"), func(t *testing.T, out confine.Output) {
			require.Contains(t, out.Stderr, "File size limit exceeded")
		}},
		{"many files", python("for i in range(100):\n  with open(f'/tmp/{i}', 'wb') as f: f.write(bytes(1 << 20))"), func(t *testing.T, out confine.Output) {
			require.Contains(t, out.Stderr, "No space left on device")
		}},
		{"a full working folder", python("for i in range(100):\n  with open(f'{i}', 'wb') as f: f.write(bytes(1 << 20))"), func(t *testing.T, out confine.Output) {
			require.Contains(t, out.Stderr, "No space left on device")
		}},
		{"shared memory", python("for i in range(100):\n  with open(f'/dev/shm/{i}', 'wb') as f: f.write(bytes(1 << 20))"), func(t *testing.T, out confine.Output) {
			require.Contains(t, out.Stderr, "No space left on device")
		}},
		{"open files", python("x = [open('/dev/null') for i in range(200)]"), func(t *testing.T, out confine.Output) {
			require.Contains(t, out.Stderr, "Too many open files")
		}},
		{"writing elsewhere", shell("for d in / /usr /usr/bin /dev /proc /tools /sys /etc; do (echo x >$d/x) 2>/dev/null && echo wrote $d; done; rm -rf /usr/bin/cat; cat /dev/null"), func(t *testing.T, out confine.Output) {
			require.Zero(t, out.Exit)
			require.Empty(t, out.Stdout)
		}},
		{"reading the machine", shell("cat " + secret + " /proc/1/root" + secret + "; cd /; for f in *; do echo $f; done"), func(t *testing.T, out confine.Output) {
			require.NotContains(t, out.Stdout, "swordfish")
			for _, d := range strings.Fields(out.Stdout) {
				require.Contains(t, []string{"bin", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "tmp", "tools", "usr", "var", "work"}, d)
			}
		}},
		{"the machine's users", shell("cat /etc/passwd /etc/shadow /etc/hostname"), func(t *testing.T, out confine.Output) {
			name, err := os.Hostname()
			require.NoError(t, err)
			require.NotContains(t, out.Stdout, name)
			users, err := os.ReadFile("/etc/passwd")
			require.NoError(t, err)
			require.NotContains(t, out.Stdout, string(users)) // an image may have its own
		}},
		{"killing", shell("sleep " + id + " & kill -9 -1; kill -9 1 $PPID; echo on"), func(t *testing.T, out confine.Output) {
			require.Contains(t, []int{0, 137}, out.Exit)
		}},
		{"other processes", shell("for p in /proc/[0-9]*; do echo $p; done"), func(t *testing.T, out confine.Output) {
			require.Less(t, strings.Count(out.Stdout, "\n"), 8)
		}},
		{"leaving processes behind", python("import os, time\nfor i in range(10):\n  if os.fork() == 0:\n    os.setsid()\n    for f in 0, 1, 2: os.close(f)\n    x = bytearray(10 << 20)\n    time.sleep(" + id + ")\ntime.sleep(.5)"), func(t *testing.T, out confine.Output) {
			require.Equal(t, confine.Output{}, out)
		}},
		{"leaving processes that hold the output", shell("sleep " + id + " & echo on"), func(t *testing.T, out confine.Output) {
			require.Equal(t, confine.Output{Stdout: "on\n"}, out)
		}},
		{"capabilities", shell("while read -r l; do echo $l; done </proc/self/status"), func(t *testing.T, out confine.Output) {
			for _, l := range []string{"Uid: 65534 65534 65534 65534", "Gid: 65534 65534 65534 65534", "NoNewPrivs: 1", "Seccomp: 2", "CapEff: 0000000000000000", "CapBnd: 0000000000000000"} {
				require.Contains(t, out.Stdout, l+"\n")
			}
			require.NotContains(t, out.Stdout, "Groups: 0")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onDrivers(t, func(t *testing.T, r confine.Runner) {
				start := time.Now()
				out := run(t, r, c.p)
				require.Less(t, time.Since(start), 9*time.Second, "it has had all its time")
				c.check(t, out)
				require.Empty(t, alive(t, id))
				require.NoError(t, exec.Command("true").Run())
			})
		})
	}
}

// Neither this machine, by any of its addresses, nor anything beyond it can be reached.
func TestNoNetwork(t *testing.T) {
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	defer l.Close()
	abstract, err := net.Listen("unix", "@mcpgym-"+mark())
	require.NoError(t, err)
	defer abstract.Close()
	hosts := []string{"192.0.2.1", "127.0.0.1"}
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP; ip.To4() != nil && !ip.IsLoopback() {
			hosts = append(hosts, ip.String())
		}
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	c, err := net.Dial("tcp", net.JoinHostPort(hosts[len(hosts)-1], port)) // it does answer whoever reaches it
	require.NoError(t, err)
	c.Close()
	script := fmt.Sprintf(`import socket
for h in %q.split():
    try: print(h, socket.create_connection((h, %s), 2))
    except OSError as e: print("no", h, e)
try: print("unix", socket.socket(socket.AF_UNIX).connect("\0%s"))
except OSError as e: print("no unix", e)
print(open("/proc/net/dev").read())`, strings.Join(hosts, " "), port, abstract.Addr().String()[1:])
	onDrivers(t, func(t *testing.T, r confine.Runner) {
		out := run(t, r, python(script))
		reached, devices, _ := strings.Cut(out.Stdout, "Inter-|")
		require.Equal(t, len(hosts)+1, strings.Count("\n"+reached, "\nno "), "%s%s", out.Stdout, out.Stderr)
		require.Contains(t, devices, " lo:")
		require.Equal(t, 1, strings.Count(devices, ":"), devices)
	})
}

// Programs at the same time do not see each other, and each has all its processes.
func TestApart(t *testing.T) {
	onDrivers(t, func(t *testing.T, r confine.Runner) {
		n := 6
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				p := shell("for d in /tmp /work /dev/shm; do ls $d 2>/dev/null || echo $d/*; echo x >$d/mine; done; i=0; while [ $i -lt 9 ]; do sleep .3 & i=$((i+1)); done; wait; cat f")
				p.Files = map[string]string{"f": fmt.Sprint(i)}
				out, err := r.Run(t.Context(), p)
				if err != nil || out.Exit != 0 || strings.Contains(out.Stdout, "mine") || !strings.HasSuffix(out.Stdout, fmt.Sprint("\n", i)) {
					t.Error(i, out, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestCancelled(t *testing.T) {
	id := mark()
	onDrivers(t, func(t *testing.T, r confine.Runner) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := r.Run(ctx, shell("setsid sleep "+id+" & sleep "+id))
			done <- err
		}()
		require.Eventually(t, func() bool { return len(alive(t, id)) >= 2 }, 5*time.Second, 5*time.Millisecond)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.Empty(t, alive(t, id))
		_, err := r.Run(ctx, shell("true"))
		require.ErrorIs(t, err, context.Canceled)
	})
}

// own runs a program and never ends.
func own(d driver) {
	r, err := d.open(context.Background())
	if err == nil {
		_, err = r.Run(context.Background(), confine.Program{Args: shell("setsid sleep " + os.Args[1] + " & sleep " + os.Args[1]).Args, Time: time.Hour})
	}
	fmt.Fprintln(os.Stderr, "it ended:", err)
	os.Exit(1)
}

// A program goes with the process that runs it, however that ends.
func TestOwnerKilled(t *testing.T) {
	for _, d := range drivers {
		t.Run(d.name, func(t *testing.T) {
			d.runner(t) // it can be had
			id := mark()
			cmd := exec.Command(os.Args[0], id)
			cmd.Env = append(os.Environ(), roleEnv+"="+d.name)
			cmd.Stderr = os.Stderr
			require.NoError(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill() }) // else it lives on where the test fails
			require.Eventually(t, func() bool { return len(alive(t, id)) >= 3 }, 20*time.Second, 5*time.Millisecond, "the owner and two sleeps")
			require.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait() // it was killed
			require.Eventually(t, func() bool { return len(alive(t, id)) == 0 }, 5*time.Second, 5*time.Millisecond)
		})
	}
}

func TestClosed(t *testing.T) {
	for _, d := range drivers {
		d.runner(t) // it can be had
		r, err := d.open(t.Context())
		require.NoError(t, err)
		require.NoError(t, r.Close())
		require.NoError(t, r.Close())
		for range 2 {
			_, err := r.Run(t.Context(), shell("true"))
			require.ErrorContains(t, err, "closed")
		}
	}
}

// Where something is missing the error says what, and how to get it.
func TestUnavailable(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := confine.Local(t.Context())
	require.ErrorIs(t, err, confine.ErrUnavailable)
	require.ErrorContains(t, err, "make deps")
}

func BenchmarkRun(b *testing.B) {
	for _, d := range drivers {
		b.Run(d.name, func(b *testing.B) {
			r := d.runner(b)
			for b.Loop() {
				run(b, r, confine.Program{Args: []string{"true"}})
			}
		})
	}
}
