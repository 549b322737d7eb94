//go:build linux && (amd64 || arm64)

package confine_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes/confine"
)

// The kernel does nothing for a program that would get round its limits.
func TestLocalKernel(t *testing.T) {
	r := drivers[0].runner(t)
	out := run(t, r, python(`import ctypes, os
try: print("memory", os.memfd_create("x"))
except OSError as e: print("none", e.errno)
libc = ctypes.CDLL(None, use_errno=True)
for call in "shmget", "msgget", "semget":
    print(getattr(libc, call)(0, 4096, 0o1600), ctypes.get_errno())
print(libc.unshare(0x10000000), ctypes.get_errno())
print(libc.mount(b"x", b"/tmp", b"tmpfs", 0, None), ctypes.get_errno())
print(libc.syscall(56 if os.uname().machine == "x86_64" else 220, 0x10000000 | 17, 0, 0, 0, 0))
`))
	require.Equal(t, "none 38\n-1 38\n-1 38\n-1 38\n-1 38\n-1 38\n-1\n", out.Stdout, "%s", out.Stderr)
}

// What this process has open stays its own, also what it was started with.
func TestLocalOpenFiles(t *testing.T) {
	drivers[0].runner(t) // it can be had
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("swordfish"), 0o600))
	fd, err := syscall.Open(secret, syscall.O_RDONLY, 0)
	require.NoError(t, err)
	defer syscall.Close(fd)
	r, err := confine.Local(t.Context())
	require.NoError(t, err)
	out := run(t, r, python(fmt.Sprintf("import os\nprint(os.listdir('/proc/self/fd'))\ntry: print(os.read(%d, 99))\nexcept OSError as e: print(e.errno)", fd)))
	require.Equal(t, "['0', '1', '2', '3']\n9\n", out.Stdout, "%s", out.Stderr)
}

// A program that is ended at any moment of its start leaves nothing.
func TestLocalCancelledEarly(t *testing.T) {
	r := drivers[0].runner(t)
	id := mark()
	for i := range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*200*time.Microsecond)
		_, err := r.Run(ctx, shell("setsid sleep "+id+" & sleep "+id))
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Empty(t, alive(t, id), i)
	}
}
