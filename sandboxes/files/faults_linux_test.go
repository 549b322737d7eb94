package files

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/container"
)

// private is the folder that all of a provider lies in.
func private(p *Provider) string { return filepath.Dir(p.home) }

// servers gives the processes of the name that live where a provider's folder is bound.
func servers(t testing.TB, folder, name string) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	require.NoError(t, err)
	for _, f := range all {
		mounts, _ := os.ReadFile(f) // it may have ended
		comm, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "comm"))
		if bytes.Contains(mounts, []byte(filepath.Base(folder))) && strings.TrimSpace(string(comm)) == name {
			var pid int
			_, err := fmt.Sscanf(f, "/proc/%d/", &pid)
			require.NoError(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// docker does something to the container of a process.
func docker(t testing.TB, pid int, verb ...string) {
	t.Helper()
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	require.NoError(t, err)
	id := regexp.MustCompile(`[0-9a-f]{64}`).Find(groups)
	require.NotNil(t, id, "%s", groups)
	out, err := exec.Command("docker", append(verb, string(id))...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) && !strings.Contains(os.Getenv("MCPGYM_REQUIRE"), "docker") {
		t.Skip("the engine's command is not installed, which harms its containers: make deps")
	}
	require.NoError(t, err, "%s", out)
}

// nothingLeft waits until neither a process nor a folder of a provider is there.
func nothingLeft(t testing.TB, folder string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(servers(t, folder, "filesd"))+len(servers(t, folder, "docker-init")) == 0 }, 10*time.Second, 5*time.Millisecond)
	require.NoDirExists(t, folder)
}

// inContainer gives a provider with two trees leased and one ready, whose server can be reached.
func inContainer(t *testing.T) (p *Provider, a, b sandboxes.Sandbox, server int) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts containers")
	}
	if os.Getuid() != 0 {
		t.Skip("only root reaches into a container: run the test as root")
	}
	p = drivers[2].provider(t, 1)
	var err error
	a, err = p.Lease(t.Context(), world(t, desk()))
	require.NoError(t, err)
	b, err = p.Lease(t.Context(), world(t, desk()))
	require.NoError(t, err)
	p.Prefetch(world(t, desk()))
	require.Eventually(t, func() bool { return p.Ready() == 1 }, 10*time.Second, time.Millisecond)
	for _, box := range []sandboxes.Sandbox{a, b} {
		require.False(t, call(t, box, "write_file", args{"path": "new", "content": "x"}).IsError)
	}
	pids := servers(t, private(p), "filesd")
	require.Len(t, pids, 1, "one server for all trees")
	return p, a, b, pids[0]
}

func faultOf(t testing.TB, err error) sandboxes.FaultKind {
	t.Helper()
	f, ok := errors.AsType[*sandboxes.Fault](err)
	require.True(t, ok, "%v", err)
	return f.Kind
}

// healed says that a provider leases trees as at its start, and ends leaving nothing.
func healed(t testing.TB, p *Provider, start sandboxes.State, old ...sandboxes.Sandbox) {
	t.Helper()
	for range 2 {
		box, err := p.Lease(t.Context(), world(t, desk()))
		require.NoError(t, err)
		require.Equal(t, start, state(t, box))
		require.False(t, call(t, box, "write_file", args{"path": "new", "content": "x"}).IsError)
	}
	require.Len(t, servers(t, private(p), "filesd"), 1, "the old one is gone")
	for _, box := range old {
		require.NoError(t, box.Close())
	}
	require.NoError(t, p.Close())
	nothingLeft(t, private(p))
}

// A server that dies takes all that was leased of it with it, and what is leased later knows nothing of that.
func TestServerDies(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, pid int){
		"program killed":    func(t *testing.T, pid int) { require.NoError(t, syscall.Kill(pid, syscall.SIGKILL)) },
		"program ended":     func(t *testing.T, pid int) { require.NoError(t, syscall.Kill(pid, syscall.SIGTERM)) },
		"container killed":  func(t *testing.T, pid int) { docker(t, pid, "kill") },
		"container removed": func(t *testing.T, pid int) { docker(t, pid, "rm", "-f") },
	} {
		t.Run(name, func(t *testing.T) {
			p, a, b, server := inContainer(t)
			start := fresh(t, desk()).state()
			waits := make(chan error, 1)
			go func() {
				for {
					if _, err := b.Session().Call(t.Context(), "directory_tree", nil); err != nil {
						waits <- err
						return
					}
				}
			}()
			harm(t, server)
			require.Equal(t, sandboxes.FaultDied, faultOf(t, <-waits), "a call that runs ends")
			for range 2 {
				_, err := a.Session().Call(t.Context(), "read_text_file", json.RawMessage(`{"path":"readme.md"}`))
				require.Equal(t, sandboxes.FaultDied, faultOf(t, err))
				require.NotContains(t, err.Error(), p.home)
				_, err = a.Session().Tools(t.Context())
				require.Equal(t, sandboxes.FaultDied, faultOf(t, err))
			}
			require.False(t, sandboxes.AliveOf(a.Session()))
			require.Len(t, state(t, a).Diff, 1, "what an agent has done is still seen")
			healed(t, p, start, a, b)
		})
	}
}

// waitStopped waits until all threads of a process have taken notice of SIGSTOP.
func waitStopped(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		require.NoError(t, err)
		for _, path := range threads {
			stat, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(stat), ") T ") {
				return false
			}
		}
		return len(threads) > 0
	}, 10*time.Second, time.Millisecond)
}

// A server that does not answer is no fault of an agent's, and is replaced as soon as it is noticed.
func TestServerHangs(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, pid int){
		"program stopped": func(t *testing.T, pid int) {
			require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
			waitStopped(t, pid)
		},
		"container paused": func(t *testing.T, pid int) { docker(t, pid, "pause") },
	} {
		t.Run(name, func(t *testing.T) {
			p, a, b, server := inContainer(t)
			start := fresh(t, desk()).state()
			harm(t, server)
			short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, err := a.Session().Call(short, "read_text_file", json.RawMessage(`{"path":"readme.md"}`))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.True(t, sandboxes.AliveOf(a.Session()), "a call may take long")
			short, cancel = context.WithTimeout(t.Context(), shortest+200*time.Millisecond)
			defer cancel()
			_, err = a.Session().Tools(short)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.False(t, sandboxes.AliveOf(a.Session()), "the list of tools may not")
			healed(t, p, start, a, b)
		})
	}
	t.Run("at the end", func(t *testing.T) {
		p, _, _, server := inContainer(t)
		require.NoError(t, syscall.Kill(server, syscall.SIGSTOP))
		require.NoError(t, p.Close())
		nothingLeft(t, private(p))
	})
}

// A process that is killed leaves its trees, and its container where that is stopped; the next one removes them.
func TestOwnerKilled(t *testing.T) {
	const child = "MCPGYM_FILES_TEST_OWNER"
	if os.Getenv(child) != "" {
		p := drivers[2].provider(t, 1)
		box, err := p.Lease(t.Context(), world(t, desk()))
		require.NoError(t, err)
		call(t, box, "write_file", args{"path": "new", "content": "x"})
		fmt.Println("folder", private(p))
		time.Sleep(time.Minute)
	}
	living, a, _, _ := inContainer(t)
	for name, harm := range map[string]func(t *testing.T, pid int){"running": func(*testing.T, int) {}, "paused": func(t *testing.T, pid int) { docker(t, pid, "pause") }} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run", "^TestOwnerKilled$")
			cmd.Env = append(os.Environ(), child+"=1")
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			defer cmd.Wait()
			defer cmd.Process.Kill()
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			folder, ok := strings.CutPrefix(strings.TrimSpace(line), "folder ")
			require.True(t, ok, line)
			pids := servers(t, folder, "filesd")
			require.Len(t, pids, 1)
			harm(t, pids[0])
			require.NoError(t, cmd.Process.Kill())
			require.Error(t, cmd.Wait())
			if name == "running" {
				start := time.Now()
				require.Eventually(t, func() bool { return len(servers(t, folder, "filesd")) == 0 }, 10*time.Second, 5*time.Millisecond)
				t.Logf("its container was gone %v after it", time.Since(start).Round(time.Millisecond))
			}
			e, err := container.Open(t.Context())
			require.NoError(t, err)
			require.NoError(t, e.Close())
			provider(t, 1)
			nothingLeft(t, folder)
			require.DirExists(t, living.home)
			require.False(t, call(t, a, "write_file", args{"path": "new", "content": "still here"}).IsError)
		})
	}
}

// Nothing but the trees can be written to in a container, and nobody there is root.
func TestConfined(t *testing.T) {
	p, _, _, server := inContainer(t)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", server))
	require.NoError(t, err)
	for _, want := range []string{"Uid:\t65534\t65534\t65534\t65534", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		require.Contains(t, string(status), want)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", server))
	require.NoError(t, err)
	var open []string
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		kind := f[len(f)-3]
		if strings.HasPrefix(f[5], "rw") && kind != "proc" && kind != "devpts" && kind != "mqueue" {
			open = append(open, f[4])
		}
	}
	t.Log(open)
	require.Contains(t, open, "/trees")
	require.NotContains(t, open, "/")
	fi, err := os.Stat(private(p))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), fi.Mode().Perm(), "the user of trees is others' user, too")
	require.Zero(t, fi.Sys().(*syscall.Stat_t).Uid)
}
