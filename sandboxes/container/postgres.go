package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/mcpgym/mcpgym/sandboxes/internal/owner"
)

// PostgresImage is what sandboxes/images makes.
const PostgresImage = "mcpgym/postgres"

// Sizes of a server: its data lies in memory, and counts as memory. Worlds have a room of their own, which sixty of the
// smallest size fill by half: a server that finds no room for a world says so and goes on, without any for itself it ends.
const (
	postgresData   = 512 << 20
	postgresWorlds = 1 << 30
	postgresMemory = 2 << 30
)

const dirPrefix = "mcpgym-postgres-"

// Postgres starts a server of an image made by sandboxes/images, and returns when it takes connections: on a Unix socket in
// socketDir, as user postgres, a superuser without a password. The folder is private to this process's user. Its data lies
// in memory. Settings are "name=value". ended is closed when the server has ended, however that came. stop ends it at once,
// running or not, and everything of it; it may be called twice. The server also ends with this process.
func Postgres(ctx context.Context, image string, settings ...string) (socketDir string, ended <-chan struct{}, stop func() error, err error) {
	e, err := Open(ctx)
	if err != nil {
		return "", nil, nil, err
	}
	// The engine gives the folder to the server's user, who is nobody here: open to all, in one that is open to us alone.
	dir, err := os.MkdirTemp("", dirPrefix+"*")
	if err != nil {
		return "", nil, nil, errors.Join(err, e.Close())
	}
	socketDir = filepath.Join(dir, "s")
	var c *Container
	stop = sync.OnceValue(func() error {
		var err error
		if c != nil {
			err = c.Close()
		}
		return errors.Join(err, os.RemoveAll(dir), e.Close())
	})
	fail := func(err error) (string, <-chan struct{}, func() error, error) {
		return "", nil, nil, errors.Join(fmt.Errorf("start Postgres: %w", err), stop())
	}
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "owner"), []byte(owner.Self()), 0o600),
		os.Mkdir(socketDir, 0o700),
		os.Chmod(socketDir, 0o777)) // whatever the umask
	if err != nil {
		return fail(err)
	}

	var args []string
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	log := &serverLog{ready: make(chan struct{})}
	c, err = e.Run(ctx, Config{
		Image: image, Args: args, User: "70:70", Memory: postgresMemory, PIDs: 512, CPUs: 2,
		Tmpfs: map[string]int64{"/data": postgresData, "/data/worlds": postgresWorlds, "/tmp": 16 << 20}, Binds: []string{socketDir + ":/run/postgresql"}, Stderr: log,
	})
	if err != nil {
		return fail(err)
	}
	go io.Copy(io.Discard, c)
	select {
	case <-log.ready:
	case <-c.ended:
		return fail(fmt.Errorf("the server ended: %s", log.tail()))
	case <-ctx.Done():
		return fail(ctx.Err())
	}
	conn, err := net.Dial("unix", filepath.Join(socketDir, ".s.PGSQL.5432"))
	if err != nil {
		return fail(fmt.Errorf("the engine does not share folders with this machine, run Postgres without it: %w", err))
	}
	_ = conn.Close()
	return socketDir, c.ended, stop, nil
}

// serverLog keeps the end of a server's log, and tells when it takes connections.
type serverLog struct {
	ready chan struct{}

	mu    sync.Mutex
	text  []byte
	known bool
}

func (l *serverLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	if !l.known && bytes.Contains(l.text, []byte("ready to accept connections")) {
		l.known = true
		close(l.ready)
	}
	if n := len(l.text) - 2048; n > 0 {
		l.text = append(l.text[:0], l.text[n:]...)
	}
	return len(b), nil
}

func (l *serverLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.TrimSpace(l.text))
}
