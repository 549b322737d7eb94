package lint

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
	"github.com/mcpgym/mcpgym/sandboxes/files"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
	"github.com/mcpgym/mcpgym/sandboxes/postgres/postgrestest"
	"github.com/mcpgym/mcpgym/sandboxes/sandboxtest"
)

// openBoth makes a provider whose worlds have the declaration schema.sql, a database, and a file job.py.
func openBoth(t testing.TB) sandboxes.Provider {
	t.Helper()
	c, s := code(t), postgrestest.Local(t)
	pg, err := postgres.New(t.Context(), s, sandboxes.Identity{"schema": "test"}, func(w sandboxes.World) (string, bool, error) {
		out, err := decode(w)
		return out.Live, false, err
	}, 1, "query_database")
	require.NoError(t, err)
	trees, err := files.New(sandboxes.Identity{"trees": "test"}, func(w sandboxes.World) (files.Setup, error) {
		return files.Setup{Files: map[string]files.File{"job.py": {Text: "import os\n"}}}, nil
	}, 1)
	require.NoError(t, err)
	p, err := Both(t.Context(), pg, s, func(w sandboxes.World) (map[string]string, error) {
		out, err := decode(w)
		return map[string]string{"schema.sql": out.File}, err
	}, trees, c)
	require.NoError(t, err)
	return p
}

func TestBothContract(t *testing.T) {
	code(t)
	sandboxtest.Check(t, func(t *testing.T) sandboxes.Provider { return openBoth(t) }, world{file, live}.world(), world{"", "CREATE TABLE t (a int);"}.world())
}

// One tool checks the database for a declaration and the tree for all else, for the agent and for the verifier.
func TestBoth(t *testing.T) {
	p := openBoth(t)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	for _, key := range []string{"schema", "trees", "linter", "files tools", "ruff", "shellcheck", "python major"} {
		require.NotEmpty(t, p.Identity()[key], key)
	}
	box := lease(t, p, world{file, live})
	tools, err := box.Session().Tools(t.Context())
	require.NoError(t, err)
	var names []string
	for _, tool := range tools {
		names = append(names, tool.Name)
	}
	require.Equal(t, []string{"query_database", "run_linter"}, names[:2])
	require.Contains(t, names, "edit_file")

	const clean = `{"path":"schema.sql","exit_code":0,"findings":[]}`
	for _, at := range []string{"schema.sql", "/schema.sql", "./schema.sql"} {
		require.Equal(t, clean, lint(t, box, at))
	}
	for at, path := range map[string]string{"job.py": "/job.py", "/": "/", "": "/"} {
		require.Equal(t, `{"path":"`+path+"\",\"exit_code\":1,\"findings\":[{\"file\":\"/job.py\",\"severity\":\"error\",\"rule\":\"F401\",\"line\":1,\"column\":8,\"message\":\"`os` imported but unused\"}]}", lint(t, box, at))
	}
	require.Equal(t, `there is no file or folder "/other.sql"`, lint(t, box, "other.sql"))
	require.JSONEq(t, `{"exit":0,"stdout":"import os\n\n"}`, string(probe(t, box, "lint/tests", "print(open('/work/job.py').read())").Value))
	require.Contains(t, probe(t, box, "lint/other", "x").Err, `not "other"`)

	// A file that is named like a declaration declares nothing.
	callTool(t, box, "write_file", `{"path":"/schema.sql","content":""}`)
	run(t, box, "DROP INDEX orders_customer_id_idx")
	require.Contains(t, lint(t, box, "/schema.sql"), "missing-index")
	callTool(t, box, "write_file", `{"path":"/job.py","content":""}`)
	require.Equal(t, `{"path":"/","exit_code":0,"findings":[]}`, lint(t, box, "/"))
	run(t, box, "BEGIN", "LOCK TABLE orders")
	require.Contains(t, call(t, box, "run_linter", "path", "schema.sql").Text, "commit or roll back first")
	state, err := sandboxes.StateOf(t.Context(), box)
	require.NoError(t, err)
	require.Len(t, state.Diff, 3)
	require.Regexp(t, `^files: added /schema.sql `, state.Diff[0])
	require.Regexp(t, `^files: changed /job.py `, state.Diff[1])
	require.Regexp(t, `^postgres: - index `, state.Diff[2])
}

// What one half cannot do is a fault, or the error of the one who opens it, and leaves nothing open.
func TestBothFails(t *testing.T) {
	p := openBoth(t)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	_, err := p.Lease(t.Context(), sandboxes.World{Setup: json.RawMessage(`1`)})
	var f *sandboxes.Fault
	require.ErrorAs(t, err, &f)
	_, err = p.Lease(t.Context(), world{file, "CREATE TABEL"}.world())
	require.ErrorAs(t, err, &f)
	box, err := p.Lease(t.Context(), world{file, live}.world())
	require.NoError(t, err)
	require.NoError(t, box.Close())

	_, err = Both(t.Context(), nil, nil, nil, nil, &Code{stub{out: confine.Output{Exit: 127}}})
	require.ErrorIs(t, err, ErrNoLinters)
	_, err = Both(t.Context(), nil, nil, nil, nil, &Code{stub{err: errors.New("no more memory")}})
	require.ErrorContains(t, err, "no more memory")
}
