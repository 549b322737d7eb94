package sandboxtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// brokenEnv names the way in which TestFake's provider breaks the contract.
const brokenEnv = "SANDBOXTEST_BROKEN"

var fakeWorlds = []sandboxes.World{{Seed: 1}, {Seed: 2, Setup: json.RawMessage(`{"n":1}`)}}

// TestFake checks a provider that keeps the contract, and, run again by TestBroken, ones that do not.
func TestFake(t *testing.T) {
	Check(t, func(*testing.T) sandboxes.Provider { return &fake{broken: os.Getenv(brokenEnv)} }, fakeWorlds...)
}

// TestUnsupported checks a provider whose worlds have no state and no read-only tools: what cannot be compared is skipped.
func TestUnsupported(t *testing.T) {
	Check(t, func(*testing.T) sandboxes.Provider { return &fake{broken: "plain"} }, fakeWorlds[0])
}

// TestBroken shows for every rule that a provider which breaks it, and nothing else, fails it, and nothing else.
func TestBroken(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	proven := map[string]bool{}
	t.Run("each", func(t *testing.T) {
		for _, c := range []struct{ broken, rule string }{
			{"no tools", "ToolsDescribed"},
			{"no name", "ToolsDescribed"},
			{"name twice", "ToolsDescribed"},
			{"no description", "ToolsDescribed"},
			{"no schema", "ToolsDescribed"},
			{"schema is a list", "ToolsDescribed"},
			{"schema is null", "ToolsDescribed"},
			{"output schema is a list", "ToolsDescribed"},
			{"tools differ between leases", "ToolsSame"},
			{"tools differ between lists", "ToolsSame"},
			{"state differs", "StateSame"},
			{"state has no hash", "StateSame"},
			{"state is not sorted", "StateSame"},
			{"state changes when read", "StateSame"},
			{"results differ", "ResultsSame"},
			{"close closes others", "LeasesIsolated"},
			{"calls change all", "LeasesIsolated"},
			{"unknown tool is an error", "UnknownTool"},
			{"unknown tool is a success", "UnknownTool"},
			{"unknown tool kills", "UnknownTool"},
			{"broken arguments are an error", "BrokenArguments"},
			{"broken arguments are a success", "BrokenArguments"},
			{"broken arguments kill", "BrokenArguments"},
			{"context is ignored", "ContextEnded"},
			{"context's end is a fault", "ContextEnded"},
			{"context's end hangs", "ContextEnded"},
			{"context's end hangs a lease", "ContextEnded"},
			{"context's end kills", "ContextEnded"},
			{"close twice fails", "CloseTwice"},
			{"close twice panics", "CloseTwice"},
			{"call after close works", "CallAfterClose"},
			{"call after close is no fault", "CallAfterClose"},
			{"provider closed panics", "ProviderCloseFrees"},
			{"provider closed is no fault", "ProviderCloseFrees"},
			{"only four leases", "ConcurrentLeases"},
			{"prefetch blocks", "PrefetchReturns"},
			{"prefetched world fails", "PrefetchReturns"},
			{"goroutine stays", noGoroutines},
		} {
			proven[c.rule] = true
			t.Run(c.broken, func(t *testing.T) {
				t.Parallel()
				cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestFake$")
				cmd.Env = append(os.Environ(), brokenEnv+"="+c.broken)
				out, err := cmd.CombinedOutput()
				_, failed := errors.AsType[*exec.ExitError](err)
				require.True(t, failed, "the broken provider passes: %v\n%s", err, out)
				var rules []string
				for _, m := range regexp.MustCompile(`--- FAIL: TestFake/(\S+)`).FindAllSubmatch(out, -1) {
					rules = append(rules, string(m[1]))
				}
				require.Equal(t, []string{c.rule}, rules, "%s", out)
			})
		}
	})
	for _, r := range rules {
		require.True(t, proven[r.name], "no provider breaks the rule %s", r.name)
	}
}

// fake is a provider of counters. It keeps the contract, but for what broken names.
type fake struct {
	broken   string
	leases   atomic.Int64
	held     atomic.Int64 // leased and not closed
	count    atomic.Int64 // shared by all leases where that is the fault
	closed   atomic.Bool
	second   atomic.Bool // the second of two sandboxes was closed
	prefetch atomic.Bool
}

func (p *fake) Lease(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
	if ctx.Err() != nil && p.broken == "context's end hangs a lease" {
		select {}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if p.broken == "prefetched world fails" && p.prefetch.Load() {
		return nil, &sandboxes.Fault{Kind: sandboxes.FaultLease, Op: "lease", Msg: "out of worlds"}
	}
	if p.held.Add(1) > 4 && p.broken == "only four leases" {
		p.held.Add(-1)
		return nil, &sandboxes.Fault{Kind: sandboxes.FaultLease, Op: "lease", Msg: "too many"}
	}
	b := &fakeBox{p: p, w: w, number: p.leases.Add(1), count: new(atomic.Int64)}
	if p.broken == "calls change all" {
		b.count = &p.count
	}
	if p.broken == "plain" {
		return struct{ sandboxes.Sandbox }{b}, nil
	}
	return b, nil
}

func (p *fake) Prefetch(worlds ...sandboxes.World) {
	if len(worlds) > 100 { // not the few of NoGoroutinesLeft
		p.prefetch.Store(true)
		if p.broken == "prefetch blocks" {
			select {}
		}
	}
}

func (p *fake) Identity() sandboxes.Identity { return sandboxes.Identity{"fake": "1"} }

func (p *fake) Close() error {
	p.closed.Store(true)
	if p.broken == "goroutine stays" {
		go func() { select {} }()
	}
	return nil
}

type fakeBox struct {
	p      *fake
	w      sandboxes.World
	number int64
	count  *atomic.Int64
	reads  atomic.Int64
	lists  atomic.Int64

	mu         sync.Mutex
	dead, down bool
}

func (b *fakeBox) Session() sandboxes.Session { return b }

func (b *fakeBox) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		switch b.p.broken {
		case "close twice fails":
			return errors.New("closed already")
		case "close twice panics":
			panic("closed already")
		}
		return nil
	}
	b.down = true
	b.p.held.Add(-1)
	if b.number == 2 && b.p.leases.Load() == 2 {
		b.p.second.Store(true)
	}
	return nil
}

func (b *fakeBox) Tools(ctx context.Context) ([]sandboxes.Tool, error) {
	if err := b.ready(ctx); err != nil {
		return nil, err
	}
	tools := []sandboxes.Tool{
		{Name: "get", Description: "Reads the counter.", InputSchema: json.RawMessage(`{"type":"object"}`), ReadOnly: true},
		{Name: "add", Description: "Adds one to the counter.", InputSchema: json.RawMessage(`{"type":"object"}`)},
	}
	switch b.p.broken {
	case "no tools":
		return nil, nil
	case "no name":
		tools[1].Name = ""
	case "name twice":
		tools[1].Name = "get"
	case "no description":
		tools[1].Description = ""
	case "no schema":
		tools[1].InputSchema = nil
	case "schema is a list":
		tools[1].InputSchema = json.RawMessage(`[]`)
	case "schema is null":
		tools[1].InputSchema = json.RawMessage(`null`)
	case "output schema is a list":
		tools[1].OutputSchema = json.RawMessage(`[]`)
	case "tools differ between leases":
		tools[1].Description += fmt.Sprint(b.number)
	case "tools differ between lists":
		tools[1].Description += fmt.Sprint(b.lists.Add(1))
	case "plain":
		tools[0].ReadOnly = false
	}
	return tools, nil
}

func (b *fakeBox) ready(ctx context.Context) error {
	if b.p.broken != "context is ignored" {
		if err := ctx.Err(); err != nil {
			switch b.p.broken {
			case "context's end hangs":
				select {}
			case "context's end is a fault":
				return &sandboxes.Fault{Kind: sandboxes.FaultHung, Op: "call", Msg: "too late"}
			case "context's end kills":
				b.kill()
			}
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.p.closed.Load() && b.p.broken == "provider closed panics":
		panic("the provider is closed")
	case b.p.closed.Load() && b.p.broken == "provider closed is no fault":
		return errors.New("the provider is closed")
	case b.down && b.p.broken == "call after close works":
	case b.down && b.p.broken == "call after close is no fault":
		return errors.New("the sandbox is closed")
	case b.dead, b.down, b.p.broken == "close closes others" && b.number == 1 && b.p.second.Load():
		return &sandboxes.Fault{Kind: sandboxes.FaultClosed, Op: "call", Msg: "the sandbox is closed"}
	}
	return nil
}

func (b *fakeBox) kill() {
	b.mu.Lock()
	b.dead = true
	b.mu.Unlock()
}

func (b *fakeBox) Call(ctx context.Context, name string, args json.RawMessage) (sandboxes.Result, error) {
	if err := b.ready(ctx); err != nil {
		return sandboxes.Result{}, err
	}
	if !json.Valid(args) {
		switch b.p.broken {
		case "broken arguments are an error":
			return sandboxes.Result{}, &sandboxes.Fault{Kind: sandboxes.FaultProtocol, Op: "call", Msg: "not JSON"}
		case "broken arguments are a success":
			return sandboxes.Result{Text: "fine"}, nil
		case "broken arguments kill":
			b.kill()
		}
		return sandboxes.Result{IsError: true, Text: "not JSON"}, nil
	}
	switch name {
	case "get":
		if b.p.broken == "results differ" {
			return sandboxes.Result{Text: fmt.Sprint(b.number)}, nil
		}
		return sandboxes.Result{Text: fmt.Sprint(b.count.Load())}, nil
	case "add":
		return sandboxes.Result{Text: fmt.Sprint(b.count.Add(1))}, nil
	}
	switch b.p.broken {
	case "unknown tool is an error":
		return sandboxes.Result{}, &sandboxes.Fault{Kind: sandboxes.FaultProtocol, Op: "call", Msg: "no such tool"}
	case "unknown tool is a success":
		return sandboxes.Result{}, nil
	case "unknown tool kills":
		b.kill()
	}
	return sandboxes.Result{IsError: true, Text: "no such tool"}, nil
}

func (b *fakeBox) State(context.Context) (sandboxes.State, error) {
	s := sandboxes.State{Hash: fmt.Sprintf("%d %s %d", b.w.Seed, b.w.Setup, b.count.Load())}
	switch b.p.broken {
	case "state differs":
		s.Hash += fmt.Sprint(" ", b.number)
	case "state has no hash":
		s.Hash = ""
	case "state is not sorted":
		s.Diff = []string{"b", "a"}
	case "state changes when read":
		if b.w.Seed == 2 { // the first world is read twice by LeasesIsolated, too
			s.More = int(b.reads.Add(1))
		}
	}
	return s, nil
}
