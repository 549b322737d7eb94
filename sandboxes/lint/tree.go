package lint

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
	"github.com/mcpgym/mcpgym/sandboxes/files"
	"github.com/mcpgym/mcpgym/sandboxes/join"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

const treeDescription = `Check the Python files and shell scripts of the tree, as they are now, with ruff and shellcheck. ` +
	`Returns the findings as JSON, each with its file, line, column, severity, rule and message; exit_code is 0 where there are none, else 1. ` +
	`Which rules count is fixed: configuration in the tree and comments that suppress findings have no effect and are findings themselves.`

// Tests is what the tests of a verifier came to.
type Tests struct {
	Exit   int    `json:"exit"`
	Stdout string `json:"stdout"`
}

const (
	testTime   = 10 * time.Second
	testOutput = 64 << 10 // bytes that an answer holds
)

// Tree returns a provider of the trees of p, with a tool more: run_linter checks their files with code. It runs a program to
// learn the version of Python.
//
// A sandbox is a join of two parts, files and lint. A verifier asks lint/linter for what run_linter would answer for a path, and
// lint/tests for what a Python program does, which is the question's text: it is run with copies of the tree's files in
// confine.Work, and the answer is a Tests. It sees no module of the tree unless it says so. What it should print is for the
// verifier to know: the program runs beside code of the agent, and nothing that it holds is secret. One that is over a limit,
// for which the agent's code can be the cause, is an answer with an error.
//
// The state is that of the tree. Closing the provider closes p.
func Tree(ctx context.Context, p *files.Provider, code *Code) (sandboxes.Provider, error) {
	python, err := code.python(ctx)
	if err != nil {
		return nil, err
	}
	id := maps.Clone(p.Identity())
	maps.Copy(id, code.Identity())
	id["python major"] = python
	srv := server.NewMCPServer("lint", Version)
	srv.AddTools(mcpmem.Tool("run_linter", treeDescription, func(ctx context.Context, l *treeLinter, in struct{ Path string }) (any, error) {
		return l.lint(ctx, in.Path)
	}, mcp.WithReadOnlyHintAnnotation(true), mcp.WithString("path", mcpmem.Entity, mcp.Description(`Path of a file or folder; leave out for the whole tree`))))
	tools, err := mcpmem.New(srv, id, func(sandboxes.World) (*treeLinter, error) {
		return nil, errors.New("linters are served, not opened")
	})
	if err != nil {
		return nil, err
	}
	return &treeProvider{p, newTrees(p, code), id, tools}, nil
}

var pythonVersion = regexp.MustCompile(`^Python (3\.\d+)\.`)

// python gives the version of Python that programs run with, without its last part.
func (c *Code) python(ctx context.Context) (string, error) {
	out, err := c.run.Run(ctx, confine.Program{Args: []string{"python3", "--version"}})
	if err != nil {
		return "", fmt.Errorf("ask Python for its version: %w", err)
	}
	m := pythonVersion.FindStringSubmatch(out.Stdout)
	if m == nil {
		return "", fmt.Errorf("%w: no Python: %.100s%.100s", ErrNoLinters, out.Stdout, out.Stderr)
	}
	return m[1], nil
}

type treeProvider struct {
	*files.Provider
	trees
	id    sandboxes.Identity
	tools *mcpmem.Provider[*treeLinter]
}

// trees are what is linted, and with what.
type trees struct {
	files         *files.Provider
	code, linters *Code // the one is for programs of others, the other remembers
}

func newTrees(p *files.Provider, code *Code) trees {
	return trees{p, code, &Code{&remembering{Runner: code.run}}}
}

// lease opens a world's tree with its linter.
func (t *trees) lease(ctx context.Context, w sandboxes.World) (*treeLinter, error) {
	box, err := t.files.Lease(ctx, w)
	if err != nil {
		return nil, err
	}
	return &treeLinter{t.code, t.linters, box}, nil
}

// remembering is a runner of linters, which say the same of the same files each time: many agents begin with one tree, and most
// that one changes are the files of one linter.
type remembering struct {
	confine.Runner
	known memory[[32]byte, confine.Output]
}

// maxSaid bounds the bytes of an output that is remembered, as maxKnown does their number.
const maxSaid = 64 << 10

func (r *remembering) Run(ctx context.Context, p confine.Program) (confine.Output, error) {
	if err := ctx.Err(); err != nil {
		return confine.Output{}, err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q", p.Args)
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		fmt.Fprintf(h, "%d %d %s%s", len(name), len(p.Files[name]), name, p.Files[name])
	}
	return r.known.get([32]byte(h.Sum(nil)), func() (confine.Output, bool, error) {
		out, err := r.Runner.Run(ctx, p)
		return out, out.Exit <= 1 && out.Over == "" && len(out.Stdout)+len(out.Stderr) <= maxSaid, err
	})
}

func (p *treeProvider) Lease(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
	l, err := p.lease(ctx, w)
	if err != nil {
		return nil, err
	}
	return join.Boxes(join.Box{Name: "files", Sandbox: l.box}, join.Box{Name: "lint", Sandbox: p.tools.Serve(l)})
}

func (p *treeProvider) Identity() sandboxes.Identity { return p.id }

func (p *treeProvider) Close() error { return errors.Join(p.Provider.Close(), p.tools.Close()) }

// treeLinter is the world of one sandbox.
type treeLinter struct {
	code, linters *Code
	box           sandboxes.Sandbox // the tree
}

// Probe answers questions of the kinds linter and tests.
func (l *treeLinter) Probe(ctx context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error) {
	return answer(ctx, ask, func(q sandboxes.Question) (string, error) { return l.say(ctx, q) })
}

func (l *treeLinter) say(ctx context.Context, q sandboxes.Question) (string, error) {
	switch q.Kind {
	case "linter":
		return l.lint(ctx, q.Text)
	case "tests":
		return l.test(ctx, q.Text)
	}
	return "", fmt.Errorf("a linter answers questions of kind linter and tests, not %q", q.Kind)
}

// lint gives the result for a path as agents spell it. Its paths begin with a slash, as those of the other tools do.
func (l *treeLinter) lint(ctx context.Context, at string) (string, error) {
	if len(at) > files.MaxPath {
		return "", fmt.Errorf("the path is %d bytes long, the limit is %d", len(at), files.MaxPath)
	}
	texts, err := l.texts(ctx)
	if err != nil {
		return "", err
	}
	r, err := l.linters.Run(ctx, texts, path.Clean("/"+at))
	if err != nil {
		return "", err
	}
	for i := range r.Findings {
		r.Findings[i].File = "/" + r.Findings[i].File
	}
	return r.String(), nil
}

// test runs a program beside the tree's files.
func (l *treeLinter) test(ctx context.Context, program string) (string, error) {
	texts, err := l.texts(ctx)
	if err != nil {
		return "", err
	}
	// Isolated, so that no file of the tree stands in for a module of Python's own, and without what a machine adds to these.
	p := confine.Program{Args: []string{"python3", "-I", "-S", "-B", "-c", program}, Files: texts, Time: testTime}
	if _, err := p.Check(); err != nil {
		return "", fmt.Errorf("the tests cannot be run: %w", err)
	}
	out, err := l.code.run.Run(ctx, p)
	switch {
	case sandboxes.Interrupted(ctx, err):
		return "", err
	case err != nil:
		return "", sandboxes.NewFault(sandboxes.FaultVerifier, "run the tests", err)
	case out.Over != "":
		return "", fmt.Errorf("the tests are over their limit of %s", out.Over)
	case len(out.Stdout) > testOutput:
		return "", errors.New("the tests are over their limit of output")
	}
	said, err := json.Marshal(Tests{out.Exit, out.Stdout})
	return string(said), err
}

// texts reads the files of the tree by the verifier's way. One that is no text is left out, unless a linter would read it.
func (l *treeLinter) texts(ctx context.Context) (map[string]string, error) {
	answers, err := sandboxes.ProbeOf(ctx, l.box, []sandboxes.Question{{Kind: "list", Text: "/"}})
	if err != nil {
		return nil, err
	}
	if answers[0].Err != "" {
		return nil, fmt.Errorf("the files cannot be listed: %s", answers[0].Err)
	}
	var paths []string
	if err := json.Unmarshal(answers[0].Value, &paths); err != nil {
		return nil, sandboxes.NewFault(sandboxes.FaultVerifier, "list the files", err)
	}
	var ask []sandboxes.Question
	for _, p := range paths {
		if !strings.HasSuffix(p, "/") {
			ask = append(ask, sandboxes.Question{Kind: "text", Text: p})
		}
	}
	if answers, err = sandboxes.ProbeOf(ctx, l.box, ask); err != nil {
		return nil, err
	}
	texts := make(map[string]string, len(ask))
	for i, a := range answers {
		name := strings.TrimPrefix(ask[i].Text, "/")
		switch {
		case a.Err != "" && language(name, "") != "":
			return nil, fmt.Errorf("%s cannot be read: %s", ask[i].Text, a.Err)
		case a.Err != "" || string(a.Value) == "null": // or it is gone meanwhile
			continue
		}
		var text string
		if err := json.Unmarshal(a.Value, &text); err != nil {
			return nil, sandboxes.NewFault(sandboxes.FaultVerifier, "read "+ask[i].Text, err)
		}
		texts[name] = text
	}
	return texts, nil
}
