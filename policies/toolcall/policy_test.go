package toolcall

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// parrot is an engine that says what it is told to, and remembers its prompts.
type parrot struct {
	engine.Engine
	*Codec
	says    []engine.Message
	cut     int // of the tokens of each turn only so many are said; 0: all
	room    int // tokens that it takes
	prompts [][]int32
	seeds   []uint64
}

func (p *parrot) Open(tools []engine.Tool, m []engine.Message) ([]int32, error) {
	return p.Codec.Open(tools, m)
}
func (p *parrot) Next(stopped bool, m []engine.Message) ([]int32, error) {
	return p.Codec.Next(stopped, m)
}
func (p *parrot) Turn(m engine.Message) ([]int32, error) { return p.Codec.Turn(m) }
func (p *parrot) Decode(tokens []int32) string           { return p.Codec.Decode(tokens) }
func (p *parrot) Stops() []int32                         { return p.Codec.Stops() }

func (p *parrot) Generate(_ context.Context, r engine.Request) (engine.Sample, error) {
	if p.room > 0 && len(r.Prompt) >= p.room {
		return engine.Sample{}, fmt.Errorf("generate: %w", engine.ErrTooLong)
	}
	p.prompts, p.seeds = append(p.prompts, r.Prompt), append(p.seeds, r.Seed)
	turn, err := p.Codec.Turn(p.says[0])
	if err != nil {
		return engine.Sample{}, err
	}
	p.says = p.says[1:]
	s := engine.Sample{Tokens: turn, Finish: "stop", Version: 3}
	if p.cut > 0 {
		s.Tokens, s.Finish = turn[:p.cut], "length"
	}
	for i := range s.Tokens {
		s.LogProbs = append(s.LogProbs, -float32(i))
	}
	return s, nil
}

func callOf(name, args string) engine.Call { return engine.Call{Name: name, Arguments: []byte(args)} }

// TestPolicy plays an episode by hand and compares what the model was asked with the tokens of the record.
func TestPolicy(t *testing.T) {
	ctx := context.Background()
	for _, cut := range []int{0, 5} {
		p := &parrot{Codec: smallCodec(t), cut: cut, says: []engine.Message{
			{Role: "assistant", Reasoning: "hm", Calls: []engine.Call{callOf("get", `{"a":1}`), callOf("get", `{"b":2}`)}},
			{Role: "assistant", Text: "ANSWER: 3"},
		}}
		ep := policies.Episode{System: "be brief", Prompt: "how many?", Seed: 4, Tools: []sandboxes.Tool{{Name: "get", Description: "Gets.", InputSchema: []byte(`{"type":"object"}`)}}}
		agent, err := Policy{Engine: p, Sampling: engine.Request{MaxTokens: 9, Temperature: 1}}.Start(ctx, ep)
		require.NoError(t, err)
		first, err := agent.Act(ctx, envs.Observation{Text: "how many?"})
		require.NoError(t, err)
		o := envs.Observation{Results: []envs.CallResult{{ID: "c0.0", Name: "get", Text: "1 <|end|>"}, {ID: "c0.1", Name: "get", Text: "no", IsError: true}}}
		second, err := agent.Act(ctx, o)
		require.NoError(t, err)
		require.NoError(t, agent.Close())
		require.Equal(t, 3, first.Sample.Version)
		if cut == 0 {
			require.Equal(t, []envs.Call{{ID: "c0.0", Name: "get", Arguments: []byte(`{"a":1}`)}, {ID: "c0.1", Name: "get", Arguments: []byte(`{"b":2}`)}}, first.Calls)
			require.Equal(t, "hm", first.Reasoning)
			require.Equal(t, "ANSWER: 3", second.Text)
		}
		require.NotEqual(t, p.seeds[0], p.seeds[1])

		record := &envs.Trajectory{System: ep.System, Tools: ep.Tools, Task: envs.Task{ID: "t", Prompt: ep.Prompt},
			Steps: []envs.Step{{Action: first, Observation: o}, {Action: second}}}
		s, err := NewSequence(p, record)
		require.NoError(t, err)
		require.Len(t, s.Mask, len(s.Tokens))
		require.Len(t, s.LogProbs, len(s.Tokens))
		n := len(p.prompts[1])
		require.Equal(t, p.prompts[1], s.Tokens[:n], "the second prompt is a prefix, token by token")
		require.Equal(t, p.prompts[0], s.Tokens[:len(p.prompts[0])])
		require.Equal(t, second.Sample.Tokens, s.Tokens[n:])
		own := 0
		for i, in := range s.Mask {
			if in {
				own++
			} else {
				require.Zero(t, s.LogProbs[i])
			}
		}
		require.Equal(t, len(first.Sample.Tokens)+len(second.Sample.Tokens), own, "only sampled tokens carry loss")

		// The same turns, written by somebody else, are the same tokens.
		if cut == 0 {
			for i := range record.Steps {
				record.Steps[i].Action.Sample = nil
			}
			again, err := NewSequence(p, record)
			require.NoError(t, err)
			require.Equal(t, s.Tokens, again.Tokens)
			require.Equal(t, s.Mask, again.Mask)
		}
	}
}

func TestPolicyWithoutRoom(t *testing.T) {
	ctx := context.Background()
	p := &parrot{Codec: smallCodec(t), says: []engine.Message{{Role: "assistant", Calls: []engine.Call{callOf("get", `{}`)}}}}
	agent, err := Policy{Engine: p, Sampling: engine.Request{MaxTokens: 9}}.Start(ctx, policies.Episode{Prompt: "go"})
	require.NoError(t, err)
	first, err := agent.Act(ctx, envs.Observation{Text: "go"})
	require.NoError(t, err)
	p.room = 3
	o := envs.Observation{Results: []envs.CallResult{{ID: "c0.0", Name: "get", Text: "1"}}}
	second, err := agent.Act(ctx, o)
	require.NoError(t, err)
	require.Equal(t, envs.Action{}, second, "the episode ends, by the agent's own fault")
	s, err := NewSequence(p, &envs.Trajectory{Task: envs.Task{Prompt: "go"}, Steps: []envs.Step{{Action: first, Observation: o}, {Action: second}}})
	require.NoError(t, err)
	own := 0
	for _, in := range s.Mask {
		if in {
			own++
		}
	}
	require.Equal(t, len(first.Sample.Tokens), own, "what the model did not say carries no loss")
}

func smallCodec(tb testing.TB) *Codec {
	c, err := NewCodec(Small(), tokenizer(tb))
	require.NoError(tb, err)
	return c
}
