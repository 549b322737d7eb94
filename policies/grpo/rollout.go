package grpo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/toolcall"
)

// Gym is what a run learns from.
type Gym struct {
	Name   string           // of the environment, its version, and the reward: a run is not continued with another
	Train  envs.Source      // each task is taken once, or once an epoch
	Eval   envs.Source      // by the environment's own score; may be nil where there is no evaluation
	Reward envs.GroupReward // is asked for all groups of a step at once, from several goroutines
	Play   Player
}

func (g Gym) check(c Config) error {
	switch {
	case g.Train == nil || g.Reward == nil || g.Play == nil:
		return errors.New("the gym needs tasks to train on, a reward and a player")
	case g.Eval == nil && c.EvalTasks > 0:
		return fmt.Errorf("eval_tasks of %d: the gym needs tasks for them", c.EvalTasks)
	}
	return nil
}

// Player plays episodes, many at once, and gives their trajectories in the order of plays, void ones included. Where each play's outcome
// depends on the play alone, so does the run's.
type Player func(ctx context.Context, p policies.Policy, plays []Play) ([]*envs.Trajectory, error)

// Play is an episode that is to be played.
type Play struct {
	Task envs.Task
	Seed uint64 // of the policy
}

// Rollouts plays in an environment, up to so many episodes at once.
func Rollouts(spec envs.Spec, workers int) Player {
	return func(ctx context.Context, p policies.Policy, plays []Play) ([]*envs.Trajectory, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		out := make([]*envs.Trajectory, len(plays))
		jobs := make(chan int)
		var all sync.WaitGroup
		for range min(workers, len(plays)) {
			all.Go(func() {
				if err := work(ctx, spec, p, plays, jobs, out); err != nil {
					cancel(err)
				}
			})
		}
		for i, play := range plays {
			spec.Sandboxes.Prefetch(play.Task.World)
			select {
			case jobs <- i:
			case <-ctx.Done():
			}
		}
		close(jobs)
		all.Wait()
		return out, context.Cause(ctx)
	}
}

func work(ctx context.Context, spec envs.Spec, p policies.Policy, plays []Play, jobs <-chan int, out []*envs.Trajectory) (err error) {
	env, err := envs.New(spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	for i := range jobs {
		if out[i], err = policies.Rollout(ctx, env, plays[i].Task, p, plays[i].Seed); err != nil {
			return err
		}
		if err := env.Close(); err != nil {
			return err
		}
	}
	return nil
}

// row is an episode in training.
type row struct {
	toolcall.Sequence
	group          string
	reward         *float64 // nil: not scored
	advantage      float64
	cut            bool // within a turn
	old, reference []float32
}

func (r *row) own() int { return count(r.Mask) }

// tally counts what was played in a step.
type tally struct {
	planned, void                                int // episodes
	faults                                       []error
	groups, flat                                 int // that have all members; of these, without signal
	episodes, success, unscored, cut, turns, own int // of these
	rewards                                      []float64
}

// group is a task in a step.
type group struct {
	key     string
	members []*envs.Trajectory
	rewards []*float64
	rows    []*row
}

// seedOf makes one seed of several numbers.
func seedOf(seed uint64, of ...int) uint64 {
	for _, n := range of {
		seed = rand.NewPCG(seed, uint64(n)).Uint64()
	}
	return seed
}

// Which seeds are of what.
const (
	seedSamples = iota
	seedTasks
	seedEval
	seedUpdates
)

// task is the nth that the run takes.
func (t *trainer) task(n int) envs.Task {
	if t.Tasks == 0 {
		return t.gym.Train.Task(n)
	}
	epoch := n / t.Tasks
	if t.order == nil || t.epoch != epoch {
		t.epoch, t.order = epoch, rand.New(rand.NewPCG(seedOf(t.Seed, seedTasks, epoch), 0)).Perm(t.Tasks)
	}
	return t.gym.Train.Task(t.order[n%t.Tasks])
}

// drawn is a task and which one of the run it is.
type drawn struct {
	n    int
	task envs.Task
}

// draw takes tasks, from the run's nth on, none twice. It returns the number that comes next.
func (t *trainer) draw(n, tasks int, seen map[string]bool) (out []drawn, next int, err error) {
	for tries := 0; len(out) < tasks; n++ {
		if task := t.task(n); !seen[task.ID] {
			seen[task.ID] = true
			out, tries = append(out, drawn{n, task}), 0
		} else if tries++; tries == 1000 {
			return nil, n, fmt.Errorf("of 1000 tasks in a row, up to the %dth, none is new in this step: each is played %d times anyhow", n, t.Group)
		}
	}
	return out, n, nil
}

// collect plays the groups of a step: from the run's nth task on, of which it returns the one that comes next.
func (t *trainer) collect(ctx context.Context, n int) (groups []*group, next int, sum tally, err error) {
	limit := t.Groups * t.Dynamic
	if t.Dynamic == 0 {
		limit = 2 * t.Groups // for those that void episodes leave none of
	}
	seen := map[string]bool{}
	for useful := 0; useful < t.Groups && len(seen) < limit; {
		var tasks []drawn
		if tasks, n, err = t.draw(n, min(t.Groups-useful, limit-len(seen)), seen); err != nil {
			return nil, n, sum, err
		}
		played, err := t.play(ctx, tasks, &sum)
		if err != nil {
			return nil, n, sum, err
		}
		scores, err := t.scores(ctx, played)
		if err != nil {
			return nil, n, sum, fmt.Errorf("reward: %w", err)
		}
		for i, g := range played {
			if err := t.score(g, scores[i], &sum); err != nil {
				return nil, n, sum, err
			}
			flat := !differ(g.rewards)
			if flat {
				sum.flat++
			}
			if t.Dynamic == 0 || !flat {
				useful++
			}
			if t.Dynamic == 0 || !flat || t.lossKL() || t.Entropy > 0 {
				groups = append(groups, g)
			}
		}
	}
	if sum.groups == 0 {
		return nil, n, sum, fmt.Errorf("none of %d groups is without void episodes: %w", len(seen), errors.Join(sum.faults[:min(3, len(sum.faults))]...))
	}
	return groups, n, sum, nil
}

// differ says whether rewards differ by more than rounding: what else would be blown up by the deviation, is no signal.
func differ(rewards []*float64) bool {
	var scored []float64
	for _, r := range rewards {
		if r != nil {
			scored = append(scored, *r)
		}
	}
	return signal(scored) && slices.Max(scored)-slices.Min(scored) > 1e-6
}

// play plays groups. Void members are played again, twice at most; a group that still has one is left out.
func (t *trainer) play(ctx context.Context, tasks []drawn, sum *tally) ([]*group, error) {
	members := make([]*envs.Trajectory, len(tasks)*t.Group)
	for attempt := range 3 {
		var plays []Play
		var of []int
		for i, m := range members {
			if m == nil || m.Void != nil {
				d := tasks[i/t.Group]
				plays = append(plays, Play{d.task, seedOf(t.Seed, seedSamples, d.n, i%t.Group, attempt)})
				of = append(of, i)
			}
		}
		if len(plays) == 0 {
			break
		}
		got, err := t.played(ctx, plays)
		if err != nil {
			return nil, err
		}
		sum.planned += len(got)
		for k, m := range got {
			if members[of[k]] = m; m.Void != nil {
				sum.void++
				sum.faults = append(sum.faults, m.Void)
			}
		}
	}
	var out []*group
	for i, d := range tasks {
		g := &group{key: fmt.Sprint(d.n), members: members[i*t.Group : (i+1)*t.Group]}
		if !slices.ContainsFunc(g.members, func(m *envs.Trajectory) bool { return m.Void != nil }) {
			out = append(out, g)
		}
	}
	return out, nil
}

// played gives the trajectories of plays, all of them.
func (t *trainer) played(ctx context.Context, plays []Play) ([]*envs.Trajectory, error) {
	p := toolcall.Policy{Engine: t.engine, Sampling: engine.Request{MaxTokens: t.MaxTokens, Temperature: t.Temperature}}
	got, err := t.gym.Play(ctx, p, plays)
	if err == nil && (len(got) != len(plays) || slices.Contains(got, nil)) {
		err = fmt.Errorf("no trajectory of some of %d episodes", len(plays))
	}
	if err != nil {
		return nil, fmt.Errorf("play: %w", err)
	}
	return got, nil
}

// scores asks for the scores of groups, all at once: a judge may be slow.
func (t *trainer) scores(ctx context.Context, groups []*group) ([][]*envs.Score, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := make([][]*envs.Score, len(groups))
	var all sync.WaitGroup
	for i, g := range groups {
		all.Go(func() {
			scores, err := t.gym.Reward.ScoreGroup(ctx, g.members)
			if err == nil && len(scores) != len(g.members) {
				err = fmt.Errorf("%d scores for %d episodes", len(scores), len(g.members))
			}
			if err != nil {
				cancel(err)
			}
			out[i] = scores
		})
	}
	all.Wait()
	return out, context.Cause(ctx)
}

// score gives a group its rewards and rows.
func (t *trainer) score(g *group, scores []*envs.Score, sum *tally) error {
	sum.groups++
	sum.episodes += len(scores)
	for i, s := range scores {
		r, err := t.row(g.members[i])
		if err != nil {
			return err
		}
		r.group = g.key
		if s == nil {
			sum.unscored++
		} else {
			reward := s.Value + SoftOverlong(t.Overlong, r.own())
			r.reward = &reward
			sum.rewards = append(sum.rewards, reward)
			if s.Success {
				sum.success++
			}
		}
		if r.cut {
			sum.cut++
		}
		sum.turns += len(g.members[i].Steps)
		sum.own += r.own()
		g.rewards, g.rows = append(g.rewards, r.reward), append(g.rows, r)
	}
	return nil
}

// row is a trajectory as tokens.
func (t *trainer) row(m *envs.Trajectory) (*row, error) {
	last := slices.IndexFunc(m.Steps, func(s envs.Step) bool { return s.Action.Sample == nil })
	if last == 0 || len(m.Steps) == 0 {
		return nil, fmt.Errorf("an episode of %s: %w", m.Task.ID, errNotTrainable)
	}
	s, err := toolcall.NewSequence(t.engine, m)
	if err != nil {
		return nil, err
	}
	if last < 0 {
		last = len(m.Steps)
	}
	tokens := m.Steps[last-1].Action.Sample.Tokens
	return &row{Sequence: s, cut: !slices.Contains(t.engine.Stops(), tokens[len(tokens)-1])}, nil
}
