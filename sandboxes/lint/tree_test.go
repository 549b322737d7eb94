package lint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
	"github.com/mcpgym/mcpgym/sandboxes/files"
	"github.com/mcpgym/mcpgym/sandboxes/sandboxtest"
)

func openTrees(t testing.TB) sandboxes.Provider {
	t.Helper()
	c := code(t)
	p, err := files.New(sandboxes.Identity{"worlds": "test"}, files.Decode, 0)
	require.NoError(t, err)
	tree, err := Tree(t.Context(), p, c)
	require.NoError(t, err)
	return tree
}

// treeOf is a tree of texts.
func treeOf(t testing.TB, texts map[string]string) sandboxes.World {
	s := files.Setup{Files: map[string]files.File{}}
	for name, text := range texts {
		s.Files[name] = files.File{Text: text}
	}
	setup, err := json.Marshal(s)
	require.NoError(t, err)
	return sandboxes.World{Setup: setup}
}

func leaseTree(t testing.TB, texts map[string]string) sandboxes.Sandbox {
	t.Helper()
	p := openTrees(t)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	box, err := p.Lease(t.Context(), treeOf(t, texts))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, box.Close()) })
	return box
}

func callTool(t testing.TB, box sandboxes.Sandbox, tool, args string) sandboxes.Result {
	t.Helper()
	r, err := box.Session().Call(t.Context(), tool, json.RawMessage(args))
	require.NoError(t, err)
	return r
}

func probe(t testing.TB, box sandboxes.Sandbox, kind, text string) sandboxes.Answer {
	t.Helper()
	answers, err := sandboxes.ProbeOf(t.Context(), box, []sandboxes.Question{{Kind: kind, Text: text}})
	require.NoError(t, err)
	require.Len(t, answers, 1)
	return answers[0]
}

func TestTreeContract(t *testing.T) {
	code(t)
	sandboxtest.Check(t, func(t *testing.T) sandboxes.Provider { return openTrees(t) },
		treeOf(t, map[string]string{"a.py": "import os\n"}), treeOf(t, map[string]string{"b/c.sh": "#!/bin/sh\necho $1\n"}))
}

// The linter sees what is there now, also what the agent has just written, and the verifier sees the same.
func TestTree(t *testing.T) {
	box := leaseTree(t, map[string]string{"lib/a.py": "import os\n", "run.sh": "#!/bin/sh\necho $1\n", "note.txt": "x"})
	const first = "{\"path\":\"/lib\",\"exit_code\":1,\"findings\":[{\"file\":\"/lib/a.py\",\"severity\":\"error\",\"rule\":\"F401\",\"line\":1,\"column\":8,\"message\":\"`os` imported but unused\"}]}"
	for _, at := range []string{"lib", "/lib", "/lib/"} {
		require.Equal(t, sandboxes.Result{Text: first}, callTool(t, box, "run_linter", `{"path":"`+at+`"}`))
	}
	require.JSONEq(t, first, string(probe(t, box, "lint/linter", "/lib").Value))
	all := callTool(t, box, "run_linter", `{}`)
	require.Equal(t, all, callTool(t, box, "run_linter", `{"path":"/"}`))
	require.Contains(t, all.Text, `"/run.sh"`)

	require.Equal(t, `"/note.txt" is neither Python nor a shell script`, callTool(t, box, "run_linter", `{"path":"note.txt"}`).Text)
	require.Equal(t, sandboxes.Result{IsError: true, Text: `there is no file or folder "/x.py"`}, callTool(t, box, "run_linter", `{"path":"x.py"}`))
	require.Equal(t, "the path is 256 bytes long, the limit is 255", callTool(t, box, "run_linter", `{"path":"`+strings.Repeat("x", 256)+`"}`).Text)
	require.Equal(t, `there is no file or folder "/x"`, probe(t, box, "lint/linter", "x").Err)
	require.Contains(t, probe(t, box, "lint/other", "x").Err, "not \"other\"")

	callTool(t, box, "delete_file", `{"path":"/lib/a.py"}`)
	callTool(t, box, "write_file", `{"path":"/run.sh","content":"#!/bin/sh\necho \"$1\"\n"}`)
	require.JSONEq(t, `{"path":"/","exit_code":0,"findings":[]}`, string(probe(t, box, "lint/linter", "/").Value))
	state, err := sandboxes.StateOf(t.Context(), box)
	require.NoError(t, err)
	require.Len(t, state.Diff, 2)
	require.Regexp(t, `^files: changed /run.sh \(file 0644, `, state.Diff[0])
	require.Equal(t, "files: removed /lib/a.py", state.Diff[1])
}

// What cannot be read is not clean where a linter would read it.
func TestTreeBinary(t *testing.T) {
	p := openTrees(t)
	defer p.Close()
	box, err := p.Lease(t.Context(), sandboxes.World{Setup: json.RawMessage(`{"files":{"a.png":{"base64":"/w=="},"ok.py":{}}}`)})
	require.NoError(t, err)
	defer box.Close()
	require.Equal(t, `{"path":"/","exit_code":0,"findings":[]}`, callTool(t, box, "run_linter", `{}`).Text)
	callTool(t, box, "move_file", `{"source":"/a.png","destination":"/a.py"}`)
	r := callTool(t, box, "run_linter", `{}`)
	require.True(t, r.IsError)
	require.Contains(t, r.Text, "/a.py cannot be read")
}

func TestTreeTests(t *testing.T) {
	box := leaseTree(t, map[string]string{
		"lib/good.py":      "def f(x):\n    return x + 1\n",
		"lib/ends.py":      "import os\nos._exit(0)\n",
		"json.py":          "raise SystemExit(0)\n",
		"sitecustomize.py": "print('forged')\nraise SystemExit(0)\n",
		"conftest.py":      "print('forged')\n",
		"python3":          "#!/bin/sh\necho forged\n",
		"loop.py":          "while True:\n    pass\n",
		"flood.py":         "while True:\n    print('x' * 1000)\n",
		"much.py":          "print('x' * 70000)\n",
		"fork.py":          "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
	})
	const use = "import sys\nsys.path.append('/work')\nsys.path.append('/work/lib')\n"
	for name, tt := range map[string]struct{ program, want, err string }{
		"prints":                 {program: use + "import good, json\nprint(json.dumps([good.f(2), 'é']))", want: `{"exit":0,"stdout":"[3, \"\\u00e9\"]\n"}`},
		"fails":                  {program: "import sys\nsys.stderr.write('why')\nsys.exit(3)", want: `{"exit":3,"stdout":""}`},
		"no module of the tree":  {program: "import good", want: `{"exit":1,"stdout":""}`},
		"files":                  {program: "print(open('lib/good.py').readline())", want: `{"exit":0,"stdout":"def f(x):\n\n"}`},
		"ends early":             {program: use + "import ends\nprint(1)", want: `{"exit":0,"stdout":""}`},
		"endless":                {program: use + "import loop", err: "the tests are over their limit of time"},
		"a flood":                {program: use + "import flood", err: "the tests are over their limit of output"},
		"more than is kept":      {program: use + "import much", err: "the tests are over their limit of output"},
		"a bomb":                 {program: use + "import fork", err: "the tests are over their limit of time"},
		"writes go nowhere":      {program: "open('lib/good.py', 'w').write('')\nprint(1)", want: `{"exit":0,"stdout":"1\n"}`},
		"and were not kept":      {program: "print(len(open('lib/good.py').read()))", want: `{"exit":0,"stdout":"27\n"}`},
		"no program, NUL":        {program: "print(1)\x00", err: "the tests cannot be run: a NUL in an argument"},
		"what it is told, empty": {program: "", want: `{"exit":0,"stdout":""}`},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "and were not kept" {
				probe(t, box, "lint/tests", "open('lib/good.py', 'w').write('')")
			}
			a := probe(t, box, "lint/tests", tt.program)
			require.Equal(t, tt.err, a.Err)
			if tt.err == "" {
				require.JSONEq(t, tt.want, string(a.Value))
			}
		})
	}
}

// A runner that fails is a fault, whoever asks; what it runs is not.
func TestTreeFails(t *testing.T) {
	good := code(t)
	p, err := files.New(nil, files.Decode, 0)
	require.NoError(t, err)
	defer p.Close()
	box, err := p.Lease(t.Context(), treeOf(t, map[string]string{"a.py": "import os\n"}))
	require.NoError(t, err)
	defer box.Close()
	broken := &Code{stub{err: errors.New("no more memory")}}
	l := &treeLinter{broken, broken, box}
	for _, kind := range []string{"linter", "tests"} {
		_, err := l.Probe(t.Context(), []sandboxes.Question{{Kind: kind, Text: "/"}})
		var f *sandboxes.Fault
		require.ErrorAs(t, err, &f)
	}
	_, err = (&Code{stub{out: confine.Output{Exit: 127}}}).python(t.Context())
	require.ErrorIs(t, err, ErrNoLinters)
	tree, err := Tree(t.Context(), p, good)
	require.NoError(t, err)
	id := tree.Identity()
	require.Regexp(t, `^3\.\d+$`, id["python major"])
	for _, key := range []string{"files tools", "code linter", "ruff", "shellcheck"} {
		require.NotEmpty(t, id[key], key)
	}
}

// counting counts what is run.
type counting struct {
	stub
	n int
}

func (c *counting) Run(ctx context.Context, p confine.Program) (confine.Output, error) {
	c.n++
	return c.stub.Run(ctx, p)
}

// A linter is asked once about the same files, unless it has failed.
func TestTreeRemembers(t *testing.T) {
	program := func(files ...string) confine.Program {
		p := confine.Program{Args: []string{"ruff"}, Files: map[string]string{}}
		for i := 0; i < len(files); i += 2 {
			p.Files[files[i]] = files[i+1]
		}
		return p
	}
	for _, tt := range []struct {
		name  string
		first stub
		twice bool
	}{
		{"clean", stub{}, false},
		{"findings", stub{out: confine.Output{Exit: 1, Stdout: "x"}}, false},
		{"failed", stub{out: confine.Output{Exit: 2}}, true},
		{"over a limit", stub{out: confine.Output{Over: "time"}}, true},
		{"much", stub{out: confine.Output{Stdout: strings.Repeat("x", maxSaid+1)}}, true},
		{"no runner", stub{err: errors.New("no memory")}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &counting{stub: tt.first}
			r := &remembering{Runner: c}
			for range 2 {
				out, err := r.Run(t.Context(), program("a", "bc", "d", ""))
				require.Equal(t, tt.first.out, out)
				require.Equal(t, tt.first.err, err)
			}
			require.Equal(t, tt.twice, c.n == 2)
		})
	}
	c := &counting{}
	r := &remembering{Runner: c}
	for i, p := range []confine.Program{program(), program("a", "bc"), program("ab", "c"), program("a", "b", "c", ""), {Args: []string{"ruff", "a"}}, {Args: []string{"ruff a"}}} {
		_, err := r.Run(t.Context(), p)
		require.NoError(t, err)
		require.Equal(t, i+1, c.n, "%+v was taken for another", p)
	}
	for i := range 2 * maxKnown {
		_, err := r.Run(t.Context(), program("n", strings.Repeat("x", i)))
		require.NoError(t, err)
	}
	require.LessOrEqual(t, len(r.known.known), maxKnown)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.Run(ctx, program())
	require.ErrorIs(t, err, context.Canceled)
}

func BenchmarkTree(b *testing.B) {
	texts := map[string]string{}
	for _, n := range strings.Fields("a b c d e f g h") {
		texts["lib/"+n+".py"] = strings.Repeat("def f"+n+"(x):\n    return x + 1\n\n\n", 20)
	}
	texts["bin/run.sh"] = "#!/bin/sh\necho \"$1\"\n"
	box := leaseTree(b, texts)
	for _, args := range []string{`{"path":"/lib/a.py"}`, `{"path":"/bin/run.sh"}`, `{}`} {
		b.Run(args, func(b *testing.B) {
			for name, text := range map[string]string{"/lib/a.py": texts["lib/a.py"], "/bin/run.sh": texts["bin/run.sh"]} {
				callTool(b, box, "write_file", fmt.Sprintf(`{"path":%q,"content":%q}`, name, text+"# "+strings.Trim(args, "{}")+"\n# 0\n"))
			}
			var all []time.Duration
			for i := 0; b.Loop(); i++ {
				for _, name := range []string{"/lib/a.py", "/bin/run.sh"} { // so that nothing is remembered
					callTool(b, box, "edit_file", fmt.Sprintf(`{"path":%q,"edits":[{"oldText":"# %d\n","newText":"# %d\n"}]}`, name, i, i+1))
				}
				start := time.Now()
				callTool(b, box, "run_linter", args)
				all = append(all, time.Since(start))
			}
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(all[len(all)*95/100].Microseconds())/1000, "p95-ms")
		})
	}
}
