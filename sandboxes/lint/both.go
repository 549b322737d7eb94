package lint

import (
	"context"
	"errors"
	"maps"
	"path"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/files"
	"github.com/mcpgym/mcpgym/sandboxes/join"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

const bothDescription = "With the path of a declaration: " + description + "\nWith another path, or without one: " + treeDescription

// Both returns a provider of databases that have a tree of files each, with one tool more: run_linter does what that of SQL does
// for the path of a declaration, with a slash before it or not, and what that of Tree does for every other path. The
// declarations are no part of the tree, so no agent can change them; a file of the tree that has the path of one is not linted
// by itself. The arguments are those of SQL and Tree, and it fails as they do.
//
// A sandbox is a join of three parts, postgres, lint and files, whose questions are those of SQL and Tree. The state is that of
// the database and the tree. Closing the provider closes pg and trees.
func Both(ctx context.Context, pg *postgres.Provider, s *postgres.Server, declarations func(sandboxes.World) (map[string]string, error),
	trees *files.Provider, code *Code) (sandboxes.Provider, error) {
	python, err := code.python(ctx)
	if err != nil {
		return nil, err
	}
	id := maps.Clone(pg.Identity())
	maps.Copy(id, trees.Identity())
	maps.Copy(id, code.Identity())
	id["linter"], id["python major"] = Version, python
	srv := server.NewMCPServer("lint", Version)
	srv.AddTools(mcpmem.Tool("run_linter", bothDescription, func(ctx context.Context, l *bothLinter, in struct{ Path string }) (any, error) {
		return l.lint(ctx, in.Path, true)
	}, mcp.WithReadOnlyHintAnnotation(true), mcp.WithString("path", mcpmem.Entity,
		mcp.Description("Path of a declaration, for example schema.sql, or of a file or folder of the tree; leave out for the whole tree"))))
	tools, err := mcpmem.New(srv, id, func(sandboxes.World) (*bothLinter, error) {
		return nil, errors.New("linters are served, not opened")
	})
	if err != nil {
		return nil, err
	}
	return &bothProvider{databases{pg: pg, server: s, files: declarations}, newTrees(trees, code), id, tools}, nil
}

type bothProvider struct {
	databases databases
	trees     trees
	id        sandboxes.Identity
	tools     *mcpmem.Provider[*bothLinter]
}

func (p *bothProvider) Lease(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
	sql, err := p.databases.lease(ctx, w)
	if err != nil {
		return nil, err
	}
	tree, err := p.trees.lease(ctx, w)
	if err != nil {
		return nil, errors.Join(err, sql.box.Close())
	}
	return join.Boxes(join.Box{Name: "postgres", Sandbox: sql.box}, join.Box{Name: "lint", Sandbox: p.tools.Serve(&bothLinter{sql, tree})},
		join.Box{Name: "files", Sandbox: tree.box})
}

// Prefetch announces the worlds to both.
func (p *bothProvider) Prefetch(worlds ...sandboxes.World) {
	p.databases.pg.Prefetch(worlds...)
	p.trees.files.Prefetch(worlds...)
}

func (p *bothProvider) Identity() sandboxes.Identity { return p.id }

func (p *bothProvider) Close() error {
	return errors.Join(p.databases.pg.Close(), p.trees.files.Close(), p.tools.Close())
}

// bothLinter is the world of one sandbox.
type bothLinter struct {
	sql  *linter
	tree *treeLinter
}

// lint gives the result for a path. agent says who asks.
func (l *bothLinter) lint(ctx context.Context, at string, agent bool) (string, error) {
	name := strings.TrimPrefix(path.Clean("/"+at), "/")
	if _, ok := l.sql.files[name]; ok {
		return l.sql.run(ctx, name, agent)
	}
	return l.tree.lint(ctx, at)
}

// Probe answers questions of the kinds linter and tests.
func (l *bothLinter) Probe(ctx context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error) {
	return answer(ctx, ask, func(q sandboxes.Question) (string, error) {
		if q.Kind == "linter" {
			return l.lint(ctx, q.Text, false)
		}
		return l.tree.say(ctx, q)
	})
}
