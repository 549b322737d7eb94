// Package rewards makes verifiable rewards out of small named parts. Every part is a pure function of the record.
package rewards

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/mcpgym/mcpgym/envs"
)

// Component computes one part of a score from a record. Score returns the part's score in [0, 1], a reason that a person can
// read, and what it has counted, if anything. Without a score the part cannot be scored: then the episode has no score at
// all, which is not 0.
type Component struct {
	Name   string
	Kind   envs.PartKind
	Weight float64
	Score  func(t *envs.Trajectory) (envs.Part, error)
}

// Sum is the reward that adds components up.
//
// Success means that every gate is exactly 1. The weights of gates and credits are positive and add to 1; they are earned
// only on success. Penalties are subtracted always. The value is rounded to 9 decimals and clamped to [-1, 1].
type Sum []Component

// Validate checks names and weights.
func (s Sum) Validate() error {
	total, gates, names := 0.0, 0, map[string]bool{}
	for _, c := range s {
		if c.Name == "" || c.Score == nil || names[c.Name] {
			return fmt.Errorf("reward part %q: every part needs a name of its own and a function", c.Name)
		}
		names[c.Name] = true
		if !(c.Weight > 0 && c.Weight <= 1) {
			return fmt.Errorf("reward part %s: weight %v, want one in (0, 1]", c.Name, c.Weight)
		}
		switch c.Kind {
		case envs.Gate:
			gates++
			total += c.Weight
		case envs.Credit:
			total += c.Weight
		case envs.Penalty:
		default:
			return fmt.Errorf("reward part %s: kind %q, want gate, credit or penalty", c.Name, c.Kind)
		}
	}
	if gates == 0 {
		return errors.New("reward without a gate: doing nothing would succeed")
	}
	if math.Abs(total-1) > 1e-9 {
		return fmt.Errorf("reward: the weights of gates and credits add to %v, want 1", total)
	}
	return nil
}

// Without is the reward without one of its penalties.
func (s Sum) Without(penalty string) (Sum, error) {
	out := slices.DeleteFunc(slices.Clone(s), func(c Component) bool { return c.Name == penalty && c.Kind == envs.Penalty })
	if len(out) == len(s) {
		return nil, fmt.Errorf("reward: no penalty %q to leave out", penalty)
	}
	return out, nil
}

// Score computes all parts and their total. The error wraps envs.ErrUnscored where a part has no score; the parts are
// returned all the same.
func (s Sum) Score(t *envs.Trajectory) (envs.Score, error) {
	out := envs.Score{Parts: make([]envs.Part, 0, len(s))}
	for _, c := range s {
		p, err := c.Score(t)
		if err != nil {
			return out, fmt.Errorf("reward part %s: %w", c.Name, err)
		}
		p.Name, p.Kind, p.Weight = c.Name, c.Kind, c.Weight
		out.Parts = append(out.Parts, p)
	}
	var err error
	out.Success, out.Value, err = Total(out.Parts)
	return out, err
}

// Total adds parts up by the rule of Sum. It is an error if a part is not scored (envs.ErrUnscored), or if a score is not a
// number in [0, 1].
func Total(parts []envs.Part) (success bool, value float64, err error) {
	success = true
	earned, lost := 0.0, 0.0
	for _, p := range parts {
		if p.Score == nil {
			return false, 0, fmt.Errorf("reward part %s: %w", p.Name, envs.ErrUnscored)
		}
		if !(*p.Score >= 0 && *p.Score <= 1) { // also not a number
			return false, 0, fmt.Errorf("reward part %s: score %v, want one in [0, 1]", p.Name, *p.Score)
		}
		switch p.Kind {
		case envs.Penalty:
			lost += p.Weight * *p.Score
		case envs.Gate:
			success = success && *p.Score == 1
			fallthrough
		default:
			earned += p.Weight * *p.Score
		}
	}
	if !success {
		earned = 0
	}
	value = math.Round(max(-1, min(1, earned-lost))*1e9) / 1e9
	return success, value + 0, nil // + 0 turns -0 into 0
}

func scored(v float64, format string, args ...any) (envs.Part, error) {
	return envs.Part{Score: &v, Reason: fmt.Sprintf(format, args...)}, nil
}

// ValidCalls credits the share of calls that could be read and fitted their tool's schema.
func ValidCalls(weight float64) Component {
	return Component{"valid_calls", envs.Credit, weight, func(t *envs.Trajectory) (envs.Part, error) {
		all, bad := 0, 0
		for _, s := range t.Steps {
			for _, r := range s.Observation.Results {
				all++
				switch r.Status {
				case envs.StatusUnknown, envs.StatusMalformed, envs.StatusInvalid:
					bad++
				}
			}
		}
		if all == 0 {
			return scored(1, "no calls")
		}
		return scored(float64(all-bad)/float64(all), "%d of %d calls valid", all-bad, all)
	}}
}

// Efficiency credits few calls: the calls of the gold solution divided by the calls made, at most 1.
func Efficiency(weight float64) Component {
	return Component{"efficiency", envs.Credit, weight, func(t *envs.Trajectory) (envs.Part, error) {
		n := countResults(t)
		if n <= t.Task.Par {
			return scored(1, "%d calls, gold makes %d", n, t.Task.Par)
		}
		return scored(float64(t.Task.Par)/float64(n), "%d calls, gold makes %d", n, t.Task.Par)
	}}
}

// hallucinations at which the penalty is full.
const fullHallucination = 5

// Hallucination is the penalty for what an agent makes up, in three counts that the part keeps apart: "tools", calls of tools
// that do not exist; "arguments", parameters that the called tool's schema does not know, and references to what no prompt or
// observation holds (InventedReferences); "claims", values of the final answer that do not follow from what the agent saw
// (UnsupportedClaims). Each costs a fifth of the weight, up to all of it.
func Hallucination(weight float64) Component {
	return Component{"hallucination", envs.Penalty, weight, func(t *envs.Trajectory) (envs.Part, error) {
		tools, args := 0, 0
		for _, s := range t.Steps {
			for _, r := range s.Observation.Results {
				if r.Status == envs.StatusUnknown {
					tools++
				}
				args += len(r.Unknown)
			}
		}
		refs, claims := InventedReferences(t), UnsupportedClaims(t)
		args += len(refs)
		n := tools + args + len(claims)
		if n == 0 {
			return scored(0, "nothing is made up")
		}
		reason := fmt.Sprintf("%d invented tools, %d invented arguments, %d unsupported claims", tools, args, len(claims))
		if len(refs) > 0 {
			reason += fmt.Sprintf("; %.60q stands nowhere before its call", refs[0])
		}
		if len(claims) > 0 {
			reason += fmt.Sprintf("; claim %.60q: %s", claims[0].Text, claims[0].Reason)
		}
		part, err := scored(min(1, float64(n)/fullHallucination), "%s", reason)
		part.Counts = map[string]int{"tools": tools, "arguments": args, "claims": len(claims)}
		return part, err
	}}
}

func countResults(t *envs.Trajectory) (n int) {
	for _, s := range t.Steps {
		n += len(s.Observation.Results)
	}
	return n
}
