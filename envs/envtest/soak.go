package envtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// Attack gives the task of a hostile episode and its calls, which are drawn with r alone. Malformed calls are sent too.
type Attack func(r *rand.Rand, episode int) (envs.Task, []envs.Call)

// Soak plays hostile episodes on the environment that open opens: a few, or 1,000 with MCPGYM_SOAK set. Each mixes the calls of
// attack with some that are made up from the schemas of the tools. Most are played to their end; the others are given up in the
// middle of a call, closed while several calls run, or abandoned. Several are played at once.
//
// It fails where an episode earns something or becomes void, where a call fails in another way than by its context or the end of
// its sandbox, where a result shows Secret, where the gold solution of the first task of the split test earns less than 1 after
// all that, or where goroutines, open files, child processes, folders, mounts or containers are left once the environment is
// closed, or its processes hold more than memory bytes just before. Closing the sandboxes of the spec must end all that open has
// begun. The calling test must not run in parallel with others.
func Soak(t *testing.T, memory int64, open func(t *testing.T) envs.Spec, attack Attack) {
	t.Helper()
	n := 1000
	switch {
	case soak():
	case testing.Short():
		n = 8
	default:
		n = 12
	}
	proven := func(s envs.Spec) {
		t.Helper()
		e, err := envs.New(s)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		tr, err := policies.Rollout(t.Context(), e, s.Splits["test"].Task(0), policies.Oracle{}, 1)
		if err != nil || tr.Void != nil || tr.Score.Value != 1 {
			t.Errorf("the gold solution no longer earns 1: %v %+v", err, tr)
		}
	}
	once := open(t) // what is made once for the whole process is no leak
	proven(once)
	if err := once.Sandboxes.Close(); err != nil {
		t.Fatal(err)
	}
	before := holdings(t)
	spec := open(t)
	s := &soaker{spec: spec, attack: attack, tools: toolsOf(t, spec)}
	start := time.Now()
	var wg sync.WaitGroup
	const workers = 4
	for w := range workers {
		wg.Go(func() {
			e, err := envs.New(spec)
			if err != nil {
				t.Error(err)
				return
			}
			for i := w; i < n && !t.Failed(); i += workers {
				if err := s.episode(t.Context(), e, i); err != nil {
					t.Errorf("episode %d: %v", i, err)
				}
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	proven(spec)
	used := resident(t)
	t.Logf("%d hostile episodes in %.1f s; %d MiB in use after them", n, time.Since(start).Seconds(), used>>20)
	if used > memory {
		t.Errorf("%d bytes of memory are in use, want at most %d", used, memory)
	}
	if err := spec.Sandboxes.Close(); err != nil {
		t.Error(err)
	}
	var left []string
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) { // what was told to end may take a while
		if left = missing(holdings(t), before); len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			stacks := make([]byte, 1<<18)
			t.Fatalf("%d things are left: %q\n%s", len(left), left, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

// missing lists what is in all and not in known, as often as it is there more.
func missing(all, known []string) (more []string) {
	known = slices.Clone(known)
	for _, h := range all {
		if i := slices.Index(known, h); i >= 0 {
			known = slices.Delete(known, i, i+1)
		} else {
			more = append(more, h)
		}
	}
	return more
}

func toolsOf(t *testing.T, spec envs.Spec) []sandboxes.Tool {
	box, err := spec.Sandboxes.Lease(t.Context(), spec.Splits["test"].Task(0).World)
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	tools, err := box.Session().Tools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tools
}

// Secret is what no result may show: an attack may put it where agents must not read.
const Secret = "the canary sings"

type soaker struct {
	spec   envs.Spec
	attack Attack
	tools  []sandboxes.Tool
}

func (s *soaker) episode(ctx context.Context, e *envs.Env, i int) error {
	r := rand.New(rand.NewPCG(uint64(i), 11))
	task, calls := s.attack(r, i)
	calls = slices.Clone(calls)
	for range 1 + r.IntN(12) {
		calls = slices.Insert(calls, r.IntN(len(calls)+1), wild(r, s.tools))
	}
	switch i % 8 {
	case 5:
		return givenUp(ctx, e, r, task, calls)
	case 6:
		return s.torn(ctx, r, task, calls)
	case 7:
		return abandoned(ctx, e, r, task, calls)
	}
	tr, err := policies.Rollout(ctx, e, task, policies.Replay{Steps: steps(inTurns(r, calls))}, 1) // no answer: some have seen what shows it
	switch {
	case err != nil:
		return err
	case tr.Void != nil:
		return fmt.Errorf("%s is void: %w", task.ID, tr.Void)
	case tr.Score.Success || tr.Score.Value > 0:
		return fmt.Errorf("%s earns %v: %s", task.ID, tr.Score.Value, encode(tr.Score.Parts))
	}
	for _, res := range tr.Results() {
		if strings.Contains(res.Text, Secret) {
			return fmt.Errorf("%s shows what it must not: %.300q", res.Name, res.Text)
		}
	}
	return nil
}

// inTurns makes turns of one or several calls.
func inTurns(r *rand.Rand, calls []envs.Call) (turns []envs.Action) {
	for len(calls) > 0 {
		n := min(1+r.IntN(6), len(calls))
		turns = append(turns, envs.Action{Calls: calls[:n]})
		calls = calls[n:]
	}
	return turns
}

// givenUp plays an episode whose caller goes away in the middle of a call.
func givenUp(ctx context.Context, e *envs.Env, r *rand.Rand, task envs.Task, calls []envs.Call) error {
	if _, err := e.Reset(ctx, task); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(20_000))*time.Microsecond)
	defer cancel()
	for _, turn := range inTurns(r, calls) {
		step, err := e.Step(limited, turn)
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("a step whose context ends: %w", err)
			}
			return nil
		}
		if step.Truncated {
			return nil
		}
	}
	return e.Close()
}

// abandoned plays a part of an episode, which the next one ends.
func abandoned(ctx context.Context, e *envs.Env, r *rand.Rand, task envs.Task, calls []envs.Call) error {
	if _, err := e.Reset(ctx, task); err != nil {
		return err
	}
	for _, turn := range inTurns(r, calls[:r.IntN(len(calls))]) {
		step, err := e.Step(ctx, turn)
		if err != nil {
			return err
		}
		if step.Truncated {
			return nil
		}
	}
	return nil
}

// torn sends calls several at once, unchecked and some of them given up, and closes their sandbox while they run.
func (s *soaker) torn(ctx context.Context, r *rand.Rand, task envs.Task, calls []envs.Call) error {
	box, err := s.spec.Sandboxes.Lease(ctx, task.World)
	if err != nil {
		return err
	}
	const lanes = 3
	errs := make([]error, lanes+1)
	var closing atomic.Bool
	var wg sync.WaitGroup
	for lane := range lanes {
		own := rand.New(rand.NewPCG(r.Uint64(), 0))
		wg.Go(func() {
			for k := lane; k < len(calls) && errs[lane] == nil; k += lanes {
				err := torn(ctx, own, box, calls[k])
				if _, fault := errors.AsType[*sandboxes.Fault](err); fault && closing.Load() {
					return
				}
				errs[lane] = err
			}
		})
	}
	if r.IntN(4) > 0 {
		time.Sleep(time.Duration(r.IntN(30_000)) * time.Microsecond)
	} else {
		wg.Wait()
	}
	closing.Store(true)
	errs[lanes] = box.Close()
	wg.Wait()
	return errors.Join(errs...)
}

func torn(ctx context.Context, r *rand.Rand, box sandboxes.Sandbox, c envs.Call) error {
	if r.IntN(8) == 0 {
		limited, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(3000))*time.Microsecond)
		defer cancel()
		ctx = limited
	}
	args := c.Arguments
	if c.Malformed != "" {
		args = json.RawMessage(c.Malformed)
	}
	res, err := box.Session().Call(ctx, c.Name, args)
	if strings.Contains(res.Text, Secret) {
		return fmt.Errorf("%s shows what it must not: %.300q", c.Name, res.Text)
	}
	if err != nil && (ctx.Err() == nil || !errors.Is(err, ctx.Err())) {
		return fmt.Errorf("a call of %s: %w", c.Name, err)
	}
	return nil
}

// hostile are texts for whatever an argument may mean.
var hostile = []string{
	"", " ", ".", "/", "..", "/..", "../..", "../../etc/passwd", "/etc/passwd", "/etc/../etc/shadow", "a/../../../x", "../root-evil/x", "../1/x", "../trees/1/x", "/proc/self/environ",
	"/proc/self/root/etc/passwd", "/proc/self/fd/0", "/dev/zero", "/dev/stdin", "file:///etc/passwd", "~/.ssh/id_rsa", "$HOME", "$(id)", "`id`", "; rm -rf /", "-rf", "--help", "@/etc/passwd", "%2e%2e%2fx",
	"a\x00b", "\x00", "a\nb", "\r\n", "\u202e", "\u200b", "．．/x", "notes／x", "\ufffd", "\ufffd\ufffd/x", "\U000e0041", "e\u0301", "C:\\x", `..\..\x`, `"`, `\`, "null", "NaN", "-0", "{}", "[]", "<script>",
	".mcpgym-x", "**", "**/**/**/**/**/**/**/**/*", "[", "[!", "{a,b}", strings.Repeat("x", 256), strings.Repeat("x", 70_000), strings.Repeat("a/", 200), strings.Repeat("../", 2000) + "etc/passwd",
	strings.Repeat("ü", 127), strings.Repeat("*", 250), strings.Repeat("\n", 50_000), strings.Repeat("\"\\", 30_000),
}

// wild makes up a call of one of the tools: each argument as its schema says or not, with a text that may hurt.
func wild(r *rand.Rand, tools []sandboxes.Tool) envs.Call {
	pick := func(s ...string) string { return s[r.IntN(len(s))] }
	tool := tools[r.IntN(len(tools))]
	c := envs.Call{Name: tool.Name}
	switch r.IntN(20) {
	case 0:
		c.Name = pick("", "sh", "close", "1:"+tool.Name, "../"+tool.Name, tool.Name+"\x00", tool.Name+"\xff", strings.Repeat(tool.Name, 10_000))
	case 1, 2:
		c.Malformed = pick("{", `{"path":"a`, "[]", "null", "7", `"x"`, "{}{}", `{"path":}`, "\xff\xfe", "\x00", strings.Repeat("[", 100_000), strings.Repeat(`{"a":`, 50_000), `{"path":"\ud800"}`, `{"a":`+strings.Repeat("9", 10_000)+"}",
			`{"path":"a","path":"b"}`, strings.Repeat(" ", 1<<20)+"{", `{"path":"`+strings.Repeat("x", 5<<20)+`"}`)
		return c
	}
	var schema map[string]any
	if json.Unmarshal(tool.InputSchema, &schema) != nil {
		return c
	}
	text := string(encode(invent(r, schema, 0)))
	if r.IntN(3) == 0 {
		text = strings.ReplaceAll(text, "\ufffd", pick("\xff", "\xc0\x80", "\xed\xa0\x80", "\x80"))
	}
	c.Arguments = json.RawMessage(strings.TrimSpace(text))
	return c
}

// invent makes up a value for a schema. Now and then it is one of another kind.
func invent(r *rand.Rand, schema map[string]any, depth int) any {
	kind, _ := schema["type"].(string)
	if depth > 4 {
		return nil
	}
	if r.IntN(12) == 0 && depth > 0 {
		kind = []string{"string", "integer", "boolean", "array", "object", ""}[r.IntN(6)]
	}
	switch kind {
	case "string":
		return hostile[r.IntN(len(hostile))]
	case "integer", "number":
		return json.Number([]string{"0", "-1", "1", "1.5", "1e3", "9007199254740993", "-9223372036854775808", "1e400", "99999999999999999999999"}[r.IntN(9)])
	case "boolean":
		return r.IntN(2) == 0
	case "array":
		items, _ := schema["items"].(map[string]any)
		list := make([]any, []int{0, 1, 2, 60, 500}[r.IntN(5)])
		for i := range list {
			list[i] = fmt.Sprint("/", i, strings.Repeat("/..", i%4))
			if len(list) <= 2 { // no more than a call may hold
				list[i] = invent(r, items, depth+1)
			}
		}
		return list
	case "object":
		object := map[string]any{}
		props, _ := schema["properties"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(props)) {
			if p, ok := props[name].(map[string]any); ok && r.IntN(6) > 0 {
				object[name] = invent(r, p, depth+1)
			}
		}
		if r.IntN(10) == 0 {
			object["no such argument"] = hostile[r.IntN(len(hostile))]
		}
		return object
	}
	return nil
}

// holdings names what this process holds: goroutines, open files, child processes, folders, mounts, containers.
func holdings(t testing.TB) []string {
	t.Helper()
	all := slices.Repeat([]string{"goroutine"}, runtime.NumGoroutine())
	glob := func(pattern string) []string {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	for _, f := range glob("/proc/self/fd/*") {
		if to, err := os.Readlink(f); err == nil { // that of the look itself is closed
			to, _, _ = strings.Cut(to, ":[") // pipes and sockets have numbers
			all = append(all, "open "+to)
		}
	}
	for _, f := range glob("/proc/self/task/*/children") {
		data, _ := os.ReadFile(f) // the thread may have ended
		for _, pid := range strings.Fields(string(data)) {
			all = append(all, "process "+pid)
		}
	}
	own := "-" + strconv.Itoa(os.Getpid()) + "-" // is part of what names an owner
	for _, dir := range slices.Compact([]string{"/dev/shm", os.TempDir()}) {
		for _, f := range glob(filepath.Join(dir, "mcpgym-*")) {
			who, _ := os.ReadFile(filepath.Join(f, "owner"))
			if strings.Contains(f, own) || strings.Contains(string(who), own) {
				all = append(all, "folder "+f)
			}
		}
	}
	ours := []string{own}
	for _, id := range containers() {
		all, ours = append(all, "container "+id), append(ours, id)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if slices.ContainsFunc(ours, func(name string) bool { return strings.Contains(line, name) }) {
			all = append(all, "mount "+strings.TrimSpace(line))
		}
	}
	return all
}

// containers lists those that this process has made, none where there is no engine.
func containers() (ids []string) {
	out, _ := exec.Command("docker", "ps", "-a", "--no-trunc", "--filter", "label=mcpgym.owner", "--format", `{{.ID}} {{.Label "mcpgym.owner"}}`).Output()
	for line := range strings.Lines(string(out)) {
		if id, who, _ := strings.Cut(line, " "); strings.Contains(who, "-"+strconv.Itoa(os.Getpid())+"-") {
			ids = append(ids, id)
		}
	}
	return ids
}

// resident gives the memory, in bytes, of this process's heap and of the processes in its containers.
func resident(t testing.TB) int64 {
	t.Helper()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	sum := int64(m.HeapAlloc)
	ids := containers()
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range groups {
		data, _ := os.ReadFile(f) // it may have ended
		if !slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(string(data), id) }) {
			continue
		}
		status, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "statm"))
		if words := strings.Fields(string(status)); len(words) > 1 {
			pages, _ := strconv.ParseInt(words[1], 10, 64)
			sum += pages * int64(os.Getpagesize())
		}
	}
	return sum
}
