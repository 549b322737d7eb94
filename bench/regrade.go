package bench

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// Scoring gives the tasks and the reward of an environment, which is all that scoring a record takes. The Spec has no
// sandboxes.
func (e Entry) Scoring(ctx context.Context) (envs.Spec, error) {
	if e.Rules != nil {
		return e.Rules(), nil
	}
	spec, err := e.Open(ctx, e.Drivers[0])
	if err != nil {
		return envs.Spec{}, err
	}
	err = spec.Sandboxes.Close()
	spec.Sandboxes = nil
	return spec, err
}

// Regrade scores every recorded episode again, from the record alone, and lists each value of a score that the present code
// gives otherwise: part by part, in the order of the file. Nothing is played, and the sandboxes of spec are not used. Void
// episodes have no score. It is an error to regrade a record by the rules of another environment, and when ctx ends.
func Regrade(ctx context.Context, spec envs.Spec, r *Record, progress func(done int)) ([]Problem, error) {
	problems := r.compareHeader(spec)
	seen := map[[2]int]bool{}
	for i, e := range r.Episodes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		_, found, err := r.rescore(spec, e)
		if err != nil {
			return nil, err
		}
		key := [2]int{e.Index, e.Trial}
		if seen[key] {
			found = append(found, Problem{Episode: e.Index, Trial: e.Trial, Step: -1, What: "the episode is recorded twice"})
		}
		seen[key] = true
		problems = append(problems, found...)
		if progress != nil {
			progress(i + 1)
		}
	}
	return problems, nil
}

// rescore puts an episode's trajectory together again, with the score that the present code gives. It has none where the
// episode is void or cannot be scored. Problems say how the recorded score differs, or why there is none now.
func (r *Record) rescore(spec envs.Spec, e Episode) (*envs.Trajectory, []Problem, error) {
	if r.Env != spec.Name {
		return nil, nil, fmt.Errorf("the record is of %s, which cannot be scored by the rules of %s", r.Env, spec.Name)
	}
	src, err := spec.Source(r.Split)
	if err != nil {
		return nil, nil, err
	}
	at := Problem{Episode: e.Index, Trial: e.Trial, Step: -1}
	problem := func(what string) []Problem {
		at.What = what
		return []Problem{at}
	}
	t := r.trajectory(e, envs.Task{})
	t.Score = nil
	if e.Index < 0 || e.Index >= r.Tasks || e.Trial < 0 || e.Trial >= r.Trials {
		return t, problem(fmt.Sprintf("the header plans only %d tasks with %d trials", r.Tasks, r.Trials)), nil
	}
	t.Task = src.Task(e.Index)
	if what, err := r.compareTask(e, t.Task); what != "" || err != nil {
		return t, problem(what), err
	}
	if e.Void != nil {
		if e.Score != nil {
			return t, problem("the episode is void, and yet it has a score"), nil
		}
		return t, nil, nil
	}
	for n, s := range e.Steps {
		if len(s.Observation.Results) > len(s.Action.Calls) { // rewards look for the call of each result
			at.Step = n
			return t, problem("more results than calls"), nil
		}
	}
	score, err := spec.Reward.Score(t)
	if err != nil {
		return t, problem(fmt.Sprintf("reward: cannot be computed now: %v", err)), nil
	}
	t.Score = &score
	return t, compareScores(at, e.Score, score), nil
}

// compareScores lists the differences of two scores: success and value, then the parts in the order of the recorded score,
// then those that it lacks. at is the place.
func compareScores(at Problem, recorded *envs.Score, now envs.Score) []Problem {
	var found []Problem
	compare := func(what string, recorded, now any) {
		if differ(recorded, now) != "" {
			p := at
			p.What, p.Recorded, p.Now = "reward: "+what, recorded, now
			found = append(found, p)
		}
	}
	if recorded == nil {
		compare("score", nil, now)
		return found
	}
	compare("success", recorded.Success, now.Success)
	compare("value", recorded.Value, now.Value)
	byName := func(parts []envs.Part) map[string]any {
		m := map[string]any{}
		for _, p := range parts {
			m[p.Name] = p
		}
		return m
	}
	old, anew := byName(recorded.Parts), byName(now.Parts)
	done := map[string]bool{}
	for _, p := range slices.Concat(recorded.Parts, now.Parts) {
		if !done[p.Name] {
			done[p.Name] = true
			compare("part "+p.Name, old[p.Name], anew[p.Name])
		}
	}
	if len(found) == 0 { // the same parts in another order, or one of them twice
		compare("parts", recorded.Parts, now.Parts)
	}
	return found
}

// Explanation is an episode's score in full, as the present code computes it from the record.
type Explanation struct {
	Env      string           `json:"env"`
	Policy   string           `json:"policy"`
	Split    string           `json:"split"`
	Episode  int              `json:"episode"`
	Trial    int              `json:"trial"`
	Task     string           `json:"task"`
	Family   string           `json:"family"`
	End      envs.End         `json:"end,omitempty"`
	Void     *sandboxes.Fault `json:"void,omitempty"`
	Success  *bool            `json:"success"` // nil, as Value: void, or a problem that keeps it from being scored
	Value    *float64         `json:"value"`
	Parts    []EarnedPart     `json:"parts"`
	Evidence []rewards.Shown  `json:"evidence"`  // what the answer must follow from; nil where the task asks for no answer
	BadCalls []BadCall        `json:"bad_calls"` // what parts for validity and hallucination count

	References []string        `json:"references"` // in calls, to what was never seen
	Claims     []rewards.Claim `json:"claims"`     // of the final answer, that follow from nothing that was seen
	Problems   []Problem       `json:"-"`          // how the recorded score differs
}

// EarnedPart is a part of a score and what it has added to the value.
type EarnedPart struct {
	envs.Part
	Earned float64 `json:"earned"` // negative for penalties
}

// BadCall is a call of a tool that does not exist, with arguments that are none, or with ones that the tool does not know.
type BadCall struct {
	Step    int         `json:"step"`
	Call    int         `json:"call"` // of the step
	Tool    string      `json:"tool"`
	Status  envs.Status `json:"status"`
	Unknown []string    `json:"unknown,omitempty"` // parameters
}

// Explain scores an episode of a record again and says what the score is made of.
func Explain(spec envs.Spec, r *Record, e Episode) (Explanation, error) {
	t, problems, err := r.rescore(spec, e)
	if err != nil {
		return Explanation{}, err
	}
	out := Explanation{Env: r.Env, Policy: r.Policy, Split: r.Split, Episode: e.Index, Trial: e.Trial, Task: e.Task, Family: e.Family, End: e.End, Void: e.Void,
		Parts: []EarnedPart{}, BadCalls: []BadCall{}, Problems: problems}
	if t.Score == nil {
		return out, nil
	}
	out.Success, out.Value = &t.Score.Success, &t.Score.Value
	for _, p := range t.Score.Parts {
		earned := p.Weight * *p.Score // a score has no part without one
		switch {
		case p.Kind == envs.Penalty:
			earned = -earned
		case !t.Score.Success:
			earned = 0
		}
		out.Parts = append(out.Parts, EarnedPart{p, math.Round(earned*1e9)/1e9 + 0}) // + 0 turns -0 into 0
	}
	for n, s := range e.Steps {
		for i, c := range s.Observation.Results {
			switch c.Status {
			case envs.StatusUnknown, envs.StatusMalformed, envs.StatusInvalid:
			default:
				if len(c.Unknown) == 0 {
					continue
				}
			}
			out.BadCalls = append(out.BadCalls, BadCall{n, i, c.Name, c.Status, c.Unknown})
		}
	}
	out.References, out.Claims = rewards.InventedReferences(t), rewards.UnsupportedClaims(t)
	if out.Evidence, err = rewards.Evidence(t); err != nil {
		return Explanation{}, fmt.Errorf("explain %s: %w", e.Task, err)
	}
	return out, nil
}
