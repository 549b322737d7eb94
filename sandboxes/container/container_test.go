//go:build linux

package container

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes/internal/owner"
)

const roleEnv = "MCPGYM_CONTAINER_TEST_ROLE"

// The test binary also plays processes that other tests start and kill.
func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "owner":
		own()
	case "settings":
		configure()
		fmt.Println(os.Getenv("TESTCONTAINERS_RYUK_DISABLED"), os.Getenv("TESTCONTAINERS_HOST_OVERRIDE"))
	default:
		code := m.Run()
		if left := leftovers(owner.Self()); len(left) > 0 {
			fmt.Println("the tests left behind:", left)
			code = 1
		}
		os.Exit(code)
	}
}

// leftovers lists the containers and folders that belong to an owner.
func leftovers(who string) []string {
	var left []string
	ctx := context.Background()
	if e, err := Open(ctx); err == nil {
		defer e.Close()
		list, err := e.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", ownerLabel+"="+who)})
		if err != nil {
			return []string{err.Error()}
		}
		for _, c := range list.Items {
			left = append(left, fmt.Sprint(c.ID[:12], " ", c.State, " ", c.Command))
		}
	}
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	for _, d := range dirs {
		if o, err := os.ReadFile(filepath.Join(d, "owner")); err == nil && string(o) == who {
			left = append(left, d)
		}
	}
	return left
}

func engine(t *testing.T) *Engine {
	t.Helper()
	e, err := Open(t.Context())
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), "docker") {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// shell runs a script in a container, the image's shell reading it from the standard input.
func shell(t *testing.T, e *Engine, cfg Config, script string) string {
	t.Helper()
	var errs serverLog
	errs.ready = make(chan struct{})
	cfg.Image, cfg.Entrypoint, cfg.Stderr = PostgresImage, []string{"/bin/sh"}, &errs
	c, err := e.Run(t.Context(), cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	_, err = io.WriteString(c, script+"\nexit\n")
	require.NoError(t, err)
	out, err := io.ReadAll(c)
	require.NoError(t, err)
	return string(out) + errs.tail()
}

// inTurn skips a test with -short, which is for the race detector: in this one, one thing happens after the other.
func inTurn(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("nothing happens at once")
	}
}

func TestHardened(t *testing.T) {
	inTurn(t)
	e := engine(t)
	for _, tt := range []struct {
		name, script string
		want         []string
		cfg          Config
	}{
		{"ordinary user without capabilities", `while read -r l; do echo $l; done </proc/self/status`, []string{
			"Uid: 65534 65534 65534 65534", "Gid: 65534 65534 65534 65534", "NoNewPrivs: 1", "Seccomp: 2",
			"CapInh: 0000000000000000", "CapPrm: 0000000000000000", "CapEff: 0000000000000000", "CapBnd: 0000000000000000", "CapAmb: 0000000000000000",
		}, Config{}},
		{"the user that is asked for", `while read -r l; do echo $l; done </proc/self/status; echo x >/data/x && cat /data/x`,
			[]string{"Uid: 70 70 70 70", "CapBnd: 0000000000000000", "\nx\n"}, Config{User: "70:70", Tmpfs: map[string]int64{"/data": 1 << 20}}},
		{"read-only root", `echo x >/x`, []string{"Read-only file system"}, Config{}},
		{"nothing runs from writable folders", `cp /bin/cat /tmp/c && /tmp/c /tmp/c`, []string{"Permission denied"}, Config{}},
		{"sized files", `cat /dev/zero >/tmp/full; echo goes on`, []string{"No space left on device", "goes on"}, Config{}},
		{"processor time", `cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>/dev/null`, []string{"50000"}, Config{CPUs: .5}},
		{"memory", `(x=0123456789; while :; do x=$x$x; done); echo "child $?"; echo goes on`, []string{"child 137", "goes on"}, Config{Memory: 128 << 20}},
		{"processes", `i=0; while [ $i -lt 100 ]; do sleep 9 & i=$((i+1)); echo "forked $i."; done; echo unreached`,
			[]string{"forked 20.", "Cannot fork"}, Config{PIDs: 32}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := shell(t, e, tt.cfg, tt.script)
			out = strings.ReplaceAll(out, "\t", " ")
			for _, w := range tt.want {
				require.Contains(t, out, w)
			}
			require.NotContains(t, out, "forked 32.")
		})
	}
}

// Neither this machine, by any of its addresses, nor anything beyond it can be reached.
func TestNoNetwork(t *testing.T) {
	inTurn(t)
	e := engine(t)
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	defer l.Close()
	accepted := make(chan struct{}, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
			accepted <- struct{}{}
		}
	}()
	hosts := []string{"192.0.2.1"}
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP; ip.To4() != nil && !ip.IsLoopback() {
			hosts = append(hosts, ip.String())
		}
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	// The listener does answer whoever reaches it.
	c, err := net.Dial("tcp", net.JoinHostPort(hosts[len(hosts)-1], port))
	require.NoError(t, err)
	c.Close()
	<-accepted

	var script strings.Builder
	for _, h := range hosts {
		fmt.Fprintf(&script, "psql 'host=%s port=%s connect_timeout=2'\n", h, port)
	}
	out := shell(t, e, Config{}, script.String()+`while read -r name rest; do echo "device $name"; done </proc/net/dev`)
	require.Equal(t, len(hosts), strings.Count(out, "Network is unreachable"), out)
	require.Empty(t, accepted)
	require.Contains(t, out, "device lo:")
	require.Equal(t, 3, strings.Count(out, "device "), "two headings and lo: %s", out)
}

// A bomb whose shell ignores the end of its input: the machine goes on, and Close ends it.
func TestForkBomb(t *testing.T) {
	inTurn(t)
	e := engine(t)
	c, err := e.Run(t.Context(), Config{Image: PostgresImage, Entrypoint: []string{"/bin/sh", "-c", "f() { f | f & }; echo on; f 2>/dev/null & while :; do read x; done"}})
	require.NoError(t, err)
	_, err = bufio.NewReader(c).ReadString('\n')
	require.NoError(t, err)
	for range 10 {
		require.NoError(t, exec.Command("true").Run())
		top, err := e.cli.ContainerTop(t.Context(), c.id, client.ContainerTopOptions{})
		require.NoError(t, err)
		require.LessOrEqual(t, len(top.Processes), 64)
	}
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
}

func TestStdio(t *testing.T) {
	e := engine(t)
	c, err := e.Run(t.Context(), Config{Image: PostgresImage, Entrypoint: []string{"/bin/sh"}, Args: []string{"-c", "cat; echo unreached"}})
	require.NoError(t, err)
	r := bufio.NewReader(c)
	for i := range 100 {
		line := fmt.Sprintf("%d %s\n", i, strings.Repeat("x", 1000*i))
		go io.WriteString(c, line)
		got, err := r.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, line, got)
	}
	read := make(chan error)
	go func() { _, err := r.ReadByte(); read <- err }()
	require.NoError(t, c.Close())
	require.Error(t, <-read, "a reader must not wait for a container that is gone")
	require.NoError(t, c.Close())
}

func TestRunErrors(t *testing.T) {
	e := engine(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name string
		ctx  context.Context
		cfg  Config
		want string
	}{
		{"no such image", t.Context(), Config{Image: "mcpgym/nothing:1"}, "run a container of mcpgym/nothing:1: the engine does not have the image: make images"},
		{"root", t.Context(), Config{Image: PostgresImage, User: "0:0"}, "ordinary user"},
		{"root by name", t.Context(), Config{Image: PostgresImage, User: "root:root"}, "ordinary user"},
		{"root's group", t.Context(), Config{Image: PostgresImage, User: "70"}, "ordinary user"},
		{"the engine cannot make it", t.Context(), Config{Image: PostgresImage, Binds: []string{"no/such:/x"}}, "no/such"},
		{"the engine cannot start it", t.Context(), Config{Image: PostgresImage, Tmpfs: map[string]int64{"/proc": 1 << 20}}, "/proc"},
		{"ended context", ended, Config{Image: PostgresImage}, "context canceled"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := e.Run(tt.ctx, tt.cfg)
			require.ErrorContains(t, err, tt.want)
			require.Nil(t, c)
		})
	}
	require.Empty(t, leftovers(owner.Self()))
}

func query(t *testing.T, dir, sql string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, "host="+dir+" user=postgres database=postgres")
	require.NoError(t, err)
	defer conn.Close(ctx)
	var s string
	require.NoError(t, conn.QueryRow(ctx, sql).Scan(&s))
	return s
}

func TestPostgres(t *testing.T) {
	engine(t)
	dir, _, stop, err := Postgres(t.Context(), PostgresImage, "work_mem=1MB")
	require.NoError(t, err)
	defer stop()
	require.Equal(t, "1MB", query(t, dir, "show work_mem"))
	require.Equal(t, "off", query(t, dir, "show fsync"))
	require.Equal(t, "UTC", query(t, dir, "show timezone"))
	require.Equal(t, "4", query(t, dir, "select (2 + 2)::text"))
	private, err := os.Stat(filepath.Dir(dir))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), private.Mode().Perm(), "others must not reach a superuser without a password")
	require.NoError(t, stop())
	require.NoError(t, stop())
	require.Empty(t, leftovers(owner.Self()))
}

// A container without its server is of no use, and nobody would know.
func TestPostgresKilled(t *testing.T) {
	engine(t)
	dir, _, stop, err := Postgres(t.Context(), PostgresImage)
	require.NoError(t, err)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, "host="+dir+" user=postgres database=postgres")
	require.NoError(t, err)
	defer conn.Close(ctx)
	// It may still answer.
	_, _ = conn.Exec(ctx, "copy (select 1) to program 'read -r pid rest </data/postmaster.pid; kill -9 $pid'")
	require.Eventually(t, func() bool { return len(leftovers(owner.Self())) == 1 }, 10*time.Second, 10*time.Millisecond, "only the folder is left")
	require.NoError(t, stop())
	require.Empty(t, leftovers(owner.Self()))
}

func TestPostgresErrors(t *testing.T) {
	engine(t)
	_, _, stop, err := Postgres(t.Context(), PostgresImage, "no_such_thing=1")
	require.ErrorContains(t, err, "unrecognized configuration parameter")
	require.Nil(t, stop)
	_, _, _, err = Postgres(t.Context(), "mcpgym/nothing:1")
	require.ErrorContains(t, err, "make images")
	// Whenever the caller loses interest.
	cycles := 6
	if testing.Short() {
		cycles = 2
	}
	for i := range cycles {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*40)*time.Millisecond)
		_, _, stop, err := Postgres(ctx, PostgresImage)
		cancel()
		if err == nil {
			require.NoError(t, stop())
			continue
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.Empty(t, leftovers(owner.Self()))
}

func TestPostgresTimes(t *testing.T) {
	inTurn(t)
	engine(t)
	const cycles = 5
	var start, end []time.Duration
	for range cycles {
		t0 := time.Now()
		dir, _, stop, err := Postgres(t.Context(), PostgresImage)
		require.NoError(t, err)
		query(t, dir, "select 'on'")
		start = append(start, time.Since(t0))
		t0 = time.Now()
		require.NoError(t, stop())
		end = append(end, time.Since(t0))
	}
	slices.Sort(start)
	slices.Sort(end)
	t.Logf("start to first query: min %v p50 %v max %v; stop: min %v p50 %v max %v",
		start[0].Round(time.Millisecond), start[cycles/2].Round(time.Millisecond), start[cycles-1].Round(time.Millisecond),
		end[0].Round(time.Millisecond), end[cycles/2].Round(time.Millisecond), end[cycles-1].Round(time.Millisecond))
}

// own holds a server, a program that ends with its input, and one that does not, until it is killed.
func own() {
	ctx := context.Background()
	e, err := Open(ctx)
	if err == nil {
		_, err = e.Run(ctx, Config{Image: PostgresImage, Entrypoint: []string{"cat"}})
	}
	if err == nil {
		_, err = e.Run(ctx, Config{Image: PostgresImage, Entrypoint: []string{"sleep", "600"}})
	}
	if err == nil {
		_, _, _, err = Postgres(ctx, PostgresImage)
	}
	fmt.Println("owner:", err)
	time.Sleep(time.Minute)
}

// What a killed owner held goes by itself; what ignores that goes at the next Open. What a living owner holds stays.
func TestKilledOwner(t *testing.T) {
	e := engine(t)
	mine, err := e.Run(t.Context(), Config{Image: PostgresImage, Entrypoint: []string{"cat"}})
	require.NoError(t, err)
	defer mine.Close()

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=owner")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "owner: <nil>\n", line)
	victim := owner.Of(cmd.Process.Pid)
	require.Len(t, leftovers(victim), 4, "three containers and a folder")

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	count := func() int {
		list, err := e.cli.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", ownerLabel+"="+victim)})
		require.NoError(t, err)
		return len(list.Items)
	}
	t0 := time.Now()
	require.Eventually(t, func() bool { return count() <= 1 }, 10*time.Second, 5*time.Millisecond, "held containers end with their owner")
	t.Logf("held containers gone %v after their owner", time.Since(t0).Round(time.Millisecond))

	next, err := Open(t.Context())
	require.NoError(t, err)
	require.NoError(t, next.Close())
	require.Eventually(t, func() bool { return len(leftovers(victim)) == 0 }, 10*time.Second, 10*time.Millisecond)
	require.Len(t, leftovers(owner.Self()), 1, "the living keep theirs")
}

// What the user has set stays.
func TestSettings(t *testing.T) {
	loopback := "127.0.0.1"
	if _, err := os.Stat("/.dockerenv"); err != nil {
		loopback = ""
	}
	for _, tt := range []struct{ env, want string }{
		{"", "true " + loopback},
		{"TESTCONTAINERS_RYUK_DISABLED=false", "false " + loopback},
		{"TESTCONTAINERS_HOST_OVERRIDE=192.0.2.1", "true 192.0.2.1"},
		{"DOCKER_HOST=tcp://192.0.2.1:2375", "true "},
		{"DOCKER_HOST=unix:///run/other.sock", "true " + loopback},
	} {
		cmd := exec.Command(os.Args[0])
		for _, e := range os.Environ() {
			if !strings.HasPrefix(e, "TESTCONTAINERS_") && !strings.HasPrefix(e, "DOCKER_HOST=") {
				cmd.Env = append(cmd.Env, e)
			}
		}
		cmd.Env = append(cmd.Env, roleEnv+"=settings", tt.env)
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, tt.want+"\n", string(out), tt.env)
	}
}

func TestFiles(t *testing.T) {
	engine(t)
	home := t.TempDir()
	_, err := Files(t.Context(), FilesImage, filepath.Join(home, "none"), io.Discard)
	require.ErrorContains(t, err, "no such file")
	if os.Getuid() == 0 {
		_, err = Files(t.Context(), FilesImage, home, io.Discard)
		require.ErrorContains(t, err, "ordinary user", "a folder of root's")
		require.NoError(t, os.Chown(home, 65534, 65534))
	}
	_, err = Files(t.Context(), "mcpgym/nothing:1", home, io.Discard)
	require.ErrorContains(t, err, "make images")
	require.Empty(t, leftovers(owner.Self()))
	none, err := Files(t.Context(), PostgresImage, home, io.Discard)
	require.Error(t, err)
	require.Nil(t, none)
	require.Empty(t, leftovers(owner.Self()))
	c, err := Files(t.Context(), FilesImage, home, io.Discard)
	require.NoError(t, err)
	_, err = io.WriteString(c, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`+"\n")
	require.NoError(t, err)
	line, err := bufio.NewReader(c).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, `"read_text_file"`)
	require.NotNil(t, c.(*filesServer).conn, "the socket leads through the folder")
	left, err := os.ReadDir(home)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	require.Empty(t, leftovers(owner.Self()))
}
