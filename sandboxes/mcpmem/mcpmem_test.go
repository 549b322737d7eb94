package mcpmem_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
	"github.com/mcpgym/mcpgym/sandboxes/sandboxtest"
)

// counter is a world of one number.
type counter struct {
	mu     sync.Mutex
	n      int64
	closed int
}

func (c *counter) State(context.Context) (sandboxes.State, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return sandboxes.State{Hash: fmt.Sprint(c.n)}, nil
}

func (c *counter) Probe(_ context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answers := make([]sandboxes.Answer, len(ask))
	for i := range ask {
		answers[i].Value = fmt.Append(nil, c.n)
	}
	return answers, nil
}

var errClose = errors.New("cannot be closed")

func (c *counter) Close() error {
	c.closed++
	return errClose
}

type number struct {
	N int64 `json:"n"`
}

var readOnly = mcp.WithReadOnlyHintAnnotation(true)

func add(_ context.Context, c *counter, in number) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += in.N
	return number{c.n}, nil
}

func get(_ context.Context, c *counter, _ struct{}) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return number{c.n}, nil
}

func echo(_ context.Context, _ *counter, in number) (any, error) { return fmt.Sprint(in.N), nil }

// counters returns a provider whose server has the tools add, echo and get, and those given.
func counters(t testing.TB, more ...server.ServerTool) *mcpmem.Provider[*counter] {
	t.Helper()
	srv := server.NewMCPServer("counter", "1")
	n := mcp.WithInteger("n", mcp.Required())
	srv.AddTools(append([]server.ServerTool{
		mcpmem.Tool("add", "Adds n to the counter.", add, n),
		mcpmem.Tool("echo", "Says n.", echo, n, readOnly),
		mcpmem.Tool("get", "Reads the counter.", get, readOnly),
	}, more...)...)
	return provide(t, srv)
}

func provide(t testing.TB, srv *server.MCPServer) *mcpmem.Provider[*counter] {
	t.Helper()
	p, err := mcpmem.New(srv, sandboxes.Identity{"counter": "1"}, func(w sandboxes.World) (*counter, error) {
		if w.Seed == 404 {
			return nil, errors.New("no such world")
		}
		return &counter{n: int64(w.Seed)}, nil
	})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func lease(t testing.TB, p sandboxes.Provider, seed uint64) sandboxes.Sandbox {
	t.Helper()
	box, err := p.Lease(t.Context(), sandboxes.World{Seed: seed})
	require.NoError(t, err)
	return box
}

func call(t testing.TB, box sandboxes.Sandbox, name, args string) sandboxes.Result {
	t.Helper()
	r, err := box.Session().Call(t.Context(), name, json.RawMessage(args))
	require.NoError(t, err)
	return r
}

func requireFault(t testing.TB, kind sandboxes.FaultKind, err error) {
	t.Helper()
	f, ok := errors.AsType[*sandboxes.Fault](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, kind, f.Kind, "%v", err)
}

// plain is a counter without anything to close.
type plain struct{ *counter }

func (plain) Close() {}

func TestContract(t *testing.T) {
	srv := server.NewMCPServer("counter", "1")
	srv.AddTools(
		mcpmem.Tool("get", "Reads the counter.", func(ctx context.Context, c plain, in struct{}) (any, error) { return get(ctx, c.counter, in) }, readOnly),
		mcpmem.Tool("next", "Adds one to the counter.", func(ctx context.Context, c plain, _ struct{}) (any, error) { return add(ctx, c.counter, number{1}) }))
	sandboxtest.Check(t, func(t *testing.T) sandboxes.Provider {
		p, err := mcpmem.New(srv, nil, func(w sandboxes.World) (plain, error) { return plain{&counter{n: int64(w.Seed)}}, nil })
		require.NoError(t, err)
		return p
	}, sandboxes.World{Seed: 1}, sandboxes.World{Seed: 2})
}

func TestCall(t *testing.T) {
	fail := mcpmem.Tool("fail", "Fails.", func(context.Context, *counter, struct{}) (any, error) { return nil, errors.New("no such city") })
	unencodable := mcpmem.Tool("unencodable", "Returns what is not JSON.", func(context.Context, *counter, struct{}) (any, error) { return func() {}, nil })
	p := counters(t, fail, unencodable)
	require.Equal(t, sandboxes.Identity{"counter": "1"}, p.Identity())
	box := lease(t, p, 1)
	for _, c := range []struct {
		name, tool, args string
		want             sandboxes.Result // of an error, part of the text
	}{
		{"a value is shown as JSON", "add", `{"n":2}`, sandboxes.Result{Text: `{"n":3}`}},
		{"a text is shown as it is", "echo", `{"n":-7}`, sandboxes.Result{Text: "-7"}},
		{"a 64-bit integer arrives exact", "echo", `{"n":9007199254740993}`, sandboxes.Result{Text: "9007199254740993"}},
		{"no arguments are an empty object", "get", ``, sandboxes.Result{Text: `{"n":3}`}},
		{"an error of the tool", "fail", `{}`, sandboxes.Result{IsError: true, Text: "no such city"}},
		{"an unknown argument", "get", `{"m":1}`, sandboxes.Result{IsError: true, Text: `arguments: json: unknown field "m"`}},
		{"arguments that are not JSON", "get", `{`, sandboxes.Result{IsError: true, Code: mcp.PARSE_ERROR, Text: "arguments are not JSON"}},
		{"an unknown tool", "gte", `{}`, sandboxes.Result{IsError: true, Code: mcp.INVALID_PARAMS, Text: "'gte'"}},
		{"a name with quotes", `g"`, `{}`, sandboxes.Result{IsError: true, Code: mcp.INVALID_PARAMS, Text: `'g"'`}},
		{"a value that is not JSON", "unencodable", `{}`, sandboxes.Result{IsError: true, Code: mcp.INTERNAL_ERROR, Text: "encode the result of unencodable"}},
		{"the session is alive after all that", "get", `{}`, sandboxes.Result{Text: `{"n":3}`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := call(t, box, c.tool, c.args)
			if c.want.IsError {
				require.Contains(t, got.Text, c.want.Text)
				got.Text = c.want.Text
			}
			require.Equal(t, c.want, got)
		})
	}
	require.Equal(t, `{"n":1}`, call(t, lease(t, p, 1), "get", "{}").Text, "each lease has a world of its own")
}

// A call that hangs returns with its context; the session goes on.
func TestHandlerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		hang := mcpmem.Tool("hang", "Ignores its context.", func(context.Context, *counter, struct{}) (any, error) {
			<-release
			return "at last", nil
		})
		box := lease(t, counters(t, hang), 1)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		_, err := box.Session().Call(ctx, "hang", json.RawMessage("{}"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.Equal(t, `{"n":1}`, call(t, box, "get", "{}").Text)
		close(release)
	})
}

// late is a context that can end unnoticed: Err says so, Done does not.
type late struct {
	context.Context
	over atomic.Bool
}

func (l *late) Err() error {
	if l.over.Load() {
		return context.Canceled
	}
	return nil
}

// An answer that comes when the context has ended, such as the handler's own word that it has, is no answer. Else the
// outcome would depend on who is first.
func TestAnswerAfterTheContextEnded(t *testing.T) {
	ctx := &late{Context: t.Context()}
	slow := mcpmem.Tool("slow", "Answers too late.", func(context.Context, *counter, struct{}) (any, error) {
		ctx.over.Store(true)
		return nil, context.Canceled
	})
	box := lease(t, counters(t, slow), 1)
	_, err := box.Session().Call(ctx, "slow", json.RawMessage("{}"))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, `{"n":1}`, call(t, box, "get", "{}").Text)
}

func TestHandlerThatPanics(t *testing.T) {
	crash := mcpmem.Tool("crash", "Crashes.", func(context.Context, *counter, struct{}) (any, error) { panic("index out of range") })
	p := counters(t, crash)
	box, other := lease(t, p, 1), lease(t, p, 1)
	_, err := box.Session().Call(t.Context(), "crash", json.RawMessage("{}"))
	requireFault(t, sandboxes.FaultDied, err)
	require.ErrorContains(t, err, "index out of range")
	_, err = box.Session().Call(t.Context(), "get", json.RawMessage("{}"))
	requireFault(t, sandboxes.FaultDied, err)
	_, err = box.Session().Tools(t.Context())
	requireFault(t, sandboxes.FaultDied, err)
	require.Equal(t, `{"n":1}`, call(t, other, "get", "{}").Text)
	require.Equal(t, `{"n":1}`, call(t, lease(t, p, 1), "get", "{}").Text)
}

func TestReplyThatCannotBeEncoded(t *testing.T) {
	bad := server.ServerTool{Tool: mcp.NewTool("bad"), Handler: func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{StructuredContent: func() {}}, nil
	}}
	box := lease(t, counters(t, bad), 1)
	_, err := box.Session().Call(t.Context(), "bad", json.RawMessage("{}"))
	requireFault(t, sandboxes.FaultProtocol, err)
	require.Equal(t, `{"n":1}`, call(t, box, "get", "{}").Text)
}

func TestInitializeFails(t *testing.T) {
	hooks := &server.Hooks{}
	hooks.AddOnRequestInitialization(func(context.Context, any, any) error { return errors.New("not today") })
	_, err := mcpmem.New(server.NewMCPServer("counter", "1", server.WithHooks(hooks)), nil, func(sandboxes.World) (*counter, error) { return nil, nil })
	requireFault(t, sandboxes.FaultProtocol, err)
	require.ErrorContains(t, err, "not today")
}

func TestWorldThatCannotBeMade(t *testing.T) {
	_, err := counters(t).Lease(t.Context(), sandboxes.World{Seed: 404})
	requireFault(t, sandboxes.FaultLease, err)
	require.ErrorContains(t, err, "no such world")
}

func TestToolsOfManyPages(t *testing.T) {
	for _, n := range []int{1, 2, 3, 6, 7} { // pages of three
		srv := server.NewMCPServer("many", "1", server.WithPaginationLimit(3))
		var want []string
		for i := range n {
			name := fmt.Sprintf("tool_%d", i)
			want = append(want, name)
			srv.AddTools(mcpmem.Tool(name, "One of many.", get, readOnly))
		}
		p := provide(t, srv)
		var wg sync.WaitGroup
		for range 4 { // at once, since all leases share what was listed before
			box := lease(t, p, 1)
			wg.Go(func() {
				for range 20 {
					tools, err := box.Session().Tools(t.Context())
					var got []string
					for _, tool := range tools {
						got = append(got, tool.Name)
					}
					if err != nil || !slices.Equal(got, want) {
						t.Errorf("of %d tools: %v, %v", n, got, err)
					}
				}
			})
		}
		wg.Wait()
	}
}

// A server may change its tools; the list that is kept must not hide it.
func TestEntity(t *testing.T) {
	p := counters(t, mcpmem.Tool("find", "Finds.", get, mcp.WithString("id", mcpmem.Entity), mcp.WithString("text")))
	tools, err := lease(t, p, 1).Session().Tools(t.Context())
	require.NoError(t, err)
	i := slices.IndexFunc(tools, func(o sandboxes.Tool) bool { return o.Name == "find" })
	require.JSONEq(t, `{"type":"object","additionalProperties":false,"required":[],"properties":{"id":{"type":"string","x-entity":true},"text":{"type":"string"}}}`, string(tools[i].InputSchema))
}

func TestToolsThatChange(t *testing.T) {
	srv := server.NewMCPServer("counter", "1")
	srv.AddTools(mcpmem.Tool("get", "Reads the counter.", get))
	box := lease(t, provide(t, srv), 1)
	tools, err := box.Session().Tools(t.Context())
	require.NoError(t, err)
	require.Len(t, tools, 1)
	again, err := box.Session().Tools(t.Context())
	require.NoError(t, err)
	require.Same(t, &tools[0], &again[0], "an unchanged list is the same list")
	srv.AddTools(mcpmem.Tool("add", "Adds n to the counter.", add))
	tools, err = box.Session().Tools(t.Context())
	require.NoError(t, err)
	require.Len(t, tools, 2)
}

func TestConcurrentCallsGetTheirOwnReplies(t *testing.T) {
	var running atomic.Int32
	all := make(chan struct{})
	meet := mcpmem.Tool("meet", "Waits for seven others, then says n.", func(_ context.Context, _ *counter, in number) (any, error) {
		if running.Add(1) == 8 {
			close(all)
		}
		<-all
		return fmt.Sprint(in.N), nil
	}, mcp.WithInteger("n"), readOnly)
	box := lease(t, counters(t, meet), 1)
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for _, tool := range []string{"meet", "echo", "echo", "echo"} {
				r, err := box.Session().Call(t.Context(), tool, fmt.Appendf(nil, `{"n":%d}`, n))
				if err != nil || r.Text != fmt.Sprint(n) {
					t.Errorf("%s of %d gives %+v, %v", tool, n, r, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestStateAndProbes(t *testing.T) {
	box := lease(t, counters(t), 5)
	s, err := sandboxes.StateOf(t.Context(), box)
	require.NoError(t, err)
	require.Equal(t, sandboxes.State{Hash: "5"}, s)
	answers, err := sandboxes.ProbeOf(t.Context(), box, make([]sandboxes.Question, 2))
	require.NoError(t, err)
	require.Equal(t, []sandboxes.Answer{{Value: json.RawMessage("5")}, {Value: json.RawMessage("5")}}, answers)

	p, err := mcpmem.New(server.NewMCPServer("bare", "1"), nil, func(sandboxes.World) (int, error) { return 0, nil })
	require.NoError(t, err)
	bare := lease(t, p, 1)
	_, err = sandboxes.StateOf(t.Context(), bare)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = sandboxes.ProbeOf(t.Context(), bare, nil)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// A world that can be closed is closed once: by its sandbox, or by the provider.
func TestClose(t *testing.T) {
	var worlds []*counter
	p, err := mcpmem.New(server.NewMCPServer("counter", "1"), nil, func(sandboxes.World) (*counter, error) {
		worlds = append(worlds, &counter{})
		return worlds[len(worlds)-1], nil
	})
	require.NoError(t, err)
	box, left := lease(t, p, 1), lease(t, p, 2)
	require.ErrorIs(t, box.Close(), errClose)
	require.NoError(t, box.Close())
	require.ErrorIs(t, p.Close(), errClose)
	require.NoError(t, p.Close())
	require.NoError(t, left.Close())
	require.Equal(t, 1, worlds[0].closed)
	require.Equal(t, 1, worlds[1].closed)
	_, err = left.Session().Call(t.Context(), "get", json.RawMessage("{}"))
	requireFault(t, sandboxes.FaultClosed, err)
}

func TestCasesIDEcho(t *testing.T) {
	srv := server.NewMCPServer("counter", "1")
	casetest.Run(t, "id-echo", func(t *testing.T, c casetest.Case) {
		var in struct{ Request json.RawMessage }
		c.In(t, &in)
		data, err := json.Marshal(srv.HandleMessage(t.Context(), in.Request))
		require.NoError(t, err)
		var reply sandboxes.Reply
		require.NoError(t, json.Unmarshal(data, &reply))
		c.Check(t, map[string]any{"response_id": reply.ID})
	})
}

// BenchmarkLease measures a world's way from nothing to its tools being known.
func BenchmarkLease(b *testing.B) {
	p := counters(b)
	b.ReportAllocs()
	for b.Loop() {
		box, err := p.Lease(b.Context(), sandboxes.World{Seed: 1})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := box.Session().Tools(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := box.Close(); err != nil && !errors.Is(err, errClose) {
			b.Fatal(err)
		}
	}
}

// BenchmarkCall measures one tool call, from arguments to text.
func BenchmarkCall(b *testing.B) {
	box := lease(b, counters(b), 1)
	args := json.RawMessage(`{"n":1}`)
	b.ReportAllocs()
	for b.Loop() {
		if r, err := box.Session().Call(b.Context(), "add", args); err != nil || r.IsError {
			b.Fatal(r, err)
		}
	}
}

func TestHandlerThatSaysMore(t *testing.T) {
	p := counters(t,
		mcpmem.Tool("now", "Reads the clock.", func(context.Context, *counter, struct{}) (any, error) {
			r := mcp.NewToolResultText("noon")
			r.Meta = mcp.NewMetaFromMap(map[string]any{sandboxes.VolatileMeta: true})
			return r, nil
		}),
		mcpmem.Tool("lose", "Loses the world.", func(context.Context, *counter, struct{}) (any, error) {
			return nil, fmt.Errorf("ask it: %w", &sandboxes.Fault{Kind: sandboxes.FaultLost, Op: "ask"})
		}))
	box := p.Serve(&counter{n: 7})
	require.Equal(t, `{"n":7}`, call(t, box, "get", "{}").Text)
	require.Equal(t, sandboxes.Result{Text: "noon", Volatile: true}, call(t, box, "now", "{}"))
	for _, name := range []string{"lose", "get"} {
		_, err := box.Session().Call(t.Context(), name, json.RawMessage("{}"))
		requireFault(t, sandboxes.FaultLost, err)
	}
	require.ErrorIs(t, p.Close(), errClose, "the provider closes what it serves")
}
