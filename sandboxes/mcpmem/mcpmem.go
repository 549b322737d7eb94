// Package mcpmem serves worlds that live in this process through a real MCP server: the fastest sandbox there is.
//
// The server is an ordinary mcp-go server, shared by all leases of a Provider. Each lease has a world of its own, which the
// tools find in their context. Client and server exchange JSON-RPC messages as bytes, as over any other transport.
package mcpmem

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// worldKey finds the world of a session in the context of its tool calls.
type worldKey struct{}

// Tool makes a server tool whose handler gets the world of the session that calls it. In is a struct with json tags; the
// tool's arguments are decoded into it from the raw bytes, so that 64-bit integers stay exact, and unknown ones are refused.
// The value that handle returns becomes the text of the result as JSON (a string stays as it is), an error becomes an error
// result. The options describe the tool and its parameters.
//
// A handler may be called concurrently for one world when the tool is marked read-only.
func Tool[W, In any](name, description string, handle func(ctx context.Context, world W, in In) (any, error), options ...mcp.ToolOption) server.ServerTool {
	options = append([]mcp.ToolOption{mcp.WithDescription(description), mcp.WithSchemaAdditionalProperties(false)}, options...)
	return server.ServerTool{
		Tool: mcp.NewTool(name, options...),
		Handler: func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var in In
			if raw := req.Params.RawArguments; len(raw) > 0 {
				d := json.NewDecoder(bytes.NewReader(raw))
				d.DisallowUnknownFields()
				if err := d.Decode(&in); err != nil {
					return mcp.NewToolResultError("arguments: " + err.Error()), nil
				}
			}
			out, err := handle(ctx, ctx.Value(worldKey{}).(W), in)
			if err != nil {
				return mcp.NewToolResultError(err.Error()), nil
			}
			if s, ok := out.(string); ok {
				return mcp.NewToolResultText(s), nil
			}
			text, err := json.Marshal(out)
			if err != nil {
				return nil, fmt.Errorf("encode the result of %s: %w", name, err)
			}
			return mcp.NewToolResultText(string(text)), nil
		},
	}
}

// Provider is a sandboxes.Provider over worlds of type W. A world may implement sandboxes.Prober and sandboxes.Stater, and
// io.Closer.
type Provider[W any] struct {
	srv  *server.MCPServer
	id   sandboxes.Identity
	open func(sandboxes.World) (W, error)

	mu      sync.Mutex
	listing string // the last tools/list exchange as bytes, and what it says
	tools   []sandboxes.Tool
}

// New returns a provider whose sandboxes are made by open and served by srv. It is an error if the server does not answer
// initialize.
func New[W any](srv *server.MCPServer, id sandboxes.Identity, open func(sandboxes.World) (W, error)) (*Provider[W], error) {
	p := &Provider[W]{srv: srv, id: id, open: open}
	params, err := json.Marshal(map[string]any{"protocolVersion": mcp.LATEST_PROTOCOL_VERSION, "capabilities": struct{}{},
		"clientInfo": mcp.Implementation{Name: "mcpgym", Version: "1"}})
	if err != nil {
		return nil, err
	}
	s := &session[W]{p: p}
	reply, err := s.send(context.Background(), "initialize", params)
	if err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, &sandboxes.Fault{Kind: sandboxes.FaultProtocol, Op: "initialize", Msg: reply.Error.Message}
	}
	return p, nil
}

// Lease makes a fresh world.
func (p *Provider[W]) Lease(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	world, err := p.open(w)
	if err != nil {
		return nil, sandboxes.NewFault(sandboxes.FaultLease, "make world", err)
	}
	return &session[W]{p: p, world: world}, nil
}

// Prefetch does nothing: worlds are made in microseconds.
func (p *Provider[W]) Prefetch(...sandboxes.World) {}

// Identity returns what New was given.
func (p *Provider[W]) Identity() sandboxes.Identity { return p.id }

// Close does nothing: sandboxes hold only memory.
func (p *Provider[W]) Close() error { return nil }

// session is sandbox and session in one: the server is in this process.
type session[W any] struct {
	p      *Provider[W]
	world  W
	nextID atomic.Int64
	dead   atomic.Pointer[sandboxes.Fault]
}

func (s *session[W]) Session() sandboxes.Session { return s }

func (s *session[W]) Close() error {
	s.dead.CompareAndSwap(nil, &sandboxes.Fault{Kind: sandboxes.FaultClosed, Op: "call", Msg: "the sandbox is closed"})
	if c, ok := any(s.world).(interface{ Close() error }); ok {
		return c.Close()
	}
	return nil
}

func (s *session[W]) Probe(ctx context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error) {
	return sandboxes.ProbeOf(ctx, s.world, ask)
}

func (s *session[W]) State(ctx context.Context) (sandboxes.State, error) {
	return sandboxes.StateOf(ctx, s.world)
}

// send exchanges one message with the server. The handler runs in a goroutine of its own, so that one that ignores its
// context cannot hold the caller.
func (s *session[W]) send(ctx context.Context, method string, params []byte) (sandboxes.Reply, error) {
	if err := ctx.Err(); err != nil {
		return sandboxes.Reply{}, err
	}
	if f := s.dead.Load(); f != nil {
		return sandboxes.Reply{}, f
	}
	id := strconv.AppendInt(nil, s.nextID.Add(1), 10)
	msg := make([]byte, 0, 64+len(params))
	msg = append(msg, `{"jsonrpc":"2.0","id":`...)
	msg = append(msg, id...)
	msg = append(msg, `,"method":"`...)
	msg = append(msg, method...)
	msg = append(msg, `","params":`...)
	msg = append(msg, params...)
	msg = append(msg, '}')

	type outcome struct {
		data []byte
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if r := recover(); r != nil {
				f := &sandboxes.Fault{Kind: sandboxes.FaultDied, Op: method, Msg: fmt.Sprintf("the server panicked: %v", r)}
				s.dead.CompareAndSwap(nil, f)
				o.err = f
			}
			done <- o
		}()
		o.data, o.err = json.Marshal(s.p.srv.HandleMessage(withWorld{ctx, s.world}, msg))
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return sandboxes.Reply{}, sandboxes.NewFault(sandboxes.FaultProtocol, method, o.err)
		}
		return sandboxes.DecodeReply(method, id, o.data)
	case <-ctx.Done():
		return sandboxes.Reply{}, ctx.Err()
	}
}

// withWorld is a call's context that also knows the session's world.
type withWorld struct {
	context.Context
	world any
}

func (c withWorld) Value(key any) any {
	if _, ok := key.(worldKey); ok {
		return c.world
	}
	return c.Context.Value(key)
}

func (s *session[W]) Tools(ctx context.Context) ([]sandboxes.Tool, error) {
	return sandboxes.ListAll(ctx, func(ctx context.Context, cursor *string) (sandboxes.Page, error) {
		params := []byte("{}")
		if cursor != nil {
			params, _ = json.Marshal(map[string]string{"cursor": *cursor})
		}
		reply, err := s.send(ctx, "tools/list", params)
		if err != nil {
			return sandboxes.Page{}, err
		}
		if reply.Error != nil {
			return sandboxes.Page{}, &sandboxes.Fault{Kind: sandboxes.FaultProtocol, Op: "tools/list", Msg: reply.Error.Message}
		}
		return s.p.decodePage(reply.Result)
	})
}

// decodePage decodes a page of tools, or finds that it says what the last one said: most servers offer every lease the same.
func (p *Provider[W]) decodePage(raw json.RawMessage) (sandboxes.Page, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if string(raw) == p.listing {
		return sandboxes.Page{Tools: p.tools}, nil
	}
	page, err := sandboxes.DecodePage(raw)
	if err == nil && page.Next == nil {
		p.listing, p.tools = string(raw), page.Tools
	}
	return page, err
}

func (s *session[W]) Call(ctx context.Context, name string, args json.RawMessage) (sandboxes.Result, error) {
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	if !json.Valid(args) {
		return sandboxes.Result{IsError: true, Code: mcp.PARSE_ERROR, Text: "arguments are not JSON"}, nil
	}
	quoted, err := json.Marshal(name)
	if err != nil {
		return sandboxes.Result{}, err
	}
	params := make([]byte, 0, 32+len(quoted)+len(args))
	params = append(params, `{"name":`...)
	params = append(params, quoted...)
	params = append(params, `,"arguments":`...)
	params = append(params, args...)
	params = append(params, '}')
	reply, err := s.send(ctx, "tools/call", params)
	if err != nil {
		return sandboxes.Result{}, err
	}
	return reply.ToolResult(), nil
}
