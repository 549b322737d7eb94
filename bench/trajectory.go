package bench

import (
	"fmt"

	"github.com/mcpgym/mcpgym/envs"
)

// Trajectory puts an episode together again as it was recorded, its score included. The sandboxes of spec are not used. It is an error
// where the record is of another environment, or where the task is not what it was.
func (r *Record) Trajectory(spec envs.Spec, e Episode) (*envs.Trajectory, error) {
	if r.Env != spec.Name {
		return nil, fmt.Errorf("the record is of %s, not of %s", r.Env, spec.Name)
	}
	src, err := spec.Source(r.Split)
	if err != nil {
		return nil, err
	}
	if e.Index < 0 || e.Index >= r.Tasks {
		return nil, fmt.Errorf("episode %d: the header plans only %d tasks", e.Index, r.Tasks)
	}
	task := src.Task(e.Index)
	if what, err := r.compareTask(e, task); err != nil {
		return nil, err
	} else if what != "" {
		return nil, fmt.Errorf("episode %d: %s", e.Index, what)
	}
	return r.trajectory(e, task), nil
}
