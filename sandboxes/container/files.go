package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// FilesImage is what sandboxes/images makes: the program filesd of package files, and nothing else.
const FilesImage = "mcpgym/files"

// filesMemory is for the server and for what agents write, where home lies in memory.
const filesMemory = 2 << 30

// Files runs the server of file trees of an image made by sandboxes/images on the trees in the folder home, as the user that
// home belongs to, who must not be root. It can write there and, but for a few KiB, nowhere else. It returns the way to the
// server: its socket in that folder where one leads through it, which is several times as fast, or else its standard input and
// output. Its standard error goes to stderr. The server ends with Close, and with this process.
func Files(ctx context.Context, image, home string, stderr io.Writer) (io.ReadWriteCloser, error) {
	fi, err := os.Stat(home)
	if err != nil {
		return nil, fmt.Errorf("serve file trees: %w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("serve file trees: %s belongs to nobody", home)
	}
	e, err := Open(ctx)
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(home, "socket")
	_ = os.Remove(socket) // of a server that has died
	c, err := e.Run(ctx, Config{
		Image: image, Args: []string{"/trees"}, User: fmt.Sprintf("%d:%d", st.Uid, st.Gid), Memory: filesMemory, CPUs: 4,
		Tmpfs: map[string]int64{"/dev/shm": 4 << 10}, Binds: []string{home + ":/trees"}, Stderr: stderr,
	})
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	s := &filesServer{ReadWriter: c, c: c, e: e}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })() // ends the read
	if _, err := io.ReadFull(c, make([]byte, len("ready\n"))); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for the server of file trees: %w", errors.Join(ctx.Err(), err)), s.Close())
	}
	if s.conn, err = dial(home, "socket"); err == nil {
		s.ReadWriter = s.conn
		_ = os.Remove(socket) // there is one client
	}
	return s, nil
}

// dial connects to a socket in a folder, whose path may be too long for an address.
func dial(folder, socket string) (net.Conn, error) {
	d, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), socket))
}

// filesServer is a server of file trees and the way to it.
type filesServer struct {
	io.ReadWriter
	conn net.Conn // nil where that is the container's standard input and output
	c    *Container
	e    *Engine
}

// Close may be called twice.
func (s *filesServer) Close() error {
	if s.conn != nil {
		_ = s.conn.Close() // of no more use, in any case
	}
	return errors.Join(s.c.Close(), s.e.Close())
}
