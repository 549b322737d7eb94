package toolcall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/engine"
)

var _ policies.Policy = Policy{}

// Policy plays by what a model says. A conversation that has no room left ends with an empty answer, as does one whose model says
// nothing.
type Policy struct {
	Engine engine.Engine

	// Sampling has the options for a turn. Its Prompt and Stops are not looked at. Seeds are made of its Seed, the episode's and
	// the turn's number.
	Sampling engine.Request

	Lenient bool // run calls that are plain JSON, without tags. See Turn.Bare
}

// Start implements policies.Policy.
func (p Policy) Start(_ context.Context, ep policies.Episode) (policies.Agent, error) {
	tools := Tools(ep.Tools)
	tokens, err := p.Engine.Open(tools, Prompt(ep.System, ep.Prompt))
	if err != nil {
		return nil, err
	}
	return &agent{p: p, seed: ep.Seed, tokens: tokens, reader: Reader{OpensThinking(p.Engine.Decode(tokens)), tools}}, nil
}

// OpensThinking says whether a prompt ends within a thinking block that the template has begun.
func OpensThinking(prompt string) bool {
	return strings.HasSuffix(strings.TrimSpace(prompt), thinkStart)
}

type agent struct {
	p      Policy
	reader Reader
	seed   uint64
	turn   int
	tokens []int32 // of the conversation so far: only ever added to
}

func (a *agent) Close() error { return nil }

func (a *agent) Act(ctx context.Context, o envs.Observation) (envs.Action, error) {
	if a.turn > 0 {
		stopped := slices.Contains(a.p.Engine.Stops(), a.tokens[len(a.tokens)-1])
		next, err := a.p.Engine.Next(stopped, Replies(o))
		if err != nil {
			return envs.Action{}, err
		}
		a.tokens = append(a.tokens, next...)
	}
	r := a.p.Sampling
	r.Prompt, r.Stops, r.Seed = slices.Clip(a.tokens), nil, mix(mix(r.Seed, a.seed), uint64(a.turn))
	s, err := a.p.Engine.Generate(ctx, r)
	if errors.Is(err, engine.ErrTooLong) {
		return envs.Action{}, nil
	}
	if err != nil {
		return envs.Action{}, err
	}
	a.tokens = append(a.tokens, s.Tokens...)
	read := a.reader.Read(a.p.Engine.Decode(s.Tokens))
	action := read.Action
	if a.p.Lenient {
		action = read.Lenient()
	}
	for i := range action.Calls {
		action.Calls[i].ID = fmt.Sprintf("c%d.%d", a.turn, i)
	}
	action.Sample = &envs.Sample{Tokens: s.Tokens, LogProbs: s.LogProbs, Version: s.Version}
	a.turn++
	return action, nil
}

// mix makes one seed of two (the finalizer of SplitMix64, Steele et al. 2014).
func mix(a, b uint64) uint64 {
	z := a*0x9e3779b97f4a7c15 + b + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Sequence is an episode as a model reads and writes it.
type Sequence struct {
	Tokens   []int32
	Mask     []bool    // the tokens that the model wrote: all that carries loss
	LogProbs []float32 // of those, as they were sampled; 0 elsewhere, and for turns that nobody sampled
}

// NewSequence gives the tokens of an episode. Turns that were sampled keep the tokens that were, others are written by the codec.
// What follows the last turn is not part of it.
func NewSequence(c engine.Codec, t *envs.Trajectory) (Sequence, error) {
	var s Sequence
	add := func(tokens []int32, own bool, logProbs []float32) {
		s.Tokens = append(s.Tokens, tokens...)
		for i := range tokens {
			s.Mask = append(s.Mask, own)
			lp := float32(0)
			if logProbs != nil {
				lp = logProbs[i]
			}
			s.LogProbs = append(s.LogProbs, lp)
		}
	}
	open, err := c.Open(Tools(t.Tools), Prompt(t.System, t.Task.Prompt))
	if err != nil {
		return s, fmt.Errorf("tokens of %s: %w", t.Task.ID, err)
	}
	add(open, false, nil)
	stopped := true
	for i, step := range t.Steps {
		if i > 0 {
			next, err := c.Next(stopped, Replies(t.Steps[i-1].Observation))
			if err != nil {
				return s, fmt.Errorf("tokens of %s, turn %d: %w", t.Task.ID, i, err)
			}
			add(next, false, nil)
		}
		if sampled := step.Action.Sample; sampled != nil {
			if len(sampled.LogProbs) != len(sampled.Tokens) || len(sampled.Tokens) == 0 {
				return s, fmt.Errorf("tokens of %s, turn %d: %d log-probabilities for %d tokens", t.Task.ID, i, len(sampled.LogProbs), len(sampled.Tokens))
			}
			add(sampled.Tokens, true, sampled.LogProbs)
			stopped = slices.Contains(c.Stops(), sampled.Tokens[len(sampled.Tokens)-1])
			continue
		} else if i > 0 && t.Steps[0].Action.Sample != nil {
			break // there was no room for another: the model did not write this one
		}
		m, err := Message(step.Action)
		if err != nil {
			return s, fmt.Errorf("tokens of %s, turn %d: %w", t.Task.ID, i, err)
		}
		turn, err := c.Turn(m)
		if err != nil {
			return s, fmt.Errorf("tokens of %s, turn %d: %w", t.Task.ID, i, err)
		}
		add(turn, true, nil)
		stopped = true
	}
	return s, nil
}
