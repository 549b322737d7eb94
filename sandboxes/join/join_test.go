package join_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/join"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
	"github.com/mcpgym/mcpgym/sandboxes/sandboxtest"
)

// note is a world that remembers one text.
type note struct {
	setup  string
	text   string
	closed *atomic.Int32
}

func (n *note) State(context.Context) (sandboxes.State, error) {
	s := sandboxes.State{Hash: fmt.Sprintf("%x", n.setup+n.text)}
	if n.text != "" {
		s.Diff = []string{"text is " + n.text}
	}
	return s, nil
}

func (n *note) Probe(_ context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error) {
	out := make([]sandboxes.Answer, len(ask))
	for i, q := range ask {
		out[i].Value = json.RawMessage(fmt.Sprintf("%q", q.Kind+":"+q.Text+":"+n.text))
	}
	return out, nil
}

func (n *note) Close() error {
	n.closed.Add(1)
	return nil
}

// notes serves notes with the tool write and one more.
func notes(t *testing.T, other string, closed *atomic.Int32) sandboxes.Provider {
	s := server.NewMCPServer("notes", "1")
	s.AddTools(
		mcpmem.Tool("write", "Write the note.", func(_ context.Context, n *note, in struct{ Text string }) (any, error) {
			n.text = in.Text
			return "written", nil
		}, mcp.WithString("text", mcp.Required())),
		mcpmem.Tool(other, "Read the note.", func(_ context.Context, n *note, _ struct{}) (any, error) {
			return n.setup + n.text, nil
		}, mcp.WithReadOnlyHintAnnotation(true)),
	)
	p, err := mcpmem.New(s, sandboxes.Identity{"version": "1"}, func(w sandboxes.World) (*note, error) {
		return &note{setup: string(w.Setup), closed: closed}, nil
	})
	require.NoError(t, err)
	return p
}

func joined(t *testing.T, closed *atomic.Int32) sandboxes.Provider {
	p, err := join.New(join.Part{Name: "pg1", Provider: notes(t, "read_first", closed)}, join.Part{Name: "pg2", Provider: notes(t, "read_second", closed)})
	require.NoError(t, err)
	return p
}

func TestContract(t *testing.T) {
	sandboxtest.Check(t, func(t *testing.T) sandboxes.Provider { return joined(t, new(atomic.Int32)) }, sandboxes.World{Seed: 1}, sandboxes.World{Setup: json.RawMessage(`{"pg1":"a"}`)})
}

// Two servers that list a tool of one name: both get their part's name, none hides the other.
func TestCasesToolName(t *testing.T) {
	t.Run("C046", func(t *testing.T) {
		closed := new(atomic.Int32)
		p := joined(t, closed)
		box, err := p.Lease(t.Context(), sandboxes.World{Setup: json.RawMessage(`{"pg2":"b"}`)})
		require.NoError(t, err)
		s := box.Session()
		for name, want := range map[string]sandboxes.Result{
			"pg1_write": {Text: "written"},
			"write":     {IsError: true, Code: -32602, Text: `there is no tool "write"`},
		} {
			r, err := s.Call(t.Context(), name, json.RawMessage(`{"text":"x"}`))
			require.NoError(t, err)
			require.Equal(t, want, r)
		}
		tools, err := s.Tools(t.Context())
		require.NoError(t, err)
		var names []string
		for _, tool := range tools {
			names = append(names, tool.Name)
		}
		require.Equal(t, []string{"read_first", "pg1_write", "read_second", "pg2_write"}, names)
		again, err := s.Tools(t.Context())
		require.NoError(t, err)
		require.Same(t, &tools[0], &again[0], "a list that has not changed is the same list")

		r, err := s.Call(t.Context(), "read_first", nil)
		require.NoError(t, err)
		require.Equal(t, "x", r.Text)
		r, err = s.Call(t.Context(), "read_second", nil)
		require.NoError(t, err)
		require.Equal(t, `"b"`, r.Text)

		state, err := sandboxes.StateOf(t.Context(), box)
		require.NoError(t, err)
		require.Equal(t, []string{"pg1: text is x"}, state.Diff)
		answers, err := sandboxes.ProbeOf(t.Context(), box, []sandboxes.Question{{Kind: "pg1/k", Text: "q"}, {Kind: "pg2/k", Text: "q"}})
		require.NoError(t, err)
		require.Equal(t, []sandboxes.Answer{{Value: json.RawMessage(`"k:q:x"`)}, {Value: json.RawMessage(`"k:q:"`)}}, answers)
		_, err = sandboxes.ProbeOf(t.Context(), box, []sandboxes.Question{{Kind: "pg3/k"}})
		require.ErrorContains(t, err, `no part named "pg3"`)

		require.Equal(t, sandboxes.Identity{"pg1/version": "1", "pg2/version": "1"}, p.Identity())
		require.NoError(t, box.Close())
		require.NoError(t, box.Close())
		require.EqualValues(t, 2, closed.Load())
		require.NoError(t, p.Close())
	})
}

func TestRefuses(t *testing.T) {
	p := notes(t, "read", new(atomic.Int32))
	for _, parts := range [][]join.Part{nil, {{Provider: p}}, {{Name: "a", Provider: p}, {Name: "a", Provider: p}}, {{Name: "a/b", Provider: p}}, {{Name: "a"}}} {
		_, err := join.New(parts...)
		require.ErrorContains(t, err, "join sandboxes")
	}
	j := joined(t, new(atomic.Int32))
	for _, setup := range []string{`[]`, `{"pg3":1,"pg4":1}`} {
		_, err := j.Lease(t.Context(), sandboxes.World{Setup: json.RawMessage(setup)})
		require.ErrorContains(t, err, "setup of the joined world")
	}
}

// slow leases after a second; broken never does.
type slow struct {
	sandboxes.Provider
	broken bool
}

func (s slow) Lease(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
	time.Sleep(time.Second)
	if s.broken {
		return nil, &sandboxes.Fault{Kind: sandboxes.FaultLease, Op: "lease", Msg: "no room", Err: errors.New("no room")}
	}
	return s.Provider.Lease(ctx, w)
}

func TestCasesReset(t *testing.T) {
	t.Run("C293", func(t *testing.T) { // five servers, each a second to start
		synctest.Test(t, func(t *testing.T) {
			closed := new(atomic.Int32)
			var parts []join.Part
			for i := range 5 {
				parts = append(parts, join.Part{Name: fmt.Sprint("s", i), Provider: slow{notes(t, fmt.Sprint("read", i), closed), false}})
			}
			p, err := join.New(parts...)
			require.NoError(t, err)
			defer p.Close()
			start := time.Now()
			box, err := p.Lease(t.Context(), sandboxes.World{})
			require.NoError(t, err)
			require.Equal(t, time.Second, time.Since(start))
			require.NoError(t, box.Close())

			// One that fails is named, and the others are closed again.
			closed.Store(0)
			parts[3].Provider = slow{parts[3].Provider, true}
			p, err = join.New(parts...)
			require.NoError(t, err)
			_, err = p.Lease(t.Context(), sandboxes.World{})
			require.ErrorContains(t, err, "s3: ")
			require.ErrorContains(t, err, "no room")
			_, isFault := errors.AsType[*sandboxes.Fault](err)
			require.True(t, isFault)
			require.EqualValues(t, 4, closed.Load())
		})
	})
}

// Sandboxes that are open already are joined like those that are leased.
func TestBoxes(t *testing.T) {
	closed := new(atomic.Int32)
	var boxes []join.Box
	for _, name := range []string{"a", "b"} {
		box, err := notes(t, "read_"+name, closed).Lease(t.Context(), sandboxes.World{})
		require.NoError(t, err)
		boxes = append(boxes, join.Box{Name: name, Sandbox: box})
	}
	for _, bad := range [][]join.Box{nil, {{Sandbox: boxes[0].Sandbox}}, {boxes[0], boxes[0]}, {{Name: "a/b", Sandbox: boxes[0].Sandbox}}} {
		_, err := join.Boxes(bad...)
		require.ErrorContains(t, err, "join sandboxes")
	}
	require.Zero(t, closed.Load(), "what could not be joined is the caller's")
	box, err := join.Boxes(boxes...)
	require.NoError(t, err)
	r, err := box.Session().Call(t.Context(), "b_write", json.RawMessage(`{"text":"x"}`))
	require.NoError(t, err)
	require.Equal(t, "written", r.Text)
	state, err := sandboxes.StateOf(t.Context(), box)
	require.NoError(t, err)
	require.Equal(t, []string{"b: text is x"}, state.Diff)
	require.NoError(t, box.Close())
	require.EqualValues(t, 2, closed.Load())
}
