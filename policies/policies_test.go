package policies_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

// account is a world with a number in it.
type account struct{ balance int64 }

func (a *account) State(context.Context) (sandboxes.State, error) {
	return sandboxes.State{Hash: fmt.Sprint(a.balance)}, nil
}

// provider leases accounts that hold the world's seed.
func provider(t *testing.T) sandboxes.Provider {
	t.Helper()
	srv := server.NewMCPServer("account", "1")
	srv.AddTools(
		mcpmem.Tool("balance", "Reads the balance.", func(_ context.Context, a *account, _ struct{}) (any, error) {
			return a.balance, nil
		}, mcp.WithReadOnlyHintAnnotation(true)),
		mcpmem.Tool("pay_in", "Adds to the balance.", func(_ context.Context, a *account, in struct{ Amount int64 }) (any, error) {
			if in.Amount <= 0 {
				return nil, errors.New("only what is positive can be paid in")
			}
			a.balance += in.Amount
			return a.balance, nil
		}, mcp.WithInteger("amount", mcp.Required())))
	p, err := mcpmem.New(srv, sandboxes.Identity{"account": "1"}, func(w sandboxes.World) (*account, error) { return &account{int64(w.Seed)}, nil })
	require.NoError(t, err)
	return p
}

// balanced pays for an account that holds what the task wants, and an answer that says so.
type balanced struct{}

func (balanced) Score(t *envs.Trajectory) (envs.Score, error) {
	text, answered := t.Answer()
	score := 0.0
	if answered && t.State != nil && t.State.Hash == string(t.Task.Want) && text == t.State.Hash {
		score = 1
	}
	return envs.Score{Success: score == 1, Value: score, Parts: []envs.Part{{Name: "balanced", Kind: envs.Gate, Weight: 1, Score: &score}}}, nil
}

var task = envs.Task{ID: "pay-in", Family: "pay-in", Prompt: "Pay in until there are 12.", World: sandboxes.World{Seed: 7}, Want: json.RawMessage("12"), Par: 1,
	Solution: []envs.Action{call("pay_in", `{"amount":5}`), {Text: "12"}}}

func call(tool, args string) envs.Action {
	return envs.Action{Calls: []envs.Call{{ID: "call_0", Name: tool, Arguments: json.RawMessage(args)}}}
}

func newEnv(t *testing.T, p sandboxes.Provider) *envs.Env {
	t.Helper()
	e, err := envs.New(envs.Spec{
		Name:      "Account-v0",
		System:    "You keep accounts.",
		Splits:    map[string]envs.Source{"test": envs.Generator(func(int) envs.Task { return task })},
		Limits:    envs.Limits{Turns: 4, Calls: 8, ResultBytes: 1000, Call: 5 * time.Second, Episode: time.Minute},
		Reward:    balanced{},
		Sandboxes: p,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// spy is a policy that notes what it is shown, and plays actions.
type spy struct {
	actions        []envs.Action
	startErr       error
	act            func(ctx context.Context, turn int) error // before each turn, where set
	episodes       []policies.Episode
	seen           []envs.Observation
	closed, played int
}

func (s *spy) Start(_ context.Context, ep policies.Episode) (policies.Agent, error) {
	s.episodes = append(s.episodes, ep)
	return s, s.startErr
}

func (s *spy) Act(ctx context.Context, o envs.Observation) (envs.Action, error) {
	s.seen = append(s.seen, o)
	if s.act != nil {
		if err := s.act(ctx, s.played); err != nil {
			return envs.Action{}, err
		}
	}
	s.played++
	return s.actions[s.played-1], nil
}

func (s *spy) Close() error {
	s.closed++
	return nil
}

// aware is a spy that is shown the task.
type aware struct {
	spy
	tasks []envs.Task
}

func (a *aware) Start(context.Context, policies.Episode) (policies.Agent, error) {
	return nil, errors.New("started without its task")
}

func (a *aware) StartTask(ctx context.Context, ep policies.Episode, task envs.Task) (policies.Agent, error) {
	a.tasks = append(a.tasks, task)
	return a.spy.Start(ctx, ep)
}

func TestRollout(t *testing.T) {
	e := newEnv(t, provider(t))
	p := &spy{actions: []envs.Action{call("balance", `{}`), call("pay_in", `{"amount":5}`), {Text: "12"}}}
	tr, err := policies.Rollout(t.Context(), e, task, p, 3)
	require.NoError(t, err)
	require.Equal(t, envs.EndAnswer, tr.End)
	require.True(t, tr.Score.Success)
	require.Equal(t, 1.0, tr.Score.Value)
	require.Len(t, tr.Steps, 3)
	require.Equal(t, 1, p.closed)

	require.Len(t, p.episodes, 1)
	require.Equal(t, policies.Episode{System: "You keep accounts.", Prompt: task.Prompt, Tools: tr.Tools, Seed: 3}, p.episodes[0])
	require.Len(t, tr.Tools, 2)
	require.Len(t, p.seen, 3, "one observation for each turn, and none after the last")
	require.Equal(t, envs.Observation{Text: task.Prompt}, p.seen[0])
	require.Equal(t, []string{"7", "12"}, []string{p.seen[1].Results[0].Text, p.seen[2].Results[0].Text})

	t.Run("the task's own system text", func(t *testing.T) {
		own := task
		own.System = "You are brief."
		p := &spy{actions: []envs.Action{{}}}
		_, err := policies.Rollout(t.Context(), e, own, p, 0)
		require.NoError(t, err)
		require.Equal(t, "You are brief.", p.episodes[0].System)
	})
	t.Run("until a limit", func(t *testing.T) {
		p := &spy{actions: []envs.Action{call("balance", `{}`), call("nothing", `{}`), call("pay_in", `{}`), call("balance", `{}`)}}
		tr, err := policies.Rollout(t.Context(), e, task, p, 0)
		require.NoError(t, err)
		require.Equal(t, envs.EndTurns, tr.End)
		require.True(t, tr.Steps[3].Truncated)
		require.Zero(t, tr.Score.Value)
		require.Equal(t, 4, p.played)
		require.Equal(t, 1, p.closed)
	})
}

func TestTaskAware(t *testing.T) {
	p := &aware{spy: spy{actions: task.Solution}}
	tr, err := policies.Rollout(t.Context(), newEnv(t, provider(t)), task, p, 9)
	require.NoError(t, err)
	require.True(t, tr.Score.Success)
	require.Equal(t, []envs.Task{task}, p.tasks)
	require.Equal(t, uint64(9), p.episodes[0].Seed)
	require.Equal(t, task.Prompt, p.episodes[0].Prompt)
}

func TestNoop(t *testing.T) {
	tr, err := policies.Rollout(t.Context(), newEnv(t, provider(t)), task, policies.Noop{}, 0)
	require.NoError(t, err)
	require.Len(t, tr.Steps, 1)
	require.Empty(t, tr.Steps[0].Action)
	require.Equal(t, envs.EndAnswer, tr.End)
	require.False(t, tr.Score.Success)
	require.Zero(t, tr.Score.Value)
}

func TestOracle(t *testing.T) {
	e := newEnv(t, provider(t))
	tr, err := policies.Rollout(t.Context(), e, task, policies.Oracle{}, 0)
	require.NoError(t, err)
	require.Equal(t, 1.0, tr.Score.Value)
	require.Equal(t, envs.EndAnswer, tr.End)

	unsolved := task
	unsolved.Solution = nil
	tr, err = policies.Rollout(t.Context(), e, unsolved, policies.Oracle{}, 0)
	require.ErrorContains(t, err, "pay-in has no solution")
	require.Nil(t, tr)
	_, err = policies.Oracle{}.Start(t.Context(), policies.Episode{})
	require.Error(t, err, "without the task")
}

func TestReplay(t *testing.T) {
	sampled := envs.Action{Text: "12", Reasoning: "7 + 5", Sample: &envs.Sample{Tokens: []int32{1, 2}, LogProbs: []float32{-0.5, -1.25}, Version: 3}}
	for name, actions := range map[string][]envs.Action{
		"solved":     task.Solution,
		"sampled":    {call("pay_in", `{"amount":5}`), sampled},
		"unsolved":   {call("pay_in", `{ "amount": 6 }`), {Text: "13"}},
		"bad calls":  {call("pay_out", `{}`), call("pay_in", `{"amount":`), call("pay_in", `{"amount":-1}`), {Text: "12\xff"}},
		"several":    {{Calls: []envs.Call{{Name: "pay_in", Arguments: json.RawMessage(`{"amount":1}`)}, {Name: "balance"}}}, {}},
		"to a limit": {call("balance", `{}`), call("balance", `{}`), call("balance", `{}`), call("balance", `{}`)},
		"nothing":    {{}},
	} {
		t.Run(name, func(t *testing.T) {
			first, err := policies.Rollout(t.Context(), newEnv(t, provider(t)), task, &spy{actions: actions}, 1)
			require.NoError(t, err)
			require.Nil(t, first.Void)
			data, err := json.Marshal(first)
			require.NoError(t, err)
			var read envs.Trajectory
			require.NoError(t, json.Unmarshal(data, &read))

			again, err := policies.Rollout(t.Context(), newEnv(t, provider(t)), read.Task, policies.Replay{Steps: read.Steps}, 2)
			require.NoError(t, err)
			replayed, err := json.Marshal(again)
			require.NoError(t, err)
			require.Equal(t, string(data), string(replayed))
		})
	}
}

func TestScript(t *testing.T) {
	a := policies.Script([]envs.Action{call("balance", `{}`), {Text: "7"}})
	var got []envs.Action
	for range 4 {
		action, err := a.Act(t.Context(), envs.Observation{})
		require.NoError(t, err)
		got = append(got, action)
	}
	require.Equal(t, []envs.Action{call("balance", `{}`), {Text: "7"}, {}, {}}, got)
	require.NoError(t, a.Close())
}

func TestPolicyFails(t *testing.T) {
	cause := errors.New("no weights")
	t.Run("at its start", func(t *testing.T) {
		e := newEnv(t, provider(t))
		tr, err := policies.Rollout(t.Context(), e, task, &spy{startErr: cause}, 0)
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, "start policy on pay-in")
		require.Nil(t, tr)
	})
	t.Run("at a turn", func(t *testing.T) {
		e := newEnv(t, provider(t))
		p := &spy{actions: task.Solution, act: func(_ context.Context, turn int) error {
			if turn == 1 {
				return cause
			}
			return nil
		}}
		tr, err := policies.Rollout(t.Context(), e, task, p, 0)
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, "act on pay-in")
		require.Nil(t, tr)
		require.Equal(t, 1, p.closed)

		tr, err = policies.Rollout(t.Context(), e, task, policies.Oracle{}, 0)
		require.NoError(t, err, "the environment plays on")
		require.True(t, tr.Score.Success)
	})
}

// broken leases sandboxes that fail.
type broken struct {
	sandboxes.Provider
	leaseErr error
	callErr  error // of the first sandbox only: a fresh one works
	leased   atomic.Int32
}

func (b *broken) Lease(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
	if b.leaseErr != nil {
		return nil, b.leaseErr
	}
	box, err := b.Provider.Lease(ctx, w)
	if err != nil || b.leased.Add(1) > 1 {
		return box, err
	}
	return &dying{box, b.callErr}, nil
}

type dying struct {
	sandboxes.Sandbox
	err error
}

func (d *dying) Session() sandboxes.Session { return d }

func (d *dying) Tools(ctx context.Context) ([]sandboxes.Tool, error) {
	return d.Sandbox.Session().Tools(ctx)
}

func (d *dying) Call(context.Context, string, json.RawMessage) (sandboxes.Result, error) {
	return sandboxes.Result{}, d.err
}

func TestVoidIsData(t *testing.T) {
	t.Run("no sandbox", func(t *testing.T) {
		p := &spy{}
		tr, err := policies.Rollout(t.Context(), newEnv(t, &broken{Provider: provider(t), leaseErr: errors.New("disk full")}), task, p, 0)
		require.NoError(t, err)
		require.NotNil(t, tr.Void)
		require.Equal(t, sandboxes.FaultLease, tr.Void.Kind)
		require.Contains(t, tr.Void.Msg, "disk full")
		require.Nil(t, tr.Score, "not scored, which is not 0")
		require.Equal(t, task.ID, tr.Task.ID)
		require.Empty(t, tr.Steps)
		require.Empty(t, p.episodes, "nobody plays")
	})
	t.Run("the sandbox dies", func(t *testing.T) {
		p := &spy{actions: task.Solution}
		fault := &sandboxes.Fault{Kind: sandboxes.FaultDied, Op: "call", Msg: "killed by the machine"}
		tr, err := policies.Rollout(t.Context(), newEnv(t, &broken{Provider: provider(t), callErr: fault}), task, p, 0)
		require.NoError(t, err)
		require.NotNil(t, tr.Void)
		require.Equal(t, sandboxes.FaultDied, tr.Void.Kind)
		require.Nil(t, tr.Score)
		require.Empty(t, tr.End)
		require.Equal(t, 1, p.closed)
	})
}

func TestContextEnds(t *testing.T) {
	t.Run("before the episode", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p := &spy{actions: task.Solution}
		tr, err := policies.Rollout(ctx, newEnv(t, provider(t)), task, p, 0)
		require.ErrorIs(t, err, context.Canceled)
		require.Nil(t, tr, "an interrupted episode is not data")
		require.Empty(t, p.episodes)
	})
	t.Run("between turns", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := &spy{actions: task.Solution, act: func(_ context.Context, turn int) error {
			if turn == 1 {
				cancel()
			}
			return nil
		}}
		tr, err := policies.Rollout(ctx, newEnv(t, provider(t)), task, p, 0)
		require.ErrorIs(t, err, context.Canceled)
		require.Nil(t, tr)
		require.Equal(t, 1, p.closed)
	})
	t.Run("while the policy thinks", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := &spy{actions: task.Solution, act: func(ctx context.Context, _ int) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}}
		tr, err := policies.Rollout(ctx, newEnv(t, provider(t)), task, p, 0)
		require.ErrorIs(t, err, context.Canceled)
		require.Nil(t, tr)
		require.Equal(t, 1, p.closed)
	})
}

func TestAgentFunc(t *testing.T) {
	a := policies.AgentFunc(func(_ context.Context, o envs.Observation) (envs.Action, error) {
		return envs.Action{Text: strings.ToUpper(o.Text)}, nil
	})
	got, err := a.Act(t.Context(), envs.Observation{Text: "yes"})
	require.NoError(t, err)
	require.Equal(t, "YES", got.Text)
	require.NoError(t, a.Close())
}
