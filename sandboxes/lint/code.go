package lint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
)

// The linters of code, at the versions that sandboxes/images/linters.txt names.
const (
	ruffVersion       = "0.17.5"
	shellcheckVersion = "0.11.0"
	codeVersion       = "1" // changes whenever what is asked of them or made of their findings does
)

// ErrNoLinters is wrapped by the error of NewCode where the linters are missing, or are of other versions.
var ErrNoLinters = errors.New("the linters are missing")

// Code lints Python with ruff and shell scripts with shellcheck. Both are programs that nobody can change through what they
// lint, with rules that are fixed here: configuration among the files and comments that suppress findings have no effect, and
// are findings of rule "suppression". Its methods may be called concurrently.
type Code struct{ run confine.Runner }

// NewCode returns the linters that run with a runner, which stays the caller's.
func NewCode(ctx context.Context, r confine.Runner) (*Code, error) {
	out, err := r.Run(ctx, confine.Program{Args: []string{"sh", "-c", "ruff --version && shellcheck --version"}})
	if err != nil {
		return nil, fmt.Errorf("ask the linters for their versions: %w", err)
	}
	found := strings.Fields(out.Stdout + out.Stderr)
	if !slices.Contains(found, ruffVersion) || !slices.Contains(found, shellcheckVersion) {
		return nil, fmt.Errorf("%w: ruff %s and shellcheck %s are needed, which make deps installs: %s", ErrNoLinters, ruffVersion, shellcheckVersion, strings.Join(found, " "))
	}
	return &Code{r}, nil
}

// Identity names what findings depend on.
func (c *Code) Identity() sandboxes.Identity {
	return sandboxes.Identity{"code linter": codeVersion, "ruff": ruffVersion, "shellcheck": shellcheckVersion}
}

// ruff is asked for what is wrong or likely to be, not for style. It decides by the files alone: what it takes for a package
// of the project would depend on more.
var ruff = []string{"ruff", "check", "--isolated", "--no-cache", "--ignore-noqa", "--no-fix", "--target-version", "py311",
	"--select", "E4,E7,E9,F,W6,B,PLE", "--output-format", "json", "--"}

// shellcheck follows the scripts that one reads in, and says nothing where it cannot: that depends on the machine.
var shellcheck = []string{"shellcheck", "--norc", "--external-sources", "--source-path=SCRIPTDIR", "--exclude=SC1090,SC1091", "--format=json1", "--"}

// Run lints a file, or all of a folder; "/" is all. Files has their texts by path, slashes between its parts and none before it,
// and with them the scripts that a script reads in. An error that is neither a *sandboxes.Fault nor ctx's is the agent's to read,
// and never means that there are no findings.
func (c *Code) Run(ctx context.Context, files map[string]string, at string) (Result, error) {
	name := strings.TrimPrefix(path.Clean("/"+at), "/")
	var found []Finding
	var python, scripts []string
	asked := 0
	pythons, shells := map[string]string{}, map[string]string{}
	for _, f := range slices.Sorted(maps.Keys(files)) {
		text := files[f]
		in := name == "" || f == name || strings.HasPrefix(f, name+"/")
		if in {
			asked++
			found = append(found, suppressions(f, text)...)
		}
		switch language(f, text) {
		case "python":
			if in {
				python, pythons[f] = append(python, "./"+f), text
			}
		case "shell":
			if shells[f] = directive.ReplaceAllStringFunc(text, strings.ToUpper); in {
				scripts = append(scripts, "./"+f)
			}
		}
	}
	if _, file := files[name]; file && len(python)+len(scripts) == 0 {
		return Result{}, fmt.Errorf("%q is neither Python nor a shell script", at)
	}
	if asked == 0 && name != "" {
		return Result{}, fmt.Errorf("there is no file or folder %q", at)
	}
	var programs []confine.Program
	if len(python) > 0 {
		programs = append(programs, confine.Program{Args: slices.Concat(ruff, python), Files: pythons})
	}
	if len(scripts) > 0 {
		programs = append(programs, confine.Program{Args: slices.Concat(shellcheck, scripts), Files: shells})
	}
	more, err := c.lintAll(ctx, programs)
	if err != nil {
		return Result{}, err
	}
	return newResult(at, append(found, more...)), nil
}

// lintAll runs linters at once, each to its end. Of their errors it gives that of ctx, or else a fault, or else the first.
func (c *Code) lintAll(ctx context.Context, programs []confine.Program) ([]Finding, error) {
	found, errs := make([][]Finding, len(programs)), make([]error, len(programs))
	var wg sync.WaitGroup
	for i, p := range programs {
		wg.Go(func() { found[i], errs[i] = c.lint(ctx, p) })
	}
	wg.Wait()
	var worst error
	weight := func(err error) int {
		_, fault := errors.AsType[*sandboxes.Fault](err)
		switch {
		case err == nil:
			return 0
		case sandboxes.Interrupted(ctx, err):
			return 3
		case fault:
			return 2
		}
		return 1
	}
	for _, err := range errs {
		if weight(err) > weight(worst) {
			worst = err
		}
	}
	return slices.Concat(found...), worst
}

func (c *Code) lint(ctx context.Context, p confine.Program) ([]Finding, error) {
	if _, err := p.Check(); err != nil {
		return nil, fmt.Errorf("%s cannot check that: %w", p.Args[0], err)
	}
	out, err := c.run.Run(ctx, p)
	switch {
	case sandboxes.Interrupted(ctx, err):
		return nil, err
	case err != nil:
		return nil, sandboxes.NewFault(sandboxes.FaultDied, "lint", err)
	case out.Over != "":
		return nil, fmt.Errorf("%s is over its limit of %s: check fewer files at a time", p.Args[0], out.Over)
	}
	status, findings := parseRun(out.Exit, out.Stdout)
	if status == runFailed {
		why, _, _ := strings.Cut(strings.TrimSpace(out.Stderr), "\n")
		return nil, fmt.Errorf("%s failed with exit code %d: %.200s", p.Args[0], out.Exit, why)
	}
	return findings, nil
}

// What a run of a linter comes to.
const (
	runClean    = "clean"
	runFindings = "findings"
	runFailed   = "tool_error"
)

// report is a finding as a linter writes it: ruff, shellcheck, or in the form that most others have.
type report struct {
	File, Filename  string
	Line, Column    int
	Location        struct{ Row, Column int }
	Rule            string
	Code            any // "F401", or the number of shellcheck's SC2086
	Severity, Level string
	Message         string
}

// parseRun reads what a linter has written, notes before its JSON aside. Only what says so is clean: nothing, or an empty list,
// with exit code 0.
func parseRun(exit int, stdout string) (status string, found []Finding) {
	if exit != 0 && exit != 1 {
		return runFailed, nil
	}
	reports := []report{}
	if strings.TrimSpace(stdout) != "" {
		var ok bool
		if reports, ok = reportsOf(stdout); !ok {
			return runFailed, nil
		}
	}
	for _, r := range reports {
		f := Finding{File: r.File + r.Filename, Line: r.Line + r.Location.Row, Column: r.Column + r.Location.Column,
			Severity: r.Severity + r.Level, Rule: r.Rule, Message: r.Message}
		switch c := r.Code.(type) {
		case string:
			f.Rule = c
		case float64:
			f.Rule = fmt.Sprintf("SC%.0f", c)
		}
		if f.File == "" || f.Rule == "" {
			return runFailed, nil
		}
		f.File = path.Clean(strings.TrimPrefix(f.File, confine.Work+"/"))
		found = append(found, f)
	}
	switch {
	case len(found) > 0:
		return runFindings, found
	case exit == 0:
		return runClean, nil
	}
	return runFailed, nil
}

// reportsOf reads the JSON that a text ends with: a list of reports, or an object that has them as comments. It begins a line.
func reportsOf(text string) ([]report, bool) {
	for i := 0; i < len(text); {
		d := json.NewDecoder(strings.NewReader(text[i:]))
		var list []report
		var object struct{ Comments []report }
		var err error
		switch text[i] {
		case '[':
			err = d.Decode(&list)
		case '{':
			err = d.Decode(&object)
			list = object.Comments
		default:
			err = errors.New("no JSON")
		}
		if err == nil && list != nil {
			if _, err := d.Token(); err == io.EOF {
				return list, true
			}
		}
		next := strings.IndexByte(text[i:], '\n')
		if next < 0 {
			break
		}
		i += next + 1
	}
	return nil, false
}

var (
	pythonName = regexp.MustCompile(`\.pyi?$`)
	shellName  = regexp.MustCompile(`\.(sh|bash|dash|ksh)$`)
	shebang    = regexp.MustCompile(`^#!.*\b(?:(python[0-9.]*)|(?:ba|da|k|a)?sh)\b`)
)

// language says what a file is by its name, or else by its first line.
func language(name, text string) string {
	first := shebang.FindStringSubmatch(text[:min(len(text), 200)])
	switch {
	case pythonName.MatchString(name):
		return "python"
	case shellName.MatchString(name):
		return "shell"
	case first == nil:
		return ""
	case first[1] != "":
		return "python"
	}
	return "shell"
}

var (
	// pythonToken finds comments, and the strings that may hide their sign.
	pythonToken = regexp.MustCompile(`(?s)#[^\n]*|"""(?:[^\\]|\\.)*?"""|'''(?:[^\\]|\\.)*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'`)
	suppressing = regexp.MustCompile(`(?i)#\s*(?:noqa\b|nosec\b|(?:ruff|flake8|isort|pylint)\s*:)`)
	// directive finds whatever shellcheck could take for its own. In capitals it takes it for nothing.
	directive        = regexp.MustCompile(`#[^\pL\n]*shellcheck`)
	shellSuppressing = regexp.MustCompile(`(?m)(?:^|[\s;&|(){}])(#[^\pL\n]*shellcheck\s+[a-z-]+\s*=)`)
	configures       = regexp.MustCompile(`(?m)^\s*\[+\s*"?tool"?\s*\.\s*"?ruff\b`)
)

// suppressions are the attempts of a file to be spared.
func suppressions(name, text string) (found []Finding) {
	add := func(at int, message string) {
		line := strings.LastIndexByte(text[:at], '\n') + 1
		found = append(found, Finding{File: name, Severity: "error", Rule: "suppression", Line: 1 + strings.Count(text[:at], "\n"),
			Column: 1 + utf8.RuneCountInString(text[line:at]), Message: message})
	}
	const comment = "comments that suppress findings have no effect: mend the code and remove the comment"
	const config = "configuration of a linter has no effect: mend the code and remove the configuration"
	switch language(name, text) {
	case "python":
		for _, t := range pythonToken.FindAllStringIndex(text, -1) {
			if at := suppressing.FindStringIndex(text[t[0]:t[1]]); text[t[0]] == '#' && at != nil {
				add(t[0]+at[0], comment)
			}
		}
	case "shell":
		for _, m := range shellSuppressing.FindAllStringSubmatchIndex(text, -1) {
			add(m[2], comment)
		}
	}
	switch path.Base(name) {
	case "ruff.toml", ".ruff.toml", ".shellcheckrc", "shellcheckrc":
		add(0, config)
	case "pyproject.toml":
		if at := configures.FindStringIndex(text); at != nil {
			add(at[0]+strings.IndexByte(text[at[0]:], '['), config)
		}
	}
	return found
}
