// Package sandboxes defines the live worlds that agents work in.
//
// A Provider leases a Sandbox for every episode. The Sandbox has a Session, which is all that the agent may reach: the tools
// of one MCP server. Verifiers look at the world out-of-band, through the optional interfaces Prober and Stater.
//
// Sub-packages implement worlds and transports; package sandboxtest is the contract test that each of them passes.
package sandboxes

import (
	"context"
	"encoding/json"
)

// World is what a sandbox is made from. It is recorded: equal worlds give equal sandboxes, byte for byte.
type World struct {
	Seed  uint64          `json:"seed"`
	Setup json.RawMessage `json:"setup,omitempty"`
}

// Identity names everything about a provider that can move a score: the version of the world's generator, the major version
// of a database, the version of a linter. The driver (local or container) is not part of it. A key that ends in " major" names
// the major version of a program that the machine provides: another one may word its results otherwise.
type Identity map[string]string

// Provider leases sandboxes. All methods may be called concurrently. Its contract is tested by sandboxtest.Check.
type Provider interface {
	// Lease returns a sandbox that holds the given world and that nobody else uses. An error is the sandbox's failure,
	// never the agent's.
	Lease(ctx context.Context, w World) (Sandbox, error)
	// Prefetch announces worlds that will be leased soon. It never blocks and may do nothing.
	Prefetch(worlds ...World)
	Identity() Identity
	// Close frees everything, also leased sandboxes. It may be called twice.
	Close() error
}

// Sandbox is one private live world. It is leased once and never reset: damage dies with it.
//
// A Sandbox may also implement Prober and Stater; their methods return an error that wraps errors.ErrUnsupported where the
// world behind it has no such ability.
type Sandbox interface {
	Session() Session
	// Close frees the world. It may be called twice.
	Close() error
}

// Session is what the agent may reach: the tools of a live MCP server.
type Session interface {
	// Tools lists all tools of the server, every page, in the server's order. The list is shared and must not be changed.
	Tools(ctx context.Context) ([]Tool, error)
	// Call calls a tool. What the tool or the server answers, an error result or a JSON-RPC error included, is a Result.
	// A returned error is ctx's error when ctx ended, and else a *Fault. Calls may be concurrent.
	Call(ctx context.Context, name string, args json.RawMessage) (Result, error)
}

// Tool is a tool as its server describes it (MCP specification, "Tools").
type Tool struct {
	Name         string          `json:"name"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"inputSchema"`
	OutputSchema json.RawMessage `json:"outputSchema,omitempty"`
	ReadOnly     bool            `json:"readOnly,omitempty"` // annotations.readOnlyHint
}

// Question asks a verifier's channel about a world: an SQL query, a file's content, a linter's exit code.
type Question struct {
	Kind string `json:"kind"` // what the world understands, such as "sql"
	Text string `json:"text"`
}

// Answer is what a world says to a Question. Err is set where the question itself could not be answered.
type Answer struct {
	Value json.RawMessage `json:"value,omitempty"`
	Err   string          `json:"err,omitempty"`
}

// Prober answers a verifier's questions over a channel that the agent cannot reach.
type Prober interface {
	Probe(ctx context.Context, ask []Question) ([]Answer, error)
}

// State is a canonical picture of a world: equal worlds have equal states, byte for byte.
type State struct {
	Hash string   `json:"hash"`           // over everything that counts as state
	Diff []string `json:"diff,omitempty"` // bounded difference against the start, sorted
	More int      `json:"more,omitempty"` // differences beyond the bound
}

// Stater reads the state of a world, out-of-band.
type Stater interface {
	State(ctx context.Context) (State, error)
}
