package lint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
)

var linters = sync.OnceValues(func() (*Code, error) {
	r, err := confine.Local(context.Background())
	if err != nil {
		return nil, err
	}
	return NewCode(context.Background(), r)
})

// code skips the test where linters cannot be run, or fails it where MCPGYM_REQUIRE names lint.
func code(t testing.TB) *Code {
	t.Helper()
	c, err := linters()
	missing := errors.Is(err, confine.ErrUnavailable) || errors.Is(err, ErrNoLinters)
	if missing && !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), "lint") {
		t.Skip(err)
	}
	require.NoError(t, err)
	return c
}

// lines are the findings of a result, in short.
func lines(r Result) []string {
	all := []string{}
	for _, f := range r.Findings {
		all = append(all, fmt.Sprintf("%s:%d:%d %s %s", f.File, f.Line, f.Column, f.Severity, f.Rule))
	}
	return all
}

func TestLintRun(t *testing.T) {
	casetest.Run(t, "lint-run", func(t *testing.T, c casetest.Case) {
		var in struct {
			Exit           int
			Stdout, Stderr string
		}
		c.In(t, &in)
		status, found := parseRun(in.Exit, in.Stdout)
		c.Check(t, map[string]any{"status": status, "count": len(found)})
	})
}

func TestParseRun(t *testing.T) {
	ruff := `[{"cell":null,"code":"F401","filename":"/work/d/a.py","location":{"column":8,"row":2},"message":"m","severity":"error"}]`
	one := []Finding{{File: "d/a.py", Line: 2, Column: 8, Severity: "error", Rule: "F401", Message: "m"}}
	for _, c := range []struct {
		name   string
		exit   int
		stdout string
		status string
		want   []Finding
	}{
		{"ruff", 1, ruff, runFindings, one},
		{"on several lines, after a note in brackets", 1, "[note] [x]\n{note}\n" + strings.ReplaceAll(ruff, ",", ",\n") + "\n", runFindings, one},
		{"shellcheck", 1, `{"comments":[{"file":"./b.sh","line":4,"endLine":4,"column":3,"level":"warning","code":2086,"message":"m","fix":null}]}`, runFindings,
			[]Finding{{File: "b.sh", Line: 4, Column: 3, Severity: "warning", Rule: "SC2086", Message: "m"}}},
		{"shellcheck, clean", 0, `{"comments":[]}`, runClean, nil},
		{"nothing", 0, " \n", runClean, nil},
		{"findings that are none", 1, "[]", runFailed, nil},
		{"findings that are not written", 1, "", runFailed, nil},
		{"no list", 0, `{"comments":null}`, runFailed, nil},
		{"another object", 0, `{}`, runFailed, nil},
		{"words", 0, "All checks passed!", runFailed, nil},
		{"text after it", 0, "[]\ncrashed", runFailed, nil},
		{"two lists", 0, "[] []", runFailed, nil},
		{"a finding without a rule", 1, `[{"file":"a"}]`, runFailed, nil},
		{"a finding without a file", 1, `[{"rule":"a"}]`, runFailed, nil},
		{"other things than findings", 1, `[1]`, runFailed, nil},
		{"killed", 137, "[]", runFailed, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, found := parseRun(c.exit, c.stdout)
			require.Equal(t, c.status, status)
			require.Equal(t, c.want, found)
		})
	}
}

// tree has one finding or more in every file but ok.py, notes.txt and lib/util.sh.
var tree = map[string]string{
	"app.py":        "import os\nimport sys\n\nprint(sys.argv)\n",
	"ok.py":         "print('é # noqa')\n",
	"notes.txt":     "import os  # noqa\n# shellcheck disable=SC2086\n",
	"build/gen.py":  "def f(x=[]):\n    return x == None\n",
	"tool":          "#!/usr/bin/env python3\nimport re\n",
	"run.sh":        "#!/bin/sh\n. ./lib/util.sh\necho $1 \"$shared\"\n",
	"lib/util.sh":   "#!/bin/sh\nshared=1\necho \"$shared\"\n",
	"-x/hook":       "#!/bin/bash\necho `date`\n",
	"broken.py":     "def f(:\n",
	"bytes.py":      "x = '\xff'\n",
	"lib/broken.sh": "#!/bin/sh\nif true; then\n",
}

func TestCode(t *testing.T) {
	c := code(t)
	for _, tt := range []struct {
		at   string
		want []string
	}{
		{"app.py", []string{"app.py:1:8 error F401"}},
		{"/app.py", []string{"app.py:1:8 error F401"}},
		{"ok.py", []string{}},
		{"build", []string{"build/gen.py:1:9 error B006", "build/gen.py:2:17 error E711"}},
		{"tool", []string{"tool:2:8 error F401"}},
		{"run.sh", []string{"run.sh:3:6 info SC2086"}},
		{"lib/util.sh", []string{}},
		{"/", []string{
			"-x/hook:2:6 style SC2005", "-x/hook:2:6 style SC2006", "-x/hook:2:6 warning SC2046",
			"app.py:1:8 error F401", "broken.py:1:7 error invalid-syntax", "broken.py:2:1 error invalid-syntax",
			"build/gen.py:1:9 error B006", "build/gen.py:2:17 error E711", "bytes.py:1:1 error E902",
			"lib/broken.sh:2:1 info SC1009", "lib/broken.sh:2:10 error SC1073", "lib/broken.sh:3:1 error SC1072", "run.sh:3:6 info SC2086", "tool:2:8 error F401"}},
	} {
		t.Run(tt.at, func(t *testing.T) {
			r, err := c.Run(t.Context(), tree, tt.at)
			require.NoError(t, err)
			require.Equal(t, tt.at, r.Path)
			require.Equal(t, tt.want, lines(r))
			require.Equal(t, min(len(tt.want), 1), r.ExitCode)
		})
	}
	r, err := c.Run(t.Context(), map[string]string{"a.py": "import os\n"}, "a.py")
	require.NoError(t, err)
	require.Equal(t, "{\"path\":\"a.py\",\"exit_code\":1,\"findings\":[{\"file\":\"a.py\",\"severity\":\"error\",\"rule\":\"F401\",\"line\":1,\"column\":8,\"message\":\"`os` imported but unused\"}]}", r.String())
	r, err = c.Run(t.Context(), nil, "/")
	require.NoError(t, err)
	require.Equal(t, `{"path":"/","exit_code":0,"findings":[]}`, r.String())
	for at, want := range map[string]string{
		"notes.txt": `"notes.txt" is neither Python nor a shell script`,
		"../app":    `there is no file or folder "../app"`,
		"ap":        `there is no file or folder "ap"`,
	} {
		_, err := c.Run(t.Context(), tree, at)
		require.EqualError(t, err, want)
	}
}

// Nothing in the tree keeps a finding back, and who tries is found.
func TestSuppressions(t *testing.T) {
	c := code(t)
	const unused, unquoted = "import os\n", "#!/bin/sh\necho $1\n"
	for name, tt := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"C138 noqa":           {map[string]string{"a.py": "import os  # noqa: F401\n"}, []string{"a.py:1:8 error F401", "a.py:1:12 error suppression"}},
		"C138 after text":     {map[string]string{"a.py": "import os  # é so #NoQA\n"}, []string{"a.py:1:8 error F401", "a.py:1:19 error suppression"}},
		"C138 ruff: noqa":     {map[string]string{"a.py": "# ruff: noqa\n" + unused}, []string{"a.py:1:1 error suppression", "a.py:2:8 error F401"}},
		"C138 ruff: disable":  {map[string]string{"a.py": "#ruff:disable[F401]\n" + unused}, []string{"a.py:1:1 error suppression", "a.py:2:8 error F401"}},
		"C138 ruff: ignore":   {map[string]string{"a.py": "# ruff: ignore[F401]\n" + unused}, []string{"a.py:1:1 error suppression", "a.py:2:8 error F401"}},
		"C138 ruff: file":     {map[string]string{"a.py": "# ruff: file-ignore[F401]\n" + unused}, []string{"a.py:1:1 error suppression", "a.py:2:8 error F401"}},
		"C138 flake8: noqa":   {map[string]string{"a.py": "# flake8: noqa\n" + unused}, []string{"a.py:1:1 error suppression", "a.py:2:8 error F401"}},
		"C138 in no string":   {map[string]string{"a.py": "x = '''\n# noqa\n''' + \"# noqa\" + r'\\'# noqa'\ny = 1  # a noqa\n"}, []string{}},
		"C138 shellcheck":     {map[string]string{"a.sh": "#!/bin/sh\n# shellcheck disable=SC2086\necho $1\n"}, []string{"a.sh:2:1 error suppression", "a.sh:3:6 info SC2086"}},
		"C138 all of a file":  {map[string]string{"a.sh": "#!/bin/sh\n#\t\u00a0shellcheck  disable=all # so\nx=1\necho $1\n"}, []string{"a.sh:2:1 error suppression", "a.sh:3:1 warning SC2034", "a.sh:4:6 info SC2086"}},
		"C138 another shell":  {map[string]string{"a.sh": "#!/bin/sh\n# shellcheck shell=bash\n[[ -n \"$1\" ]]\n"}, []string{"a.sh:2:1 error suppression", "a.sh:3:1 warning SC3010"}},
		"C138 prose":          {map[string]string{"a.sh": "#!/bin/sh\n# shellcheck is a linter\ntrue # shellcheck\n"}, []string{}},
		"C139 ruff.toml":      {map[string]string{"a.py": unused, "ruff.toml": "exclude = ['*']\n"}, []string{"a.py:1:8 error F401", "ruff.toml:1:1 error suppression"}},
		"C139 .ruff.toml":     {map[string]string{"d/a.py": unused, "d/.ruff.toml": "lint.select = []\n"}, []string{"d/.ruff.toml:1:1 error suppression", "d/a.py:1:8 error F401"}},
		"C139 pyproject.toml": {map[string]string{"a.py": unused, "pyproject.toml": "[project]\nname = 'a'\n[tool.ruff.lint]\nselect = []\n"}, []string{"a.py:1:8 error F401", "pyproject.toml:3:1 error suppression"}},
		"C139 other settings": {map[string]string{"pyproject.toml": "[project]\nname = 'tool.ruff'\n"}, []string{}},
		"C139 .shellcheckrc":  {map[string]string{"a.sh": unquoted, ".shellcheckrc": "disable=all\n"}, []string{".shellcheckrc:1:1 error suppression", "a.sh:2:6 info SC2086"}},
		"C142 excluded": {map[string]string{".gitignore": "*\n", "node_modules/a.py": unused, ".venv/b.py": unused, "dist/c": "#!/usr/bin/python3\n" + unused, "d.txt": unquoted}, []string{
			".venv/b.py:1:8 error F401", "d.txt:2:6 info SC2086", "dist/c:2:8 error F401", "node_modules/a.py:1:8 error F401"}},
		"C143 own linters": {map[string]string{"ruff": "#!/bin/sh\nexit 0\n", "shellcheck": "#!/bin/sh\nexit 0\n", "bin/ruff": "", "a.py": unused, "ruff.py": "", "a.sh": unquoted}, []string{"a.py:1:8 error F401", "a.sh:2:6 info SC2086"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := c.Run(t.Context(), tt.files, "/")
			require.NoError(t, err)
			require.Equal(t, tt.want, lines(r))
		})
	}
}

// What the linters cannot take is an error that an agent may read, and no clean result.
func TestTooMuch(t *testing.T) {
	c := code(t)
	many := map[string]string{}
	for i := range 501 {
		many[fmt.Sprintf("%d.py", i)] = ""
	}
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"files":    {many, "ruff cannot check that: 501 files, more than 500"},
		"bytes":    {map[string]string{"a.sh": strings.Repeat("x", 9<<20)}, "shellcheck cannot check that: 9437184 bytes of files, more than 8388608"},
		"depth":    {map[string]string{"a.py": strings.Repeat("(", 200000)}, ""},
		"findings": {map[string]string{"a.py": strings.Repeat("import os\n", 4000)}, "ruff is over its limit of output: check fewer files at a time"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := c.Run(t.Context(), tt.files, "/")
			if tt.want == "" { // either will do
				require.True(t, err != nil || r.ExitCode == 1, r)
				return
			}
			require.EqualError(t, err, tt.want)
		})
	}
	some := map[string]string{"a.py": strings.Repeat("import os\n", 100)}
	r, err := c.Run(t.Context(), some, "/")
	require.NoError(t, err)
	require.Len(t, r.Findings, MaxFindings)
	require.Equal(t, 50, r.More)
}

// stub answers in a linter's place.
type stub struct {
	out confine.Output
	err error
}

func (s stub) Run(context.Context, confine.Program) (confine.Output, error) { return s.out, s.err }
func (s stub) Close() error                                                 { return nil }

// each answers in the place of each linter.
type each map[string]stub

func (e each) Run(ctx context.Context, p confine.Program) (confine.Output, error) {
	return e[p.Args[0]].Run(ctx, p)
}
func (each) Close() error { return nil }

func TestCodeFails(t *testing.T) {
	files := map[string]string{"a.py": "import os\n"}
	for _, tt := range []struct {
		stub stub
		want string
	}{
		{stub{out: confine.Output{Exit: 2, Stderr: "ruff failed\n  Cause: bad\n"}}, "ruff failed with exit code 2: ruff failed"},
		{stub{out: confine.Output{Exit: 0, Stdout: "[{"}}, "ruff failed with exit code 0: "},
		{stub{out: confine.Output{Exit: 137, Over: "time"}}, "ruff is over its limit of time: check fewer files at a time"},
		{stub{err: errors.New("no more memory")}, "lint: sandbox fault (died): no more memory"},
	} {
		c := &Code{tt.stub}
		_, err := c.Run(t.Context(), files, "a.py")
		require.EqualError(t, err, tt.want)
		_, fault := errors.AsType[*sandboxes.Fault](err)
		require.Equal(t, tt.stub.err != nil, fault)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := (&Code{stub{err: context.Canceled}}).Run(ctx, files, "a.py")
	require.Equal(t, context.Canceled, err)

	// Where both fail it is always the same that is told, whichever fails first.
	files["a.sh"] = "#!/bin/sh\n"
	bad, fault := stub{out: confine.Output{Exit: 2}}, stub{err: errors.New("no more memory")}
	for _, tt := range []struct {
		ruff, shellcheck stub
		want             string
	}{
		{bad, bad, "ruff failed with exit code 2: "},
		{stub{}, bad, "shellcheck failed with exit code 2: "},
		{bad, fault, "lint: sandbox fault (died): no more memory"},
		{fault, bad, "lint: sandbox fault (died): no more memory"},
	} {
		for range 20 {
			_, err := (&Code{each{"ruff": tt.ruff, "shellcheck": tt.shellcheck}}).Run(t.Context(), files, "/")
			require.EqualError(t, err, tt.want)
		}
	}
	for _, programs := range []each{{"ruff": fault, "shellcheck": {err: context.Canceled}}, {"ruff": {err: context.Canceled}, "shellcheck": fault}} {
		_, err := (&Code{programs}).Run(ctx, files, "/")
		require.Equal(t, context.Canceled, err)
	}

	for _, out := range []confine.Output{{Exit: 127, Stderr: "sh: ruff: not found"}, {Stdout: "ruff 0.17.50\nversion: 0.11.0\n"}, {Stdout: "ruff 0.17.5\nversion: 0.9.0\n"}} {
		_, err := NewCode(t.Context(), stub{out: out})
		require.ErrorIs(t, err, ErrNoLinters)
		require.ErrorContains(t, err, "make deps")
	}
	_, err = NewCode(t.Context(), stub{err: errors.New("closed")})
	require.ErrorContains(t, err, "closed")
	require.NotErrorIs(t, err, ErrNoLinters)
}

// What is asked for is what make deps installs, and part of the identity.
func TestVersions(t *testing.T) {
	wanted, err := os.ReadFile("../images/linters.txt")
	require.NoError(t, err)
	require.Contains(t, string(wanted), "\nruff=="+ruffVersion+"\n")
	require.Contains(t, string(wanted), "\nshellcheck-py=="+shellcheckVersion+".")
	id := (&Code{}).Identity()
	require.Equal(t, ruffVersion, id["ruff"])
	require.Equal(t, shellcheckVersion, id["shellcheck"])
}

// The same files have the same findings, byte for byte, at any parallelism.
func TestCodeDeterministic(t *testing.T) {
	c := code(t)
	want, err := c.Run(t.Context(), tree, "/")
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			got, err := c.Run(t.Context(), tree, "/")
			if err != nil || got.String() != want.String() {
				t.Error(got, err)
			}
		})
	}
	wg.Wait()
}

func BenchmarkCode(b *testing.B) {
	c := code(b)
	for _, at := range []string{"app.py", "run.sh", "/"} {
		b.Run(at, func(b *testing.B) {
			var all []time.Duration
			for b.Loop() {
				start := time.Now()
				_, err := c.Run(b.Context(), tree, at)
				all = append(all, time.Since(start))
				require.NoError(b, err)
			}
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(all[len(all)*95/100].Microseconds())/1000, "p95-ms")
		})
	}
}
