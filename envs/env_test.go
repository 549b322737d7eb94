package envs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

// shop is a made-up world: a store of texts, with tools that misbehave in every way there is.
type shop struct {
	in    *shops
	lease int

	mu    sync.Mutex
	goods map[string]string
	calls int
}

// shops is what the worlds of one test have in common.
type shops struct {
	leases  atomic.Int64
	closed  atomic.Int64
	running atomic.Int64
	most    atomic.Int64    // calls of wait that ran at once
	diesAt  map[string]bool // "lease/call": a death that has nothing to do with what is called
	release chan struct{}   // lets calls of hang end

	reached atomic.Int64 // calls that reached a server
}

type item struct{ Name, Text string }

// provider serves shops, with the tools of a real MCP server.
func (s *shops) provider(t testing.TB) sandboxes.Provider {
	t.Helper()
	s.release = make(chan struct{})
	name, text := mcp.WithString("name", mcp.Required(), mcp.MinLength(1)), mcp.WithString("text", mcp.Required())
	readOnly := mcp.WithReadOnlyHintAnnotation(true)
	srv := server.NewMCPServer("shop", "1")
	srv.AddTools(
		mcpmem.Tool("get", "Reads a text.", tool((*shop).get), name, readOnly),
		mcpmem.Tool("put", "Stores a text.", tool((*shop).put), name, text),
		mcpmem.Tool("find", "Takes anything.", tool(func(*shop, context.Context, map[string]any) (any, error) { return "found", nil }),
			mcp.WithSchemaAdditionalProperties(true), mcp.WithString("name"), readOnly),
		mcpmem.Tool("big", "Says n letters.", tool(func(_ *shop, _ context.Context, in struct{ N int }) (any, error) {
			return strings.Repeat("x", in.N), nil
		}),
			mcp.WithInteger("n"), readOnly),
		mcpmem.Tool("wait", "Takes a second.", tool((*shop).wait), mcp.WithString("name"), readOnly),
		mcpmem.Tool("work", "Takes a second, and writes.", tool((*shop).wait), mcp.WithString("name")),
		mcpmem.Tool("hang", "Takes for ever, whatever its context says.", tool((*shop).hang)),
		mcpmem.Tool("hang_reading", "The same.", tool((*shop).hang), readOnly),
		mcpmem.Tool("crash", "Divides by the length of a stored text.", tool((*shop).crash), name, readOnly))
	p, err := mcpmem.New(srv, sandboxes.Identity{"shop": "1"}, func(w sandboxes.World) (*shop, error) {
		if w.Seed == 404 {
			return nil, errors.New("no such world")
		}
		return &shop{in: s, lease: int(s.leases.Add(1)), goods: map[string]string{"seed": fmt.Sprint(w.Seed)}}, nil
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		close(s.release)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// tool counts calls and dies where it is told to.
func tool[In any](f func(*shop, context.Context, In) (any, error)) func(context.Context, *shop, In) (any, error) {
	return func(ctx context.Context, w *shop, in In) (any, error) {
		w.mu.Lock()
		w.calls++
		at := fmt.Sprintf("%d/%d", w.lease, w.calls)
		w.mu.Unlock()
		w.in.reached.Add(1)
		if w.in.diesAt[at] {
			panic("power failure")
		}
		return f(w, ctx, in)
	}
}

func (w *shop) get(_ context.Context, in struct{ Name string }) (any, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text, ok := w.goods[in.Name]
	if !ok {
		return nil, fmt.Errorf("there is no %s", in.Name)
	}
	return item{in.Name, text}, nil
}

func (w *shop) put(_ context.Context, in item) (any, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.goods[in.Name] = in.Text
	return "stored", nil
}

func (w *shop) wait(_ context.Context, in struct{ Name string }) (any, error) {
	n := w.in.running.Add(1)
	defer w.in.running.Add(-1)
	for most := w.in.most.Load(); n > most && !w.in.most.CompareAndSwap(most, n); most = w.in.most.Load() {
	}
	time.Sleep(time.Second)
	return in.Name, nil
}

func (w *shop) hang(context.Context, struct{}) (any, error) {
	<-w.in.release
	return nil, nil
}

func (w *shop) crash(_ context.Context, in struct{ Name string }) (any, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return 100 / len(w.goods[in.Name]), nil
}

func (w *shop) State(context.Context) (sandboxes.State, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.goods["trap"] != "" || w.in.diesAt[fmt.Sprintf("%d/state", w.lease)] {
		return sandboxes.State{}, errors.New("the verifier's session has ended")
	}
	data, err := json.Marshal(w.goods)
	return sandboxes.State{Hash: string(data)}, err
}

func (w *shop) Probe(_ context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var answers []sandboxes.Answer
	for _, q := range ask {
		data, err := json.Marshal(w.goods[q.Text])
		if err != nil {
			return nil, err
		}
		answers = append(answers, sandboxes.Answer{Value: data})
	}
	return answers, nil
}

func (w *shop) Close() error {
	w.in.closed.Add(1)
	return nil
}

// rewardFunc is a reward made from a function.
type rewardFunc func(*envs.Trajectory) (envs.Score, error)

func (f rewardFunc) Score(t *envs.Trajectory) (envs.Score, error) { return f(t) }

// saysDone pays for the answer "done".
var saysDone = rewardFunc(func(t *envs.Trajectory) (envs.Score, error) {
	text, ok := t.Answer()
	v := 0.0
	if ok && text == "done" {
		v = 1
	}
	return envs.Score{Success: v == 1, Value: v, Parts: []envs.Part{{Name: "answer", Kind: envs.Gate, Weight: 1, Score: &v}}}, nil
})

func specOf(p sandboxes.Provider) envs.Spec {
	return envs.Spec{
		Name:      "Shop-v0",
		Splits:    map[string]envs.Source{"test": envs.Generator(func(int) envs.Task { return envs.Task{} })},
		Limits:    envs.Limits{Turns: 8, Calls: 12, ResultBytes: 300, Call: 3 * time.Second, Episode: time.Minute},
		Reward:    saysDone,
		Sandboxes: p,
	}
}

var task = envs.Task{ID: "t1", Family: "f", Prompt: "Do it.", World: sandboxes.World{Seed: 7}, Par: 1}

func call(id, name, args string) envs.Call {
	return envs.Call{ID: id, Name: name, Arguments: json.RawMessage(args)}
}

func turn(calls ...envs.Call) envs.Action { return envs.Action{Calls: calls} }

var (
	getSeed = call("g", "get", `{"name":"seed"}`)
	done    = envs.Action{Text: "done"}
)

// newEnv makes an Env that is closed at the end of the test.
func newEnv(t *testing.T, spec envs.Spec) *envs.Env {
	t.Helper()
	env, err := envs.New(spec)
	require.NoError(t, err)
	t.Cleanup(func() { env.Close() })
	return env
}

// reset makes an Env and starts an episode of task.
func reset(t *testing.T, spec envs.Spec) *envs.Env {
	t.Helper()
	env := newEnv(t, spec)
	o, err := env.Reset(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, envs.Observation{Text: "Do it."}, o)
	return env
}

// play plays turns, of which the last alone may end the episode, and returns the last step.
func play(t *testing.T, env *envs.Env, actions ...envs.Action) envs.Step {
	t.Helper()
	var last envs.Step
	for i, a := range actions {
		require.False(t, last.Terminated || last.Truncated, "the episode ended before turn %d: %+v", i, last)
		var err error
		last, err = env.Step(t.Context(), a)
		require.NoError(t, err)
	}
	return last
}

// requireVoid checks that err is a fault, which is recorded, and that the episode is over without a score.
func requireVoid(t *testing.T, env *envs.Env, kind sandboxes.FaultKind, err error) {
	t.Helper()
	f, ok := errors.AsType[*sandboxes.Fault](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, kind, f.Kind, "%v", err)
	require.Equal(t, f, env.Trajectory().Void)
	requireUnscored(t, env)
}

func requireUnscored(t *testing.T, env *envs.Env) {
	t.Helper()
	require.NotNil(t, env.Trajectory().Void)
	require.Nil(t, env.Trajectory().Score)
	_, err := env.Step(t.Context(), done)
	require.ErrorIs(t, err, envs.ErrDone)
}

func TestEpisode(t *testing.T) {
	s := &shops{}
	spec := specOf(s.provider(t))
	env := newEnv(t, spec)
	require.Nil(t, env.Trajectory())
	_, err := env.Step(t.Context(), done)
	require.ErrorIs(t, err, envs.ErrNotReset)

	asked := task
	asked.Assertions = []envs.Assertion{{Ask: sandboxes.Question{Text: "a"}}, {Ask: sandboxes.Question{Text: "seed"}}}
	_, err = env.Reset(t.Context(), asked)
	require.NoError(t, err)
	first := play(t, env, turn(call("", "put", `{"name":"a","text":"b"}`)))
	require.Equal(t, []envs.CallResult{{ID: "call_0", Name: "put", Text: "stored", Status: envs.StatusOK}}, first.Observation.Results)
	require.Nil(t, first.Score)

	last := play(t, env, done)
	require.True(t, last.Terminated)
	require.False(t, last.Truncated)
	require.True(t, last.Score.Success)
	tr := env.Trajectory()
	require.Equal(t, envs.TrajectoryVersion, tr.Version)
	require.Equal(t, "Shop-v0", tr.Env)
	require.Equal(t, sandboxes.Identity{"shop": "1"}, tr.Identity)
	require.Equal(t, spec.Limits, tr.Limits)
	require.Equal(t, asked, tr.Task)
	require.Len(t, tr.Tools, 9)
	require.Len(t, tr.Steps, 2)
	require.Equal(t, envs.EndAnswer, tr.End)
	require.Equal(t, last.Score, tr.Score)
	require.Equal(t, &sandboxes.State{Hash: `{"a":"b","seed":"7"}`}, tr.State)
	require.Equal(t, []sandboxes.Answer{{Value: json.RawMessage(`"b"`)}, {Value: json.RawMessage(`"7"`)}}, tr.Probes)
	require.Nil(t, tr.Void)

	_, err = env.Step(t.Context(), done)
	require.ErrorIs(t, err, envs.ErrDone)
	require.Len(t, tr.Steps, 2)

	// The next episode has a world of its own, and leaves the record of this one alone.
	_, err = env.Reset(t.Context(), task)
	require.NoError(t, err)
	require.EqualValues(t, 1, s.closed.Load())
	require.NotSame(t, tr, env.Trajectory())
	require.True(t, play(t, env, turn(call("", "get", `{"name":"a"}`))).Observation.Results[0].IsError)
	require.NoError(t, env.Close())
	require.Nil(t, tr.Void)
	require.EqualValues(t, 2, s.closed.Load())
}

// TestBadCalls is the table of what a step does with a bad call. The episode goes on in every row.
func TestBadCalls(t *testing.T) {
	for _, c := range []struct {
		name string
		call envs.Call
		want envs.CallResult // Text is a part of it
		sent bool            // whether the server sees the call
	}{
		{"unknown tool", call("", "gett", `{"name":"seed"}`), envs.CallResult{Status: envs.StatusUnknown, IsError: true, Text: `there is no tool "gett"; the tools are: get, `}, false},
		{"unknown tool, broken arguments", call("", "gett", `{`), envs.CallResult{Status: envs.StatusUnknown, IsError: true, Text: `there is no tool "gett"`}, false},
		{"no tool's name", call("", "", `{}`), envs.CallResult{Status: envs.StatusUnknown, IsError: true, Text: `there is no tool ""`}, false},
		{"arguments are not JSON", call("", "get", `{"name":`), envs.CallResult{Status: envs.StatusMalformed, IsError: true, Text: `the call of get cannot be read: `}, false},
		{"arguments are not an object", call("", "get", `["seed"]`), envs.CallResult{Status: envs.StatusMalformed, IsError: true, Text: `the arguments of get must be one JSON object`}, false},
		{"arguments are a text", call("", "get", `"{\"name\":\"seed\"}"`), envs.CallResult{Status: envs.StatusMalformed, IsError: true, Text: `the arguments of get must be one JSON object`}, false},
		{"arguments repeat a key", call("", "get", `{"name":"a","name":"b"}`), envs.CallResult{Status: envs.StatusMalformed, IsError: true, Text: `duplicate`}, false},
		{"arguments have keys that differ in case", call("", "get", `{"name":"a","Name":"b"}`), envs.CallResult{Status: envs.StatusMalformed, IsError: true, Text: `differ only in case`}, false},
		{"arguments are nested too deeply", call("", "find", `{"name":`+strings.Repeat("[", 9000)+strings.Repeat("]", 9000)+`}`), envs.CallResult{Status: envs.StatusMalformed, IsError: true, Text: `nested deeper`}, false},
		{"a call that could not be read", envs.Call{Name: "get", Malformed: `{"name":"seed"}}`}, envs.CallResult{Status: envs.StatusMalformed, IsError: true, Text: `text after the JSON value`}, false},
		{"a call that is another thing", envs.Call{Name: "get", Malformed: `{"nome":"get"}`}, envs.CallResult{Status: envs.StatusMalformed, IsError: true, Text: `it is not a tool call`}, false},
		{"arguments violate the schema", call("", "get", `{"name":5}`), envs.CallResult{Status: envs.StatusInvalid, IsError: true, Text: `invalid arguments of get: at /name: got number, want string`}, false},
		{"an argument is missing", call("", "get", ``), envs.CallResult{Status: envs.StatusInvalid, IsError: true, Text: `missing property 'name'`}, false},
		{"an unknown parameter", call("", "get", `{"name":"seed","limit":1}`), envs.CallResult{Status: envs.StatusInvalid, IsError: true, Text: `additional properties 'limit' not allowed; it takes: name`, Unknown: []string{"limit"}}, false},
		{"an unknown parameter where extras are legal", call("", "find", `{"name":"seed","limit":1}`), envs.CallResult{Status: envs.StatusOK, Text: "found", Unknown: []string{"limit"}}, true},
		{"an error of the tool", call("", "get", `{"name":"b"}`), envs.CallResult{Status: envs.StatusToolError, IsError: true, Text: "there is no b"}, true},
		{"a result over the limit", call("", "big", `{"n":1000000}`), envs.CallResult{Status: envs.StatusOK, Bytes: 1000000, Text: "x\n[cut: the result has 1000000 bytes, only its head is shown]"}, true},
		{"a result at the limit", call("", "big", `{"n":300}`), envs.CallResult{Status: envs.StatusOK, Text: strings.Repeat("x", 300)}, true},
		{"a call over its time, which may have written", call("", "hang", `{}`), envs.CallResult{Status: envs.StatusLimit, IsError: true, Text: "over the limit of 3s for one call; whether it took effect is unknown"}, true},
		{"a call over its time, which only reads", call("", "hang_reading", `{}`), envs.CallResult{Status: envs.StatusLimit, IsError: true, Text: "over the limit of 3s for one call"}, true},
		{"an error that quotes the agent at length", call("", "get", `{"name":"a","`+strings.Repeat("y", 1000)+`":1}`),
			envs.CallResult{Status: envs.StatusInvalid, IsError: true, Text: `[cut: `, Bytes: 1100, Unknown: []string{strings.Repeat("y", 1000)}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &shops{}
				env := reset(t, specOf(s.provider(t)))
				step := play(t, env, turn(c.call))
				require.Len(t, step.Observation.Results, 1)
				got := step.Observation.Results[0]
				require.Contains(t, got.Text, c.want.Text)
				require.LessOrEqual(t, len(got.Text), 300)
				want := c.want
				want.ID, want.Name, want.Text = "call_0", c.call.Name, got.Text
				if !c.sent && got.Bytes > 1000 {
					want.Bytes = got.Bytes
				}
				require.Equal(t, want, got)
				require.Equal(t, c.sent, s.reached.Load() == 1)

				next := play(t, env, turn(getSeed))
				require.Equal(t, envs.StatusOK, next.Observation.Results[0].Status)
				require.True(t, play(t, env, done).Score.Success)
				require.EqualValues(t, 1, s.leases.Load())
				require.Len(t, env.Trajectory().Results(), 2)
			})
		})
	}
}

// A backend that the agent killed is the agent's failure: the episode is over, and scored.
func TestAgentKillsItsSandbox(t *testing.T) {
	for _, c := range []struct {
		name    string
		actions []envs.Action
		results int // of the last turn
	}{
		{"by the arguments of one call", []envs.Action{turn(call("c", "crash", `{"name":"none"}`))}, 1},
		{"by what it did before", []envs.Action{turn(call("", "put", `{"name":"a","text":""}`)), turn(getSeed, call("c", "crash", `{"name":"a"}`))}, 2},
		{"and what it wants afterwards is not done", []envs.Action{turn(call("c", "crash", `{"name":"none"}`), call("", "put", `{"name":"a","text":"b"}`))}, 1},
		{"after a call that was slow", []envs.Action{turn(call("", "hang", `{}`)), turn(call("c", "crash", `{"name":"none"}`))}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &shops{}
				env := reset(t, specOf(s.provider(t)))
				step := play(t, env, c.actions...)
				require.True(t, step.Terminated)
				require.False(t, step.Truncated)
				require.Len(t, step.Observation.Results, c.results)
				last := step.Observation.Results[c.results-1]
				require.Equal(t, "c", last.ID)
				require.Equal(t, envs.StatusKilled, last.Status)
				require.True(t, last.IsError)
				require.Contains(t, last.Text, "crash")
				tr := env.Trajectory()
				require.Equal(t, envs.EndKilled, tr.End)
				require.Nil(t, tr.Void)
				require.Nil(t, tr.State)
				require.NotNil(t, step.Score)
				require.False(t, step.Score.Success)
				require.EqualValues(t, 2, s.leases.Load())
				require.EqualValues(t, 1, s.closed.Load(), "the sandbox of the replay is closed")
				_, err := env.Step(t.Context(), done)
				require.ErrorIs(t, err, envs.ErrDone)
			})
		})
	}
}

// A death that a replay in a fresh sandbox does not repeat is nobody's reward.
func TestSandboxDies(t *testing.T) {
	for _, c := range []struct {
		name   string
		diesAt []string
	}{
		{"once", []string{"1/2"}},
		{"and the replay dies earlier", []string{"1/2", "2/1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &shops{diesAt: map[string]bool{}}
			for _, at := range c.diesAt {
				s.diesAt[at] = true
			}
			env := reset(t, specOf(s.provider(t)))
			play(t, env, turn(getSeed))
			_, err := env.Step(t.Context(), turn(getSeed))
			requireVoid(t, env, sandboxes.FaultDied, err)
			require.ErrorContains(t, err, "step 1 of t1")
			require.ErrorContains(t, err, "power failure")
			require.Len(t, env.Trajectory().Steps, 1, "the step that failed is not part of the record")
			require.Empty(t, env.Trajectory().End)
			require.EqualValues(t, 2, s.leases.Load())
		})
	}
}

// fake is a provider whose sandboxes do as the test says.
type fake struct {
	lease func(ctx context.Context, n int) error // of the n-th sandbox, from 1
	tools func(ctx context.Context, n, calls int) ([]sandboxes.Tool, error)
	call  func(ctx context.Context, n int) (sandboxes.Result, error)
	state func(ctx context.Context) (sandboxes.State, error)
	probe func(ctx context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error)
	close error

	leases, closed int
}

type fakeBox struct {
	*fake
	n, calls int
}

func (f *fake) Lease(ctx context.Context, _ sandboxes.World) (sandboxes.Sandbox, error) {
	f.leases++
	if f.lease != nil {
		if err := f.lease(ctx, f.leases); err != nil {
			return nil, err
		}
	}
	return &fakeBox{fake: f, n: f.leases}, nil
}

func (f *fake) Prefetch(...sandboxes.World)  {}
func (f *fake) Identity() sandboxes.Identity { return nil }
func (f *fake) Close() error                 { return nil }

func (b *fakeBox) Session() sandboxes.Session { return b }

func (b *fakeBox) Close() error {
	b.closed++
	return b.close
}

func (b *fakeBox) Tools(ctx context.Context) ([]sandboxes.Tool, error) {
	if b.tools != nil {
		return b.tools(ctx, b.n, b.calls)
	}
	return oneTool, nil
}

var oneTool = []sandboxes.Tool{{Name: "do", InputSchema: json.RawMessage(`{}`)}}

func (b *fakeBox) Call(ctx context.Context, _ string, args json.RawMessage) (sandboxes.Result, error) {
	b.calls++
	if len(args) == 0 {
		return sandboxes.Result{}, errors.New("no arguments")
	}
	if b.call != nil {
		return b.call(ctx, b.n)
	}
	return sandboxes.Result{Text: "ok"}, nil
}

func (b *fakeBox) State(ctx context.Context) (sandboxes.State, error) {
	if b.state != nil {
		return b.state(ctx)
	}
	return sandboxes.State{}, errors.ErrUnsupported
}

func (b *fakeBox) Probe(ctx context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error) {
	if b.probe != nil {
		return b.probe(ctx, ask)
	}
	return nil, errors.ErrUnsupported
}

// never answers within its context.
func never[T any](ctx context.Context) (zero T, err error) {
	<-ctx.Done()
	return zero, ctx.Err()
}

func TestServerHangs(t *testing.T) {
	hungCall := func(ctx context.Context, n int) (sandboxes.Result, error) { return never[sandboxes.Result](ctx) }
	onlyTheFirst := func(ctx context.Context, n int) (sandboxes.Result, error) {
		if n == 1 {
			return never[sandboxes.Result](ctx)
		}
		return sandboxes.Result{}, nil
	}
	hungTools := func(ctx context.Context, n, calls int) ([]sandboxes.Tool, error) {
		if calls > 0 {
			return never[[]sandboxes.Tool](ctx)
		}
		return oneTool, nil
	}
	t.Run("once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			env := reset(t, specOf(&fake{call: onlyTheFirst, tools: hungTools}))
			_, err := env.Step(t.Context(), turn(call("", "do", "")))
			requireVoid(t, env, sandboxes.FaultHung, err)
		})
	})
	t.Run("every time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{call: hungCall, tools: hungTools}
			env := reset(t, specOf(f))
			step := play(t, env, turn(call("", "do", "")))
			require.Equal(t, envs.StatusKilled, step.Observation.Results[0].Status)
			require.False(t, step.Score.Success)
			require.Equal(t, 1, f.closed)
		})
	})
	t.Run("and no other can be had", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{call: hungCall, tools: hungTools, lease: func(_ context.Context, n int) error {
				if n > 1 {
					return errors.New("no more")
				}
				return nil
			}}
			env := reset(t, specOf(f))
			_, err := env.Step(t.Context(), turn(call("", "do", "")))
			requireVoid(t, env, sandboxes.FaultHung, err)
		})
	})
}

func TestCallWithoutArguments(t *testing.T) {
	step := play(t, reset(t, specOf(&fake{})), turn(call("", "do", "")))
	require.Equal(t, envs.StatusOK, step.Observation.Results[0].Status, "a server gets an empty object")
}

func TestResetFails(t *testing.T) {
	noTools := func(err error, tools ...sandboxes.Tool) func(context.Context, int, int) ([]sandboxes.Tool, error) {
		return func(_ context.Context, n, _ int) ([]sandboxes.Tool, error) {
			if n == 1 {
				return tools, err
			}
			return oneTool, nil
		}
	}
	for _, c := range []struct {
		name string
		fake fake
		want sandboxes.FaultKind
	}{
		{"no sandbox", fake{lease: func(_ context.Context, n int) error {
			if n == 1 {
				return errors.New("no disk")
			}
			return nil
		}}, sandboxes.FaultLease},
		{"no tools", fake{tools: noTools(&sandboxes.Fault{Kind: sandboxes.FaultDied, Op: "tools/list"})}, sandboxes.FaultDied},
		{"tools that cannot be used", fake{tools: noTools(nil, sandboxes.Tool{Name: "a"})}, sandboxes.FaultProtocol},
		{"a server that hangs", fake{tools: func(ctx context.Context, n, _ int) ([]sandboxes.Tool, error) {
			if n == 1 {
				return never[[]sandboxes.Tool](ctx)
			}
			return oneTool, nil
		}}, sandboxes.FaultHung},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newEnv(t, specOf(&c.fake))
				_, err := env.Reset(t.Context(), task)
				requireVoid(t, env, c.want, err)
				require.ErrorContains(t, err, "reset Shop-v0 to task t1")
				_, err = env.Reset(t.Context(), task)
				require.NoError(t, err, "the next reset starts anew")
				require.True(t, play(t, env, done).Score.Success)
			})
		})
	}
}

func TestVerifierFails(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name   string
		fake   fake
		reward envs.Reward
		want   error
	}{
		{"no state", fake{state: func(context.Context) (sandboxes.State, error) { return sandboxes.State{}, broken }}, saysDone, broken},
		{"no probes", fake{probe: func(context.Context, []sandboxes.Question) ([]sandboxes.Answer, error) { return nil, broken }}, saysDone, broken},
		{"a world that answers no questions", fake{}, saysDone, errors.ErrUnsupported},
		{"too few answers", fake{probe: func(context.Context, []sandboxes.Question) ([]sandboxes.Answer, error) { return nil, nil }}, saysDone, nil},
		{"a part without a score", fake{probe: oneAnswer}, rewardFunc(func(*envs.Trajectory) (envs.Score, error) { return envs.Score{}, envs.ErrUnscored }), envs.ErrUnscored},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := specOf(&c.fake)
			spec.Reward = c.reward
			env := newEnv(t, spec)
			asked := task
			asked.Assertions = make([]envs.Assertion, 1)
			_, err := env.Reset(t.Context(), asked)
			require.NoError(t, err)
			step, err := env.Step(t.Context(), done)
			requireVoid(t, env, sandboxes.FaultVerifier, err)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
			}
			require.True(t, step.Terminated)
			require.Nil(t, step.Score)
			require.Len(t, env.Trajectory().Steps, 1)
		})
	}
}

// An agent that makes the verifier fail has ended its sandbox: that is its failure, not a void episode.
func TestAgentBlindsTheVerifier(t *testing.T) {
	trap := turn(call("", "put", `{"name":"trap","text":"x"}`))
	for _, c := range []struct {
		name    string
		diesAt  []string
		actions []envs.Action
		void    bool
	}{
		{"and answers", nil, []envs.Action{trap, done}, false},
		{"and runs out of turns", nil, slices.Repeat([]envs.Action{trap}, 4), false},
		{"by chance", []string{"1/state"}, []envs.Action{turn(getSeed), done}, true},
		{"without a call", []string{"1/state"}, []envs.Action{done}, true},
		{"where the verifier always fails", []string{"1/state", "2/state"}, []envs.Action{turn(getSeed), done}, true},
		{"where the fresh sandbox dies", []string{"1/state", "2/1"}, []envs.Action{trap, done}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &shops{diesAt: map[string]bool{}}
			for _, at := range c.diesAt {
				s.diesAt[at] = true
			}
			spec := specOf(s.provider(t))
			spec.Limits.Turns = 4
			env := reset(t, spec)
			var step envs.Step
			var err error
			for _, a := range c.actions {
				step, err = env.Step(t.Context(), a)
			}
			require.Len(t, env.Trajectory().Steps, len(c.actions))
			if c.void {
				requireVoid(t, env, sandboxes.FaultVerifier, err)
				return
			}
			require.NoError(t, err)
			require.True(t, step.Terminated)
			require.False(t, step.Truncated)
			tr := env.Trajectory()
			require.Equal(t, envs.EndKilled, tr.End)
			require.Equal(t, step, func() envs.Step { last := tr.Steps[len(tr.Steps)-1]; last.Score = tr.Score; return last }())
			require.Nil(t, tr.Void)
			require.Nil(t, tr.State)
			require.False(t, step.Score.Success)
			require.NoError(t, env.Close())
			require.EqualValues(t, 2, s.closed.Load())
		})
	}
}

func oneAnswer(context.Context, []sandboxes.Question) ([]sandboxes.Answer, error) {
	return make([]sandboxes.Answer, 1), nil
}

func TestLimits(t *testing.T) {
	waits := turn(call("w", "wait", `{"name":"a"}`))
	for _, c := range []struct {
		name    string
		limit   func(*envs.Limits)
		actions []envs.Action
		end     envs.End
		last    []envs.Status // of the last turn's results
	}{
		{"turns", func(l *envs.Limits) { l.Turns = 2 }, []envs.Action{turn(getSeed), turn(getSeed)}, envs.EndTurns, []envs.Status{envs.StatusOK}},
		{"calls", func(l *envs.Limits) { l.Calls = 2 }, []envs.Action{turn(getSeed), turn(getSeed), turn(getSeed)}, envs.EndCalls, []envs.Status{envs.StatusLimit}},
		{"calls that could not be sent", func(l *envs.Limits) { l.Calls = 1 }, []envs.Action{turn(call("", "none", `{}`)), turn(call("", "none", `{}`))}, envs.EndCalls, []envs.Status{envs.StatusLimit}},
		{"an answer after the last call is one", func(l *envs.Limits) { l.Calls = 2 }, []envs.Action{turn(getSeed), turn(getSeed), done}, envs.EndAnswer, nil},
		{"calls, within a turn", func(l *envs.Limits) { l.Calls = 2 }, []envs.Action{turn(getSeed, call("x", "none", `{}`), call("y", "put", `{"name":"a","text":"b"}`), call("z", "none", `{}`))},
			envs.EndCalls, []envs.Status{envs.StatusOK, envs.StatusUnknown, envs.StatusLimit, envs.StatusLimit}},
		{"seconds", func(l *envs.Limits) { l.Episode = 1500 * time.Millisecond }, []envs.Action{waits, waits}, envs.EndTime, []envs.Status{envs.StatusOK}},
		{"an answer in the last turn is one", func(l *envs.Limits) { l.Turns = 2 }, []envs.Action{turn(getSeed), done}, envs.EndAnswer, nil},
		{"an answer after the last second is one", func(l *envs.Limits) { l.Episode = 1500 * time.Millisecond }, []envs.Action{waits, done}, envs.EndAnswer, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &shops{}
				spec := specOf(s.provider(t))
				c.limit(&spec.Limits)
				env := reset(t, spec)
				step := play(t, env, c.actions...)
				tr := env.Trajectory()
				require.Equal(t, c.end, tr.End)
				require.Equal(t, c.end == envs.EndAnswer, step.Terminated)
				require.Equal(t, c.end != envs.EndAnswer, step.Truncated)
				require.NotNil(t, step.Score, "truncated is scored, too")
				require.Equal(t, c.end == envs.EndAnswer, step.Score.Success)
				require.Equal(t, `{"seed":"7"}`, tr.State.Hash, "a call over the limit is not run")
				var got []envs.Status
				for _, r := range step.Observation.Results {
					got = append(got, r.Status)
				}
				require.Equal(t, c.last, got)
				_, err := env.Step(t.Context(), done)
				require.ErrorIs(t, err, envs.ErrDone)
			})
		})
	}
}

// What one episode used up or sent is nothing to the next.
func TestEpisodesAreIndependent(t *testing.T) {
	s := &shops{}
	spec := specOf(s.provider(t))
	spec.Limits.Calls = 2
	env := reset(t, spec)
	play(t, env, turn(getSeed), turn(getSeed), turn(getSeed))
	require.Equal(t, envs.EndCalls, env.Trajectory().End)

	_, err := env.Reset(t.Context(), task)
	require.NoError(t, err)
	play(t, env, turn(getSeed), turn(getSeed), done)
	require.Equal(t, envs.EndAnswer, env.Trajectory().End)

	_, err = env.Reset(t.Context(), task)
	require.NoError(t, err)
	sent := s.reached.Load()
	play(t, env, turn(call("", "crash", `{"name":"none"}`)))
	require.Equal(t, envs.EndKilled, env.Trajectory().End)
	require.Equal(t, sent+2, s.reached.Load(), "the call, and its replay")
}

func TestToolsDifferBetweenEpisodes(t *testing.T) {
	lists := [][]sandboxes.Tool{oneTool, {{Name: "other", InputSchema: json.RawMessage(`{}`)}}, {}, {}}
	env := newEnv(t, specOf(&fake{tools: func(_ context.Context, n, _ int) ([]sandboxes.Tool, error) { return lists[n-1], nil }}))
	for i, want := range []envs.Status{envs.StatusUnknown, envs.StatusOK, envs.StatusUnknown, envs.StatusUnknown} {
		_, err := env.Reset(t.Context(), task)
		require.NoError(t, err)
		require.Equal(t, lists[i], env.Trajectory().Tools)
		require.Equal(t, want, play(t, env, turn(call("", "other", `{}`))).Observation.Results[0].Status)
	}
}

func TestClose(t *testing.T) {
	s := &shops{}
	env := reset(t, specOf(s.provider(t)))
	play(t, env, turn(getSeed))
	require.NoError(t, env.Close())
	require.NoError(t, env.Close())
	require.EqualValues(t, 1, s.closed.Load())
	require.Equal(t, sandboxes.FaultClosed, env.Trajectory().Void.Kind)
	requireUnscored(t, env)

	// A reset in mid-episode does the same.
	_, err := env.Reset(t.Context(), task)
	require.NoError(t, err)
	tr := env.Trajectory()
	_, err = env.Reset(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, sandboxes.FaultClosed, tr.Void.Kind)
	require.Nil(t, env.Trajectory().Void)
	require.EqualValues(t, 2, s.closed.Load())
}

func TestCloseFails(t *testing.T) {
	f := &fake{close: errors.New("cannot be removed")}
	env := reset(t, specOf(f))
	require.ErrorIs(t, env.Close(), f.close)
	require.NoError(t, env.Close())
}

func TestContextEnds(t *testing.T) {
	check := func(t *testing.T, env *envs.Env, ctx context.Context, err error) {
		t.Helper()
		require.ErrorIs(t, err, ctx.Err())
		_, isFault := errors.AsType[*sandboxes.Fault](err)
		require.False(t, isFault, "nobody's fault")
		require.Equal(t, sandboxes.FaultClosed, env.Trajectory().Void.Kind)
		requireUnscored(t, env)
	}
	t.Run("before a reset", func(t *testing.T) {
		env := newEnv(t, specOf((&shops{}).provider(t)))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := env.Reset(ctx, task)
		check(t, env, ctx, err)
	})
	t.Run("before a step", func(t *testing.T) {
		env := reset(t, specOf((&shops{}).provider(t)))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := env.Step(ctx, done)
		check(t, env, ctx, err)
		require.Empty(t, env.Trajectory().Steps)
	})
	for name, calls := range map[string][]envs.Call{
		"during a call":     {call("", "hang", `{}`)},
		"during many calls": {call("", "hang_reading", `{}`), call("", "wait", `{}`)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &shops{}
				env := reset(t, specOf(s.provider(t)))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
				defer cancel()
				_, err := env.Step(ctx, turn(calls...))
				check(t, env, ctx, err)
				require.EqualValues(t, 1, s.leases.Load(), "no replay")
				time.Sleep(time.Second) // for wait to end
			})
		})
	}
}

// Calls of one turn run at once only if all are read-only and no two are the same. Results come in call order.
func TestCallsOfOneTurn(t *testing.T) {
	wait := func(id string) envs.Call { return call(id, "wait", `{"name":"`+id+`"}`) }
	var nones []envs.Call
	for i := range 10 {
		nones = append(nones, call("n", "none", fmt.Sprint(i)))
	}
	for _, c := range []struct {
		name  string
		calls []envs.Call
		most  int64
		took  time.Duration
	}{
		{"read-only", []envs.Call{wait("a"), wait("b"), wait("c")}, 3, time.Second},
		{"one is not read-only", []envs.Call{wait("a"), wait("b"), call("c", "work", `{"name":"c"}`)}, 1, 3 * time.Second},
		{"two are the same", []envs.Call{wait("a"), wait("b"), wait("a")}, 1, 3 * time.Second},
		{"one is not sent", []envs.Call{wait("a"), call("b", "none", `{}`), wait("c"), call("d", "get", `{`)}, 2, time.Second},
		{"one is over the limit of calls", append(nones, wait("a"), wait("b"), wait("c")), 1, 2 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &shops{}
				env := reset(t, specOf(s.provider(t)))
				start := time.Now()
				step := play(t, env, turn(c.calls...))
				require.Equal(t, c.took, time.Since(start))
				require.Equal(t, c.most, s.most.Load())
				require.Len(t, step.Observation.Results, len(c.calls))
				for i, r := range step.Observation.Results {
					require.Equal(t, c.calls[i].ID, r.ID)
					require.Equal(t, c.calls[i].Name, r.Name)
					if r.Status == envs.StatusOK {
						require.Equal(t, r.ID, r.Text)
					}
				}
			})
		})
	}
}

// When one of several calls at once ends the sandbox, others die with it. The record must not depend on which is first.
func TestCallsAtOnceKillTheSandbox(t *testing.T) {
	for range 30 {
		s := &shops{}
		env := reset(t, specOf(s.provider(t)))
		step := play(t, env, turn(
			call("a", "find", `{"extra":1}`), call("b", "none", `{}`), getSeed, call("c", "crash", `{"name":"none"}`), call("d", "find", `{}`)))
		results := step.Observation.Results
		require.Len(t, results, 4, "what comes after the deadly call is not seen")
		require.Equal(t, envs.CallResult{ID: "a", Name: "find", Text: "found", Status: envs.StatusOK, Unknown: []string{"extra"}}, results[0])
		require.Equal(t, envs.StatusUnknown, results[1].Status)
		require.Equal(t, envs.CallResult{ID: "g", Name: "get", Text: `{"Name":"seed","Text":"7"}`, Status: envs.StatusOK}, results[2])
		require.Equal(t, envs.StatusKilled, results[3].Status)
		require.Equal(t, "c", results[3].ID)
		require.Equal(t, envs.EndKilled, env.Trajectory().End)
		require.False(t, step.Score.Success)
	}
}

// A death of calls at once that a replay does not repeat is nobody's reward.
func TestSandboxDiesDuringCallsAtOnce(t *testing.T) {
	s := &shops{diesAt: map[string]bool{"1/2": true}}
	env := reset(t, specOf(s.provider(t)))
	_, err := env.Step(t.Context(), turn(getSeed, call("", "find", `{}`)))
	requireVoid(t, env, sandboxes.FaultDied, err)
}

func TestTextBesideCallsIsNoAnswer(t *testing.T) {
	s := &shops{}
	env := reset(t, specOf(s.provider(t)))
	step := play(t, env, envs.Action{Text: "done", Calls: []envs.Call{getSeed}})
	require.False(t, step.Terminated)
	_, ok := env.Trajectory().Answer()
	require.False(t, ok)
	require.True(t, play(t, env, done).Terminated)
	text, ok := env.Trajectory().Answer()
	require.True(t, ok)
	require.Equal(t, "done", text)
}

func TestActionsAreRecordedSoThatTheyReadBack(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want envs.Action
	}{
		{"text that is not UTF-8", envs.Action{Text: "a\xffb", Reasoning: "\xc3"}, envs.Action{Text: "a\ufffdb", Reasoning: "\ufffd"}},
		{"an empty list of calls", envs.Action{Calls: []envs.Call{}}, envs.Action{}},
		{"a call without an id", turn(getSeed, call("", "get", `{}`)), turn(getSeed, call("call_1", "get", `{}`))},
		{"names that are not UTF-8", turn(call("\xff", "g\xff", `{}`)), turn(call("\ufffd", "g\ufffd", `{}`))},
		{"white space between tokens", turn(call("a", "get", "{ \"name\" :\n\t\"a b\" }")), turn(call("a", "get", `{"name":"a b"}`))},
		{"letters that HTML escapes", turn(call("a", "get", `{"name":"<&>"}`)), turn(call("a", "get", `{"name":"<&>"}`))},
		{"digits beyond floats", turn(call("a", "big", `{"n":9007199254740993}`)), turn(call("a", "big", `{"n":9007199254740993}`))},
		{"arguments that are not JSON", turn(call("a", "get", `{"name"`)), turn(envs.Call{ID: "a", Name: "get", Malformed: `{"name"`})},
		{"arguments that are not UTF-8", turn(call("a", "get", "{\"name\":\"\xff\"}")), turn(envs.Call{ID: "a", Name: "get", Malformed: "{\"name\":\"\ufffd\"}"})},
		{"arguments nested too deeply", turn(call("a", "get", strings.Repeat("[", 1001)+strings.Repeat("]", 1001))),
			turn(envs.Call{ID: "a", Name: "get", Malformed: strings.Repeat("[", 1001) + strings.Repeat("]", 1001)})},
		{"a broken call that is not UTF-8", turn(envs.Call{ID: "a", Name: "get", Malformed: "\xff"}), turn(envs.Call{ID: "a", Name: "get", Malformed: "\ufffd"})},
		{"a sampled turn", envs.Action{Text: "a", Sample: &envs.Sample{Tokens: []int32{1, 2}, LogProbs: []float32{-0.1, -math.MaxFloat32}, Version: 3}},
			envs.Action{Text: "a", Sample: &envs.Sample{Tokens: []int32{1, 2}, LogProbs: []float32{-0.1, -math.MaxFloat32}, Version: 3}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &shops{}
			env := reset(t, specOf(s.provider(t)))
			given := c.got
			given.Calls = slices.Clone(c.got.Calls)
			require.Equal(t, c.want, play(t, env, c.got).Action)
			require.Equal(t, given, c.got, "the agent's own action is left alone")
		})
	}
}

// A record reads back byte for byte, and its actions, played again, give the same record.
func TestTrajectoryRoundTrip(t *testing.T) {
	s := &shops{}
	env := reset(t, specOf(s.provider(t)))
	play(t, env,
		envs.Action{Text: "<first> & \u2028 a\xff", Reasoning: "hm", Calls: []envs.Call{
			call("", "put", "{\"name\": \"<a>\\u2028\u2028\",\n \"text\":\"é\\u00e9\\/\"}"), getSeed, call("x", "gett", `{`), call("", "get", `{"name":1,"b":2,"a":3}`)}},
		envs.Action{Calls: []envs.Call{call("", "big", `{"n":1000}`), call("", "find", `{"z":9007199254740993,"y":1.50}`), {Name: "get", Malformed: "\xff{"}},
			Sample: &envs.Sample{Tokens: []int32{5}, LogProbs: []float32{-0.30000001}, Version: 1}},
		turn(call("", "find", `{"name":`+strings.Repeat("[", 9990)+strings.Repeat("]", 9990)+`}`)),
		done)
	first := encode(t, env.Trajectory())
	var back envs.Trajectory
	require.NoError(t, json.Unmarshal(first, &back))
	require.Equal(t, string(first), string(encode(t, &back)))
	require.Equal(t, env.Trajectory().Steps[0].Action, back.Steps[0].Action)

	again := newEnv(t, specOf((&shops{}).provider(t)))
	_, err := again.Reset(t.Context(), back.Task)
	require.NoError(t, err)
	for _, step := range back.Steps {
		play(t, again, step.Action)
	}
	require.Equal(t, string(first), string(encode(t, again.Trajectory())))
}

func encode(t *testing.T, tr *envs.Trajectory) []byte {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	require.NoError(t, e.Encode(tr))
	return b.Bytes()
}

func TestSpecValidate(t *testing.T) {
	valid := specOf(&fake{})
	require.NoError(t, valid.Validate())
	for _, c := range []struct {
		name, want string
		change     func(*envs.Spec)
	}{
		{"no name", "name must have the form", func(s *envs.Spec) { s.Name = "" }},
		{"no version", "name must have the form", func(s *envs.Spec) { s.Name = "Shop" }},
		{"small letter", "name must have the form", func(s *envs.Spec) { s.Name = "shop-v0" }},
		{"leading zero", "name must have the form", func(s *envs.Spec) { s.Name = "Shop-v01" }},
		{"a line more", "name must have the form", func(s *envs.Spec) { s.Name = "Shop-v0\n" }},
		{"a path", "name must have the form", func(s *envs.Spec) { s.Name = "../Shop-v0" }},
		{"no reward", "no reward", func(s *envs.Spec) { s.Reward = nil }},
		{"no sandboxes", "no sandboxes", func(s *envs.Spec) { s.Sandboxes = nil }},
		{"no splits", "no splits", func(s *envs.Spec) { s.Splits = nil }},
		{"no turns", "every limit", func(s *envs.Spec) { s.Limits.Turns = 0 }},
		{"no calls", "every limit", func(s *envs.Spec) { s.Limits.Calls = 0 }},
		{"few result bytes", "every limit", func(s *envs.Spec) { s.Limits.ResultBytes = 99 }},
		{"no time for a call", "every limit", func(s *envs.Spec) { s.Limits.Call = 0 }},
		{"no time for an episode", "every limit", func(s *envs.Spec) { s.Limits.Episode = -1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := valid
			c.change(&s)
			require.ErrorContains(t, s.Validate(), c.want)
			_, err := envs.New(s)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestSpecSource(t *testing.T) {
	s := specOf(&fake{})
	s.Splits = map[string]envs.Source{"train": nil, "eval": envs.Generator(func(i int) envs.Task { return envs.Task{ID: fmt.Sprint(i)} })}
	require.Equal(t, slices.Sorted(maps.Keys(s.Splits)), s.SplitNames())
	src, err := s.Source("eval")
	require.NoError(t, err)
	require.Equal(t, "3", src.Task(3).ID)
	_, err = s.Source("test")
	require.ErrorContains(t, err, "[eval train]")
}
