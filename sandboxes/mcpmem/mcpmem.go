// Package mcpmem serves worlds that live in this process through a real MCP server: the fastest sandbox there is.
//
// The server is an ordinary mcp-go server, shared by all leases of a Provider. Each lease has a world of its own, which the
// tools find in their context. Client and server exchange JSON-RPC messages as bytes, as over any other transport.
package mcpmem

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
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
// The value that handle returns becomes the text of the result as JSON (a string stays as it is, and so does a whole
// *mcp.CallToolResult), an error becomes an error result. An error that is a *sandboxes.Fault ends the session: the call and
// all later ones return it. The options describe the tool and its parameters.
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
			if f, ok := errors.AsType[*sandboxes.Fault](err); ok {
				panic(f) // no result can say it; Provider.handle does
			}
			if err != nil {
				return mcp.NewToolResultError(err.Error()), nil
			}
			switch out := out.(type) {
			case string:
				return mcp.NewToolResultText(out), nil
			case *mcp.CallToolResult:
				return out, nil
			}
			text, err := json.Marshal(out)
			if err != nil {
				return nil, fmt.Errorf("encode the result of %s: %w", name, err)
			}
			return mcp.NewToolResultText(string(text)), nil
		},
	}
}

// Entity is an option of a tool's parameter: its values name something that the world has, so whoever sends one must have read
// it somewhere before. In the input schema the property gets "x-entity": true.
func Entity(property map[string]any) { property["x-entity"] = true }

// Provider is a sandboxes.Provider over worlds of type W. A world may implement sandboxes.Prober and sandboxes.Stater, and
// io.Closer.
type Provider[W any] struct {
	srv  *server.MCPServer
	id   sandboxes.Identity
	open func(sandboxes.World) (W, error)

	mu      sync.Mutex
	tools   []sandboxes.Tool // as last listed, nil when that may have changed
	version int              // of that list
	changes watcher
	leased  map[*session[W]]struct{} // those whose worlds must be closed
	idle    []chan job               // workers that wait for a message
	closed  bool
}

// maxIdle bounds the workers that wait. A worker is reused because a fresh goroutine would grow its stack anew for every
// message, a sixth of the cost of a call.
const maxIdle = 16

// job is a message on its way through the server.
type job struct {
	ctx    context.Context
	method string
	msg    []byte
	died   func(*sandboxes.Fault)
	done   chan<- outcome
}

type outcome struct {
	data []byte
	err  error
}

// New returns a provider whose sandboxes are made by open and served by srv. It is an error if the server does not answer
// initialize.
func New[W any](srv *server.MCPServer, id sandboxes.Identity, open func(sandboxes.World) (W, error)) (*Provider[W], error) {
	p := &Provider[W]{srv: srv, id: id, open: open, leased: map[*session[W]]struct{}{}}
	listChanged, err := sandboxes.Initialize(context.Background(), (&session[W]{p: p}).send)
	if err != nil {
		return nil, err
	}
	if listChanged {
		p.changes = make(watcher, 16)
		if err := srv.RegisterSession(context.Background(), p.changes); err != nil {
			return nil, fmt.Errorf("watch the server's list of tools: %w", err)
		}
	}
	return p, nil
}

// watcher is the session to which the server says that its list of tools has changed.
type watcher chan mcp.JSONRPCNotification

func (w watcher) Initialize()       {}
func (w watcher) Initialized() bool { return true }
func (w watcher) SessionID() string { return fmt.Sprintf("mcpmem %p", w) }
func (w watcher) NotificationChannel() chan<- mcp.JSONRPCNotification {
	return w
}

// stale says whether something was heard since the last time.
func (w watcher) stale() bool {
	heard := false
	for {
		select {
		case <-w:
			heard = true
		default:
			return heard
		}
	}
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
	return p.Serve(world), nil
}

// Serve makes a sandbox of a world that was made elsewhere, as Lease does of one that open has made. The sandbox owns it.
func (p *Provider[W]) Serve(world W) sandboxes.Sandbox {
	s := &session[W]{p: p, world: world}
	if _, ok := any(world).(io.Closer); ok {
		p.mu.Lock()
		p.leased[s] = struct{}{}
		p.mu.Unlock()
	}
	return s
}

// Prefetch does nothing: worlds are made in microseconds.
func (p *Provider[W]) Prefetch(...sandboxes.World) {}

// Identity returns what New was given.
func (p *Provider[W]) Identity() sandboxes.Identity { return p.id }

// Close ends the workers, and closes the leased sandboxes whose worlds hold more than memory.
func (p *Provider[W]) Close() error {
	p.mu.Lock()
	leased := slices.Collect(maps.Keys(p.leased))
	p.closed = true
	if p.changes != nil {
		p.srv.UnregisterSession(context.Background(), p.changes.SessionID())
	}
	for _, jobs := range p.idle {
		close(jobs)
	}
	p.idle = nil
	p.mu.Unlock()
	var errs []error
	for _, s := range leased {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

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
	c, ok := any(s.world).(io.Closer)
	if !ok {
		return nil
	}
	s.p.mu.Lock()
	_, open := s.p.leased[s]
	delete(s.p.leased, s)
	s.p.mu.Unlock()
	if !open {
		return nil
	}
	return c.Close()
}

// Alive says whether the world still works, where it knows.
func (s *session[W]) Alive() bool { return s.dead.Load() == nil && sandboxes.AliveOf(s.world) }

func (s *session[W]) Probe(ctx context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error) {
	return sandboxes.ProbeOf(ctx, s.world, ask)
}

func (s *session[W]) State(ctx context.Context) (sandboxes.State, error) {
	return sandboxes.StateOf(ctx, s.world)
}

// work gives a job to a worker that waits, or to a new one. The server runs in another goroutine than the caller, so that a
// handler that ignores its context cannot hold it.
func (p *Provider[W]) work(j job) {
	p.mu.Lock()
	var jobs chan job
	if n := len(p.idle); n > 0 {
		jobs, p.idle = p.idle[n-1], p.idle[:n-1]
	}
	p.mu.Unlock()
	if jobs == nil {
		jobs = make(chan job, 1)
		go func() {
			for j := range jobs {
				o := p.handle(j)
				p.mu.Lock()
				stay := !p.closed && len(p.idle) < maxIdle
				if stay {
					p.idle = append(p.idle, jobs)
				}
				p.mu.Unlock()
				j.done <- o
				if !stay {
					return
				}
			}
		}()
	}
	jobs <- j
}

func (p *Provider[W]) handle(j job) (o outcome) {
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(*sandboxes.Fault)
			if !ok {
				f = &sandboxes.Fault{Kind: sandboxes.FaultDied, Op: j.method, Msg: fmt.Sprintf("the server panicked: %v", r)}
			}
			j.died(f)
			o = outcome{err: f}
		}
	}()
	o.data, o.err = json.Marshal(p.srv.HandleMessage(j.ctx, j.msg))
	return o
}

// send exchanges one message with the server.
func (s *session[W]) send(ctx context.Context, method string, params json.RawMessage) (sandboxes.Reply, error) {
	if err := ctx.Err(); err != nil {
		return sandboxes.Reply{}, err
	}
	if f := s.dead.Load(); f != nil {
		return sandboxes.Reply{}, f
	}
	id := strconv.AppendInt(nil, s.nextID.Add(1), 10)
	msg := sandboxes.EncodeRequest(id, method, params)
	done := make(chan outcome, 1)
	s.p.work(job{withWorld{ctx, s.world}, method, msg, func(f *sandboxes.Fault) { s.dead.CompareAndSwap(nil, f) }, done})
	select {
	case o := <-done:
		if err := ctx.Err(); err != nil { // too late, or the handler's own word for it: one outcome, whoever is first
			return sandboxes.Reply{}, err
		}
		if o.err != nil {
			return sandboxes.Reply{}, sandboxes.NewFault(sandboxes.FaultProtocol, method, o.err)
		}
		return sandboxes.DecodeReply(method, id, o.data)
	case <-ctx.Done():
		return sandboxes.Reply{}, ctx.Err()
	}
}

// WithWorld returns a context in which the tools of a server find their world, for servers that speak to their client
// themselves. A tool that ends the session panics with its *sandboxes.Fault.
func WithWorld(ctx context.Context, world any) context.Context { return withWorld{ctx, world} }

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

// Tools lists the server's tools. All leases share one server, so the list is read again only where it may have changed: a
// server must not make it depend on the session (MCP specification, "Tools"), and says when it changes.
func (s *session[W]) Tools(ctx context.Context) ([]sandboxes.Tool, error) {
	if f := s.dead.Load(); f != nil {
		return nil, f
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := s.p
	p.mu.Lock()
	if p.changes == nil || p.changes.stale() {
		p.tools = nil
		p.version++
	}
	tools, version := p.tools, p.version
	p.mu.Unlock()
	if tools != nil {
		return tools, nil
	}
	tools, err := sandboxes.ListTools(ctx, s.send)
	if err == nil {
		p.mu.Lock()
		if p.version == version {
			p.tools = tools
		}
		p.mu.Unlock()
	}
	return tools, err
}

func (s *session[W]) Call(ctx context.Context, name string, args json.RawMessage) (sandboxes.Result, error) {
	return sandboxes.CallTool(ctx, s.send, name, args)
}
