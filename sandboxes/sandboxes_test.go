package sandboxes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
	"github.com/mcpgym/mcpgym/sandboxes/sandboxtest"
)

// maker opens sandboxes for a pool, and remembers them.
type maker struct {
	fail  error         // instead of a sandbox
	block chan struct{} // where set, open waits for it

	mu    sync.Mutex
	boxes []*box
}

func (m *maker) open(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
	if m.block != nil {
		select {
		case <-m.block:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return nil, m.fail
	}
	b := &box{world: w}
	m.boxes = append(m.boxes, b)
	return b, nil
}

func (m *maker) opened() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.boxes)
}

// allClosed says whether nothing that was opened is left.
func (m *maker) allClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !slices.ContainsFunc(m.boxes, func(b *box) bool { return b.closed.Load() == 0 })
}

// box is a sandbox with one tool that does nothing.
type box struct {
	world  sandboxes.World
	closed atomic.Int32
	fail   error
	dead   atomic.Bool
}

func (b *box) Alive() bool { return !b.dead.Load() }

func (b *box) Session() sandboxes.Session { return b }

func (b *box) Close() error {
	b.closed.Add(1)
	return b.fail
}

func (b *box) State(context.Context) (sandboxes.State, error) {
	return sandboxes.State{Hash: fmt.Sprint(b.world.Seed)}, nil
}

func (b *box) Tools(ctx context.Context) ([]sandboxes.Tool, error) {
	return []sandboxes.Tool{{Name: "look", Description: "Looks.", InputSchema: json.RawMessage(`{}`), ReadOnly: true}}, ctx.Err()
}

func (b *box) Call(ctx context.Context, name string, args json.RawMessage) (sandboxes.Result, error) {
	switch {
	case ctx.Err() != nil:
		return sandboxes.Result{}, ctx.Err()
	case b.closed.Load() > 0:
		return sandboxes.Result{}, &sandboxes.Fault{Kind: sandboxes.FaultClosed, Op: "call", Msg: "closed"}
	case name != "look" || !json.Valid(args):
		return sandboxes.Result{IsError: true}, nil
	}
	return sandboxes.Result{Text: fmt.Sprintf("%d %s", b.world.Seed, b.world.Setup)}, nil
}

func worlds(seeds ...uint64) []sandboxes.World {
	all := make([]sandboxes.World, len(seeds))
	for i, s := range seeds {
		all[i].Seed = s
	}
	return all
}

func TestPoolContract(t *testing.T) {
	sandboxtest.Check(t, func(*testing.T) sandboxes.Provider {
		return sandboxes.NewPool(nil, 4, new(maker).open)
	}, worlds(1, 2)...)
}

func TestPoolLeasesWhatWasPrefetched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{}
		id := sandboxes.Identity{"world": "2"}
		p := sandboxes.NewPool(id, 2, m.open)
		require.Equal(t, id, p.Identity())
		setup := sandboxes.World{Seed: 1, Setup: json.RawMessage(`{"n":1}`)}
		p.Prefetch(setup, sandboxes.World{Seed: 2}, sandboxes.World{Seed: 3})
		synctest.Wait()
		require.Equal(t, 2, p.Ready(), "no more than the pool's size are made ahead")
		require.Equal(t, 2, m.opened())

		plain, err := p.Lease(t.Context(), sandboxes.World{Seed: 1})
		require.NoError(t, err)
		r, err := plain.Session().Call(t.Context(), "look", json.RawMessage("{}"))
		require.NoError(t, err)
		require.Equal(t, "1 ", r.Text)
		synctest.Wait()
		require.Equal(t, 3, m.opened(), "a world with the same seed and another setup is another world")
		require.Equal(t, 2, p.Ready())

		l, err := p.Lease(t.Context(), setup)
		require.NoError(t, err)
		r, err = l.Session().Call(t.Context(), "look", json.RawMessage("{}"))
		require.NoError(t, err)
		require.Equal(t, `1 {"n":1}`, r.Text)
		synctest.Wait()
		require.Equal(t, 4, m.opened(), "the lease takes what is there, and the worker makes the next")
		require.Equal(t, 2, p.Ready())
		require.NoError(t, p.Close())
		require.True(t, m.allClosed())
	})
}

func TestPoolForgetsWhatIsAnnouncedTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{}
		p := sandboxes.NewPool(nil, 1, m.open)
		defer p.Close()
		p.Prefetch(worlds(0, 1, 2, 3, 4, 5)...)
		for seed := range uint64(4) {
			synctest.Wait()
			require.Equal(t, 1, p.Ready())
			_, err := p.Lease(t.Context(), sandboxes.World{Seed: seed})
			require.NoError(t, err)
		}
		synctest.Wait()
		require.Zero(t, p.Ready())
		require.Equal(t, 4, m.opened())
	})
}

func TestPoolForgetsWhatALeaseHasMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{}
		p := sandboxes.NewPool(nil, 1, m.open)
		defer p.Close()
		p.Prefetch(worlds(0, 1, 2, 3)...)
		for seed := range uint64(4) {
			synctest.Wait()
			_, err := p.Lease(t.Context(), sandboxes.World{Seed: 3 - seed})
			require.NoError(t, err)
		}
		synctest.Wait()
		require.Equal(t, 4, m.opened(), "each world is made once, ahead or by its lease")
		require.Zero(t, p.Ready())
	})
}

// A lease of the world that the worker is making takes that one. A second one would stay in the pool for ever.
func TestPoolLeaseWaitsForTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{block: make(chan struct{})}
		p := sandboxes.NewPool(nil, 1, m.open)
		defer p.Close()
		p.Prefetch(worlds(1)...)
		synctest.Wait()

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := p.Lease(ctx, sandboxes.World{Seed: 1})
		require.ErrorIs(t, err, context.Canceled)

		leased := make(chan error)
		go func() {
			_, err := p.Lease(t.Context(), sandboxes.World{Seed: 1})
			leased <- err
		}()
		synctest.Wait()
		close(m.block)
		require.NoError(t, <-leased)
		synctest.Wait()
		require.Equal(t, 1, m.opened())
		require.Zero(t, p.Ready())
	})
}

func TestPoolLeaseAfterTheWorkerFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{block: make(chan struct{}), fail: errors.New("no disk")}
		p := sandboxes.NewPool(nil, 1, m.open)
		defer p.Close()
		p.Prefetch(worlds(1)...)
		synctest.Wait()
		leased := make(chan error)
		go func() {
			_, err := p.Lease(t.Context(), sandboxes.World{Seed: 1})
			leased <- err
		}()
		synctest.Wait()
		close(m.block)
		err := <-leased
		f, ok := errors.AsType[*sandboxes.Fault](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, sandboxes.FaultLease, f.Kind)
		require.ErrorIs(t, err, m.fail)
	})
}

func TestPoolLeaseDuringClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{}
		opening, goOn := make(chan struct{}), make(chan struct{})
		p := sandboxes.NewPool(nil, 1, func(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
			close(opening)
			<-goOn // the pool is closed now
			return m.open(ctx, w)
		})
		leased := make(chan error)
		go func() {
			_, err := p.Lease(t.Context(), sandboxes.World{})
			leased <- err
		}()
		<-opening
		require.NoError(t, p.Close())
		close(goOn)
		f, ok := errors.AsType[*sandboxes.Fault](<-leased)
		require.True(t, ok)
		require.Equal(t, sandboxes.FaultLease, f.Kind)
		require.Equal(t, 1, m.opened())
		require.True(t, m.allClosed(), "a sandbox that came too late is closed")
	})
}

func TestPoolClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{}
		p := sandboxes.NewPool(nil, 2, m.open)
		p.Prefetch(worlds(1, 2)...)
		synctest.Wait()
		leased, err := p.Lease(t.Context(), sandboxes.World{Seed: 1})
		require.NoError(t, err)
		returned, err := p.Lease(t.Context(), sandboxes.World{Seed: 3})
		require.NoError(t, err)
		require.NoError(t, returned.Close())
		m.boxes[0].fail = errors.New("cannot be removed")

		err = p.Close()
		require.ErrorIs(t, err, m.boxes[0].fail)
		require.True(t, m.allClosed(), "ready and leased sandboxes are closed")
		for _, b := range m.boxes {
			require.EqualValues(t, 1, b.closed.Load(), "of world %d", b.world.Seed)
		}
		require.NoError(t, p.Close())
		require.ErrorIs(t, leased.Close(), m.boxes[0].fail)
		p.Prefetch(worlds(4)...)
		_, err = p.Lease(t.Context(), sandboxes.World{Seed: 4})
		f, ok := errors.AsType[*sandboxes.Fault](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, sandboxes.FaultLease, f.Kind)
		require.Equal(t, 3, m.opened())
	})
}

// What has died in the pool is not handed out, and leaves its place to others.
func TestPoolBuriesTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{}
		p := sandboxes.NewPool(nil, 3, m.open)
		defer p.Close()
		p.Prefetch(worlds(1, 1, 2, 3, 4)...)
		synctest.Wait()
		require.Equal(t, 3, p.Ready())
		for _, b := range m.boxes { // those of world 1, and that of world 2
			b.dead.Store(true)
			b.fail = errors.New("the server has died")
		}
		l, err := p.Lease(t.Context(), sandboxes.World{Seed: 1})
		require.NoError(t, err)
		synctest.Wait()
		for _, b := range m.boxes[:3] {
			require.EqualValues(t, 1, b.closed.Load(), "of world %d", b.world.Seed)
		}
		require.Equal(t, 2, p.Ready(), "worlds 3 and 4")
		require.Equal(t, 6, m.opened(), "the lease is a new one")
		require.NoError(t, l.Close())
	})
}

func TestAliveOf(t *testing.T) {
	b := &box{}
	require.True(t, sandboxes.AliveOf(b))
	b.dead.Store(true)
	require.False(t, sandboxes.AliveOf(b))
	require.True(t, sandboxes.AliveOf(struct{}{}), "what has no opinion")
}

// TestPoolRace has nothing to say but under the race detector: everything at once, and then the pool is closed.
func TestPoolRace(t *testing.T) {
	m := &maker{}
	p := sandboxes.NewPool(nil, 3, m.open)
	var wg sync.WaitGroup
	for g := range uint64(8) {
		wg.Go(func() {
			for i := range uint64(200) {
				p.Prefetch(worlds(i%5, (i+g)%7)...)
				l, err := p.Lease(t.Context(), sandboxes.World{Seed: i % 5})
				if err != nil {
					if _, ok := errors.AsType[*sandboxes.Fault](err); !ok {
						t.Error(err)
					}
					return
				}
				if i%3 > 0 {
					if err := l.Close(); err != nil {
						t.Error(err)
					}
				}
				if g == 0 && i == 150 {
					if err := p.Close(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	require.True(t, m.allClosed())
	require.Zero(t, p.Ready())
}

func TestPoolPassesStateAndProbesOn(t *testing.T) {
	p := sandboxes.NewPool(nil, 1, new(maker).open)
	defer p.Close()
	l, err := p.Lease(t.Context(), sandboxes.World{Seed: 7})
	require.NoError(t, err)
	s, err := sandboxes.StateOf(t.Context(), l)
	require.NoError(t, err)
	require.Equal(t, "7", s.Hash)
	_, err = sandboxes.ProbeOf(t.Context(), l, []sandboxes.Question{{Kind: "sql", Text: "select 1"}})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = sandboxes.StateOf(t.Context(), struct{}{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestCasesPerf(t *testing.T) {
	// Three worlds cannot be made; the pool still fills all its four places.
	t.Run("C296", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := &maker{fail: errors.New("reset fails")}
			p := sandboxes.NewPool(nil, 4, m.open)
			defer p.Close()
			p.Prefetch(worlds(1, 2, 3)...)
			synctest.Wait()
			for seed := range uint64(3) {
				_, err := p.Lease(t.Context(), sandboxes.World{Seed: seed + 1})
				require.ErrorIs(t, err, m.fail)
			}
			require.Zero(t, p.Ready())
			m.mu.Lock()
			m.fail = nil
			m.mu.Unlock()
			p.Prefetch(worlds(1, 2, 3, 4, 5)...)
			synctest.Wait()
			require.Equal(t, 4, p.Ready())
		})
	})
}

func TestFault(t *testing.T) {
	cause := errors.New("broken pipe")
	f := sandboxes.NewFault(sandboxes.FaultLost, "call add", cause)
	require.EqualError(t, f, "call add: sandbox fault (lost): broken pipe")
	require.ErrorIs(t, f, cause)
	require.Same(t, f, sandboxes.NewFault(sandboxes.FaultLease, "lease", fmt.Errorf("more: %w", f)), "the first boundary names the fault")

	data, err := json.Marshal(f)
	require.NoError(t, err)
	require.JSONEq(t, `{"kind":"lost","op":"call add","msg":"broken pipe"}`, string(data))
	var back sandboxes.Fault
	require.NoError(t, json.Unmarshal(data, &back))
	require.Equal(t, f.Error(), back.Error())
}

func TestInterrupted(t *testing.T) {
	live := t.Context()
	cancelled, cancel := context.WithCancel(live)
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want bool
	}{
		{"no error", cancelled, nil, false},
		{"the context's own", cancelled, fmt.Errorf("call: %w", context.Canceled), true},
		{"another's context", live, context.Canceled, false},
		{"another error", cancelled, errors.New("died"), false},
		{"another end", cancelled, context.DeadlineExceeded, false},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, sandboxes.Interrupted(c.ctx, c.err)) })
	}
}

func TestCasesIDMatch(t *testing.T) {
	casetest.Run(t, "id-match", func(t *testing.T, c casetest.Case) {
		var in struct{ Sent, Got json.RawMessage }
		c.In(t, &in)
		c.Check(t, map[string]any{"matched": sandboxes.SameID(in.Sent, in.Got)})
	})
}

func TestSameID(t *testing.T) {
	for _, c := range []struct {
		sent, got string
		want      bool
	}{
		{`1`, `1`, true},
		{`1`, `"1"`, true},
		{`"a"`, `"a"`, true},
		{`"a/b"`, `"a\/b"`, true},
		{`1`, `1.0`, true},
		{`1`, `2`, false},
		{`1`, `11`, false},
		{`9007199254740993`, `9007199254740992`, false},
		{`"a"`, `"A"`, false},
		{`0`, `null`, false},
		{`"null"`, `null`, false},
		{`0`, ``, false},
		{`1`, `[1]`, false},
		{`1`, `true`, false},
		{`true`, `[1]`, false},
	} {
		require.Equal(t, c.want, sandboxes.SameID(json.RawMessage(c.sent), json.RawMessage(c.got)), "sent %s, got %s", c.sent, c.got)
	}
}

func TestCasesPagination(t *testing.T) {
	casetest.Run(t, "pagination", func(t *testing.T, c casetest.Case) {
		var in struct {
			Pages []struct {
				Tools []string
				Next  *string
			}
			RepeatLast bool `json:"repeat_last"`
		}
		c.In(t, &in)
		var want struct {
			Error          string
			RequestsAtMost int `json:"requests_at_most"`
		}
		require.NoError(t, json.Unmarshal([]byte(c.Want), &want))
		require.NotEmpty(t, in.Pages)

		requests := 0
		var expected *string // the cursor that leads to the next page
		tools, err := sandboxes.ListAll(t.Context(), func(_ context.Context, cursor *string) (sandboxes.Page, error) {
			i := requests
			requests++
			require.Less(t, requests, 1000, "listing does not end")
			require.Equal(t, expected, cursor, "request %d", i)
			if in.RepeatLast {
				i = min(i, len(in.Pages)-1)
			}
			require.Less(t, i, len(in.Pages), "a page after the last")
			page := sandboxes.Page{Next: in.Pages[i].Next}
			for _, name := range in.Pages[i].Tools {
				page.Tools = append(page.Tools, sandboxes.Tool{Name: name})
			}
			expected = page.Next
			return page, nil
		})
		got := map[string]any{"requests_at_most": max(requests, want.RequestsAtMost)}
		if err != nil {
			_, ok := errors.AsType[*sandboxes.Fault](err)
			require.True(t, ok, "%v", err)
			got["error"] = err.Error()
			if want.Error != "" && strings.Contains(err.Error(), want.Error) {
				got["error"] = want.Error
			}
		} else {
			names := []string{}
			for _, tool := range tools {
				names = append(names, tool.Name)
			}
			got["tools"] = names
		}
		c.Check(t, got)
	})
}

func TestListAllReturnsThePagesError(t *testing.T) {
	fault := &sandboxes.Fault{Kind: sandboxes.FaultDied, Op: "tools/list"}
	_, err := sandboxes.ListAll(t.Context(), func(context.Context, *string) (sandboxes.Page, error) {
		return sandboxes.Page{}, fault
	})
	require.Same(t, fault, err)
}

func TestDecodeReply(t *testing.T) {
	for _, c := range []struct {
		name, data, want string // want is part of the fault's message, empty where there is none
		result           sandboxes.Result
	}{
		{"a result", `{"jsonrpc":"2.0","id":3,"result":{"content":[{"type":"text","text":"hi"}]}}`, "", sandboxes.Result{Text: "hi"}},
		{"an error of the protocol is an error result", `{"jsonrpc":"2.0","id":3,"error":{"code":-32602,"message":"no such tool"}}`, "",
			sandboxes.Result{IsError: true, Code: -32602, Text: "no such tool"}},
		{"a volatile result", `{"jsonrpc":"2.0","id":"3","result":{"content":[],"_meta":{"mcpgym/volatile":true}}}`, "", sandboxes.Result{Volatile: true}},
		{"another id", `{"jsonrpc":"2.0","id":4,"result":{}}`, "id 4", sandboxes.Result{}},
		{"neither result nor error", `{"jsonrpc":"2.0","id":3}`, "neither", sandboxes.Result{}},
		{"not JSON", `{"jsonrpc`, "not JSON-RPC", sandboxes.Result{}},
		{"an error that is none", `{"jsonrpc":"2.0","id":3,"error":"no"}`, "none of JSON-RPC", sandboxes.Result{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := sandboxes.DecodeReply("call add", json.RawMessage("3"), []byte(c.data))
			if c.want == "" {
				require.NoError(t, err)
				require.Equal(t, c.result, r.ToolResult())
				return
			}
			f, ok := errors.AsType[*sandboxes.Fault](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, sandboxes.FaultProtocol, f.Kind)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestDecodeMessage(t *testing.T) {
	for _, c := range []struct {
		name, data, want string // want is part of the error's text, empty where there is none
		m                sandboxes.Message
	}{
		{"a request", ` {"jsonrpc": "2.0", "id" : "a\"}", "method":"ping" } `, "", sandboxes.Message{ID: []byte(`"a\"}"`), Method: "ping"}},
		{"a notification", `{"jsonrpc":"2.0","method":"n","params":{"a":[1,"]",{"b":{}}]}}`, "",
			sandboxes.Message{Method: "n", Params: []byte(`{"a":[1,"]",{"b":{}}]}`)}},
		{"a result", `{"id":-1.5e3,"result":true,"jsonrpc":"2.0"}`, "", sandboxes.Message{ID: []byte("-1.5e3"), Result: []byte("true")}},
		{"a result and no error", `{"jsonrpc":"2.0","id":1,"result":[],"error":null}`, "", sandboxes.Message{ID: []byte("1"), Result: []byte("[]")}},
		{"an error", `{"jsonrpc":"2.0","id":null,"error":{"code":1}}`, "", sandboxes.Message{ID: []byte("null"), Error: []byte(`{"code":1}`)}},
		{"names are exact", `{"JSONRPC":"1.0","jsonrpc":"2.0","id":1,"ID":2,"Result":3}`, "", sandboxes.Message{ID: []byte("1")}},
		{"names within values are none", `{"jsonrpc":"2.0","params":{"id":1,"method":"x"},"method":"n"}`, "",
			sandboxes.Message{Method: "n", Params: []byte(`{"id":1,"method":"x"}`)}},
		{"a line of a log", `{"level":"info","id":1,"error":"disk full"}`, "does not say so", sandboxes.Message{}},
		{"another version", `{"jsonrpc":"1.0","id":1,"result":1}`, "does not say so", sandboxes.Message{}},
		{"a method that is no text", `{"jsonrpc":"2.0","method":7}`, "method 7", sandboxes.Message{}},
		{"an empty method", `{"jsonrpc":"2.0","id":1,"method":""}`, `method ""`, sandboxes.Message{}},
		{"neither request nor response", `{"jsonrpc":"2.0","result":1}`, "neither method nor id", sandboxes.Message{}},
		{"a batch", `[{"jsonrpc":"2.0","id":1,"result":{}}]`, "does not say so", sandboxes.Message{}},
		{"an empty object", `{ }`, "does not say so", sandboxes.Message{}},
		{"two values", `{} {}`, "not JSON", sandboxes.Message{}},
		{"nothing", ``, "not JSON", sandboxes.Message{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := sandboxes.DecodeMessage([]byte(c.data))
			if c.want == "" {
				require.NoError(t, err)
				require.Equal(t, c.m, m)
				return
			}
			require.ErrorContains(t, err, "not JSON-RPC: ")
			require.ErrorContains(t, err, c.want)
		})
	}
}

// FuzzDecodeMessage compares what is read with encoding/json's own reading.
func FuzzDecodeMessage(f *testing.F) {
	for _, s := range []string{`{"jsonrpc":"2.0","id":1,"result":{"a":[]}}`, `{"jsonrpc":"2.0","method":"n","params":"\\\""}`, `{"jsonrpc":"2.0","id":[{}],"error":0 }`,
		"{\"jsonrpc\"\n:\t\"2.0\"\r,\"id\":1 , \"id\":2}", `[]`, `7`, `{}`, `null`, `""`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := sandboxes.DecodeMessage(data)
		var want map[string]json.RawMessage
		if json.Unmarshal(data, &want) != nil || bytes.Contains(data, []byte(`\u`)) { // a name may be written in several ways
			return
		}
		if err != nil {
			require.False(t, string(want["jsonrpc"]) == `"2.0"` && want["method"] == nil && want["id"] != nil, "%v", err)
			return
		}
		require.Equal(t, string(want["id"]), string(m.ID))
		require.Equal(t, string(want["params"]), string(m.Params))
		require.Equal(t, string(want["result"]), string(m.Result))
		if m.Error != nil {
			require.Equal(t, string(want["error"]), string(m.Error))
		}
	})
}

func TestEncodeRequest(t *testing.T) {
	m, err := sandboxes.DecodeMessage(sandboxes.EncodeRequest([]byte("7"), "tools/call", []byte(`{"name":"x"}`)))
	require.NoError(t, err)
	require.Equal(t, sandboxes.Message{ID: []byte("7"), Method: "tools/call", Params: []byte(`{"name":"x"}`)}, m)
}

func TestDecodePage(t *testing.T) {
	p, err := sandboxes.DecodePage([]byte(`{"tools":[
		{"name":"get","description":"Gets.","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},
		{"name":"set","inputSchema":{},"outputSchema":{"type":"object"}}],"nextCursor":""}`))
	require.NoError(t, err)
	next := ""
	require.Equal(t, sandboxes.Page{Next: &next, Tools: []sandboxes.Tool{
		{Name: "get", Description: "Gets.", InputSchema: json.RawMessage(`{"type":"object"}`), ReadOnly: true},
		{Name: "set", InputSchema: json.RawMessage(`{}`), OutputSchema: json.RawMessage(`{"type":"object"}`)},
	}}, p)
	_, err = sandboxes.DecodePage([]byte(`{"tools":{}}`))
	_, ok := errors.AsType[*sandboxes.Fault](err)
	require.True(t, ok, "%v", err)
}
