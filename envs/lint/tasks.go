package lint

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/lint"
)

const system = `You mend the code of a project through tools. run_linter shows what a linter finds; what a docstring, or the comment at the head of a script, says of the code is right. Tests that you do not see call the code, and the linter then checks the whole tree.
Mend a finding at its cause: what is unused goes; a name that is not defined is a slip of the pen; compare with None by "is"; a default that could change becomes None and is made in the function; except names the error that the docstring names, as in "except ValueError"; a new error is raised "from err", the one before; a loop variable that nothing uses becomes _; in scripts for sh write cd "$1" || exit 1, read -r, $(...) and quotes around variables.
Change only files with something to mend, and there nothing else: names and parameters stay. No comments or settings that silence a linter, no eval or exec, no other files.
Give paths in full, from the root "/". Where you are asked for values, the last line of your final message must be
ANSWER: <value>
and nothing may follow it. Give several values in the order asked for, separated by semicolons.`

// family makes tasks of one kind.
type family struct {
	name string
	options
	asks    string   // "most" or "where" for an answer
	reads   bool     // nothing is to be mended
	wording []string // of the prompt: $f are the files, $l the one that only tests find wrong, $r a rule
}

var (
	pythonRules = []string{"F401", "F841", "B007", "F821", "F541", "E711", "E713", "F632", "B006", "E722", "B904"}
	shellRules  = []string{"SC2086", "SC2164", "SC2162", "SC3014", "SC2006", "SC2034"}
	allRules    = slices.Concat(pythonRules, shellRules)
)

var families = []family{
	{name: "unused", options: options{Rules: []string{"F401", "F841", "B007"}, Files: 1, Most: 2}, wording: []string{`The linter finds things in $f that nothing uses. Mend it.`, `Tidy $f: run the linter and remove what is not used.`}},
	{name: "names", options: options{Rules: []string{"F821", "F541"}, Files: 1, Most: 2}, wording: []string{`$f fails when it is called. Mend what the linter finds there.`, `Mend the findings of the linter in $f.`}},
	{name: "comparisons", options: options{Rules: []string{"E711", "E713", "F632"}, Files: 2, Most: 1}, wording: []string{`The linter complains of comparisons in $f. Mend them.`}},
	{name: "traps", options: options{Rules: []string{"B006", "E722", "B904"}, Files: 1, Most: 2}, wording: []string{`Some functions in $f do not do what their docstrings say, and the linter knows why. Mend them.`}},
	{name: "shell", options: options{Rules: shellRules, Files: 2, Most: 1}, wording: []string{`Mend what the linter finds in the scripts $f.`, `Make the scripts $f pass the linter.`}},
	{name: "logic", options: options{Rules: pythonRules, Files: 1, Most: 1, Logic: true}, wording: []string{`Mend what the linter finds in $f. Besides, a function in $l does something else than its docstring says, though the linter is content with it: mend that, too.`}},
	{name: "audit", options: options{Rules: allRules, Files: 4, Most: 3}, asks: "most", reads: true, wording: []string{`Which file has the most findings of the linter, and how many findings are there in the whole tree? Change nothing.`, `Run the linter on the whole tree and change nothing: name the file with the most findings, and the number of all findings.`}},
	{name: "where", options: options{Rules: allRules, Files: 3, Most: 1}, asks: "where", wording: []string{`Mend all that the linter finds in the tree. One finding was of the rule $r: in which file was it, and on which line before anything was changed?`}},
}

// oodFamilies are compositions that train lacks.
var oodFamilies = []family{
	{name: "sweep", options: options{Rules: allRules, Files: 4, Most: 2}, wording: []string{`Make the whole tree pass the linter.`, `Mend all that the linter finds, wherever it is.`}},
	{name: "script-logic", options: options{Rules: shellRules, Files: 1, Most: 1, Logic: true}, wording: []string{`Mend what the linter finds in $f. The script $l does something else than the comment at its head says: mend that, too.`}},
	{name: "most", options: options{Rules: allRules, Files: 3, Most: 2}, asks: "most", wording: []string{`Make the whole tree pass the linter. Which file had the most findings before, and how many were there in all files together?`}},
}

// split generates tasks: families take turns, each task has a project of its own, and no two splits share a seed stream.
func split(name string, families []family) envs.Source {
	h := fnv.New64a()
	h.Write([]byte("lint " + name))
	salt := h.Sum64()
	return envs.Generator(func(index int) envs.Task {
		f := families[index%len(families)]
		for try := uint64(0); ; try++ {
			r := rand.New(rand.NewPCG(salt^try<<40, uint64(index)))
			seed := r.Uint64() >> 11 // stays exact in readers that know only doubles
			if t, ok := f.task(fmt.Sprintf("%s/%s/%d", name, f.name, index), seed, r); ok {
				return t
			}
		}
	})
}

// task makes a task of a project's seed. It is not ok where the project has no place for the faults, or two right answers.
func (f family) task(id string, seed uint64, r *rand.Rand) (t envs.Task, ok bool) {
	p := newProject(seed, f.options)
	if p == nil {
		return t, false
	}
	t = envs.Task{ID: id, Family: f.name, World: sandboxes.World{Seed: seed, Setup: encode(f.options)}}
	x := pick(r, p.faults) // that may be asked for
	final := "Done."
	if f.asks != "" {
		answer, evidence, ok := p.answer(f.asks, x)
		if !ok {
			return t, false
		}
		t.Want, final = encode(rewards.Want{Answer: answer, Evidence: evidence}), rewards.AnswerLine(answer)
	}
	t.Prompt = p.prompt(pick(r, f.wording), x.rule)
	linter := envs.Action{Calls: []envs.Call{call("run_linter", map[string]string{})}}
	t.Solution = []envs.Action{linter}
	if !f.reads {
		paths, _, _ := p.faulty()
		t.Solution = append(t.Solution, envs.Action{Calls: []envs.Call{call("read_multiple_files", map[string]any{"paths": paths})}}, envs.Action{Calls: p.mend(p.faults)}, linter)
		t.Assertions = p.asserts()
		for _, path := range paths {
			t.Allow = append(t.Allow, regexp.QuoteMeta("files: changed "+path+" (file 0644, ")+`\d+ bytes, sha256 [0-9a-f]+\)`)
		}
	}
	t.Solution = append(t.Solution, envs.Action{Text: final})
	for i := range t.Solution {
		t.Solution[i].Calls = slices.Clone(t.Solution[i].Calls)
		for k := range t.Solution[i].Calls {
			t.Solution[i].Calls[k].ID = fmt.Sprintf("call_%d", t.Par)
			t.Par++
		}
	}
	return t, true
}

// answer gives the values that are asked for and what shows them: for "most" the file with the most findings and their number in
// all, for "where" the place of a finding. It is not ok where another answer is as right.
func (p *project) answer(asks string, x injected) (values []rewards.Value, evidence [][]rewards.Fact, ok bool) {
	shows := func(f injected) []rewards.Fact {
		return []rewards.Fact{{Tool: "run_linter", Has: rewards.Fields{"file": f.in.path, "rule": f.rule, "line": f.line()}}}
	}
	if asks == "where" {
		twice := slices.ContainsFunc(p.faults, func(o injected) bool { return o.rule == x.rule && o != x })
		return []rewards.Value{pathOf(x.in.path), number(x.line())}, [][]rewards.Fact{shows(x)}, !twice
	}
	paths, counts, total := p.faulty()
	most := slices.MaxFunc(paths, func(a, b string) int { return counts[a] - counts[b] })
	tied := slices.ContainsFunc(paths, func(o string) bool { return o != most && counts[o] == counts[most] })
	for _, f := range p.faults {
		evidence = append(evidence, shows(f))
	}
	return []rewards.Value{pathOf(most), number(total)}, evidence, !tied
}

// prompt fills in a wording.
func (p *project) prompt(wording, rule string) string {
	paths, counts, _ := p.faulty()
	logic := ""
	for _, x := range p.faults {
		if x.rule == "" {
			logic = x.in.path
		}
	}
	found := slices.DeleteFunc(paths, func(s string) bool { return counts[s] == 0 })
	return strings.NewReplacer("$f", `"`+strings.Join(found, `" and "`)+`"`, "$l", `"`+logic+`"`, "$r", rule).Replace(wording)
}

// faulty gives the files with faults, sorted, and how many findings each and all have.
func (p *project) faulty() (paths []string, counts map[string]int, total int) {
	counts = map[string]int{}
	for _, f := range p.faults {
		paths = append(paths, f.in.path)
		if f.rule != "" {
			counts[f.in.path]++
			total++
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths), counts, total
}

// mend makes the edits that mend some faults, a call for each file.
func (p *project) mend(faults []injected) (calls []envs.Call) {
	type edit struct {
		Old string `json:"oldText"`
		New string `json:"newText"`
	}
	edits := map[string][]edit{}
	var paths []string
	for _, f := range faults {
		if edits[f.in.path] == nil {
			paths = append(paths, f.in.path)
		}
		edits[f.in.path] = append(edits[f.in.path], edit{f.old, f.new})
	}
	for _, path := range paths {
		calls = append(calls, call("edit_file", map[string]any{"path": path, "edits": edits[path]}))
	}
	return calls
}

//go:embed tests.py
var testProgram string

// hidden is an entry of the hidden tests: whether a source has code that the linter does not see, and what it imports and defines.
type hidden struct {
	Path string `json:"h"`
}

// asserts asks for a clean tree and for the results of the hidden tests. The program that is asked holds the calls and not what
// must come of them.
func (p *project) asserts() []envs.Assertion {
	var calls, want []any
	for _, s := range p.touched() {
		names := append([]string{}, s.imports...)
		for _, f := range s.parts {
			if s.isPython() {
				names = append(names, f.name)
			}
		}
		calls, want = append(calls, hidden{s.path}), append(want, []any{[]string{}, names})
	}
	for _, c := range p.checks() {
		calls, want = append(calls, c), append(want, c.want)
	}
	program := strings.Replace(testProgram, `"@CALLS"`, strconv.QuoteToASCII(string(encode(calls))), 1)
	return []envs.Assertion{
		{Ask: sandboxes.Question{Kind: "lint/linter", Text: "/"}, Want: encode(lint.Result{Path: "/", Findings: []lint.Finding{}})},
		{Ask: sandboxes.Question{Kind: "lint/tests", Text: program}, Want: encode(lint.Tests{Stdout: string(encode(want))})},
	}
}

// encode gives the JSON of what is made of plain strings and numbers, as the hidden tests print it.
func encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSpace(b.Bytes())
}

func call(tool string, args any) envs.Call { return envs.Call{Name: tool, Arguments: encode(args)} }

func number(n int) rewards.Value { return rewards.Value{Kind: "number", Value: strconv.Itoa(n)} }
func pathOf(s string) rewards.Value {
	return rewards.Value{Kind: "text", Value: s, Accept: []string{s[1:]}}
}
