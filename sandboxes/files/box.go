package files

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// maxCall bounds what an agent may send in one call, in bytes.
const maxCall = 4 << 20

// box is a leased tree. Its agent reaches it through a session, wherever that leads; what a verifier asks is answered from the
// folder, here.
type box struct {
	session sandboxes.Session
	tree    *tree
	close   func() error
}

func (b *box) Session() sandboxes.Session { return b }

// Alive says whether the session can be used.
func (b *box) Alive() bool { return sandboxes.AliveOf(b.session) }

func (b *box) Close() error { return b.close() }

func (b *box) Probe(ctx context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error) {
	return b.tree.Probe(ctx, ask)
}

func (b *box) State(ctx context.Context) (sandboxes.State, error) { return b.tree.State(ctx) }

func (b *box) Tools(ctx context.Context) ([]sandboxes.Tool, error) { return b.session.Tools(ctx) }

func (b *box) Call(ctx context.Context, name string, args json.RawMessage) (sandboxes.Result, error) {
	if n := len(name) + len(args); n > maxCall && ctx.Err() == nil {
		return sandboxes.Result{IsError: true, Text: fmt.Sprintf("the call is %d bytes long, the limit is %d", n, maxCall)}, nil
	}
	return b.session.Call(ctx, name, args)
}
