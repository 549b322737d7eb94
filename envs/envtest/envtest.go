// Package envtest proves environments. Check is the whole test of a Spec.
package envtest

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// Check proves a Spec: every rule is a subtest on fresh environments under a deadline, and a failure names the rule's reason.
// It plays a few tasks of each family of each split, fewer of a family that an earlier split has, too; with MCPGYM_SOAK set,
// all of the first 500 of each split.
func Check(t *testing.T, spec envs.Spec) {
	t.Helper()
	if err := spec.Validate(); err != nil {
		t.Fatalf("the spec is not valid: %v", err)
	}
	if os.Getenv(childVar) != "" {
		printRecords(t, spec)
		return
	}
	leases := &counted{Provider: spec.Sandboxes}
	spec.Sandboxes = leases
	first := scan(spec, false)
	tasks, each := sample(spec, first)
	known := &known{families: sync.OnceValue(func() []family { return families(spec, first) })}
	fails := map[string]bool{} // rules that fail, and those that were not judged since they need one that does
	for _, r := range rules {
		passes := t.Run(r.name, func(t *testing.T) {
			if fails[r.needs] {
				fails[r.name] = true
				t.Skipf("not judged before the rule %s is kept", r.needs)
			}
			limit := 3 * time.Minute
			if soak() {
				limit = 20 * time.Minute
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			done := make(chan struct{})
			k := &checker{T: t, spec: spec, tasks: tasks, each: each, known: known, ctx: ctx}
			before, start := leases.n.Load(), time.Now()
			go func() {
				defer close(done)
				r.check(k)
			}()
			select {
			case <-done:
			case <-time.After(limit + 5*time.Second):
				t.Errorf("still running after %v", limit)
			}
			t.Logf("%d sandboxes, %.2fs", leases.n.Load()-before, time.Since(start).Seconds())
			if t.Failed() {
				t.Logf("rule %s: %s", r.name, r.why)
			}
		})
		fails[r.name] = fails[r.name] || !passes
	}
}

func soak() bool { return os.Getenv("MCPGYM_SOAK") != "" }

// counted counts the sandboxes that are leased: where a world is a database they are what a rule costs.
type counted struct {
	sandboxes.Provider
	n atomic.Int64
}

func (p *counted) Lease(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
	p.n.Add(1)
	return p.Provider.Lease(ctx, w)
}

// checker is one rule's view of the spec.
type checker struct {
	*testing.T
	spec  envs.Spec
	tasks []envs.Task // a few of each family and split
	each  []envs.Task // of these the first of each family, for rules that find nothing new in a second one; all with MCPGYM_SOAK
	known *known
	ctx   context.Context
	own   *envs.Env // nil until it is needed
}

// known is what one rule finds out and others use.
type known struct {
	records  sync.Map // of episodes that many rules look at, by task and calls
	families func() []family
}

// rules in the order in which they are run. Each is told to a reader by why. A rule that would only repeat what another
// has found needs that one, and is not judged where it fails: an author is shown the cause alone.
var rules = []struct {
	name, needs, why string
	check            func(*checker)
}{
	{"tasks", "", "a task has an ID of its own, a family, a prompt, criteria, and a gold solution within the limits whose calls are its par; a split gives the same task for the same index, in any order and to several at once", (*checker).wellFormed},
	{"tools", "tasks", "tools are described, have object schemas, and are the same after every reset", (*checker).tools},
	{"oracle", "tasks", "every gold solution terminates the episode and earns exactly 1", (*checker).oracle},
	{"volatile", "oracle", "the gold solution earns 1 without the results that are marked volatile: what may read otherwise another time is no evidence", (*checker).volatile},
	{"accepts", "oracle", "each answer that a task accepts earns exactly 1 after the gold solution's calls", (*checker).accepts},
	{"noop", "tasks", "answering nothing at once earns at most 0: the goal must not hold at the start", (*checker).noop},
	{"undone", "noop", "the gold solution's calls and answer earn nothing where the world is left as it was at the start: what gold changes must be what is judged", (*checker).undone},
	{"deterministic", "tasks", "the same task and actions give the same record, byte for byte, in one environment and in another", (*checker).deterministic},
	{"clean-reset", "deterministic", "a reset in mid-episode leaves nothing of the old episode", (*checker).cleanReset},
	{"isolation", "deterministic", "an episode played at the same time changes nothing", (*checker).isolation},
	{"parallel", "isolation", "episodes played at once give the same records as one after the other", (*checker).parallel},
	{"locale", "deterministic", "another process, on another day by the local clock and in another language, changes nothing", (*checker).locale},
	{"bad-calls", "tools", "what an agent does wrong it is told, it costs something, and the episode goes on", (*checker).badCalls},
	{"budget", "tasks", "an episode that runs out of turns or of time is truncated, not terminated, earns nothing, and is over", (*checker).budget},
	{"agent-fault", "tasks", "what an agent can cause is not void", (*checker).agentFault},
	{"cancel", "tasks", "a cancelled context ends Reset and Step at once, with its error", (*checker).cancel},
	{"rescore", "tasks", "a record read back from JSON scores the same: a reward is a function of the record alone", (*checker).rescore},
	{"secret", "tasks", "neither prompt nor IDs nor tools give the answer away, and no observation shows the wanted answer as it is stored or the state's hash", (*checker).secret},
	{"probes", "tasks", "what the verifier asks reaches no agent", (*checker).probes},
	{"evidence", "tasks", "the right answer without the results it follows from earns nothing", (*checker).evidence},
	{"guess", "tasks", "a family has at least 20 answers, none of them common: guessing must not pay", (*checker).guess},
	{"derivable", "oracle", "each text and number of a gold call stands in the prompt, the tools, or a result before it, and what the gold answer says follows from what was seen", (*checker).derivable},
	{"cheats", "tasks", "no cheat earns more than 0", (*checker).cheats},
	{"close", "tasks", "an environment closes twice and leaves no goroutine behind", (*checker).close},
}
