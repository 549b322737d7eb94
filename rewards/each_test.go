package rewards_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// finals are episodes of one task that end with these texts.
func finals(texts ...string) []*envs.Trajectory {
	var group []*envs.Trajectory
	for _, text := range texts {
		group = append(group, record(string(parisTask.Want), text, ok("get_weather", `{"city":"Paris","temperature":21.4}`)))
	}
	return group
}

func TestEach(t *testing.T) {
	right, wrong := "ANSWER: 21.4", "ANSWER: 7"
	sum := rewards.Sum{rewards.Answer(0.8), rewards.ValidCalls(0.2)}

	// Of eight, three met a failure of their sandbox: they have no score, and change none.
	t.Run("C210", func(t *testing.T) {
		group := finals(right, right, wrong, right, right, wrong, right, wrong)
		for _, i := range []int{1, 4, 6} {
			group[i].Void, group[i].End = &sandboxes.Fault{Kind: sandboxes.FaultDied}, ""
		}
		scores, err := rewards.Each(sum).ScoreGroup(t.Context(), group)
		require.NoError(t, err)
		require.Len(t, scores, 8)
		void, total := 0, 0.0
		for i, s := range scores {
			if group[i].Void != nil {
				require.Nil(t, s)
				void++
				continue
			}
			alone, err := sum.Score(group[i])
			require.NoError(t, err)
			require.Equal(t, alone, *s)
			total += s.Value
		}
		require.Equal(t, 3, void)
		require.Equal(t, 2.0/5, total/float64(len(scores)-void), "the mean is over five")
	})
	t.Run("a verifier that failed is not scored", func(t *testing.T) {
		group := finals(right, wrong, right)
		group[0].Task.Assertions = []envs.Assertion{{}}
		scores, err := rewards.Each(append(sum, rewards.Assertions(0.1))).ScoreGroup(t.Context(), group)
		require.NoError(t, err)
		require.Nil(t, scores[0], "it was asked, and did not answer")
		require.False(t, scores[1].Success)
		require.True(t, scores[2].Success)
	})
	t.Run("another error is one", func(t *testing.T) {
		group := finals(right, wrong)
		group[1].Task.Want, group[1].Task.ID = nil, "vague"
		scores, err := rewards.Each(sum).ScoreGroup(t.Context(), group)
		require.ErrorContains(t, err, "score trajectory 1, of task vague")
		require.NotErrorIs(t, err, envs.ErrUnscored)
		require.Nil(t, scores)
	})
	t.Run("an episode that is not over", func(t *testing.T) {
		group := finals(right, wrong)
		group[1].End = ""
		_, err := rewards.Each(sum).ScoreGroup(t.Context(), group)
		require.ErrorContains(t, err, "not over")
		_, err = rewards.Each(sum).ScoreGroup(t.Context(), []*envs.Trajectory{nil})
		require.ErrorContains(t, err, "score trajectory 0")
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		_, err := rewards.Each(sum).ScoreGroup(ctx, finals(right))
		require.ErrorIs(t, err, context.Canceled)
	})
	scores, err := rewards.Each(sum).ScoreGroup(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, scores)
}
