package files

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A process that is killed leaves its trees, and the next one removes them; those of the living stay.
func TestSweep(t *testing.T) {
	const child = "MCPGYM_FILES_TEST_CHILD"
	if os.Getenv(child) != "" {
		p, err := New(nil, Decode, 1)
		require.NoError(t, err)
		_, err = p.Lease(t.Context(), world(t, desk()))
		require.NoError(t, err)
		os.Stdout.WriteString("home " + p.home + "\n")
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
		select {}
	}
	living := provider(t, 1)
	cmd := exec.Command(os.Args[0], "-test.run", "^TestSweep$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.Output()
	require.Error(t, err)
	_, home, ok := strings.Cut(strings.TrimSpace(string(out)), "home ")
	require.True(t, ok, "%s", out)
	require.NotEqual(t, living.home, home)
	if _, err := os.Stat(home); err == nil { // unless a neighbour was faster
		require.FileExists(t, filepath.Join(home, "1", "readme.md"))
	}
	provider(t, 1)
	require.NoDirExists(t, home)
	require.DirExists(t, living.home)
}

// A world is the same whatever the umask of who makes it.
func TestUmask(t *testing.T) { onDrivers(t, testUmask) }

func testUmask(t *testing.T, d driver) {
	want := d.fresh(t, desk()).state()
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	o := d.fresh(t, desk())
	require.Equal(t, want, o.state())
	o.ok("create_directory", args{"path": "x"})
	o.ok("write_file", args{"path": "x/y", "content": ""})
	require.Contains(t, o.ok("get_file_info", args{"path": "x"}), `"0755"`)
	require.Contains(t, o.ok("get_file_info", args{"path": "x/y"}), `"0644"`)
}
