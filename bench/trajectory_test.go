package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/policies"
)

func TestRecordTrajectory(t *testing.T) {
	spec := toySpec(t)
	r, err := Run(t.Context(), Config{Spec: spec, Policy: policies.Random{}, Name: "random", Split: "train", Tasks: 3, Trials: 1, Seed: 1, Parallel: 1})
	require.NoError(t, err)
	env := spec
	env.Sandboxes = nil
	e := r.Episodes[2]
	got, err := r.Trajectory(env, e)
	require.NoError(t, err)
	require.Equal(t, toyTask(2), got.Task)
	require.Equal(t, e.Steps, got.Steps)
	require.Equal(t, e.Score, got.Score)
	require.Len(t, got.Tools, 3)

	other := env
	other.Name = "Other-v0"
	_, err = r.Trajectory(other, e)
	require.ErrorContains(t, err, "the record is of Toy-v0, not of Other-v0")
	e.Prompt += "?"
	_, err = r.Trajectory(env, e)
	require.ErrorContains(t, err, "episode 2: the task is not what train 2 gives now")
	e.Index = 3
	_, err = r.Trajectory(env, e)
	require.ErrorContains(t, err, "only 3 tasks")
	r.Split = "test"
	_, err = r.Trajectory(env, e)
	require.ErrorContains(t, err, `no split "test"`)
}
