package weather_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs/envtest"
	"github.com/mcpgym/mcpgym/envs/weather"
)

func TestEnv(t *testing.T) {
	spec, err := weather.Spec()
	require.NoError(t, err)
	envtest.Check(t, spec)
}

// No prompt of a split that scores are taken on may be one that a policy was trained on.
func TestSplitsAreDisjoint(t *testing.T) {
	spec, err := weather.Spec()
	require.NoError(t, err)
	held := map[string]string{}
	for _, split := range []string{"test", "ood"} {
		for i := range 500 {
			task := spec.Splits[split].Task(i)
			other, twice := held[task.Prompt]
			require.False(t, twice, "%s and %s have one prompt", task.ID, other)
			held[task.Prompt] = task.ID
		}
	}
	for i := range 100_000 {
		task := spec.Splits["train"].Task(i)
		other, seen := held[task.Prompt]
		require.False(t, seen, "%s is trained on as %s", other, task.ID)
	}
}

func BenchmarkTask(b *testing.B) {
	spec, err := weather.Spec()
	require.NoError(b, err)
	i := 0
	for b.Loop() {
		spec.Splits["train"].Task(i)
		i++
	}
}
