package weather_test

import (
	"runtime"
	"sync"
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
	if testing.Short() {
		t.Skip("100,000 tasks take a minute under the race detector")
	}
	held := map[string]string{}
	for _, split := range []string{"test", "ood"} {
		for i := range 500 {
			task := spec.Splits[split].Task(i)
			other, twice := held[task.Prompt]
			require.False(t, twice, "%s and %s have one prompt", task.ID, other)
			held[task.Prompt] = task.ID
		}
	}
	var wg sync.WaitGroup
	workers := runtime.NumCPU()
	for w := range workers {
		wg.Go(func() {
			for i := w; i < 100_000; i += workers {
				task := spec.Splits["train"].Task(i)
				if other, seen := held[task.Prompt]; seen {
					t.Errorf("%s is trained on as %s", other, task.ID)
				}
			}
		})
	}
	wg.Wait()
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
