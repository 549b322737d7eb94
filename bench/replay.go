package bench

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// Replay plays a record's actions again, each episode in a fresh sandbox, and lists every difference: in a task, in what the
// agent saw, in the world's state, in the reward. A difference in a volatile result is soft. Episodes that were void are not
// played. It is an error to replay a record in another environment, or another version of it, than it was made in.
//
// Where only the major version of a program differs that the machine provides, such as a database server, records are
// replayed by outcome: what the agent saw may be worded otherwise, but probes, the state's differences and the reward must
// be the same. A soft problem says so.
func Replay(ctx context.Context, spec envs.Spec, r *Record, parallel int, progress func(done int)) ([]Problem, error) {
	if r.Env != spec.Name {
		return nil, fmt.Errorf("the record is of %s, which cannot be compared with %s", r.Env, spec.Name)
	}
	id := spec.Sandboxes.Identity()
	byOutcome := !maps.Equal(r.Identity, id)
	if byOutcome && !maps.Equal(withoutMajors(r.Identity), withoutMajors(id)) {
		return nil, fmt.Errorf("the record was made with %v, this is %v", r.Identity, id)
	}
	src, err := spec.Source(r.Split)
	if err != nil {
		return nil, err
	}
	problems := r.compareHeader(spec)
	if byOutcome {
		problems = append(problems, Problem{Episode: -1, Step: -1, Soft: true, What: fmt.Sprintf("replayed by outcome: recorded with %v, this is %v", r.Identity, id)})
	}
	byKey := make(map[[2]int]Episode, len(r.Episodes))
	for _, e := range r.Episodes {
		byKey[[2]int{e.Index, e.Trial}] = e
	}
	var mu sync.Mutex
	err = each(ctx, spec, src, r.Tasks, r.Trials, parallel, func(ctx context.Context, env *envs.Env, task envs.Task, i, trial int) error {
		e, ok := byKey[[2]int{i, trial}]
		var found []Problem
		var err error
		switch {
		case !ok:
			found = []Problem{{Episode: i, Trial: trial, Step: -1, What: "the episode is missing"}}
		case e.Void != nil:
		default:
			found, err = replay(ctx, env, r, e, task, byOutcome)
		}
		mu.Lock()
		problems = append(problems, found...)
		mu.Unlock()
		return err
	}, progress)
	if err != nil {
		return nil, fmt.Errorf("replay %s in %s: %w", r.Policy, r.Env, err)
	}
	slices.SortStableFunc(problems, func(a, b Problem) int {
		if a.Episode != b.Episode {
			return a.Episode - b.Episode
		}
		return a.Trial - b.Trial
	})
	return problems, nil
}

// compareHeader says whether limits and system prompt are those of the environment.
func (r *Record) compareHeader(spec envs.Spec) []Problem {
	if r.Limits == spec.Limits && r.System == spec.System {
		return nil
	}
	return []Problem{{Episode: -1, Step: -1, What: "header: the limits or the system prompt are not those of the environment"}}
}

// compareTask says how an episode's task or seed is not what split and seed of the record give now; it is empty where they are.
func (r *Record) compareTask(e Episode, task envs.Task) (string, error) {
	sum, err := taskDigest(task)
	switch {
	case err != nil:
		return "", err
	case e.Task != task.ID || e.TaskDigest != sum || e.Prompt != task.Prompt || e.Family != task.Family:
		return fmt.Sprintf("the task is not what %s %d gives now", r.Split, e.Index), nil
	case e.Seed != episodeSeed(r.Seed, e.Index, e.Trial):
		return fmt.Sprintf("the seed does not follow from the record's seed %d", r.Seed), nil
	}
	return "", nil
}

// withoutMajors leaves out the versions of programs that the machine provides.
func withoutMajors(id sandboxes.Identity) sandboxes.Identity {
	id = maps.Clone(id)
	maps.DeleteFunc(id, func(key, _ string) bool { return strings.HasSuffix(key, " major") })
	return id
}

// replay plays one episode again and compares.
func replay(ctx context.Context, env *envs.Env, r *Record, e Episode, task envs.Task, byOutcome bool) ([]Problem, error) {
	at := func(step int, soft bool, format string, args ...any) Problem {
		return Problem{Episode: e.Index, Trial: e.Trial, Step: step, What: fmt.Sprintf(format, args...), Soft: soft}
	}
	switch what, err := r.compareTask(e, task); {
	case err != nil:
		return nil, err
	case what != "":
		return []Problem{at(-1, false, "%s", what)}, nil
	}
	got, err := policies.Rollout(ctx, env, task, policies.Replay{Steps: e.Steps}, 0)
	if err != nil {
		return nil, err
	}
	if got.Void != nil {
		return []Problem{at(-1, false, "void: %v", got.Void)}, nil
	}
	var found []Problem
	want := r.trajectory(e, task)
	if byOutcome {
		for _, t := range []*envs.Trajectory{want, got} {
			t.Steps, t.Tools = nil, nil
			if t.State != nil { // the hash is over definitions as the server words them
				t.State = &sandboxes.State{Diff: t.State.Diff, More: t.State.More}
			}
		}
	}
	for i := range max(len(want.Steps), len(got.Steps)) {
		if i >= len(want.Steps) || i >= len(got.Steps) {
			return append(found, at(i, false, "%d steps recorded, %d replayed", len(want.Steps), len(got.Steps))), nil
		}
		w, g := want.Steps[i], got.Steps[i]
		w.Action.Sample, g.Action.Sample = nil, nil
		if what := differ(w.Action, g.Action); what != "" {
			return append(found, at(i, false, "action: %s", what)), nil
		}
		if len(w.Observation.Results) != len(g.Observation.Results) {
			return append(found, at(i, false, "%d results recorded, %d replayed", len(w.Observation.Results), len(g.Observation.Results))), nil
		}
		for k, wr := range w.Observation.Results {
			gr := g.Observation.Results[k]
			if what := differ(wr, gr); what != "" {
				p := at(i, wr.Volatile && gr.Volatile, "observation: result %d: %s", k, what)
				if found = append(found, p); !p.Soft {
					return found, nil
				}
			}
		}
		if what := differ(w, g); what != "" && len(found) == 0 {
			return append(found, at(i, false, "step: %s", what)), nil
		}
	}
	for _, c := range []struct {
		what      string
		want, got any
	}{
		{"tools", want.Tools, got.Tools}, {"end", want.End, got.End}, {"probes", want.Probes, got.Probes},
		{"state", want.State, got.State}, {"reward", want.Score, got.Score},
	} {
		if what := differ(c.want, c.got); what != "" {
			return append(found, at(-1, false, "%s: %s", c.what, what)), nil
		}
	}
	return found, nil
}

// differ compares two values as records hold them and shows the first difference.
func differ(recorded, replayed any) string {
	a, errA := encode(recorded)
	b, errB := encode(replayed)
	if errA != nil || errB != nil {
		return fmt.Sprintf("cannot be encoded: %v %v", errA, errB)
	}
	if bytes.Equal(a, b) {
		return ""
	}
	at := 0
	for at < min(len(a), len(b)) && a[at] == b[at] {
		at++
	}
	from := max(0, at-30)
	return fmt.Sprintf("recorded ...%s, replayed ...%s", bytes.ToValidUTF8(a[from:min(len(a), at+40)], nil), bytes.ToValidUTF8(b[from:min(len(b), at+40)], nil))
}
