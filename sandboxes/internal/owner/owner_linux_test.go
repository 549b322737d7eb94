package owner

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGone(t *testing.T) {
	require.Regexp(t, `^[0-9]+-[0-9]+-[0-9]+-[0-9a-f-]{36}$`, Self())
	require.False(t, Gone(Self(), true))
	child := exec.Command("sleep", "60")
	require.NoError(t, child.Start())
	living := Of(child.Process.Pid)
	require.NotEmpty(t, living)
	require.False(t, Gone(living, true))
	w := strings.SplitN(living, "-", 4)
	edit := func(i int, s string) string {
		c := slices.Clone(w)
		c[i] = s
		return strings.Join(c, "-")
	}
	require.True(t, Gone(edit(2, "1"), true), "another process had the number")
	require.True(t, Gone(edit(1, "4194305"), true), "there is none of that number")
	require.False(t, Gone(edit(0, "1"), true), "another namespace cannot be seen")
	require.True(t, Gone(edit(3, "boot"), true), "before this machine's last boot")
	require.False(t, Gone(edit(3, "boot"), false), "another machine")
	for _, name := range []string{"", "a", "1-2-3", edit(1, "x")} {
		require.False(t, Gone(name, true), name)
	}
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	require.True(t, Gone(living, true))
	require.True(t, Gone(living, false))
	require.Empty(t, Of(child.Process.Pid))
}
