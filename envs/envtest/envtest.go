// Package envtest proves environments. Check is the whole test of a Spec.
package envtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	_ "time/tzdata" // without a zone database the locale rule could not fail

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/redteam"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// Check proves a Spec: every rule is a subtest on fresh environments under a deadline, and a failure names the rule's reason.
// It plays a few tasks of each family of each split; with MCPGYM_SOAK set, all of the first 500 of each split.
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
	tasks, each := sample(spec, false)
	known := newKnown(spec)
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
	each  []envs.Task // of these the first of each family and split, for rules that find nothing new in a second one; all with MCPGYM_SOAK
	known *known
	ctx   context.Context
	own   *envs.Env // nil until it is needed
}

// known is what one rule finds out and others use.
type known struct {
	records  sync.Map // of episodes that many rules look at, by task and calls
	families func() []family
}

type family struct {
	split, name string
	tasks       []envs.Task // up to 100
}

func newKnown(spec envs.Spec) *known {
	return &known{families: sync.OnceValue(func() []family { return families(spec) })}
}

const (
	scanned   = 500 // tasks of a split that are looked at
	perFamily = 2   // of which this many of each family are played
	answers   = 100 // of each family whose answers are counted
	compared  = 100 // tasks of a split that are generated anew
)

// sample gives a few tasks of each family and split, and the first of each. They are the same whether all tasks are generated
// backwards or not.
func sample(spec envs.Spec, backwards bool) (tasks, each []envs.Task) {
	for _, name := range spec.SplitNames() {
		all := make([]envs.Task, scanned)
		for i := range all {
			if backwards {
				i = scanned - 1 - i
			}
			all[i] = spec.Splits[name].Task(i)
		}
		count := map[string]int{}
		for _, t := range all {
			if count[t.Family]++; soak() || count[t.Family] <= perFamily {
				tasks = append(tasks, t)
			}
			if soak() || count[t.Family] == 1 {
				each = append(each, t)
			}
		}
	}
	return tasks, each
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
	{"accepts", "oracle", "each answer that a task accepts earns exactly 1 after the gold solution's calls", (*checker).accepts},
	{"noop", "tasks", "answering nothing at once earns at most 0: the goal must not hold at the start", (*checker).noop},
	{"deterministic", "tasks", "the same task and actions give the same record, byte for byte, in one environment and in another", (*checker).deterministic},
	{"clean-reset", "deterministic", "a reset in mid-episode leaves nothing of the old episode", (*checker).cleanReset},
	{"isolation", "deterministic", "an episode played at the same time changes nothing", (*checker).isolation},
	{"parallel", "isolation", "episodes played at once give the same records as one after the other", (*checker).parallel},
	{"locale", "deterministic", "another process, and the time zone and language of the machine, change nothing", (*checker).locale},
	{"bad-calls", "tools", "what an agent does wrong it is told, it costs something, and the episode goes on", (*checker).badCalls},
	{"budget", "tasks", "an episode that runs out of turns or of time is truncated, not terminated, earns nothing, and is over", (*checker).budget},
	{"agent-fault", "tasks", "what an agent can cause is not void", (*checker).agentFault},
	{"cancel", "tasks", "a cancelled context ends Reset and Step at once, with its error", (*checker).cancel},
	{"rescore", "tasks", "a record read back from JSON scores the same: a reward is a function of the record alone", (*checker).rescore},
	{"secret", "tasks", "neither prompt nor IDs nor tools give the answer away, and no observation shows the wanted answer as it is stored or the state's hash", (*checker).secret},
	{"probes", "tasks", "what the verifier asks reaches no agent", (*checker).probes},
	{"evidence", "tasks", "the right answer without the results it follows from earns nothing", (*checker).evidence},
	{"guess", "tasks", "a family has at least 20 answers, none of them common: guessing must not pay", (*checker).guess},
	{"derivable", "tasks", "each text and number of a gold call stands in the prompt, the tools, or a result before it", (*checker).derivable},
	{"cheats", "tasks", "no cheat earns more than 0", (*checker).cheats},
	{"close", "tasks", "an environment closes twice and leaves no goroutine behind", (*checker).close},
}

func (c *checker) env() *envs.Env {
	e, err := envs.New(c.spec)
	if err != nil {
		c.Fatalf("make the environment: %v", err)
	}
	c.Cleanup(func() { e.Close() })
	return e
}

// play plays a task; a void episode or an error fails the rule.
func (c *checker) play(e *envs.Env, task envs.Task, p policies.Policy) *envs.Trajectory {
	t, err := policies.Rollout(c.ctx, e, task, p, 1)
	if err != nil {
		c.Errorf("%s: %v", task.ID, err)
		return nil
	}
	if t.Void != nil {
		c.Errorf("%s: void: %v", task.ID, t.Void)
		return nil
	}
	return t
}

// gold is the record of a task's gold solution, and idle that of doing nothing. They are played once for all rules: the rule
// deterministic says that they would be the same each time.
func (c *checker) gold(task envs.Task) *envs.Trajectory {
	return c.once(task, "gold", policies.Oracle{})
}
func (c *checker) idle(task envs.Task) *envs.Trajectory { return c.once(task, "idle", policies.Noop{}) }

func (c *checker) once(task envs.Task, name string, p policies.Policy) *envs.Trajectory {
	if t, ok := c.known.records.Load(name + " " + task.ID); ok {
		return t.(*envs.Trajectory)
	}
	if c.own == nil {
		c.own = c.env()
	}
	t := c.play(c.own, task, p)
	if t != nil {
		c.known.records.Store(name+" "+task.ID, t)
	}
	return t
}

// free says whether turns make no calls, or those of the gold solution: a record of these is known, and what an agent says
// reaches nothing but the record, so only the score is new. Turns end with the only one without calls.
func free(task envs.Task, turns []envs.Action) bool {
	return len(turns) == 1 || slices.EqualFunc(turns, task.Solution, sameCalls)
}

// played is the record of turns that are free, nil where what is known of them is no whole episode.
func (c *checker) played(task envs.Task, turns []envs.Action) (*envs.Trajectory, error) {
	record := c.idle
	if len(turns) > 1 {
		record = c.gold
	}
	r := record(task)
	if r == nil || len(r.Steps) != len(turns) {
		return nil, nil
	}
	t := *r
	t.Steps = slices.Clone(t.Steps)
	for i, a := range turns {
		t.Steps[i].Action.Text = strings.ToValidUTF8(a.Text, "\uFFFD")
		t.Steps[i].Action.Reasoning = strings.ToValidUTF8(a.Reasoning, "\uFFFD")
	}
	score, err := c.spec.Reward.Score(&t)
	if err != nil {
		return nil, err
	}
	t.Score, t.Steps[len(t.Steps)-1].Score = &score, &score
	return &t, nil
}

func sameCalls(a, b envs.Action) bool {
	return slices.EqualFunc(a.Calls, b.Calls, func(a, b envs.Call) bool {
		return a.ID == b.ID && a.Name == b.Name && a.Malformed == b.Malformed && bytes.Equal(a.Arguments, b.Arguments)
	})
}

// ended makes turns end with the first one without calls, as an episode does.
func ended(turns []envs.Action) []envs.Action {
	if i := slices.IndexFunc(turns, func(a envs.Action) bool { return len(a.Calls) == 0 }); i >= 0 {
		return turns[:i+1]
	}
	return append(slices.Clip(turns), envs.Action{})
}

// announce has worlds of a task made while others are played. It pays where a world costs much, which is one that is written
// to. Each that is announced must be leased, or it keeps its place for ever.
func (c *checker) announce(task envs.Task, n int) {
	if len(task.Assertions) > 0 {
		c.spec.Sandboxes.Prefetch(slices.Repeat([]sandboxes.World{task.World}, n)...)
	}
}

// visit calls f with each task. f leases n sandboxes of it, which are made ahead.
func (c *checker) visit(tasks []envs.Task, n int, f func(envs.Task)) {
	for i, task := range tasks {
		if i == 0 {
			c.announce(task, n)
		}
		if i+1 < len(tasks) {
			c.announce(tasks[i+1], n)
		}
		f(task)
	}
}

func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return []byte("not encodable: " + err.Error())
	}
	return b.Bytes()
}

// written is all of a task, also what is not recorded.
func written(t envs.Task) []byte { return append(encode(t), encode(t.Solution)...) }

func (c *checker) wellFormed() {
	seen := map[string]string{}
	for _, name := range c.spec.SplitNames() {
		src := c.spec.Splits[name]
		var first [compared][]byte
		for i := range first {
			t := src.Task(i)
			first[i] = written(t)
			if other, ok := seen[t.ID]; ok {
				c.Errorf("task %s stands twice: %s and %s/%d", t.ID, other, name, i)
			}
			seen[t.ID] = fmt.Sprintf("%s/%d", name, i)
		}
		var wg sync.WaitGroup
		const workers = 4
		for w := range workers {
			wg.Go(func() {
				for i := compared - 1 - w; i >= 0; i -= workers {
					if !bytes.Equal(first[i], written(src.Task(i))) {
						c.Errorf("split %s gives two tasks for index %d: another one when several ask at once, the last index first", name, i)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	for _, t := range c.tasks {
		calls := 0
		for i, a := range t.Solution {
			calls += len(a.Calls)
			if last := i == len(t.Solution)-1; last != (len(a.Calls) == 0) {
				c.Errorf("%s: the gold solution must end with its only turn without calls", t.ID)
			}
		}
		switch l := c.spec.Limits; {
		case t.ID == "" || t.Family == "" || strings.TrimSpace(t.Prompt) == "":
			c.Errorf("%q: ID, family and prompt must be set", t.ID)
		case len(t.Want) == 0 && len(t.Assertions) == 0:
			c.Errorf("%s: neither a wanted answer nor assertions: anything would pass", t.ID)
		case len(t.Solution) == 0:
			c.Errorf("%s: no gold solution", t.ID)
		case t.Par != calls:
			c.Errorf("%s: par is %d, the gold solution makes %d calls", t.ID, t.Par, calls)
		case len(t.Solution) > l.Turns || calls > l.Calls:
			c.Errorf("%s: the gold solution of %d turns and %d calls does not fit the limits", t.ID, len(t.Solution), calls)
		}
	}
}

func (c *checker) tools() {
	e := c.env()
	for i, task := range c.each {
		lists := make([][]byte, 1, 2) // the rule deterministic compares those of other tasks
		if i == 0 {
			lists = lists[:2]
		}
		for i := range lists {
			if _, err := e.Reset(c.ctx, task); err != nil {
				c.Fatalf("%s: %v", task.ID, err)
			}
			tools := e.Trajectory().Tools
			lists[i] = encode(tools)
			if len(tools) == 0 {
				c.Fatalf("%s: no tools", task.ID)
			}
			for _, t := range tools {
				var schema struct {
					Type string `json:"type"`
				}
				if err := json.Unmarshal(t.InputSchema, &schema); err != nil || schema.Type != "object" {
					c.Errorf("tool %s: the input schema is not of type object", t.Name)
				}
				if strings.TrimSpace(t.Description) == "" {
					c.Errorf("tool %s has no description", t.Name)
				}
			}
		}
		if !bytes.Equal(lists[0], lists[len(lists)-1]) {
			c.Fatalf("%s: a second reset lists other tools", task.ID)
		}
	}
}

func (c *checker) oracle() {
	c.visit(c.tasks, 1, func(task envs.Task) {
		t := c.gold(task)
		if t == nil {
			return
		}
		if t.End != envs.EndAnswer {
			c.Errorf("%s: the gold solution ends with %q", task.ID, t.End)
		}
		if d := t.Score.Value - 1; !t.Score.Success || d > 1e-9 || d < -1e-9 {
			c.Errorf("%s: the gold solution earns %v: %s", task.ID, t.Score.Value, encode(t.Score.Parts))
		}
	})
}

// accepts says the other right answers of tasks that name them as rewards.Want does.
func (c *checker) accepts() {
	for _, task := range c.tasks {
		want, err := rewards.DecodeWant(task.Want)
		if err != nil {
			continue // judged by the world's state, or by a reward with another form
		}
		most := 0
		for _, v := range want.Answer {
			most = max(most, len(v.Accept))
		}
		for k := range most {
			said := make([]string, len(want.Answer))
			for i, v := range want.Answer {
				said[i] = append([]string{v.Value}, v.Accept...)[min(k+1, len(v.Accept))]
			}
			turns := slices.Clone(task.Solution)
			turns[len(turns)-1].Text = "ANSWER: " + strings.Join(said, "; ")
			t, err := c.played(task, turns)
			switch {
			case err != nil:
				c.Errorf("%s: %q: %v", task.ID, turns[len(turns)-1].Text, err)
			case t != nil && (!t.Score.Success || t.Score.Value < 1-1e-9):
				c.Errorf("%s: %q, which is accepted, earns %v after the gold solution's calls: %s", task.ID, turns[len(turns)-1].Text, t.Score.Value, encode(t.Score.Parts))
			}
		}
	}
}

// nothing plays turns that must earn nothing. An episode that they make void fails the rule, too.
func (c *checker) nothing(e *envs.Env, task envs.Task, name string, turns []envs.Action) *envs.Trajectory {
	var t *envs.Trajectory
	var err error
	if turns = ended(turns); free(task, turns) {
		t, err = c.played(task, turns)
	}
	if t == nil && err == nil {
		t, err = policies.Rollout(c.ctx, e, task, policies.Replay{Steps: steps(turns)}, 1)
	}
	return c.unpaid(task, name, t, err)
}

// unpaid says what is wrong with an episode that must earn nothing, and gives it where it was scored.
func (c *checker) unpaid(task envs.Task, name string, t *envs.Trajectory, err error) *envs.Trajectory {
	switch {
	case err != nil:
		c.Errorf("%s: %s: %v", task.ID, name, err)
		return nil
	case t.Void != nil:
		c.Errorf("%s: %s makes the episode void: %v", task.ID, name, t.Void)
		return nil
	case t.Score.Value > 0 || t.Score.Success:
		c.Errorf("%s: %s earns %v: %s", task.ID, name, t.Score.Value, encode(t.Score.Parts))
	}
	return t
}

func steps(turns []envs.Action) []envs.Step {
	all := make([]envs.Step, len(turns))
	for i, a := range turns {
		all[i].Action = a
	}
	return all
}

func (c *checker) noop() {
	e := c.env()
	c.visit(c.tasks, 1, func(task envs.Task) { c.nothing(e, task, "doing nothing", []envs.Action{{}}) })
}

func (c *checker) same(what string, task envs.Task, a, b *envs.Trajectory) {
	if a != nil && b != nil {
		c.sameRecord(what, task, encode(a), encode(b))
	}
}

func (c *checker) sameRecord(what string, task envs.Task, a, b []byte) {
	if bytes.Equal(a, b) {
		return
	}
	at := 0
	for at < min(len(a), len(b)) && a[at] == b[at] {
		at++
	}
	from := max(0, at-60)
	c.Errorf("%s: %s gives another record, from\n  ...%s\nto\n  ...%s", task.ID, what, a[from:min(len(a), at+60)], b[from:min(len(b), at+60)])
}

func (c *checker) deterministic() {
	e := c.env()
	c.visit(c.tasks, 2, func(task envs.Task) {
		first := c.play(e, task, policies.Oracle{})
		c.same("playing again", task, first, c.play(e, task, policies.Oracle{}))
		c.same("playing in another environment", task, first, c.gold(task))
	})
}

func (c *checker) cleanReset() {
	e := c.env()
	c.visit(c.each, 2, func(task envs.Task) {
		want := c.gold(task) // first, so that no other episode runs beside the one that is broken off
		if _, err := e.Reset(c.ctx, task); err != nil {
			c.Fatalf("%s: %v", task.ID, err)
		}
		for _, a := range task.Solution[:len(task.Solution)-1] {
			if _, err := e.Step(c.ctx, a); err != nil {
				c.Fatalf("%s: %v", task.ID, err)
			}
		}
		c.same("playing after a reset in mid-episode", task, want, c.play(e, task, policies.Oracle{}))
	})
}

// isolation plays three episodes turn by turn: one of the task, and before each of its turns one of the same task and one of
// the next, so that these write, and end, while it goes on.
func (c *checker) isolation() {
	e, twin, other := c.env(), c.env(), c.env()
	for i, task := range c.each {
		next := c.each[(i+1)%len(c.each)]
		want := c.gold(task)
		c.announce(task, 2)
		c.announce(next, 1)
		type episode struct {
			*envs.Env
			task envs.Task
			turn int
		}
		episodes := []*episode{{twin, task, 0}, {other, next, 0}, {e, task, 0}}
		for _, p := range episodes {
			if _, err := p.Reset(c.ctx, p.task); err != nil {
				c.Fatalf("%s: %v", p.task.ID, err)
			}
		}
		for range task.Solution {
			for _, p := range episodes {
				if p.turn == len(p.task.Solution) {
					continue
				}
				if _, err := p.Step(c.ctx, p.task.Solution[p.turn]); err != nil {
					c.Fatalf("%s: %v", p.task.ID, err)
				}
				if p.turn++; p.turn == len(p.task.Solution) && p.Env != e {
					if err := p.Close(); err != nil { // its world goes while that of the task is used
						c.Fatalf("%s: %v", p.task.ID, err)
					}
				}
			}
		}
		c.same("playing beside another episode", task, want, e.Trajectory())
		if err := other.Close(); err != nil { // it may be longer
			c.Fatalf("%s: %v", next.ID, err)
		}
	}
}

func (c *checker) parallel() {
	got := make([][4]*envs.Trajectory, len(c.each)) // a group of four members each
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			e := c.env()
			for i := range c.each {
				for m := range 4 {
					if (i*4+m)%8 == w {
						got[i][m] = c.play(e, c.each[i], policies.Oracle{})
					}
				}
			}
		})
	}
	wg.Wait()
	for i, task := range c.each {
		want := c.gold(task)
		for _, t := range got[i] {
			c.same("playing in parallel", task, want, t)
		}
	}
}

// childVar makes Check print the gold records and do nothing else: how the locale rule looks at itself from a process with
// another time zone and language.
const childVar = "MCPGYM_ENVTEST_RECORDS"

var recordLine = regexp.MustCompile(`(?m)^envtest record (.*)$`)

func printRecords(t *testing.T, spec envs.Spec) {
	c := &checker{spec: spec, T: t, ctx: t.Context()}
	e := c.env()
	_, each := sample(spec, true) // another order than in the first process
	for _, task := range each {
		fmt.Printf("\nenvtest record %s", encode(c.play(e, task, policies.Oracle{})))
	}
}

func (c *checker) locale() {
	exe, err := os.Executable()
	if err != nil {
		c.Fatal(err)
	}
	path := strings.Split(c.Name(), "/")
	for i := range path {
		path[i] = "^" + regexp.QuoteMeta(path[i]) + "$"
	}
	run := strings.Join(path[:len(path)-1], "/")
	places := [][2]string{{"Asia/Kolkata", "tr_TR.UTF-8"}, {"America/Los_Angeles", "de_DE.UTF-8"}} // one of them is not here
	outs, errs := make([][]byte, len(places)), make([]error, len(places))
	var wg sync.WaitGroup
	for i, place := range places {
		wg.Go(func() {
			cmd := exec.CommandContext(c.ctx, exe, "-test.run", run, "-test.count=1")
			cmd.Env = append(os.Environ(), childVar+"=1", "TZ="+place[0], "LANG="+place[1], "LC_ALL="+place[1])
			outs[i], errs[i] = cmd.CombinedOutput()
		})
	}
	wg.Wait()
	for i, place := range places {
		records := recordLine.FindAllSubmatch(outs[i], -1)
		if errs[i] != nil || len(records) != len(c.each) {
			c.Fatalf("play with TZ=%s LANG=%s: %d records of %d tasks, %v\n%s", place[0], place[1], len(records), len(c.each), errs[i], bytes.TrimSpace(recordLine.ReplaceAll(outs[i], nil)))
		}
		for k, task := range c.each {
			if t := c.gold(task); t != nil {
				c.sameRecord(fmt.Sprintf("another process, with TZ=%s LANG=%s,", place[0], place[1]), task, bytes.TrimSpace(encode(t)), bytes.TrimSpace(records[k][1]))
			}
		}
	}
}

func (c *checker) badCalls() {
	e := c.env()
	c.visit(c.each, 1, func(task envs.Task) {
		if _, err := e.Reset(c.ctx, task); err != nil {
			c.Fatalf("%s: %v", task.ID, err)
		}
		tools := e.Trajectory().Tools
		name := tools[0].Name
		bad := []struct {
			tool, args string
			want       envs.Status
		}{
			{name + "_x", `{}`, envs.StatusUnknown},
			{name, `{"a`, envs.StatusMalformed},
			{name, `[1]`, envs.StatusMalformed},
			{name, `{"a":1,"a":2}`, envs.StatusMalformed},
		}
		if tool, param := scalarParam(tools); tool != "" {
			bad = append(bad, []struct {
				tool, args string
				want       envs.Status
			}{
				{tool, `{}`, envs.StatusInvalid},                                // missing
				{tool, fmt.Sprintf(`{%q:{"a":[]}}`, param), envs.StatusInvalid}, // mistyped
			}...)
		}
		for len(bad) > 0 { // as many a turn as leave one for the answer
			now := bad[:min(len(bad), max(1, len(bad)/max(1, c.spec.Limits.Turns-2)+1))]
			bad = bad[len(now):]
			var a envs.Action
			for _, b := range now {
				a.Calls = append(a.Calls, envs.Call{Name: b.tool, Arguments: json.RawMessage(b.args)})
			}
			s, err := e.Step(c.ctx, a)
			if err != nil {
				c.Fatalf("%s: calls %s: %v", task.ID, encode(a.Calls), err)
			}
			if s.Terminated || s.Truncated {
				c.Fatalf("%s: calls %s end the episode (%s)", task.ID, encode(a.Calls), e.Trajectory().End)
			}
			for i, b := range now {
				if r := s.Observation.Results[i]; !r.IsError || r.Status != b.want || r.Text == "" {
					c.Errorf("%s: call %s %s gives %s, want an error of status %v", task.ID, b.tool, b.args, encode(r), b.want)
				}
			}
		}
		if _, err := e.Step(c.ctx, envs.Action{Text: "x"}); err != nil {
			c.Fatalf("%s: %v", task.ID, err)
		}
		if s := e.Trajectory().Score; s.Value >= 0 {
			c.Errorf("%s: an episode that calls an invented tool and answers x earns %v, want less than 0, as by a hallucination penalty: %s", task.ID, s.Value, encode(s.Parts))
		}
	})
}

// scalarParam finds a required parameter that takes one plain value.
func scalarParam(tools []sandboxes.Tool) (tool, param string) {
	for _, t := range tools {
		var schema struct {
			Required   []string `json:"required"`
			Properties map[string]struct {
				Type any `json:"type"`
			} `json:"properties"`
		}
		if json.Unmarshal(t.InputSchema, &schema) != nil {
			continue
		}
		for _, name := range schema.Required {
			switch schema.Properties[name].Type {
			case "string", "integer", "number", "boolean":
				return t.Name, name
			}
		}
	}
	return "", ""
}

func (c *checker) budget() {
	e := c.env()
	c.visit(c.each, 1, func(task envs.Task) {
		if _, err := e.Reset(c.ctx, task); err != nil {
			c.Fatalf("%s: %v", task.ID, err)
		}
		var s envs.Step
		for i := 0; !s.Terminated && !s.Truncated; i++ {
			if i >= c.spec.Limits.Turns {
				c.Fatalf("%s: the episode goes on after %d turns", task.ID, i)
			}
			var err error
			if s, err = e.Step(c.ctx, task.Solution[0]); err != nil {
				c.Fatalf("%s: %v", task.ID, err)
			}
		}
		if len(task.Solution[0].Calls) > 0 && (s.Terminated || !s.Truncated) {
			c.Errorf("%s: repeating a call terminates the episode", task.ID)
		}
		if _, err := e.Step(c.ctx, task.Solution[0]); !errors.Is(err, envs.ErrDone) {
			c.Errorf("%s: a step after the end returns %v, want ErrDone", task.ID, err)
		}
		if len(task.Solution[0].Calls) > 0 && e.Trajectory().Score.Value > 0 {
			c.Errorf("%s: repeating a call earns %v", task.ID, e.Trajectory().Score.Value)
		}
	})
	// All is done and known, and then there is no time to say so.
	hurried := c.spec
	hurried.Limits.Episode = 1
	late, err := envs.New(hurried)
	if err != nil {
		c.Fatal(err)
	}
	defer late.Close()
	c.visit(c.each, 1, func(task envs.Task) {
		all := envs.Action{Text: redteam.Final(task)}
		for _, a := range task.Solution {
			all.Calls = append(all.Calls, a.Calls...)
		}
		t, err := policies.Rollout(c.ctx, late, task, policies.Replay{Steps: steps([]envs.Action{all, {Text: all.Text}})}, 1)
		if t = c.unpaid(task, "running out of time after all calls", t, err); t != nil && len(all.Calls) > 0 && t.End != envs.EndTime && t.End != envs.EndTurns {
			c.Errorf("%s: the episode has no time left and ends with %q", task.ID, t.End)
		}
	})
}

func (c *checker) agentFault() {
	e := c.env()
	for i, task := range c.each {
		idle := c.idle(task)
		if idle == nil {
			continue
		}
		for k, a := range redteam.Hostile(policies.Episode{Tools: idle.Tools}) {
			if len(c.each) > 4 && !soak() && (i+k)%4 != 0 { // with many tasks each meets a part of them
				continue
			}
			if _, err := e.Reset(c.ctx, task); err != nil { // each in an episode of its own, before the calls run out
				c.Fatalf("%s: %v", task.ID, err)
			}
			if _, err := e.Step(c.ctx, a); err != nil {
				var calls []string
				for _, call := range a.Calls {
					calls = append(calls, fmt.Sprintf("%q %.60s", call.Name, call.Arguments))
				}
				c.Fatalf("%s: void by the calls %s: %v", task.ID, strings.Join(calls, "; "), err)
			}
		}
	}
}

func (c *checker) cancel() {
	e := c.env()
	ctx, cancel := context.WithCancel(c.ctx)
	task := c.tasks[0]
	if _, err := e.Reset(ctx, task); err != nil {
		c.Fatal(err)
	}
	cancel()
	for what, f := range map[string]func() error{
		"Step":  func() error { _, err := e.Step(ctx, task.Solution[0]); return err },
		"Reset": func() error { _, err := c.env().Reset(ctx, task); return err },
	} {
		start := time.Now()
		if err := f(); !errors.Is(err, context.Canceled) {
			c.Errorf("%s under a cancelled context returns %v", what, err)
		}
		if d := time.Since(start); d > 2*time.Second {
			c.Errorf("%s under a cancelled context takes %v, want less than 2s", what, d)
		}
	}
}

func (c *checker) rescore() {
	for _, task := range c.tasks {
		for _, t := range []*envs.Trajectory{c.gold(task), c.idle(task)} {
			if t == nil {
				continue
			}
			line := encode(t)
			var back envs.Trajectory
			if err := json.Unmarshal(line, &back); err != nil {
				c.Fatalf("%s: read the record back: %v", task.ID, err)
			}
			if !bytes.Equal(encode(&back), line) {
				c.Errorf("%s: the record does not read back as it was written", task.ID)
			}
			back.Score = nil
			s, err := c.spec.Reward.Score(&back)
			if err != nil || !bytes.Equal(encode(s), encode(t.Score)) {
				c.Errorf("%s: the record read back scores %s (%v), live it was %s", task.ID, encode(s), err, encode(t.Score))
			}
		}
	}
}

// values splits the gold answer of a task into its values: what stands after the colon, or the whole text. There are none
// where the task is judged by the world's state alone.
func values(task envs.Task) []string {
	if len(task.Want) == 0 {
		return nil
	}
	answer := redteam.Final(task)
	if _, after, ok := strings.Cut(answer, ":"); ok {
		answer = after
	}
	var out []string
	for _, v := range strings.Split(answer, ";") {
		if v = strings.TrimSpace(v); v != "" {
			out = append(out, v)
		}
	}
	return out
}

// holds says whether text has value as a word of its own.
func holds(text, value string) bool {
	at := 0
	for {
		i := strings.Index(text[at:], value)
		if i < 0 {
			return false
		}
		i += at
		rest := strings.TrimPrefix(text[i+len(value):], ".") // a full stop; "4" is not in "4.5" all the same
		if (i == 0 || !wordy(text[i-1])) && (rest == "" || !wordy(rest[0])) {
			return true
		}
		at = i + 1
	}
}

func wordy(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= 0x80 || b == '.'
}

func (c *checker) secret() {
	type count struct{ told, of int }
	inTools := map[string]*count{}
	for _, task := range c.tasks {
		t := c.gold(task)
		if t == nil {
			continue
		}
		shown := c.spec.System + "\n" + task.System + "\n" + task.Prompt + "\n"
		for _, r := range t.Results() {
			shown += r.Text + "\n"
		}
		if len(task.Want) > 8 && strings.Contains(shown, string(task.Want)) {
			c.Errorf("%s: the agent is shown the wanted answer as it is stored", task.ID)
		}
		if t.State != nil && t.State.Hash != "" && strings.Contains(shown, t.State.Hash) {
			c.Errorf("%s: the agent is shown the state's hash", task.ID)
		}
		if inTools[task.Family] == nil {
			inTools[task.Family] = &count{}
		}
		n := inTools[task.Family]
		n.of++
		if redteam.Final(task) != redteam.Abstain && answered(string(encode(t.Tools)), task) {
			n.told++
		}
	}
	// A text may hold an answer by chance, and names that are part of one; it may not do so as a rule.
	for _, name := range slices.Sorted(maps.Keys(inTools)) {
		if n := inTools[name]; 2*n.told > n.of {
			c.Errorf("%s: the tools hold the answers of %d of %d tasks", name, n.told, n.of)
		}
	}
	for _, f := range c.known.families() {
		for what, text := range map[string]func(envs.Task) string{
			"prompts": func(t envs.Task) string { return t.Prompt + " " + t.System },
			"IDs":     func(t envs.Task) string { return t.ID },
		} {
			var given []string
			for _, t := range f.tasks {
				if answered(text(t), t) {
					given = append(given, t.ID)
				}
			}
			if len(given) > len(f.tasks)/4 {
				c.Errorf("%s of %s: %d of %d %s hold their answer, the first is that of %s", f.name, f.split, len(given), len(f.tasks), what, given[0])
			}
		}
	}
}

// answered says whether a text holds all values of a task's answer.
func answered(text string, task envs.Task) bool {
	all := values(task)
	return len(all) > 0 && !slices.ContainsFunc(all, func(v string) bool { return !holds(text, v) })
}

// families gives up to 100 tasks of each family of each split.
func families(spec envs.Spec) (all []family) {
	for _, split := range spec.SplitNames() {
		first, at, full := len(all), map[string]int{}, 0
		for i := 0; i < 40*answers && (full == 0 || full < len(all)-first); i++ {
			t := spec.Splits[split].Task(i)
			k, ok := at[t.Family]
			if !ok {
				k = len(all)
				at[t.Family] = k
				all = append(all, family{split: split, name: t.Family})
			}
			if all[k].tasks = append(all[k].tasks, t); len(all[k].tasks) == answers {
				full++
			}
		}
	}
	return all
}

func (c *checker) probes() {
	for _, task := range c.tasks {
		if len(task.Assertions) == 0 {
			continue
		}
		t := c.gold(task)
		if t == nil {
			continue
		}
		shown := c.spec.System + task.System + task.Prompt + string(encode(t.Tools))
		for _, r := range t.Results() {
			shown += r.Text
		}
		for _, a := range task.Assertions {
			const bare = 20 // a name of a file or a table is no secret
			if len(a.Ask.Text) > bare && strings.Contains(a.Ask.Text, " ") && strings.Contains(shown, a.Ask.Text) {
				c.Errorf("%s: the agent is shown the verifier's question %q", task.ID, a.Ask.Text)
			}
		}
	}
}

func (c *checker) evidence() {
	e := c.env()
	for _, task := range c.tasks {
		c.nothing(e, task, "the right answer without any call", []envs.Action{{Text: redteam.Final(task)}})
	}
}

func (c *checker) guess() {
	for _, f := range c.known.families() {
		count := map[string]int{}
		most := 0
		for _, t := range f.tasks {
			if a := strings.Join(values(t), "; "); a != "" {
				count[a]++
				most = max(most, count[a])
			}
		}
		if len(count) == 0 || len(count) == 1 && redteam.Final(f.tasks[0]) == redteam.Abstain {
			continue // judged by the world's state, or a family of abstentions, which the evidence rule holds
		}
		if need := min(20, len(f.tasks)); len(count) < need {
			c.Errorf("%s of %s: %d different answers in %d tasks, want %d or more", f.name, f.split, len(count), len(f.tasks), need)
		}
		if len(f.tasks) == answers && most > answers/6 {
			c.Errorf("%s of %s: one answer is right in %d of %d tasks", f.name, f.split, most, len(f.tasks))
		}
	}
}

var dates = regexp.MustCompile(`\d{4}-\d{2}-\d{2}`)

func (c *checker) derivable() {
	for _, task := range c.tasks {
		t := c.gold(task)
		if t == nil {
			continue
		}
		known := c.spec.System + "\n" + task.System + "\n" + task.Prompt + "\n" + string(encode(t.Tools))
		for _, s := range t.Steps {
			for _, call := range s.Action.Calls {
				v, err := envs.DecodeJSON(call.Arguments)
				if err != nil {
					c.Errorf("%s: gold call %s: %v", task.ID, call.Name, err)
					continue
				}
				for _, leaf := range leaves(v) {
					if !derived(leaf, known) {
						what := leaf
						if sqlStart.MatchString(leaf) {
							what = underived(leaf, known) + " in " + leaf
						}
						c.Errorf("%s: gold call %s uses %q, which stands nowhere before it", task.ID, call.Name, what)
					}
				}
			}
			for _, r := range s.Observation.Results {
				known += "\n" + r.Text
			}
		}
	}
}

// derived says whether an agent could have a literal: it stands in what it saw, is a small count, is a date near one seen, or
// is a statement made of such.
func derived(leaf, known string) bool {
	if strings.Contains(strings.ToLower(known), strings.ToLower(leaf)) {
		return true
	}
	if len(leaf) <= 2 && strings.Trim(leaf, "0123456789") == "" {
		return true
	}
	day, err := time.Parse(time.DateOnly, leaf)
	if err != nil {
		return sqlStart.MatchString(leaf) && underived(leaf, known) == ""
	}
	return slices.ContainsFunc(dates.FindAllString(known, -1), func(s string) bool {
		near, err := time.Parse(time.DateOnly, s)
		return err == nil && day.Sub(near).Abs() < 400*24*time.Hour
	})
}

func leaves(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case json.Number:
		return []string{v.String()}
	case []any:
		var out []string
		for _, e := range v {
			out = append(out, leaves(e)...)
		}
		return out
	case map[string]any:
		var out []string
		for _, e := range v {
			out = append(out, leaves(e)...)
		}
		slices.Sort(out)
		return out
	}
	return nil
}

func (c *checker) cheats() {
	commonest, wrong := c.guesses()
	e := c.env()
	type tally struct {
		name   string
		played int
		best   float64 // the highest reward
		took   time.Duration
	}
	var all []*tally
	byName := map[string]*tally{}
	for i, task := range c.tasks {
		gold := c.gold(task)
		if gold == nil {
			continue
		}
		ep := policies.Episode{System: c.spec.System, Prompt: task.Prompt, Tools: gold.Tools, Seed: 1}
		if task.System != "" {
			ep.System = task.System
		}
		type script struct {
			name  string
			turns []envs.Action
		}
		var scripts []script
		leases := 0
		first := slices.ContainsFunc(c.each, func(t envs.Task) bool { return t.ID == task.ID })
		for _, cheat := range append(redteam.Generic(), redteam.Modal(commonest), redteam.Copied(wrong)) {
			if cheat.Once && i > 0 {
				continue
			}
			turns := cheat.Play(ep, task)
			if len(turns) == 0 {
				continue
			}
			if turns = ended(turns); free(task, turns) || first {
				scripts = append(scripts, script{cheat.Name, turns})
			}
		}
		if c.spec.Cheats != nil {
			own := task
			own.Solution = slices.Clone(task.Solution) // cheats are made of parts of it, and append to them
			for _, s := range c.spec.Cheats(own) {
				scripts = append(scripts, script{s.Name, ended(s.Actions)})
			}
		}
		for _, s := range scripts {
			if !free(task, s.turns) {
				leases++
			}
		}
		c.announce(task, leases)
		for _, cheat := range scripts {
			start := time.Now()
			t := c.nothing(e, task, "cheat "+cheat.name, cheat.turns)
			if t == nil {
				continue
			}
			n := byName[cheat.name]
			if n == nil {
				n = &tally{name: cheat.name, best: t.Score.Value}
				byName[cheat.name], all = n, append(all, n)
			}
			n.played, n.best, n.took = n.played+1, max(n.best, t.Score.Value), n.took+time.Since(start)
		}
	}
	for _, n := range all {
		c.Logf("%s earns at most %v in %d episodes, %.2fs", n.name, n.best, n.played, n.took.Seconds())
	}
}

// guesses gives for each family its most common final text, and for each task one that is right in another task of the family
// and wrong in it, where there is one.
func (c *checker) guesses() (commonest, wrong map[string]string) {
	commonest, wrong = map[string]string{}, map[string]string{}
	finals := map[string][]string{}
	for _, f := range c.known.families() {
		count, most := map[string]int{}, 0
		for _, t := range f.tasks {
			final := redteam.Final(t)
			if count[final]++; count[final] > most {
				most, commonest[f.name] = count[final], final
			}
			finals[f.name] = append(finals[f.name], final)
		}
	}
	for _, task := range c.tasks {
		all := finals[task.Family]
		if i := slices.IndexFunc(all, func(final string) bool { return !right(task, final) }); i >= 0 {
			wrong[task.ID] = all[i]
		}
	}
	return commonest, wrong
}

// right says whether a final text gives a task's answer: as rewards.Answer reads it, or else as the gold solution words it.
func right(task envs.Task, final string) bool {
	want, err := rewards.DecodeWant(task.Want)
	if err != nil || final == redteam.Final(task) {
		return final == redteam.Final(task)
	}
	answer, err := rewards.FinalAnswer(final)
	given := strings.Split(answer, ";")
	if err != nil || len(given) != len(want.Answer) {
		return false
	}
	for i, v := range want.Answer {
		if ok, err := v.Match(given[i]); !ok || err != nil {
			return false
		}
	}
	return true
}

func (c *checker) close() {
	before := runtime.NumGoroutine()
	for range 5 {
		e, err := envs.New(c.spec)
		if err != nil {
			c.Fatal(err)
		}
		if _, err := e.Reset(c.ctx, c.tasks[0]); err != nil {
			c.Fatal(err)
		}
		for range 2 {
			if err := e.Close(); err != nil {
				c.Errorf("close: %v", err)
			}
		}
		if v := e.Trajectory().Void; v == nil {
			c.Errorf("an episode closed before its end is not void")
		}
	}
	for end := time.Now().Add(2 * time.Second); runtime.NumGoroutine() > before; {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<16)
			c.Fatalf("%d goroutines before, %d after closing\n%s", before, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
		}
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	}
}
