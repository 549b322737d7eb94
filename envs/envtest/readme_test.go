package envtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The environment in the README is compiled, and proven by Check, from the text that stands there.
func TestReadme(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a build")
	}
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, 2)
	env := blocks[0][1]
	require.LessOrEqual(t, strings.Count(env, "\n"), 60, "an environment fits in 60 lines")

	// A module of its own beside this one, in one workspace: as a user has it.
	dir := t.TempDir()
	for name, text := range map[string]string{
		"shelf.go":      env,
		"shelf_test.go": blocks[1][1],
		"go.mod":        "module shelf\n\ngo 1.26.5\n",
		"go.work":       "go 1.26.5\n\nuse (\n\t.\n\t" + root + "\n)\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	cmd := exec.Command("go", "test", "-count=1", "-v", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK="+filepath.Join(dir, "go.work"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestEnv/oracle")

	formatted, err := exec.Command("gofmt", "-l", dir).CombinedOutput()
	require.NoError(t, err)
	require.Empty(t, string(formatted), "the README's code is not formatted")
}
