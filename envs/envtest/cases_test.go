package envtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Field cases of tasks that must be refused when they are loaded: they are run as broken environments.
func TestCasesRefused(t *testing.T) {
	for _, c := range []struct{ id, broken, rule, says string }{
		{"C168", "no criteria", "tasks", "neither a wanted answer nor assertions"},
		{"C170", "goal holds at the start", "noop", "doing nothing earns 1"},
		{"C181", "gold step fails", "oracle", "the gold solution earns 0"},
	} {
		t.Run(c.id, func(t *testing.T) {
			t.Parallel()
			out, err := child(t, c.broken)
			require.Error(t, err)
			require.Contains(t, subtests("FAIL", out), c.rule, "%s", out)
			require.Contains(t, out, c.says)
		})
	}
}
