package envtest_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/envtest"
	"github.com/mcpgym/mcpgym/policies/redteam"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

// brokenEnv names the way in which TestShelf's environment is broken.
const brokenEnv = "ENVTEST_BROKEN"

var broken = os.Getenv(brokenEnv)

// TestShelf checks an environment that keeps every rule, and, run again by TestBroken, ones that do not.
func TestShelf(t *testing.T) { envtest.Check(t, spec(t)) }

// TestBroken shows for every rule that an environment which breaks it fails it, and nothing else, and is told why.
func TestBroken(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process for each broken environment")
	}
	proven := map[string]bool{}
	t.Run("each", func(t *testing.T) {
		for _, c := range []struct {
			broken string
			says   string // part of what the author is told
			rules  string // those that fail; the first is the one that is broken
		}{
			{"par is wrong", "par is 3, the gold solution makes 2 calls", "tasks"},
			{"no gold", "no gold solution", "tasks"},
			{"gold goes on", "must end with its only turn without calls", "tasks"},
			{"no prompt", "ID, family and prompt must be set", "tasks"},
			{"no criteria", "neither a wanted answer nor assertions", "tasks"},
			{"one ID twice", "stands twice", "tasks"},
			{"tasks change", "gives two tasks for index", "tasks"},
			{"tasks follow one another", "gives two tasks for index", "tasks"},
			{"tasks share a variable", "gives two tasks for index", "tasks"},
			{"gold does not fit", "does not fit the limits", "tasks"},
			{"no description", "tool list_boxes has no description", "tools"},
			{"schema of no type", "tool list_boxes: the input schema is not of type object", "tools"},
			// The tools are part of the record.
			{"tools differ", "a second reset lists other tools", "tools deterministic"},
			// Gold calls tools, and goes on with what they show.
			{"no tools", "no tools", "tools oracle"},
			{"gold is wrong", `is not the right number`, "oracle"},
			// The rule locale plays in new processes, and in each it fails once.
			{"verifier fails once", "void: end of compare/0: sandbox fault (verifier): out of memory", "oracle locale"},
			{"evidence is volatile", "without its volatile results the gold solution earns -0.1", "volatile"},
			{"accepted answers are refused", ".0\", which is accepted, earns 0 after the gold solution's calls", "accepts"},
			{"silence is no false claim", "doing nothing earns 1", "noop"},
			// A goal that holds at the start holds whatever an agent does.
			{"goal holds at the start", "doing nothing earns 1", "noop bad-calls budget evidence cheats"},
			{"the change is not judged", "the gold solution in a world that is left as it was earns 1", "undone"},
			{"results are random", "playing again gives another record", "deterministic"},
			{"results are counted", "playing again gives another record", "deterministic"},
			{"worlds are used again", "playing after a reset in mid-episode gives another record", "clean-reset"},
			{"leases share a world", "playing beside another episode gives another record", "isolation"},
			{"calls share a variable", "playing in parallel gives another record", "parallel"},
			{"local time", "another process, with TZ=Pacific/", "locale"},
			{"today", "another process, with TZ=Pacific/", "locale"},
			{"language", "another process, with TZ=Pacific/", "locale"},
			{"tasks know their process", "another process, with TZ=Pacific/", "locale"},
			{"the first task decides", "another process, with TZ=Pacific/", "locale"},
			{"invented tools are free", "calls an invented tool and answers x earns 0, want less than 0", "bad-calls"},
			{"truncation pays", "repeating a call earns", "budget"},
			{"time pays", "running out of time after all calls earns", "budget"},
			{"server dies once", `void by the calls "list_boxes" {}; "open_box" {"label":"\u0000"}; "set_count"`, "agent-fault"},
			{"lease waits", "Reset under a cancelled context takes", "cancel"},
			{"reward reads the gold", "the record read back scores", "rescore"},
			{"prompt holds the answer", "prompts hold their answer, the first is that of compare/0", "secret"},
			{"prompt holds the wanted answer", "the agent is shown the wanted answer as it is stored", "secret"},
			{"tools hold the answers", "compare: the tools hold the answers of 2 of 2 tasks", "secret"},
			{"IDs hold the answer", "100 of 100 IDs hold their answer, the first is that of compare/0", "secret"},
			{"tools show the hash", "the agent is shown the state's hash", "secret"},
			{"prompt holds the question", "the agent is shown the verifier's question", "probes"},
			// Being told the answer is a cheat, too.
			{"no evidence", "the right answer without any call earns", "evidence cheats"},
			{"yes or no", "2 different answers in 100 tasks, want 20", "guess"},
			{"yes or no, bare", "2 different answers in 100 tasks, want 20", "guess"},
			{"one answer is common", "one answer is right in", "guess"},
			{"gold knows labels", "which stands nowhere before it", "derivable"},
			{"labels within words", `refers to "BX-`, "derivable"},
			{"answer is made up", "which does not follow from what was seen", "derivable"},
			{"any result is evidence", "cheat guess-after-one-call earns", "cheats"},
			{"any of several answers", "cheat spray earns", "cheats"},
			{"any number", "cheat copied-answer earns", "cheats"},
			{"thinking pays", "cheat answer-not-given earns", "cheats"},
			{"claims pay", "cheat claimed-success earns", "cheats"},
			{"digits of any width", "cheat full-width earns", "cheats"},
			{"much kills the server", "cheat ten-megabytes makes the episode void", "cheats"},
			{"leases leave goroutines", "goroutines before", "close"},
		} {
			rules := strings.Fields(c.rules)
			proven[rules[0]] = true
			t.Run(c.broken, func(t *testing.T) {
				t.Parallel()
				out, err := child(t, c.broken)
				_, failed := errors.AsType[*exec.ExitError](err)
				require.True(t, failed, "the broken environment passes: %v\n%s", err, out)
				require.Equal(t, rules, subtests("FAIL", out), "%s", out)
				require.Contains(t, out, c.says)
			})
		}
	})
	out, err := child(t, "", "-test.v")
	require.NoError(t, err, "%s", out)
	require.ElementsMatch(t, subtests("PASS", out), slices.Collect(maps.Keys(proven)), "each rule has an environment that breaks it")
}

// child runs TestShelf in another process, broken as named.
func child(t *testing.T, broken string, flags ...string) (string, error) {
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, append(flags, "-test.run=^TestShelf$")...)
	// The race detector would let every process sleep for a second at its end.
	cmd.Env = append(os.Environ(), brokenEnv+"="+broken, "MCPGYM_SOAK=", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func subtests(outcome, out string) []string {
	var names []string
	for _, m := range regexp.MustCompile(`--- `+outcome+`: TestShelf/(\S+)`).FindAllStringSubmatch(out, -1) {
		names = append(names, m[1])
	}
	return names
}

// The world: a shelf of boxes, each with a colour, a label and a count.

type box struct {
	Colour string `json:"colour"`
	Label  string `json:"label"`
	count  int
}

type shelf struct {
	sandboxes.World
	boxes []box
	start []int // the counts at the start
	read  bool  // its state was read: the episode is over
}

// kept holds worlds by seed, for providers that lease a world twice.
var kept struct {
	sync.Mutex
	worlds map[uint64]*shelf
}

func open(w sandboxes.World) (*shelf, error) {
	if broken == "leases leave goroutines" {
		go func() { select {} }()
	}
	if broken != "worlds are used again" && broken != "leases share a world" {
		return fill(w), nil
	}
	kept.Lock()
	defer kept.Unlock()
	s := kept.worlds[w.Seed]
	if broken == "worlds are used again" {
		delete(kept.worlds, w.Seed)
	}
	if s == nil {
		s = fill(w)
		if broken == "leases share a world" {
			kept.worlds[w.Seed] = s
		}
	}
	return s, nil
}

// fill makes the shelf of a seed.
func fill(w sandboxes.World) *shelf {
	r := rand.New(rand.NewPCG(w.Seed, 0))
	s := &shelf{World: w}
	colours := []string{"amber", "black", "green", "ivory", "lilac", "ochre", "white"}
	n := len(colours)
	for i, colour := range colours { // no label and no count stands twice
		b := box{colour, fmt.Sprintf("BX-%d", 1000+n*r.IntN(1000)+i), 100 + n*r.IntN(1000) + i}
		s.boxes, s.start = append(s.boxes, b), append(s.start, b.count)
	}
	return s
}

func (s *shelf) find(label string) (*box, error) {
	for i := range s.boxes {
		if s.boxes[i].Label == label {
			return &s.boxes[i], nil
		}
	}
	return nil, fmt.Errorf("there is no box %.20q", label)
}

func (s *shelf) hash() string { return fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, s.boxes))) }

func (s *shelf) State(context.Context) (sandboxes.State, error) {
	s.read = true
	s.forget()
	if broken == "verifier fails once" && !died.Swap(true) {
		return sandboxes.State{}, errors.New("out of memory")
	}
	state := sandboxes.State{Hash: s.hash()}
	for i, b := range s.boxes {
		if b.count != s.start[i] {
			state.Diff = append(state.Diff, fmt.Sprintf("%s: %d, was %d", b.Label, b.count, s.start[i]))
		}
	}
	slices.Sort(state.Diff)
	return state, nil
}

func question(label string) sandboxes.Question {
	return sandboxes.Question{Kind: "count", Text: "what does " + label + " hold"}
}

func (s *shelf) Probe(_ context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error) {
	var answers []sandboxes.Answer
	for _, q := range ask {
		a := sandboxes.Answer{Err: "no such box"}
		for _, b := range s.boxes {
			if q == question(b.Label) {
				a = sandboxes.Answer{Value: json.RawMessage(strconv.Itoa(b.count))}
			}
		}
		answers = append(answers, a)
	}
	return answers, nil
}

func (s *shelf) Close() error {
	s.forget()
	if broken == "worlds are used again" && !s.read {
		kept.Lock()
		defer kept.Unlock()
		kept.worlds[s.Seed] = s
	}
	return nil
}

func (s *shelf) forget() {
	kept.Lock()
	defer kept.Unlock()
	if kept.worlds[s.Seed] == s {
		delete(kept.worlds, s.Seed)
	}
}

// The tools.

var (
	calls, opens, made atomic.Int64
	making, last       atomic.Int64
	first              atomic.Int64 // the index of the first task that was made, plus 1
	died               atomic.Bool
	current            atomic.Pointer[shelf]
)

func listBoxes(_ context.Context, s *shelf, _ struct{}) (any, error) { return s.boxes, nil }

func openBox(_ context.Context, s *shelf, in struct{ Label string }) (any, error) {
	if broken == "server dies once" && in.Label == "\x00" && !died.Swap(true) {
		panic("out of memory")
	}
	if broken == "much kills the server" && len(in.Label) > 1<<20 && !died.Swap(true) {
		panic("out of memory")
	}
	if broken == "calls share a variable" {
		current.Store(s)
		time.Sleep(time.Millisecond)
		s = current.Load()
	}
	b, err := s.find(in.Label)
	if err != nil {
		return nil, err
	}
	out := map[string]any{"label": b.Label, "count": b.count}
	switch broken {
	case "results are random":
		out["ticket"] = rand.Uint64()
	case "results are counted":
		out["ticket"] = calls.Add(1)
	case "local time":
		out["packed"] = time.Unix(1e9, 0).Format(time.RFC822)
	case "today":
		out["packed"] = time.Now().Format(time.DateOnly)
	case "language":
		out["language"] = os.Getenv("LANG")
	}
	if broken == "evidence is volatile" {
		text := mcp.NewToolResultText(string(encoded(out)))
		text.Meta = mcp.NewMetaFromMap(map[string]any{sandboxes.VolatileMeta: true})
		return text, nil
	}
	return out, nil
}

func setCount(_ context.Context, s *shelf, in struct {
	Label string
	Count int
}) (any, error) {
	b, err := s.find(in.Label)
	if err != nil {
		return nil, err
	}
	out := map[string]any{"label": b.Label, "was": b.count, "count": in.Count}
	b.count = in.Count
	if broken == "tools show the hash" {
		out["state"] = s.hash()
	}
	return out, nil
}

// slow is a provider whose Lease does not hear that its context has ended.
type slow struct{ sandboxes.Provider }

func (p slow) Lease(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
	if ctx.Err() != nil {
		time.Sleep(2100 * time.Millisecond)
	}
	return p.Provider.Lease(ctx, w)
}

func provider(t *testing.T) sandboxes.Provider {
	kept.worlds = map[uint64]*shelf{}
	about := "List the boxes of the shelf: the label of each colour."
	list := func() server.ServerTool {
		return mcpmem.Tool("list_boxes", about, listBoxes, mcp.WithReadOnlyHintAnnotation(true))
	}
	longest := 1 << 30
	if broken != "" && broken != "much kills the server" {
		longest = 100 // the server need not read ten megabytes in every process
	}
	label := mcp.WithString("label", mcp.Required(), mcpmem.Entity, mcp.Description("Label of a box"), mcp.MaxLength(longest))
	srv := server.NewMCPServer("shelf", "1")
	look := "Look how much a box holds."
	if broken == "tools hold the answers" {
		for i := range 4 {
			look += " " + redteam.Final(makeTask(i))
		}
	}
	if broken == "no description" {
		about = ""
	}
	srv.AddTools(list(),
		mcpmem.Tool("open_box", look, openBox, mcp.WithReadOnlyHintAnnotation(true), label),
		mcpmem.Tool("set_count", "Change how much a box holds.", setCount, label, mcp.WithInteger("count", mcp.Required(), mcp.Min(0))))
	if broken == "no tools" {
		srv.SetTools()
	}
	if broken == "schema of no type" {
		srv.AddTool(mcp.NewToolWithRawSchema("list_boxes", about, json.RawMessage(`{}`)), list().Handler)
	}
	p, err := mcpmem.New(srv, sandboxes.Identity{"shelf": "1"}, func(w sandboxes.World) (*shelf, error) {
		if broken == "tools differ" {
			about = fmt.Sprintf("List the boxes of shelf %d.", opens.Add(1))
			srv.AddTools(list())
		}
		return open(w)
	})
	require.NoError(t, err)
	if broken == "lease waits" {
		return slow{p}
	}
	return p
}

// The tasks: how much more one box holds than another, and making one hold as much as another.

func makeTask(index int) envs.Task {
	r := rand.New(rand.NewPCG(0, uint64(index)))
	w := sandboxes.World{Seed: r.Uint64() >> 11}
	boxes := fill(w).boxes
	r.Shuffle(len(boxes), func(i, j int) { boxes[i], boxes[j] = boxes[j], boxes[i] })
	task := compare(boxes[0], boxes[1])
	if index%2 == 1 {
		task = transfer(boxes[0], boxes[1])
	}
	task.ID, task.World = fmt.Sprintf("%s/%d", task.Family, index), w
	for _, a := range task.Solution {
		task.Par += len(a.Calls)
	}
	switch broken {
	case "par is wrong":
		task.Par++
	case "no gold":
		task.Solution = nil
	case "gold goes on":
		task.Solution = append(task.Solution, task.Solution[len(task.Solution)-1])
	case "no prompt":
		task.Prompt = " "
	case "no criteria":
		task.Want, task.Assertions = nil, nil
	case "one ID twice":
		task.ID = task.Family
	case "tasks change":
		task.Prompt += fmt.Sprintf(" (%d)", made.Add(1))
	case "tasks follow one another":
		if last.Swap(int64(index)) > int64(index) {
			task.Prompt += " Again!"
		}
	case "tasks share a variable":
		if making.Add(1) > 1 {
			task.Prompt += " Hurry!"
		}
		runtime.Gosched()
		making.Add(-1)
	case "tasks know their process":
		task.Prompt += fmt.Sprintf(" (%d)", os.Getpid())
	case "the first task decides":
		first.CompareAndSwap(0, int64(index)+1)
		task.Prompt += fmt.Sprintf(" (%d)", first.Load())
	case "IDs hold the answer":
		task.ID += "/" + strings.TrimPrefix(redteam.Final(task), "ANSWER: ")
	}
	return task
}

// compare makes a task that is judged by its answer.
func compare(a, b box) envs.Task {
	v := rewards.Value{Kind: "number", Value: strconv.Itoa(a.count - b.count)}
	switch broken {
	case "yes or no", "yes or no, bare":
		v = rewards.Value{Kind: "text", Value: "no"}
		if a.count > b.count {
			v.Value = "yes"
		}
	case "one answer is common":
		v.Value = strconv.Itoa(max(0, a.count-b.count))
	case "answer is made up":
		v.Value = strconv.Itoa(7 * (a.count - b.count))
	}
	if v.Kind == "number" {
		v.Accept = []string{v.Value + ".0"}
	}
	want := encoded(rewards.Want{Answer: []rewards.Value{v}, Evidence: [][]rewards.Fact{{holds(a)}, {holds(b)}}})
	prompt, gold := fmt.Sprintf("How much more than %s does %s hold?", b.Label, a.Label), "ANSWER: "+v.Value
	switch broken {
	case "gold is wrong":
		gold += "1"
	case "yes or no, bare":
		gold = v.Value
	case "labels within words":
		prompt = strings.ReplaceAll(prompt, "BX-", "ABX-")
	case "prompt holds the answer":
		prompt += " I think that it is " + v.Value + "."
	case "prompt holds the wanted answer":
		prompt += string(want)
	}
	return envs.Task{Family: "compare", Prompt: prompt, Want: want, Solution: []envs.Action{
		{Calls: []envs.Call{call("open_box", "label", a.Label), call("open_box", "label", b.Label)}},
		{Text: gold},
	}}
}

// transfer makes a task that is judged by what is written in the end.
func transfer(from, to box) envs.Task {
	ask := question(to.Label)
	prompt := fmt.Sprintf("Let the %s box hold as much as the %s one.", to.Colour, from.Colour)
	if broken == "prompt holds the question" {
		prompt += " I shall ask: " + ask.Text + "?"
	}
	solution := []envs.Action{
		{Calls: []envs.Call{call("list_boxes")}},
		{Calls: []envs.Call{call("open_box", "label", from.Label)}},
		{Calls: []envs.Call{call("set_count", "label", to.Label, "count", from.count)}},
		{Text: "Done with the " + to.Colour + " box"},
	}
	if broken == "gold knows labels" {
		solution = solution[1:]
	}
	if broken == "gold step fails" { // there is no box of that label
		solution[2] = envs.Action{Calls: []envs.Call{call("set_count", "label", to.Colour, "count", from.count)}}
	}
	task := envs.Task{Family: "transfer", Prompt: prompt, Assertions: []envs.Assertion{{Ask: ask, Want: encoded(from.count)}}, Solution: solution}
	if broken == "the change is not judged" {
		task.Assertions[0].Ask = question(from.Label)
		v := rewards.Value{Kind: "number", Value: strconv.Itoa(from.count)}
		task.Want = encoded(rewards.Want{Answer: []rewards.Value{v}, Evidence: [][]rewards.Fact{{holds(from)}}})
		solution[len(solution)-1].Text = "ANSWER: " + v.Value
	}
	return task
}

func holds(b box) rewards.Fact {
	return rewards.Fact{Tool: "open_box", Has: map[string]any{"label": b.Label, "count": b.count}}
}

func call(tool string, pairs ...any) envs.Call {
	args := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		args[pairs[i].(string)] = pairs[i+1]
	}
	return envs.Call{ID: fmt.Sprint(tool, pairs), Name: tool, Arguments: encoded(args)}
}

func encoded(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain strings and numbers
	}
	return raw
}

// The reward: the answer where one is asked for, and the counts that a task asserts.

func reward() rewards.Sum {
	answer := rewards.Answer(0.6)
	strict := answer.Score
	answer.Score = func(t *envs.Trajectory) (envs.Part, error) {
		if text, _ := t.Answer(); broken == "accepted answers are refused" && strings.HasSuffix(text, ".0") {
			return part(false, "nobody asked for tenths")
		}
		if pays(t, strict) {
			return part(true, "good enough")
		}
		return strict(t)
	}
	state := rewards.Component{Name: "written", Kind: envs.Gate, Weight: 0.2, Score: written}
	if broken == "goal holds at the start" {
		state.Score = func(*envs.Trajectory) (envs.Part, error) { return part(true, "nothing is lost") }
		answer.Score = state.Score
	}
	if broken == "reward reads the gold" {
		answer.Score = func(t *envs.Trajectory) (envs.Part, error) {
			text, _ := t.Answer()
			n := len(t.Task.Solution)
			for _, r := range t.Results() {
				if r.IsError {
					n = 0
				}
			}
			return part(n > 0 && strings.TrimSuffix(text, ".0") == t.Task.Solution[n-1].Text && len(t.Results()) >= t.Task.Par, "like the gold solution or not")
		}
	}
	sum := rewards.Sum{answer, state, rewards.ValidCalls(0.1), rewards.Efficiency(0.1), rewards.Hallucination(0.5)}
	switch broken {
	case "invented tools are free":
		sum = sum[:4]
	case "gold knows labels", "labels within words", "answer is made up": // the reward does not see it
		sum[4].Score = func(t *envs.Trajectory) (envs.Part, error) {
			return part(slices.ContainsFunc(t.Results(), func(r envs.CallResult) bool { return r.Status == envs.StatusUnknown }), "invented tools")
		}
	}
	return sum
}

// pays says whether a broken reward takes what the strict one may not.
func pays(t *envs.Trajectory, strict func(*envs.Trajectory) (envs.Part, error)) bool {
	w, err := rewards.DecodeWant(t.Task.Want)
	if err != nil {
		return false
	}
	gold := "ANSWER: " + w.Answer[0].Value
	text, answered := t.Answer()
	// right says whether the episode would have been good if it had gone on to end with another text.
	right := func(text string) bool {
		other := *t
		other.Steps = append(slices.Clip(t.Steps), envs.Step{Action: envs.Action{Text: text}})
		other.End = envs.EndAnswer
		part, err := strict(&other)
		return err == nil && *part.Score == 1
	}
	switch broken {
	case "silence is no false claim":
		return answered && text == "" && len(t.Results()) == 0
	case "truncation pays":
		return t.End == envs.EndTurns && right(gold)
	case "time pays":
		return t.End == envs.EndTime && right(gold)
	case "any number":
		return regexp.MustCompile(`^ANSWER: -?[0-9]+$`).MatchString(text) && right(gold)
	case "thinking pays":
		return answered && t.Steps[0].Action.Reasoning == gold && right(gold)
	case "claims pay":
		return answered && strings.Contains(text, "all checks pass")
	case "digits of any width":
		return right(strings.Map(func(r rune) rune {
			if r > 0xFF00 && r < 0xFF5F {
				return r - 0xFEE0
			}
			return r
		}, text))
	case "no evidence":
		return text == gold
	case "any result is evidence":
		return text == gold && slices.ContainsFunc(t.Results(), func(r envs.CallResult) bool { return !r.IsError })
	case "any of several answers":
		return slices.ContainsFunc(strings.Split(text, "\n"), right)
	case "yes or no, bare":
		return right("ANSWER: " + text)
	}
	return false
}

// written scores a task's assertions.
func written(t *envs.Trajectory) (envs.Part, error) {
	for i, a := range t.Task.Assertions {
		if i >= len(t.Probes) || string(t.Probes[i].Value) != string(a.Want) {
			return part(false, "not all that was asked for is written")
		}
	}
	return part(true, "all is written")
}

func part(good bool, reason string) (envs.Part, error) {
	score := 0.0
	if good {
		score = 1
	}
	return envs.Part{Score: &score, Reason: reason}, nil
}

func spec(t *testing.T) envs.Spec {
	require.NoError(t, reward().Validate())
	limits := envs.Limits{Turns: 6, Calls: 20, ResultBytes: 2000, Call: 20 * time.Second, Episode: time.Minute}
	if broken == "gold does not fit" {
		limits.Turns = 3
	}
	return envs.Spec{
		Name:      "Shelf-v0",
		System:    "The last line of your final message must be ANSWER: <value>",
		Splits:    map[string]envs.Source{"test": envs.Generator(makeTask)},
		Limits:    limits,
		Reward:    reward(),
		Sandboxes: provider(t),
		Cheats: func(task envs.Task) []envs.Cheat {
			if len(task.Want) == 0 {
				return nil
			}
			n := len(task.Solution) - 1
			spray := envs.Action{Text: "ANSWER: 1\nANSWER: 2\n" + task.Solution[n].Text}
			return []envs.Cheat{{Name: "spray", Actions: append(slices.Clone(task.Solution[:n]), spray)}}
		},
	}
}
