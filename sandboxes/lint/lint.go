// Package lint adds linters to live worlds: tools that check what an agent works on against files that it cannot change, for
// the agent while it works and for the verifier afterwards.
package lint

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/join"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// Version changes whenever a rule, the form of a result or the tool's description does.
const Version = "2"

// MaxFindings bounds the findings that a result shows.
const MaxFindings = 50

// Result is what a run of a linter answers, as JSON. The findings are sorted by file, line, column, rule and message.
type Result struct {
	Path     string    `json:"path"`
	ExitCode int       `json:"exit_code"` // 1 where there are findings, else 0
	Findings []Finding `json:"findings"`
	More     int       `json:"more,omitempty"` // findings beyond MaxFindings
}

const description = `Check the database against a file of SQL that declares its schema: tables with their columns, keys and checks, and indexes. ` +
	`Returns the findings as JSON, each with its rule, table, line of the declaration and message; exit_code is 0 where there are none, else 1. ` +
	`Constraints are compared by what they say, not by their names; what the file does not declare is no finding. ` +
	`Only what is committed is seen: where an open transaction of yours locks a table, commit or roll back first.`

// SQL returns a provider of databases of pg, which are on s, with a tool more: run_linter checks the database against a file
// that declares ordinary tables of schema public in SQL. files makes the files of a world, text by path; equal worlds must have
// equal files. The agent sees of them no more than the findings say.
//
// A sandbox is a join of two parts. A verifier asks postgres/sql as in package postgres, and lint/linter for what run_linter
// would answer for a path; where the agent has left a transaction open that locks a table, that question rolls it back.
// The state is that of the database. Closing the provider closes pg.
func SQL(pg *postgres.Provider, s *postgres.Server, files func(sandboxes.World) (map[string]string, error)) (sandboxes.Provider, error) {
	id := maps.Clone(pg.Identity())
	id["linter"] = Version
	srv := server.NewMCPServer("lint", Version)
	srv.AddTools(mcpmem.Tool("run_linter", description, func(ctx context.Context, l *linter, in struct{ Path string }) (any, error) {
		return l.run(ctx, in.Path, true)
	}, mcp.WithReadOnlyHintAnnotation(true), mcp.WithString("path", mcp.Required(), mcp.MinLength(1), mcpmem.Entity, mcp.Description("Path of a declaration, for example schema.sql"))))
	tools, err := mcpmem.New(srv, id, func(sandboxes.World) (*linter, error) {
		return nil, errors.New("linters are served, not opened")
	})
	if err != nil {
		return nil, err
	}
	return &provider{databases: databases{pg: pg, server: s, files: files}, Provider: pg, id: id, tools: tools}, nil
}

type provider struct {
	databases
	*postgres.Provider
	id    sandboxes.Identity
	tools *mcpmem.Provider[*linter]
}

func (p *provider) Lease(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
	l, err := p.lease(ctx, w)
	if err != nil {
		return nil, err
	}
	return join.Boxes(join.Box{Name: "postgres", Sandbox: l.box}, join.Box{Name: "lint", Sandbox: p.tools.Serve(l)})
}

func (p *provider) Identity() sandboxes.Identity { return p.id }

func (p *provider) Close() error { return errors.Join(p.Provider.Close(), p.tools.Close()) }

// databases are what is linted, and what it is compared with.
type databases struct {
	pg     *postgres.Provider
	server *postgres.Server
	files  func(sandboxes.World) (map[string]string, error)
	known  memory[string, declaration] // by the file's text: reading one takes longer than all the rest of a run
}

// lease opens a world's database with its linter.
func (d *databases) lease(ctx context.Context, w sandboxes.World) (*linter, error) {
	files, err := d.files(w)
	if err != nil {
		return nil, sandboxes.NewFault(sandboxes.FaultLease, "make the linter's files", err)
	}
	box, err := d.pg.Lease(ctx, w)
	if err != nil {
		return nil, err
	}
	return &linter{d, box, files}, nil
}

// linter is the world of one sandbox. It never changes.
type linter struct {
	of    *databases
	box   sandboxes.Sandbox // the database
	files map[string]string
}

// Probe answers questions of kind linter, each with a path.
func (l *linter) Probe(ctx context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error) {
	return answer(ctx, ask, func(q sandboxes.Question) (string, error) {
		if q.Kind != "linter" {
			return "", fmt.Errorf("a linter answers questions of kind linter, not %q", q.Kind)
		}
		return l.run(ctx, q.Text, false)
	})
}

// answer asks each question of say, which gives JSON. Its error is the answer, unless it is a *sandboxes.Fault or ctx's.
func answer(ctx context.Context, ask []sandboxes.Question, say func(sandboxes.Question) (string, error)) ([]sandboxes.Answer, error) {
	answers := make([]sandboxes.Answer, len(ask))
	for i, q := range ask {
		text, err := say(q)
		if _, ok := errors.AsType[*sandboxes.Fault](err); ok || sandboxes.Interrupted(ctx, err) {
			return nil, err
		}
		if err != nil {
			answers[i].Err = err.Error()
			continue
		}
		answers[i].Value = json.RawMessage(text)
	}
	return answers, nil
}

// run gives the result for a file. Whoever asks the database something that an open transaction of the agent locks has it
// rolled back, so the agent's own run refuses before. An error that is neither a *sandboxes.Fault nor ctx's is the agent's to
// read.
func (l *linter) run(ctx context.Context, path string, agent bool) (string, error) {
	text, ok := l.files[path]
	if !ok {
		return "", fmt.Errorf("there is no file %q: there are %s", path, strings.Join(slices.Sorted(maps.Keys(l.files)), ", "))
	}
	if agent {
		answers, err := l.ask(ctx, lockedSQL)
		if err != nil {
			return "", err
		}
		if string(answers[0].Value) != "false" {
			return "", errors.New("an open transaction locks a table: commit or roll back first, then run the linter again")
		}
	}
	d, err := l.of.known.get(text, func() (declaration, bool, error) {
		d, err := declare(ctx, l.of.server, text)
		return d, true, err
	})
	if sandboxes.Interrupted(ctx, err) {
		return "", err
	}
	if err != nil {
		return "", sandboxes.NewFault(sandboxes.FaultDied, "read the declarations of "+path, err)
	}
	names := []string{"NULL"}
	for _, t := range d.schema {
		names = append(names, postgres.Literal(t.Name))
	}
	answers, err := l.ask(ctx, fmt.Sprintf(schemaSQL, "c.name IN ("+strings.Join(names, ", ")+")"))
	if err != nil {
		return "", err
	}
	var live schema
	if answers[0].Err != "" {
		return "", fmt.Errorf("the definitions of the database cannot be read: %s", answers[0].Err)
	}
	if err := json.Unmarshal(answers[0].Value, &live); err != nil {
		return "", sandboxes.NewFault(sandboxes.FaultVerifier, "read the definitions of the database", err)
	}
	differ, counts := compare(d.schema, live)
	broken, err := l.count(ctx, counts)
	if err != nil {
		return "", err
	}
	return newResult(path, slices.Concat(d.findings, differ, broken)).String(), nil
}

func (l *linter) ask(ctx context.Context, sql ...string) ([]sandboxes.Answer, error) {
	questions := make([]sandboxes.Question, len(sql))
	for i, q := range sql {
		questions[i] = sandboxes.Question{Kind: "sql", Text: q}
	}
	return sandboxes.ProbeOf(ctx, l.box, questions)
}

// count asks all at once. Where one cannot be counted each is asked by itself, to find out which.
func (l *linter) count(ctx context.Context, counts []count) (findings []Finding, err error) {
	answers, err := l.ask(ctx, countAll(counts))
	if err == nil && answers[0].Err != "" {
		each := make([]string, len(counts))
		for i := range counts {
			each[i] = countAll(counts[i : i+1])
		}
		answers, err = l.ask(ctx, each...)
	}
	if err != nil {
		return nil, err
	}
	for i, a := range answers {
		if a.Err != "" {
			f := counts[i].Finding
			why, _, _ := strings.Cut(a.Err, "\n")
			f.Message = fmt.Sprintf("the rows of %s cannot be checked: %s", f.Table, why)
			findings = append(findings, f)
			continue
		}
		var rows []struct {
			I, N int
			Keys string
		}
		if err := json.Unmarshal(a.Value, &rows); err != nil {
			return nil, sandboxes.NewFault(sandboxes.FaultVerifier, "count rows", err)
		}
		for _, r := range rows {
			findings = append(findings, counts[i+r.I].found(r.N, r.Keys))
		}
	}
	return findings, nil
}

func (c count) found(n int, keys string) Finding {
	f := c.Finding
	begin := fmt.Sprintf("%d rows of %s have ", n, f.Table)
	if n == 1 {
		begin = fmt.Sprintf("1 row of %s has ", f.Table)
	}
	f.Message = begin + f.Message
	if keys != "" {
		f.Message += ": " + keys
	}
	return f
}

// newResult is what a run answers.
func newResult(path string, findings []Finding) Result {
	slices.SortFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Message, b.Message))
	})
	shown := min(len(findings), MaxFindings)
	return Result{path, min(len(findings), 1), append([]Finding{}, findings[:shown]...), len(findings) - shown}
}

// String is the result's JSON.
func (r Result) String() string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		panic(fmt.Sprintf("lint: encode a result: %v", err)) // texts and numbers can be encoded
	}
	return strings.TrimSpace(b.String())
}
