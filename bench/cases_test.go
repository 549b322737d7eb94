package bench

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
)

// Field cases that are told in prose.
func TestCasesEpisode(t *testing.T) {
	spec := toySpec(t)
	env, err := envs.New(spec)
	require.NoError(t, err)
	defer env.Close()
	look := envs.Action{Calls: []envs.Call{{Name: "get_current", Arguments: json.RawMessage(`{"city":"Oslo"}`)}}}

	t.Run("C273", func(t *testing.T) { // a policy that calls one tool for ever
		_, err := env.Reset(t.Context(), toyTask(0))
		require.NoError(t, err)
		for i := range spec.Limits.Turns {
			s, err := env.Step(t.Context(), look)
			require.NoError(t, err)
			require.False(t, s.Terminated)
			require.Equal(t, i == spec.Limits.Turns-1, s.Truncated)
		}
		require.Equal(t, envs.EndTurns, env.Trajectory().End)
		_, err = env.Step(t.Context(), look)
		require.ErrorIs(t, err, envs.ErrDone)
	})
	t.Run("C274", func(t *testing.T) { // an answer beside a call: the call runs, the text is commentary, the episode goes on
		_, err := env.Reset(t.Context(), toyTask(0))
		require.NoError(t, err)
		both := look
		both.Text = "no"
		s, err := env.Step(t.Context(), both)
		require.NoError(t, err)
		require.False(t, s.Terminated)
		require.Equal(t, envs.StatusOK, s.Observation.Results[0].Status)
		_, answered := env.Trajectory().Answer()
		require.False(t, answered)
		s, err = env.Step(t.Context(), envs.Action{Text: "no"})
		require.NoError(t, err)
		require.True(t, s.Terminated)
		require.True(t, s.Score.Success)
	})
	t.Run("C275", func(t *testing.T) { // what reset says is the first prompt
		o, err := env.Reset(t.Context(), toyTask(0))
		require.NoError(t, err)
		require.Equal(t, toyTask(0).Prompt, o.Text)
	})
}

func TestCasesTrust(t *testing.T) {
	spec := toySpec(t)
	t.Run("C280", func(t *testing.T) { // one seed in a group of eight, at any parallelism, in any order
		var first string
		for _, parallel := range []int{1, 8} {
			for _, trials := range []int{1, 8} {
				r, err := Run(t.Context(), Config{Spec: spec, Policy: toyOracle{}, Name: "toy", Split: "train", Tasks: 10, Trials: trials, Seed: 1, Parallel: parallel})
				require.NoError(t, err)
				for _, e := range r.Episodes {
					e.Trial, e.Seed = 0, 0
					if e.Index != 7 {
						continue
					}
					got, err := encode(e)
					require.NoError(t, err)
					if first == "" {
						first = string(got)
					}
					require.Equal(t, first, string(got))
				}
			}
		}
	})
	t.Run("C281", func(t *testing.T) { // a server that is down: nothing is played, and it is named
		down := spec
		down.Sandboxes = deadSandboxes{spec.Sandboxes, 1}
		played := 0
		_, err := Run(t.Context(), Config{Spec: down, Policy: policies.Noop{}, Split: "train", Tasks: 10, Trials: 1, Parallel: 2, Progress: func(int) { played++ }})
		require.ErrorContains(t, err, "nothing was played")
		require.ErrorContains(t, err, "no room")
		require.Zero(t, played)
	})
}

func ExampleWilson() {
	i := Wilson(57, 120)
	fmt.Printf("%.4f %.4f\n", i.Lo, i.Hi)
	// Output: 0.3878 0.5637
}
