package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/sandboxes"
	processes "github.com/mcpgym/mcpgym/sandboxes/internal/owner"
)

// postmasterOf gives the process, as this machine numbers it, that listens on a server's socket.
func postmasterOf(t testing.TB, dir string) int {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	require.NoError(t, err)
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	require.NoError(t, err)
	var peer *syscall.Ucred
	var said error
	require.NoError(t, raw.Control(func(fd uintptr) {
		peer, said = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}))
	require.NoError(t, said)
	require.NotZero(t, peer.Pid, "the server runs where its processes cannot be seen")
	return int(peer.Pid)
}

// backends gives a server's other processes.
func backends(t testing.TB, postmaster int) []int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", postmaster, postmaster))
	require.NoError(t, err)
	var pids []int
	for _, f := range bytes.Fields(text) {
		pid, err := strconv.Atoi(string(f))
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// backendOf gives the process of a session, which the server may number in another way.
func backendOf(t testing.TB, postmaster int, c *pgconn.PgConn) int {
	t.Helper()
	for _, pid := range backends(t, postmaster) {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // it may have ended
		if regexp.MustCompile(fmt.Sprintf(`(?m)^NSpid:.*\s%d$`, c.PID())).Match(status) {
			return pid
		}
	}
	t.Fatalf("no process %d among those of server %d", c.PID(), postmaster)
	return 0
}

// reach skips the test where the driver's processes cannot be reached: in a container they are another user's.
func (d driver) reach(t testing.TB) {
	t.Helper()
	if d.name == "docker" && os.Getuid() != 0 {
		t.Skip("only root reaches into a container: run the test as root")
	}
}

func signal(t testing.TB, s syscall.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		require.NoError(t, syscall.Kill(pid, s))
	}
}

// docker does something to the container that a process runs in.
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

// faulty says what is wrong where err is no fault of the server.
func faulty(err error) error {
	f, ok := errors.AsType[*sandboxes.Fault](err)
	if !ok {
		return fmt.Errorf("no fault, but %v", err)
	}
	if f.Kind != sandboxes.FaultDied && f.Kind != sandboxes.FaultHung && f.Kind != sandboxes.FaultLost {
		return fmt.Errorf("a fault of another kind: %w", f)
	}
	return nil
}

// untilError calls f until it fails: a session may answer once more before it hears of its server's death.
func untilError(f func() error) error {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// traces names what is left of a local server.
func traces(t testing.TB, dir string) (left []string) {
	t.Helper()
	if _, err := os.Stat(dir); err == nil {
		left = append(left, dir)
	}
	for _, what := range []string{"cwd", "cmdline"} {
		found, err := filepath.Glob("/proc/[0-9]*/" + what)
		require.NoError(t, err)
		for _, f := range found {
			at, _ := os.Readlink(f)
			text, _ := os.ReadFile(f)
			if strings.Contains(at+string(text), dir) {
				left = append(left, f)
			}
		}
	}
	return left
}

// Whatever befalls a server in mid-episode, its leases end as nobody's failure and close, and those that come later work.
func TestStricken(t *testing.T) {
	t.Parallel()
	kill := func(t *testing.T, postmaster int, _ *lease) { signal(t, syscall.SIGKILL, postmaster) }
	killSession := func(t *testing.T, postmaster int, l *lease) {
		signal(t, syscall.SIGKILL, backendOf(t, postmaster, l.agent))
	}
	for _, strike := range []struct {
		name string
		only string // a driver
		do   func(t *testing.T, postmaster int, l *lease)
		sql  string // runs meanwhile
		slow bool   // it takes the limits to find out
	}{
		{name: "server killed", do: kill},
		{name: "server killed during a statement", do: kill, sql: "SELECT pg_sleep(4)"},
		{name: "server killed during a computation", do: kill, sql: "DO $$ BEGIN LOOP END LOOP; END $$"},
		{name: "server told to end", do: func(t *testing.T, postmaster int, _ *lease) { signal(t, syscall.SIGINT, postmaster) }},
		{name: "session killed", do: killSession},
		{name: "session killed during a statement", do: killSession, sql: "SELECT pg_sleep(4)"},
		{name: "server stopped", slow: true, do: func(t *testing.T, postmaster int, _ *lease) {
			signal(t, syscall.SIGSTOP, append(backends(t, postmaster), postmaster)...)
		}},
		{name: "container killed", only: "docker", do: func(t *testing.T, postmaster int, _ *lease) { docker(t, postmaster, "kill") }},
		{name: "container paused", only: "docker", slow: true, do: func(t *testing.T, postmaster int, _ *lease) { docker(t, postmaster, "pause") }},
	} {
		for _, d := range tested() {
			if strike.only != "" && strike.only != d.name {
				continue
			}
			t.Run(strike.name+"/"+d.name, func(t *testing.T) {
				d.reach(t)
				if strike.slow && testing.Short() {
					t.Skip("it takes ten seconds")
				}
				t.Parallel()
				s := d.start(t)
				p := provider(t, s, false, 1)
				sibling := leased(t, p, 1)
				start := stateOf(t, sibling)
				setup, _, err := shopOf(false)(sandboxes.World{Seed: 1})
				require.NoError(t, err)
				struck, err := s.open(t.Context(), setup, false)
				require.NoError(t, err)
				p.Prefetch(sandboxes.World{Seed: 1})
				require.Eventually(t, func() bool { return p.Ready() == 1 }, 10*time.Second, time.Millisecond)
				old := current(t, s)
				postmaster := postmasterOf(t, old.Dir)

				running := make(chan error, 1)
				if strike.sql != "" {
					go func() {
						_, err := struck.statement(t.Context(), strike.sql)
						running <- err
					}()
					time.Sleep(50 * time.Millisecond) // it is on its way, or will find out as one that comes later
				}
				strike.do(t, postmaster, struck)
				var wg sync.WaitGroup
				wg.Go(func() {
					if strike.sql != "" {
						if err := faulty(<-running); err != nil {
							t.Errorf("the statement that ran: %v", err)
						}
					}
					if err := faulty(untilError(func() error { _, err := struck.statement(t.Context(), "SELECT 1"); return err })); err != nil {
						t.Errorf("the next statement: %v", err)
					}
				})
				err = untilError(func() error {
					_, err := sibling.Session().Call(t.Context(), "query_database", sqlArgs("SELECT 1"))
					return err
				})
				require.NoError(t, faulty(err), "the sibling's statement")
				for range 2 { // both find out at once
					wg.Go(func() {
						if err := works(t.Context(), p, start); err != nil {
							t.Errorf("a new lease: %v", err)
						}
					})
				}
				wg.Wait()
				require.NotEqual(t, old.Dir, current(t, s).Dir)
				_, err = sandboxes.StateOf(t.Context(), sibling)
				f, ok := errors.AsType[*sandboxes.Fault](err)
				require.True(t, ok, "%v", err)
				require.Equal(t, sandboxes.FaultVerifier, f.Kind)
				require.NoError(t, struck.Close())
				require.NoError(t, sibling.Close())
				require.NoError(t, works(t.Context(), p, start))
				require.Empty(t, traces(t, old.Dir))
			})
		}
	}
}

// An agent whose statement needs more memory than there is ends all sessions of the server. That is its own doing.
func TestMemory(t *testing.T) {
	inTurn(t)
	d := drivers[1] // the other one has no limit
	d.boot = func(ctx context.Context) (Instance, error) {
		i, err := bootContainer(ctx)
		if err == nil {
			docker(t, postmasterOf(t, i.Dir), "update", "--memory", "256m", "--memory-swap", "256m")
		}
		return i, err
	}
	_, err := d.shared()
	d.there(t, err)
	s := d.start(t)
	p := provider(t, s, false, 1)
	e := env(t, p, time.Minute)
	r := play(t, e, "SELECT cardinality(array_agg(repeat('x', 10000000))) FROM generate_series(1, 50)")
	require.Equal(t, envs.StatusKilled, r.Status, r.Text)
	require.Nil(t, e.Trajectory().Void)
	require.NotNil(t, e.Trajectory().Score)
	require.NoError(t, e.Close())
	require.NoError(t, works(t.Context(), p, stateOf(t, leased(t, p, 1))))
}

// A disk that is full is an error of SQL to whoever needs room, and nobody's end.
func TestFullDisk(t *testing.T) {
	inTurn(t)
	d := drivers[1] // the other one has no disk of its own
	d.reach(t)
	s := d.start(t)
	c := current(t, s)
	p := provider(t, s, false, 1)
	box := leased(t, p, 1)
	start := stateOf(t, leased(t, p, 1))
	room := fmt.Sprintf("/proc/%d/root/data/worlds", postmasterOf(t, c.Dir))
	var fs syscall.Statfs_t
	require.NoError(t, syscall.Statfs(room, &fs))
	fill, err := os.Create(filepath.Join(room, "fill"))
	require.NoError(t, err)
	defer fill.Close()
	require.NoError(t, syscall.Fallocate(int(fill.Fd()), 0, 0, int64(fs.Bavail)*fs.Bsize))
	r := ask(t, box, "INSERT INTO customers (name) SELECT repeat(md5(i::text), 60) FROM generate_series(1, 1000) i")
	require.True(t, r.IsError)
	require.Contains(t, r.Text, "53100")
	require.False(t, ask(t, box, "SELECT count(*) FROM customers").IsError)
	require.NoError(t, c.exec(t.Context(), "CHECKPOINT", "CREATE ROLE somebody", "CHECKPOINT"))
	_, err = p.Lease(t.Context(), sandboxes.World{Seed: 1})
	require.ErrorContains(t, err, "53100")
	require.NoError(t, os.Remove(fill.Name()))
	require.NoError(t, fill.Close())
	require.NotContains(t, strings.Join(stateOf(t, box).Diff, "\n"), "row", "only the sequence has moved")
	require.NoError(t, works(t.Context(), p, start))
	require.Same(t, c, current(t, s), "nothing was started anew")
}

// A server that takes no sessions any more is given up, although those that it has go on.
func TestServerTakesNoSessions(t *testing.T) {
	t.Parallel()
	for _, d := range tested() {
		t.Run(d.name, func(t *testing.T) {
			d.reach(t)
			if testing.Short() {
				t.Skip("it takes ten seconds")
			}
			t.Parallel()
			s := d.start(t)
			p := provider(t, s, false, 1)
			old := leased(t, p, 1)
			start, dir := stateOf(t, old), current(t, s).Dir
			signal(t, syscall.SIGSTOP, postmasterOf(t, dir))
			require.False(t, ask(t, old, "SELECT 1").IsError)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := p.Lease(ctx, sandboxes.World{Seed: 1})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, works(t.Context(), p, start))
			_, err = old.Session().Call(t.Context(), "query_database", sqlArgs("SELECT 1"))
			require.NoError(t, faulty(err))
			require.NoError(t, old.Close())
			require.Empty(t, traces(t, dir))
		})
	}
}

// holdings names what this process has: child processes, containers, folders of servers, mounts.
func holdings(t testing.TB) (all []string) {
	t.Helper()
	own := strconv.Itoa(os.Getpid())
	for _, pattern := range []string{"/dev/shm/" + prefix + own + "-*", filepath.Join(os.TempDir(), prefix+own+"-*"), "/proc/self/task/*/children"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, f := range found {
			if filepath.Base(f) == "children" {
				children, _ := os.ReadFile(f) // the thread may have ended
				all = append(all, strings.Fields(string(children))...)
				continue
			}
			all = append(all, f)
		}
	}
	owners, err := filepath.Glob(filepath.Join(os.TempDir(), "mcpgym-postgres-*", "owner"))
	require.NoError(t, err)
	for _, f := range owners {
		if who, _ := os.ReadFile(f); string(who) == processes.Self() {
			all = append(all, f)
		}
	}
	ours := []string{prefix + own + "-"}
	containers, _ := exec.Command("docker", "ps", "-a", "--format", `{{.ID}} {{.Label "mcpgym.owner"}}`).Output() // none without an engine
	for line := range strings.Lines(string(containers)) {
		if id, who, _ := strings.Cut(strings.TrimSpace(line), " "); who == processes.Self() {
			all, ours = append(all, id), append(ours, id)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo") // others' come and go meanwhile
	require.NoError(t, err)
	for line := range strings.Lines(string(mounts)) {
		if slices.ContainsFunc(ours, func(name string) bool { return strings.Contains(line, name) }) {
			all = append(all, "mount "+strings.TrimSpace(line))
		}
	}
	slices.Sort(all)
	return all
}

// settled waits until no more goroutines run than did before.
func settled(t testing.TB, goroutines int) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<16)
			t.Fatalf("%d goroutines ran, now:\n%s", goroutines, buf[:runtime.Stack(buf, true)])
		}
	}
}

func cycles(normal, soak int) int {
	if os.Getenv("MCPGYM_SOAK") != "" {
		return soak
	}
	if testing.Short() {
		return normal / 2
	}
	return normal
}

// A lease whose caller goes away, whenever that is, leaves nothing.
func TestOpenAndCancel(t *testing.T) {
	onDrivers(t, func(t *testing.T, s *Server) {
		rng := rand.New(rand.NewPCG(1, 2))
		p, err := New(t.Context(), s, nil, shopOf(false), 1)
		require.NoError(t, err)
		require.NoError(t, works(t.Context(), p, stateOf(t, leased(t, p, 1)))) // the template exists
		require.NoError(t, current(t, s).evict(t.Context(), 0))
		before, held, goroutines := left(t, s), holdings(t), runtime.NumGoroutine()
		dir := current(t, s).Dir
		for range cycles(24, 200) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(90_000))*time.Microsecond)
			box, err := p.Lease(ctx, sandboxes.World{Seed: 1})
			cancel()
			if err == nil {
				require.NoError(t, box.Close())
				require.NoError(t, current(t, s).evict(t.Context(), 0)) // each makes a database of its own
				continue
			}
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		// The last one may have been given up when its database was ready: then that waits for the next lease.
		require.NoError(t, current(t, s).evict(t.Context(), 0))
		require.Equal(t, before, left(t, s))
		require.Equal(t, held, holdings(t))
		settled(t, goroutines)
		require.Equal(t, dir, current(t, s).Dir, "the server is the same")
		require.NoError(t, p.Close())
		require.NoError(t, current(t, s).evict(t.Context(), 0))
		var sessions int
		require.NoError(t, current(t, s).as(t.Context(), superuser, "postgres", func(c *pgconn.PgConn) error {
			rows, err := query(t.Context(), c, "SELECT FROM pg_stat_activity WHERE datname ~ '^t[0-9a-f]+_[0-9]'")
			sessions = len(rows)
			return err
		}))
		require.Zero(t, sessions)
	})
}

// So does a server whose caller goes away while it starts, or while its first world is made.
func TestCasesStartAndCancel(t *testing.T) {
	for _, d := range tested() {
		t.Run("C111/"+d.name, func(t *testing.T) {
			_, err := d.shared() // what is made once is made
			d.there(t, err)
			rng := rand.New(rand.NewPCG(3, 4))
			held, goroutines := holdings(t), runtime.NumGoroutine()
			for range cycles(4, 40) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(1200))*time.Millisecond)
				err := startAndLease(ctx, d)
				cancel()
				if err != nil {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
			}
			require.Equal(t, held, holdings(t))
			settled(t, goroutines)
		})
	}
}

func startAndLease(ctx context.Context, d driver) error {
	s, err := Start(ctx, d.boot)
	if err != nil {
		return err
	}
	p, err := New(ctx, s, nil, shopOf(false), 1)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	_, err = p.Lease(ctx, sandboxes.World{Seed: 1})
	return errors.Join(err, p.Close(), s.Close())
}
