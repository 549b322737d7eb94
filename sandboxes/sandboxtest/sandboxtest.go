// Package sandboxtest is the contract test of sandboxes.Provider.
package sandboxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mcpgym/mcpgym/sandboxes"
)

const (
	deadline = time.Minute     // for one rule
	promptly = 2 * time.Second // for what must not wait for anything
	settle   = 2 * time.Second // for goroutines to end
)

// Check tests that a provider keeps the contract of package sandboxes, one subtest for each rule. Every rule opens a
// provider of its own and closes it; open may skip or fail the test that it is given. At least one world is needed; rules
// that compare worlds use all of them. Tools are called with arguments that Check makes up, mostly none at all.
//
// Goroutines are counted, so the calling test must not run in parallel with others.
func Check(t *testing.T, open func(t *testing.T) sandboxes.Provider, worlds ...sandboxes.World) {
	if len(worlds) == 0 {
		t.Fatal("sandboxtest: no worlds to lease")
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			p := open(t)
			defer watch(t, func(context.Context) error { return p.Close() })
			watch(t, func(ctx context.Context) error { return r.check(ctx, p, worlds) })
		})
	}
	t.Run(noGoroutines, func(t *testing.T) {
		once := func() {
			p := open(t)
			watch(t, func(ctx context.Context) error { return useAndClose(ctx, p, worlds) })
		}
		once() // what is started once for the whole process is not a leak
		before := fewest(100*time.Millisecond, 0)
		once()
		if after := fewest(settle, before); after > before {
			t.Errorf("closing a provider must end everything that it started: %d goroutines ran before it was opened, %d run %v after it was closed\n%s",
				before, after, settle, stacks())
		}
	})
}

// fewest counts goroutines until there are no more than enough, for at most d, and returns the smallest count.
func fewest(d time.Duration, enough int) int {
	n := runtime.NumGoroutine()
	for end := time.Now().Add(d); n > enough && time.Now().Before(end); n = min(n, runtime.NumGoroutine()) {
		time.Sleep(5 * time.Millisecond)
	}
	return n
}

// watch runs f and fails the test if f fails, panics, or does not return in time.
func watch(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	err := within(deadline+promptly, "the rule's test, whose context has ended,", func() error { return f(ctx) })
	switch {
	case errors.Is(err, errNoUse):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
}

// errNoUse is wrapped by the error of a rule that says nothing about the worlds that it was given.
var errNoUse = errors.New("rule does not apply")

// within runs f in a goroutine of its own. The error is f's, or says that what f does has panicked or takes longer than d.
func within(d time.Duration, what string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Errorf("%s panicked: %v\n%s", what, r, stacks())
			}
		}()
		done <- f()
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("%s did not return within %v\n%s", what, d, stacks())
	}
}

func stacks() []byte {
	buf := make([]byte, 1<<18)
	return buf[:runtime.Stack(buf, true)]
}

// noGoroutines is the one rule that Check tests around a provider and not on it.
const noGoroutines = "NoGoroutinesLeft"

// rules are the contract. A rule's error says what must hold and what was seen.
var rules = []struct {
	name  string
	check func(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error
}{
	{"ToolsDescribed", toolsDescribed},
	{"ToolsSame", toolsSame},
	{"StateSame", stateSame},
	{"ResultsSame", resultsSame},
	{"LeasesIsolated", leasesIsolated},
	{"UnknownTool", unknownTool},
	{"BrokenArguments", brokenArguments},
	{"ContextEnded", contextEnded},
	{"CloseTwice", closeTwice},
	{"CallAfterClose", callAfterClose},
	{"ProviderCloseFrees", providerCloseFrees},
	{"ConcurrentLeases", concurrentLeases},
	{"PrefetchReturns", prefetchReturns},
}

func toolsDescribed(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error {
	for _, w := range worlds {
		err := withLease(ctx, p, w, func(box sandboxes.Sandbox) error {
			tools, err := list(ctx, box)
			if err != nil {
				return err
			}
			if len(tools) == 0 {
				return errors.New("a session must offer tools: the list is empty")
			}
			seen := map[string]bool{}
			for i, tool := range tools {
				switch {
				case tool.Name == "":
					return fmt.Errorf("every tool must have a name: number %d has none", i)
				case seen[tool.Name]:
					return fmt.Errorf("tool names must differ: %s is listed twice", tool.Name)
				case tool.Description == "":
					return fmt.Errorf("every tool must have a description: %s has none", tool.Name)
				}
				seen[tool.Name] = true
				var schema map[string]any
				if err := json.Unmarshal(tool.InputSchema, &schema); err != nil || schema == nil {
					return fmt.Errorf("an input schema must be a JSON object: %s has %q (%v)", tool.Name, tool.InputSchema, err)
				}
				if tool.OutputSchema == nil {
					continue
				}
				schema = nil
				if err := json.Unmarshal(tool.OutputSchema, &schema); err != nil || schema == nil {
					return fmt.Errorf("an output schema must be a JSON object: %s has %q (%v)", tool.Name, tool.OutputSchema, err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func toolsSame(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error {
	return sameTwice(ctx, p, worlds, "tools", func(box sandboxes.Sandbox) (any, error) {
		first, err := list(ctx, box)
		if err != nil {
			return nil, err
		}
		first = slices.Clone(first)
		again, err := list(ctx, box)
		if err != nil {
			return nil, err
		}
		if !reflect.DeepEqual(first, again) {
			return nil, fmt.Errorf("a session must list the same tools every time: first\n%s\nthen\n%s", asJSON(first), asJSON(again))
		}
		return first, nil
	})
}

func stateSame(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error {
	return sameTwice(ctx, p, worlds, "state", func(box sandboxes.Sandbox) (any, error) {
		first, err := state(ctx, box)
		if errors.Is(err, errors.ErrUnsupported) {
			return nil, fmt.Errorf("%w: %v", errNoUse, err)
		}
		if err != nil {
			return nil, err
		}
		if first.Hash == "" {
			return nil, errors.New("a state must have a hash: it is empty")
		}
		if !slices.IsSorted(first.Diff) {
			return nil, fmt.Errorf("the differences of a state must be sorted: %q", first.Diff)
		}
		again, err := state(ctx, box)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(asJSON(first), asJSON(again)) {
			return nil, fmt.Errorf("reading the state must not change it: first\n%s\nthen\n%s", asJSON(first), asJSON(again))
		}
		return first, nil
	})
}

func resultsSame(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error {
	return sameTwice(ctx, p, worlds, "results of read-only calls", func(box sandboxes.Sandbox) (any, error) {
		tools, err := list(ctx, box)
		if err != nil {
			return nil, err
		}
		got := map[string]sandboxes.Result{}
		for _, tool := range tools {
			if !tool.ReadOnly {
				continue
			}
			r, err := call(ctx, box, tool.Name, "{}")
			if err != nil {
				return nil, err
			}
			if r.Volatile {
				r = sandboxes.Result{Volatile: true}
			}
			got[tool.Name] = r
		}
		if len(got) == 0 {
			return nil, fmt.Errorf("%w: no tool is read-only", errNoUse)
		}
		return got, nil
	})
}

// sameTwice looks at every world twice, in leases between which all other worlds were leased and stay so.
func sameTwice(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World, what string, look func(sandboxes.Sandbox) (any, error)) error {
	first := make([][]byte, len(worlds))
	for round := range 2 {
		for i, w := range worlds {
			box, err := lease(ctx, p, w)
			if err != nil {
				return err
			}
			defer box.Close()
			got, err := look(box)
			if err != nil {
				return err
			}
			if round == 0 {
				first[i] = asJSON(got)
			} else if again := asJSON(got); !bytes.Equal(first[i], again) {
				return fmt.Errorf("equal worlds must have equal %s, byte for byte: world %s shows in one lease\n%s\nand in another\n%s", what, asJSON(w), first[i], again)
			}
		}
	}
	return nil
}

func leasesIsolated(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error {
	w := worlds[0]
	return withLease(ctx, p, w, func(mine sandboxes.Sandbox) error {
		before, stateErr := state(ctx, mine)
		if stateErr != nil && !errors.Is(stateErr, errors.ErrUnsupported) {
			return stateErr
		}
		err := withLease(ctx, p, w, func(other sandboxes.Sandbox) error {
			tools, err := list(ctx, other)
			if err != nil {
				return err
			}
			for _, tool := range tools {
				if _, err := call(ctx, other, tool.Name, "{}"); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if stateErr == nil {
			after, err := state(ctx, mine)
			if err != nil {
				return fmt.Errorf("closing one lease must leave the others working: %w", err)
			}
			if !bytes.Equal(asJSON(before), asJSON(after)) {
				return fmt.Errorf("calls in one lease must not change another lease of the same world: its state was\n%s\nand is\n%s", asJSON(before), asJSON(after))
			}
		}
		if err := usable(ctx, mine); err != nil {
			return fmt.Errorf("closing one lease must leave the others working: %w", err)
		}
		return nil
	})
}

// unheardOf is a tool that nobody has.
const unheardOf = "no_such_tool_of_sandboxtest"

func unknownTool(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error {
	return withLease(ctx, p, worlds[0], func(box sandboxes.Sandbox) error {
		r, err := box.Session().Call(ctx, unheardOf, json.RawMessage("{}"))
		if err != nil {
			return fmt.Errorf("a call of a tool that does not exist must be answered by an error result, not by an error: got %w", err)
		}
		if !r.IsError {
			return fmt.Errorf("a call of a tool that does not exist must be answered by an error result: got %s", asJSON(r))
		}
		if err := usable(ctx, box); err != nil {
			return fmt.Errorf("a session must stay usable after a call of a tool that does not exist: %w", err)
		}
		return nil
	})
}

func brokenArguments(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error {
	return withLease(ctx, p, worlds[0], func(box sandboxes.Sandbox) error {
		name, err := someTool(ctx, box)
		if err != nil {
			return err
		}
		for _, args := range []string{"{", `{"a":`, "nonsense", `{"a":1}}`, `{"a":1},"name":"b"`, "{}\n{}", "\x00", "{\"a\":\"\xff"} {
			r, err := box.Session().Call(ctx, name, json.RawMessage(args))
			if err != nil {
				return fmt.Errorf("arguments that are not JSON must be answered by an error result, not by an error: %q gave %w", args, err)
			}
			if !r.IsError {
				return fmt.Errorf("arguments that are not JSON must be answered by an error result: %q gave %s", args, asJSON(r))
			}
			if err := usable(ctx, box); err != nil {
				return fmt.Errorf("a session must stay usable after arguments that are not JSON: %q, then %w", args, err)
			}
		}
		return nil
	})
}

func contextEnded(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error {
	box, err := lease(ctx, p, worlds[0])
	if err != nil {
		return err
	}
	defer box.Close()
	name, err := someTool(ctx, box)
	if err != nil {
		return err
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	expired, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second))
	defer cancel()
	for _, ended := range []context.Context{cancelled, expired} {
		err := within(promptly, "a call whose context has ended", func() error {
			if r, err := box.Session().Call(ended, name, json.RawMessage("{}")); !errors.Is(err, ended.Err()) {
				return fmt.Errorf("a call whose context has ended must return the context's error %q: got %s and error %v", ended.Err(), asJSON(r), err)
			}
			return nil
		})
		if err != nil {
			return err
		}
		err = within(promptly, "listing tools with a context that has ended", func() error {
			if _, err := box.Session().Tools(ended); err != nil && !errors.Is(err, ended.Err()) {
				return fmt.Errorf("listing tools with a context that has ended must return the context's error %q, or the tools: got error %w", ended.Err(), err)
			}
			return nil
		})
		if err != nil {
			return err
		}
		err = within(promptly, "a lease whose context has ended", func() error {
			box, err := p.Lease(ended, worlds[0])
			if err == nil {
				return box.Close() // one that was ready
			}
			if !errors.Is(err, ended.Err()) {
				return fmt.Errorf("a lease whose context has ended must return the context's error %q, or a sandbox: got error %w", ended.Err(), err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if err := usable(ctx, box); err != nil {
		return fmt.Errorf("a session must stay usable after a call whose context had ended before it: %w", err)
	}
	return nil
}

func closeTwice(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error {
	box, err := lease(ctx, p, worlds[0])
	if err != nil {
		return err
	}
	for _, c := range []struct {
		what  string
		close func() error
	}{{"sandbox", box.Close}, {"provider", p.Close}} {
		for _, nth := range []string{"first", "second"} {
			err := within(deadline, fmt.Sprintf("the %s Close of a %s", nth, c.what), c.close)
			if err != nil {
				return fmt.Errorf("a %s must close, and may be closed twice: the %s Close gave %w", c.what, nth, err)
			}
		}
	}
	return nil
}

func callAfterClose(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error {
	box, err := lease(ctx, p, worlds[0])
	if err != nil {
		return err
	}
	name, err := someTool(ctx, box)
	if err != nil {
		return err
	}
	session := box.Session()
	if err := box.Close(); err != nil {
		return fmt.Errorf("close a sandbox: %w", err)
	}
	r, err := session.Call(ctx, name, json.RawMessage("{}"))
	if err == nil {
		return fmt.Errorf("a call after the sandbox was closed must give a *Fault: got the result %s", asJSON(r))
	}
	if _, ok := errors.AsType[*sandboxes.Fault](err); !ok {
		return fmt.Errorf("a call after the sandbox was closed must give a *Fault: got a %T, %w", err, err)
	}
	return nil
}

func providerCloseFrees(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error {
	box, err := lease(ctx, p, worlds[0])
	if err != nil {
		return err
	}
	name, err := someTool(ctx, box)
	if err != nil {
		return err
	}
	if err := within(deadline, "Close of a provider with a leased sandbox", p.Close); err != nil {
		return fmt.Errorf("a provider must close while sandboxes are leased: %w", err)
	}
	// Whether the call still works is not prescribed, only that it ends.
	err = within(promptly, "a call after the provider was closed", func() error {
		_, err := box.Session().Call(ctx, name, json.RawMessage("{}"))
		if _, ok := errors.AsType[*sandboxes.Fault](err); err != nil && !ok {
			return fmt.Errorf("a call after the provider was closed may fail only with a *Fault: got a %T, %w", err, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := within(deadline, "Close of a sandbox after its provider was closed", box.Close); err != nil {
		return fmt.Errorf("a sandbox may be closed after its provider: %w", err)
	}
	return nil
}

func concurrentLeases(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error {
	const n = 8
	errs := make([]error, n)
	var leased, all sync.WaitGroup
	leased.Add(n)
	for i := range n {
		all.Go(func() {
			errs[i] = within(deadline, "one of many leases", func() error {
				box, err := lease(ctx, p, worlds[i%len(worlds)])
				leased.Done()
				if err != nil {
					return err
				}
				leased.Wait() // so that all are leased at once
				return errors.Join(usable(ctx, box), box.Close())
			})
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%d sandboxes leased and used at once must all work: %w", n, err)
	}
	return nil
}

func prefetchReturns(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error {
	many := slices.Repeat(worlds, 1+1000/len(worlds))
	err := within(promptly, "Prefetch, which must never block,", func() error {
		p.Prefetch()
		p.Prefetch(many...)
		p.Prefetch(many...)
		return nil
	})
	if err != nil {
		return err
	}
	for _, w := range worlds {
		if err := withLease(ctx, p, w, func(box sandboxes.Sandbox) error { return usable(ctx, box) }); err != nil {
			return fmt.Errorf("a world that was announced by Prefetch must be leased like any other: %w", err)
		}
	}
	return nil
}

// useAndClose does what should leave nothing behind.
func useAndClose(ctx context.Context, p sandboxes.Provider, worlds []sandboxes.World) error {
	p.Prefetch(worlds...)
	for range 2 {
		if err := withLease(ctx, p, worlds[0], func(box sandboxes.Sandbox) error { return usable(ctx, box) }); err != nil {
			return err
		}
	}
	box, err := lease(ctx, p, worlds[0]) // left to the provider
	if err != nil {
		return err
	}
	if err := usable(ctx, box); err != nil {
		return err
	}
	return p.Close()
}

// usable says what is wrong with a sandbox that should work.
func usable(ctx context.Context, box sandboxes.Sandbox) error {
	name, err := someTool(ctx, box)
	if err != nil {
		return err
	}
	_, err = call(ctx, box, name, "{}")
	return err
}

// someTool names a tool to call.
func someTool(ctx context.Context, box sandboxes.Sandbox) (string, error) {
	tools, err := list(ctx, box)
	if err != nil || len(tools) == 0 { // that there are none is the affair of one rule
		return unheardOf, err
	}
	return tools[0].Name, nil
}

func withLease(ctx context.Context, p sandboxes.Provider, w sandboxes.World, f func(sandboxes.Sandbox) error) error {
	box, err := lease(ctx, p, w)
	if err != nil {
		return err
	}
	if err := f(box); err != nil {
		box.Close()
		return err
	}
	if err := box.Close(); err != nil {
		return fmt.Errorf("close a sandbox: %w", err)
	}
	return nil
}

func lease(ctx context.Context, p sandboxes.Provider, w sandboxes.World) (sandboxes.Sandbox, error) {
	box, err := p.Lease(ctx, w)
	if err != nil {
		return nil, fmt.Errorf("lease world %s: %w", asJSON(w), err)
	}
	return box, nil
}

func list(ctx context.Context, box sandboxes.Sandbox) ([]sandboxes.Tool, error) {
	tools, err := box.Session().Tools(ctx)
	if err != nil {
		return nil, fmt.Errorf("list tools: %w", err)
	}
	return tools, nil
}

func call(ctx context.Context, box sandboxes.Sandbox, name, args string) (sandboxes.Result, error) {
	r, err := box.Session().Call(ctx, name, json.RawMessage(args))
	if err != nil {
		return r, fmt.Errorf("call %s with %s: %w", name, args, err)
	}
	return r, nil
}

func state(ctx context.Context, box sandboxes.Sandbox) (sandboxes.State, error) {
	s, err := sandboxes.StateOf(ctx, box)
	if err != nil {
		return s, fmt.Errorf("read the state: %w", err)
	}
	return s, nil
}

// asJSON shows a value; maps come out sorted.
func asJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Appendf(nil, "%+v", v) // schemas that are not JSON
	}
	return data
}
