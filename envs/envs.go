// Package envs is the vocabulary of the gym: tasks, actions, observations, trajectories, scores, and the one Env that plays
// them.
//
// An environment is a Spec: a value that composes sandboxes, tasks and a reward. Authors never write Step. A Spec is proven
// by envtest.Check.
package envs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// Task is one episode's assignment. Want and Solution never reach a policy.
type Task struct {
	ID         string          `json:"id"`
	Family     string          `json:"family"`
	System     string          `json:"system,omitempty"` // instead of the Spec's, where set
	Prompt     string          `json:"prompt"`
	World      sandboxes.World `json:"world"`
	Assertions []Assertion     `json:"assertions,omitempty"`
	Allow      []string        `json:"allow,omitempty"` // differences of the state that the task may make: regular expressions for whole lines of State.Diff
	Want       json.RawMessage `json:"want,omitempty"`  // what the reward compares with; its form is the reward's affair
	Par        int             `json:"par"`             // calls that the gold solution makes
	Solution   []Action        `json:"-"`               // gold: earns full marks. Not recorded, so that no reward can lean on it
}

// Assertion is a question that the verifier asks the world at the end of the episode, and the answer it must get.
type Assertion struct {
	Ask     sandboxes.Question `json:"ask"`
	Want    json.RawMessage    `json:"want,omitempty"`
	Ordered bool               `json:"ordered,omitempty"` // the answer's rows must come in the order of Want
	Report  bool               `json:"report,omitempty"`  // the answer is a reward: nothing is wanted, see rewards.Reported
}

// Source is a split: a generator of tasks. Task is pure: the same index gives the same task, at any time, in any order,
// from any goroutine.
type Source interface {
	Task(index int) Task
}

// Generator is a Source made from a function.
type Generator func(index int) Task

// Task calls g.
func (g Generator) Task(index int) Task { return g(index) }

// Action is one turn of an agent. A turn without calls is the final answer; in a turn with calls Text is only commentary.
type Action struct {
	Text      string  `json:"text,omitempty"`
	Reasoning string  `json:"reasoning,omitempty"` // thinking, kept apart from the text
	Calls     []Call  `json:"calls,omitempty"`
	Sample    *Sample `json:"sample,omitempty"` // only on turns that a model sampled
}

// Sample is what a sampling engine knows about a turn: its tokens and their log-probabilities, in order, of equal length.
type Sample struct {
	Tokens   []int32   `json:"tokens"`
	LogProbs []float32 `json:"logprobs"`
	Version  int       `json:"version"` // of the weights
}

// Call is one tool call of a turn. A call that could not be read stays visible: Malformed holds its text, Arguments is nil.
type Call struct {
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Malformed string          `json:"malformed,omitempty"`
}

// Observation is what the agent sees: the prompt after Reset, the results of its calls after Step, in call order.
type Observation struct {
	Text    string       `json:"text,omitempty"`
	Results []CallResult `json:"results,omitempty"`
}

// Status says how a call ended, and whose doing it was.
type Status string

const (
	StatusOK        Status = "ok"
	StatusToolError Status = "tool_error"   // the tool ran and says that it failed
	StatusUnknown   Status = "unknown_tool" // hallucination: no such tool
	StatusMalformed Status = "malformed"    // the arguments are not one JSON object
	StatusInvalid   Status = "invalid"      // the arguments violate the tool's schema
	StatusLimit     Status = "limit"        // over a limit of the episode; whether it happened is unknown
	StatusDefect    Status = "defect"       // the server's result breaks the protocol; the agent is not charged
	StatusKilled    Status = "killed"       // the call ended the sandbox, and does so every time
)

// CallResult is the result of one call.
type CallResult struct {
	ID       string   `json:"id"`
	Name     string   `json:"name"`
	Text     string   `json:"text"`
	IsError  bool     `json:"error,omitempty"`
	Status   Status   `json:"status"`
	Unknown  []string `json:"unknown,omitempty"`  // parameters that the tool's schema does not know, sorted
	Bytes    int      `json:"bytes,omitempty"`    // original size of a text that was cut
	Volatile bool     `json:"volatile,omitempty"` // replay reports a difference here and does not fail
	Defect   string   `json:"defect,omitempty"`   // what the server did against the specification
}

// Step is one turn in the record: what the agent did and what it saw of it. A step is never both terminated (the task is
// over) and truncated (a limit cut it short).
type Step struct {
	Action      Action      `json:"action"`
	Observation Observation `json:"observation"`
	Terminated  bool        `json:"terminated,omitempty"`
	Truncated   bool        `json:"truncated,omitempty"`
	Score       *Score      `json:"-"` // on the last step, what Trajectory.Score holds
}

// End says why an episode ended.
type End string

const (
	EndAnswer End = "answer" // terminated: the agent gave its final answer
	EndKilled End = "killed" // terminated: the agent ended its own sandbox, or what the verifier sees of it
	EndTurns  End = "turns"  // truncated: no turn left
	EndCalls  End = "calls"  // truncated: a call was asked for when none was left
	EndTime   End = "time"   // truncated: no time left
)

// TrajectoryVersion is the version of the record's form.
const TrajectoryVersion = 1

// Trajectory is the record of an episode. Rewards, training, replay and the leaderboard are functions of it.
type Trajectory struct {
	Version  int                `json:"version"`
	Env      string             `json:"env"`
	Identity sandboxes.Identity `json:"identity,omitempty"`
	Limits   Limits             `json:"limits"`
	Task     Task               `json:"task"`
	System   string             `json:"system,omitempty"` // what the agent was told beside the prompt: the task's or else the Spec's
	Tools    []sandboxes.Tool   `json:"tools"`
	Steps    []Step             `json:"steps"`
	Probes   []sandboxes.Answer `json:"probes,omitempty"` // answers to Task.Assertions, in order
	State    *sandboxes.State   `json:"state,omitempty"`
	End      End                `json:"end,omitempty"`   // empty while the episode runs, and where it is void
	Score    *Score             `json:"score,omitempty"` // nil: not scored, which is not 0
	Void     *sandboxes.Fault   `json:"void,omitempty"`
}

// Results gives the results of all calls, in order.
func (t *Trajectory) Results() []CallResult {
	var all []CallResult
	for _, s := range t.Steps {
		all = append(all, s.Observation.Results...)
	}
	return all
}

// Answer is the text of the final answer. ok is false where the agent gave none.
func (t *Trajectory) Answer() (text string, ok bool) {
	if t.End != EndAnswer || len(t.Steps) == 0 {
		return "", false
	}
	return t.Steps[len(t.Steps)-1].Action.Text, true
}

// PartKind says how a part enters the score.
type PartKind string

const (
	Gate    PartKind = "gate"    // success needs every gate at 1; its weight is credited only then
	Credit  PartKind = "credit"  // credited only on success, never changes it
	Penalty PartKind = "penalty" // subtracted whenever it applies
)

// Part is one named component of a score.
type Part struct {
	Name   string   `json:"name"`
	Kind   PartKind `json:"kind"`
	Weight float64  `json:"weight"`
	Score  *float64 `json:"score"` // in [0, 1]; nil: not scored
	Reason string   `json:"reason,omitempty"`

	Counts map[string]int `json:"counts,omitempty"` // of what a penalty counts, by kind; nil where there is none
}

// Score is what an episode earned. Value is in [-1, 1].
type Score struct {
	Success bool    `json:"success"`
	Value   float64 `json:"value"`
	Parts   []Part  `json:"parts"`
}

// ErrUnscored is wrapped by a Reward's error where a part has no score: the verifier failed, so the episode is void.
var ErrUnscored = errors.New("not scored")

// Reward scores a record. It is pure: no clock, no I/O, nothing but the record. Where it also has a method Validate() error,
// an environment is not made with one that is not valid.
type Reward interface {
	Score(t *Trajectory) (Score, error)
}

// GroupReward scores episodes of one task, all of one group at once, for a trainer. It gives one score for each trajectory, in
// their order; nil means not scored, which is not 0. Unlike a Reward it may ask outside, a judge for example: what it says
// never enters the leaderboard. An error is ctx's, or says that the reward or the group is not usable as given.
type GroupReward interface {
	ScoreGroup(ctx context.Context, group []*Trajectory) ([]*Score, error)
}

// Limits bound an episode. They are part of an environment's identity and of the record.
type Limits struct {
	Turns       int           `json:"turns"`
	Calls       int           `json:"calls"`
	ResultBytes int           `json:"result_bytes"` // of one result, the mark of a cut included
	Call        time.Duration `json:"call_ns"`      // for one call
	Episode     time.Duration `json:"episode_ns"`
}

// Cheat is a scripted attempt to earn reward without doing the task.
type Cheat struct {
	Name    string
	Actions []Action
}

// Spec is an environment. The Env it makes is the only one there is.
type Spec struct {
	Name      string // such as "Weather-v0": a change that moves scores changes the version
	System    string
	Splits    map[string]Source
	Limits    Limits
	Reward    Reward
	Sandboxes sandboxes.Provider
	Cheats    func(Task) []Cheat // beside the generic ones; may be nil
}

var nameForm = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*-v(0|[1-9][0-9]*)$`)

// Validate says what is wrong with a Spec.
func (s Spec) Validate() error {
	switch l := s.Limits; {
	case !nameForm.MatchString(s.Name):
		return fmt.Errorf("environment %q: the name must have the form Name-v0", s.Name)
	case s.Reward == nil:
		return fmt.Errorf("environment %s: no reward", s.Name)
	case s.Sandboxes == nil:
		return fmt.Errorf("environment %s: no sandboxes", s.Name)
	case len(s.Splits) == 0:
		return fmt.Errorf("environment %s: no splits", s.Name)
	case l.Turns < 1 || l.Calls < 1 || l.ResultBytes < 100 || l.Call <= 0 || l.Episode <= 0:
		return fmt.Errorf("environment %s: every limit must be set (turns, calls, result bytes of 100 or more, seconds a call and an episode), have %+v", s.Name, l)
	}
	if r, ok := s.Reward.(interface{ Validate() error }); ok {
		if err := r.Validate(); err != nil {
			return fmt.Errorf("environment %s: %w", s.Name, err)
		}
	}
	return nil
}

// Source returns the tasks of a split, or an error that lists the splits there are.
func (s Spec) Source(split string) (Source, error) {
	if src, ok := s.Splits[split]; ok {
		return src, nil
	}
	return nil, fmt.Errorf("%s has no split %q, only %v", s.Name, split, s.SplitNames())
}

// SplitNames lists the splits, sorted.
func (s Spec) SplitNames() []string {
	names := make([]string, 0, len(s.Splits))
	for n := range s.Splits {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
