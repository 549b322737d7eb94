package dba

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/envtest"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/redteam"
	"github.com/mcpgym/mcpgym/sandboxes/files"
	"github.com/mcpgym/mcpgym/sandboxes/postgres/postgrestest"
)

func load(t *testing.T, raw string) (envs.Spec, error) {
	spec, err := Load(t.Context(), postgrestest.Local(t), files.New, runner(t), []byte(raw))
	if err == nil {
		t.Cleanup(func() { require.NoError(t, spec.Sandboxes.Close()) })
	}
	return spec, err
}

func TestLoadFounding(t *testing.T) {
	raw, err := os.ReadFile("testdata/founding.json")
	require.NoError(t, err)
	spec, err := load(t, string(raw))
	require.NoError(t, err)
	counts := map[string]bool{}
	for i := range loaded {
		task := spec.Splits["test"].Task(i)
		c, err := readWorld(task.World)
		require.NoError(t, err)
		n := 0
		for _, row := range c.table("customers").rows {
			if row[4] == "inactive" {
				n++
			}
		}
		require.Equal(t, fmt.Sprintf("ANSWER: %d", n), redteam.Final(task), "found in the database, counted here")
		counts[redteam.Final(task)] = true
	}
	require.Len(t, counts, loaded)
	envtest.Check(t, spec)
}

// file is a file of the founding form with these assertions.
func file(assertions string) string {
	return `{"system_prompt": "Work.", "task": "Look at customers.", "ground_truth_assertions": ` + assertions + `}`
}

// Other forms in which a file may say what it wants: the gold solution earns full marks.
func TestLoadForms(t *testing.T) {
	for name, tc := range map[string]struct {
		assertions string
		answers    int
		mends      bool
	}{
		"list":                     {`["SELECT count(*) FROM customers WHERE status = 'inactive'", "exit_code == 0"]`, 1, true},
		"objects":                  {`[{"tool": "query_database", "sql": "SELECT max(name) FROM customers"}, {"tool": "run_linter", "path": "schema.sql", "expect": "exit_code == 0"}]`, 1, true},
		"expected value":           {`[{"tool": "query_database", "sql": "SELECT count(*) FROM orders o LEFT JOIN customers c ON c.id = o.customer_id WHERE c.id IS NULL", "equals": 0}, {"tool": "run_linter", "expect": 0}]`, 0, true},
		"two values, no linter":    {`["SELECT count(*) FROM customers", "SELECT sum(price) FROM ` + "orders o, LATERAL (SELECT o.id * 1.50 AS price) p" + `"]`, 2, false},
		"another exit code":        {`["SELECT count(*) FROM customers", "exit_code == 1"]`, 1, false},
		"objects of named members": {`{"run_linter": {"expect": "exit_code == 0"}, "query_database": {"sql": "SELECT count(*) FROM customers"}}`, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := readFounding([]byte(file(tc.assertions)))
			require.NoError(t, err)
			box, err := provider(t.Context(), postgrestest.Local(t), files.New, runner(t))
			require.NoError(t, err)
			defer box.Close()
			task, err := f.make(t.Context(), box, firstSeed["founding"])
			require.NoError(t, err)
			e, err := envs.New(spec("Founding-v0", system, box, map[string]envs.Source{"test": envs.Generator(func(int) envs.Task { return task })}))
			require.NoError(t, err)
			defer e.Close()
			var values []string
			if len(task.Want) > 0 {
				values = strings.Split(redteam.Final(task), ";")
			}
			require.Len(t, values, tc.answers)
			require.Equal(t, tc.mends, len(task.Allow) > 0)
			tr, err := policies.Rollout(t.Context(), e, task, policies.Oracle{}, 1)
			require.NoError(t, err)
			require.Equal(t, 1.0, tr.Score.Value, "%+v", tr.Score.Parts)
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ raw, want string }{
		"no JSON":                {`system_prompt: x`, "read JSON"},
		"empty":                  {``, "read JSON"},
		"text after it":          {file(`["exit_code == 0"]`) + "x", "text after the JSON value"},
		"a member twice":         {`{"task": "a", "task": "b"}`, "read JSON"},
		"a list":                 {`[]`, "not a JSON object"},
		"unknown member":         {`{"system_prompt": "a", "task": "b", "answer": 1, "ground_truth_assertions": ["exit_code == 0"]}`, "answer: unknown member"},
		"no system prompt":       {`{"task": "b", "ground_truth_assertions": ["exit_code == 0"]}`, "system_prompt: want a text"},
		"blank task":             {`{"system_prompt": "a", "task": " ", "ground_truth_assertions": ["exit_code == 0"]}`, "task: want a text"},
		"task is a number":       {`{"system_prompt": "a", "task": 1, "ground_truth_assertions": ["exit_code == 0"]}`, "task: want a text"},
		"no assertions":          {`{"system_prompt": "a", "task": "b"}`, "ground_truth_assertions: want a list or an object"},
		"empty assertions":       {file(`[]`), "ground_truth_assertions: nothing is asked for"},
		"an empty object":        {file(`{}`), "ground_truth_assertions: nothing is asked for"},
		"assertion is null":      {file(`[null]`), "ground_truth_assertions[0]: want a text or an object"},
		"empty SQL":              {file(`["exit_code == 0", " "]`), "ground_truth_assertions[1]: the SQL is empty"},
		"no SQL":                 {file(`[{"tool": "query_database"}]`), "ground_truth_assertions[0]: the SQL is empty"},
		"unknown tool":           {file(`{"read_file": "x"}`), `ground_truth_assertions.read_file: there is no tool "read_file"`},
		"two tools":              {file(`{"run_linter": {"tool": "query_database", "sql": "SELECT 1"}}`), "ground_truth_assertions.run_linter: it is of run_linter"},
		"no tool":                {file(`[{"sql": "SELECT 1"}]`), "ground_truth_assertions[0].tool: want a text"},
		"path of SQL":            {file(`[{"tool": "query_database", "path": "schema.sql"}]`), "ground_truth_assertions[0]: sql is of query_database"},
		"another comparison":     {file(`["exit_code != 0"]`), "ground_truth_assertions[0]: want the condition exit_code == N"},
		"no exit code":           {file(`[{"tool": "run_linter", "path": "schema.sql"}]`), "ground_truth_assertions[0]: want the condition exit_code == N"},
		"unknown in assertion":   {file(`[{"tool": "run_linter", "exit": 0}]`), "ground_truth_assertions[0].exit: unknown member"},
		"expected twice":         {file(`[{"tool": "run_linter", "expect": 0, "equals": 0}]`), "ground_truth_assertions[0]: expect and equals"},
		"expects null":           {file(`["exit_code == 0", {"tool": "query_database", "sql": "SELECT 1", "expect": null}]`), "ground_truth_assertions[1]: null is no expected value"},
		"expects a list":         {file(`["exit_code == 0", {"tool": "query_database", "sql": "SELECT 1", "expect": [1]}]`), "ground_truth_assertions[1]: an expected value is one"},
		"holds before any work":  {file(`[{"tool": "query_database", "sql": "SELECT 1", "expect": 1}]`), "ground_truth_assertions: nothing is asked for"},
		"SQL fails":              {file(`{"query_database": "SELECT COUNT(*) FROM customer"}`), "ground_truth_assertions.query_database: ERROR 42P01"},
		"SQL writes":             {file(`["DELETE FROM customers RETURNING id"]`), "ground_truth_assertions[0]: ERROR 25006"},
		"SQL has no row":         {file(`["SELECT id FROM customers WHERE false"]`), "ground_truth_assertions[0]: the SQL gives no single value"},
		"SQL is NULL":            {file(`["SELECT max(id) FROM customers WHERE false"]`), "ground_truth_assertions[0]: the SQL gives no single value"},
		"SQL has two columns":    {file(`["SELECT 1, 2 FROM customers"]`), "ground_truth_assertions[0]: the SQL gives no single value"},
		"SQL of no table":        {file(`["SELECT 5"]`), "ground_truth_assertions[0]: the SQL names no table"},
		"SQL that spells":        {file(`["SELECT DISTINCT 5 FROM customers"]`), "ground_truth_assertions[0]: the SQL has its own value 5"},
		"SQL is a boolean":       {file(`["SELECT count(*) > 0 FROM customers"]`), "ground_truth_assertions[0]: the value is a boolean"},
		"wrong expectation":      {file(`["exit_code == 0", {"tool": "query_database", "sql": "SELECT count(*) < 0 FROM customers", "expect": true}]`), "ground_truth_assertions[1]: the value is false"},
		"unknown path":           {file(`["exit_code == 0", {"tool": "run_linter", "path": "other.sql", "expect": 0}]`), "ground_truth_assertions[1]: there is no file"},
		"exit code never so":     {file(`["SELECT count(*) FROM customers", "exit_code == 7"]`), "ground_truth_assertions[1]: exit_code is 1"},
		"clean and not so clean": {file(`["exit_code == 0", "exit_code == 1"]`), "ground_truth_assertions[1]: exit_code is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, tc.raw)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// A file is somebody's input: whatever it is, reading it ends with a result or an error.
func FuzzReadFounding(f *testing.F) {
	raw, err := os.ReadFile("testdata/founding.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(file(`[{"tool": "query_database", "sql": "SELECT 1", "expect": 1}, "exit_code == 0", null, {"tool": 1}]`)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := readFounding(raw)
		if err == nil && (!json.Valid(raw) || len(got.assertions) == 0 || got.task == "") {
			t.Errorf("%s is taken for %+v", raw, got)
		}
	})
}
