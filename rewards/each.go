package rewards

import (
	"context"
	"errors"
	"fmt"

	"github.com/mcpgym/mcpgym/envs"
)

// Each makes a GroupReward of a Reward: it scores every trajectory by itself. One that is void, or whose verifier has failed
// (envs.ErrUnscored), is not scored. It may be used concurrently if r may.
func Each(r envs.Reward) envs.GroupReward { return each{r} }

type each struct{ envs.Reward }

func (e each) ScoreGroup(ctx context.Context, group []*envs.Trajectory) ([]*envs.Score, error) {
	scores := make([]*envs.Score, len(group))
	for i, t := range group {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if t == nil {
			return nil, fmt.Errorf("score trajectory %d: it is nil", i)
		}
		if t.Void != nil {
			continue
		}
		if t.End == "" {
			return nil, fmt.Errorf("score trajectory %d, of task %s: the episode is not over", i, t.Task.ID)
		}
		s, err := e.Score(t)
		if errors.Is(err, envs.ErrUnscored) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("score trajectory %d, of task %s: %w", i, t.Task.ID, err)
		}
		scores[i] = &s
	}
	return scores, nil
}
