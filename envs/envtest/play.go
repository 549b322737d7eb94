package envtest

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/sandboxes"
)

func (c *checker) env() *envs.Env {
	e, err := envs.New(c.spec)
	if err != nil {
		c.Fatalf("make the environment: %v", err)
	}
	c.Cleanup(func() { e.Close() })
	return e
}

// play plays a task; a void episode or an error fails the rule.
func (c *checker) play(e *envs.Env, task envs.Task, p policies.Policy) *envs.Trajectory {
	t, err := policies.Rollout(c.ctx, e, task, p, 1)
	if err != nil {
		c.Errorf("%s: %v", task.ID, err)
		return nil
	}
	if t.Void != nil {
		c.Errorf("%s: void: %v", task.ID, t.Void)
		return nil
	}
	return t
}

// gold is the record of a task's gold solution, and idle that of doing nothing. They are played once for all rules: the rule
// deterministic says that they would be the same each time.
func (c *checker) gold(task envs.Task) *envs.Trajectory {
	return c.once(task, "gold", policies.Oracle{})
}
func (c *checker) idle(task envs.Task) *envs.Trajectory { return c.once(task, "idle", policies.Noop{}) }

func (c *checker) once(task envs.Task, name string, p policies.Policy) *envs.Trajectory {
	if t, ok := c.known.records.Load(name + " " + task.ID); ok {
		return t.(*envs.Trajectory)
	}
	if c.own == nil {
		c.own = c.env()
	}
	t := c.play(c.own, task, p)
	if t != nil {
		c.known.records.Store(name+" "+task.ID, t)
	}
	return t
}

// free says whether turns make no calls, or those of the gold solution: a record of these is known, and what an agent says
// reaches nothing but the record, so only the score is new. Turns end with the only one without calls.
func free(task envs.Task, turns []envs.Action) bool {
	return len(turns) == 1 || slices.EqualFunc(turns, task.Solution, sameCalls)
}

// played is the record of turns that are free, nil where what is known of them is no whole episode.
func (c *checker) played(task envs.Task, turns []envs.Action) (*envs.Trajectory, error) {
	record := c.idle
	if len(turns) > 1 {
		record = c.gold
	}
	r := record(task)
	if r == nil || len(r.Steps) != len(turns) {
		return nil, nil
	}
	t := *r
	t.Steps = slices.Clone(t.Steps)
	for i, a := range turns {
		t.Steps[i].Action.Text = strings.ToValidUTF8(a.Text, "\uFFFD")
		t.Steps[i].Action.Reasoning = strings.ToValidUTF8(a.Reasoning, "\uFFFD")
	}
	score, err := c.spec.Reward.Score(&t)
	if err != nil {
		return nil, err
	}
	t.Score, t.Steps[len(t.Steps)-1].Score = &score, &score
	return &t, nil
}

// try plays turns, or finds their record where they are free.
func (c *checker) try(e *envs.Env, task envs.Task, turns []envs.Action) (*envs.Trajectory, error) {
	if turns = ended(turns); free(task, turns) {
		if t, err := c.played(task, turns); t != nil || err != nil {
			return t, err
		}
	}
	return policies.Rollout(c.ctx, e, task, policies.Replay{Steps: steps(turns)}, 1)
}

// nothing plays turns that must earn nothing. An episode that they make void fails the rule, too.
func (c *checker) nothing(e *envs.Env, task envs.Task, name string, turns []envs.Action) *envs.Trajectory {
	t, err := c.try(e, task, turns)
	return c.unpaid(task, name, t, err)
}

// unpaid says what is wrong with an episode that must earn nothing, and gives it where it was scored.
func (c *checker) unpaid(task envs.Task, name string, t *envs.Trajectory, err error) *envs.Trajectory {
	switch {
	case err != nil:
		c.Errorf("%s: %s: %v", task.ID, name, err)
		return nil
	case t.Void != nil:
		c.Errorf("%s: %s makes the episode void: %v", task.ID, name, t.Void)
		return nil
	case t.Score.Value > 0 || t.Score.Success:
		c.Errorf("%s: %s earns %v: %s", task.ID, name, t.Score.Value, encode(t.Score.Parts))
	}
	return t
}

func sameCalls(a, b envs.Action) bool {
	return slices.EqualFunc(a.Calls, b.Calls, func(a, b envs.Call) bool {
		return a.ID == b.ID && a.Name == b.Name && a.Malformed == b.Malformed && bytes.Equal(a.Arguments, b.Arguments)
	})
}

// ended makes turns end with the first one without calls, as an episode does.
func ended(turns []envs.Action) []envs.Action {
	if i := slices.IndexFunc(turns, func(a envs.Action) bool { return len(a.Calls) == 0 }); i >= 0 {
		return turns[:i+1]
	}
	return append(slices.Clip(turns), envs.Action{})
}

func steps(turns []envs.Action) []envs.Step {
	all := make([]envs.Step, len(turns))
	for i, a := range turns {
		all[i].Action = a
	}
	return all
}

// announce has worlds of a task made while others are played. It pays where a world costs much, which is one that is written
// to. Each that is announced must be leased, or it keeps its place for ever.
func (c *checker) announce(task envs.Task, n int) {
	if len(task.Assertions) > 0 {
		c.spec.Sandboxes.Prefetch(slices.Repeat([]sandboxes.World{task.World}, n)...)
	}
}

// visit calls f with each task. f leases n sandboxes of it, which are made ahead.
func (c *checker) visit(tasks []envs.Task, n int, f func(envs.Task)) {
	for i, task := range tasks {
		if i == 0 {
			c.announce(task, n)
		}
		if i+1 < len(tasks) {
			c.announce(tasks[i+1], n)
		}
		f(task)
	}
}

func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return []byte("not encodable: " + err.Error())
	}
	return b.Bytes()
}
