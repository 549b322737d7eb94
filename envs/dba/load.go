package dba

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
	"github.com/mcpgym/mcpgym/sandboxes/files"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// loadedRules follow the system prompt of a file.
const loadedRules = `

query_database runs one SQL statement; run_linter compares the database with a file that declares how a part of it should be (schema.sql, billing.sql, support.sql) and checks the rows. The tables are in schema public: information_schema.columns lists them with their columns; comments on columns (col_description) say what values mean. The other tools are for a repository of programs that use the database, which run_linter checks, too; unless the task names it nothing is to be done there.
To verify the schema means: run the linter, and where it has findings mend the database until it has none. Delete orphaned rows, and rows that would be orphaned by that; add what is declared and missing, valid; give every foreign key an index. Change nothing else, and commit.
Answer only from what results have shown. The last line of your final message must be
ANSWER: <value>
and nothing may follow it. The value is what the task asks for: where it asks to find records, their number. Give several values in the order asked for, separated by semicolons.`

// Load makes an environment out of a task in the form of the project's founding note: a JSON object with system_prompt, task
// and ground_truth_assertions. It has one split, test: the task in 24 databases of the founding family of DBA-v0, which are
// none of those that DBA-v0 itself has.
//
// Assertions are a list, or an object with a tool's name for each. An assertion is SQL (of query_database), a condition
// exit_code == N (of run_linter, on schema.sql), or an object {"tool": ..., "sql" or "path": ..., "expect" or "equals": ...}.
// An SQL assertion gives one value. Without an expected one, the value that it has in each database after the repair is
// found now, and it is what the final answer must be. A file that cannot be used is an error that names its member.
func Load(ctx context.Context, s *postgres.Server, open files.Driver, run confine.Runner, raw []byte) (envs.Spec, error) {
	f, err := readFounding(raw)
	if err != nil {
		return envs.Spec{}, fmt.Errorf("load a task: %w", err)
	}
	box, err := provider(ctx, s, open, run)
	if err != nil {
		return envs.Spec{}, fmt.Errorf("load a task: %w", err)
	}
	tasks, err := f.tasks(ctx, box)
	if err != nil {
		return envs.Spec{}, fmt.Errorf("load a task: %w", errors.Join(err, box.Close()))
	}
	test := envs.Generator(func(index int) envs.Task {
		t := tasks[index%len(tasks)]
		t.ID = fmt.Sprintf("test/founding/%d", index)
		return t
	})
	return spec("Founding-v0", f.system+loadedRules, box, map[string]envs.Source{"test": test}), nil
}

// founded is what a file says.
type founded struct {
	system, task string
	assertions   []assertion
}

// assertion is SQL, or a path and an exit code.
type assertion struct {
	member string // of the file
	sql    string
	path   string
	expect any // of SQL: nil where the value is to be found
	exit   int
}

// mends says whether the linter must find nothing.
func (f founded) mends() bool {
	return slices.ContainsFunc(f.assertions, func(a assertion) bool { return a.path != "" && a.exit == 0 })
}

func readFounding(raw []byte) (f founded, err error) {
	v, err := envs.DecodeJSON(raw)
	if err != nil {
		return f, fmt.Errorf("read JSON: %w", err)
	}
	file, ok := v.(map[string]any)
	if !ok {
		return f, errors.New("the file is not a JSON object")
	}
	const list = "ground_truth_assertions"
	if err := known(file, "", "system_prompt", "task", list); err != nil {
		return f, err
	}
	if f.system, err = text(file, "", "system_prompt"); err != nil {
		return f, err
	}
	if f.task, err = text(file, "", "task"); err != nil {
		return f, err
	}
	switch all := file[list].(type) {
	case []any:
		for i, v := range all {
			a, err := readAssertion(fmt.Sprintf("%s[%d]", list, i), "", v)
			if err != nil {
				return f, err
			}
			f.assertions = append(f.assertions, a)
		}
	case map[string]any:
		for _, tool := range slices.Sorted(maps.Keys(all)) {
			a, err := readAssertion(list+"."+tool, tool, all[tool])
			if err != nil {
				return f, err
			}
			f.assertions = append(f.assertions, a)
		}
	default:
		return f, errors.New(list + ": want a list or an object")
	}
	if !f.mends() && !slices.ContainsFunc(f.assertions, func(a assertion) bool { return a.sql != "" && a.expect == nil }) {
		return f, errors.New(list + ": nothing is asked for: want SQL without an expected value, or exit_code == 0")
	}
	return f, nil
}

// known refuses members that nobody reads.
func known(v map[string]any, member string, names ...string) error {
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%s: unknown member, want %s", strings.TrimPrefix(member+"."+name, "."), strings.Join(names, ", "))
		}
	}
	return nil
}

func text(v map[string]any, member, name string) (string, error) {
	s, ok := v[name].(string)
	if !ok || strings.TrimSpace(s) == "" {
		return "", fmt.Errorf("%s: want a text that is not empty", strings.TrimPrefix(member+"."+name, "."))
	}
	return s, nil
}

var exitCode = regexp.MustCompile(`^\s*exit_code\s*==\s*(\d{1,3})\s*$`)

// readAssertion reads one assertion. tool is empty where only the assertion itself says it.
func readAssertion(member, tool string, v any) (assertion, error) {
	a := assertion{member: member, path: salesFile}
	fail := func(format string, args ...any) (assertion, error) {
		return a, fmt.Errorf("%s: "+format, append([]any{member}, args...)...)
	}
	var expect any
	switch v := v.(type) {
	case string:
		if tool == "" {
			tool = "query_database"
			if strings.HasPrefix(strings.TrimSpace(v), "exit_code") {
				tool = "run_linter"
			}
		}
		if tool == "run_linter" {
			expect = v
		} else {
			a.sql = v
		}
	case map[string]any:
		if err := known(v, member, "tool", "sql", "path", "expect", "equals"); err != nil {
			return a, err
		}
		if _, ok := v["tool"]; ok || tool == "" {
			named, err := text(v, member, "tool")
			if err != nil {
				return a, err
			}
			if tool != "" && named != tool {
				return fail("it is of %s, and names %s", tool, named)
			}
			tool = named
		}
		has := map[string]bool{}
		for name := range v {
			has[name] = true
		}
		if has["expect"] && has["equals"] {
			return fail("expect and equals say the same")
		}
		if expect = v["expect"]; has["equals"] {
			expect = v["equals"]
		}
		if (has["expect"] || has["equals"]) && expect == nil {
			return fail("null is no expected value")
		}
		if has["sql"] && tool != "query_database" || has["path"] && tool != "run_linter" {
			return fail("sql is of query_database, path of run_linter; the tool is %s", tool)
		}
		for name, into := range map[string]*string{"sql": &a.sql, "path": &a.path} {
			if has[name] {
				var err error
				if *into, err = text(v, member, name); err != nil {
					return a, err
				}
			}
		}
	default:
		return fail("want a text or an object")
	}
	switch tool {
	case "query_database":
		a.path, a.expect = "", expect
		if strings.TrimSpace(a.sql) == "" {
			return fail("the SQL is empty")
		}
		switch expect.(type) {
		case nil, string, json.Number, bool:
		default:
			return fail("an expected value is one text, number or boolean")
		}
	case "run_linter":
		if n, ok := expect.(json.Number); ok {
			expect = "exit_code == " + n.String()
		}
		s, _ := expect.(string)
		m := exitCode.FindStringSubmatch(s)
		if m == nil {
			return fail("want the condition exit_code == N, have %q", s)
		}
		a.exit, _ = strconv.Atoi(m[1]) // up to three digits
	default:
		return fail("there is no tool %q, only query_database and run_linter", tool)
	}
	return a, nil
}

// loaded is the number of databases. As many have different numbers of inactive customers.
const loaded = 24

// tasks makes the task in each database, by playing the gold solution.
func (f founded) tasks(ctx context.Context, box sandboxes.Provider) ([]envs.Task, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tasks, errs := make([]envs.Task, loaded), make([]error, loaded)
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for i := w; i < loaded && ctx.Err() == nil; i += 2 {
				if tasks[i], errs[i] = f.make(ctx, box, firstSeed["founding"]+uint64(i)); errs[i] != nil {
					cancel()
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return nil, err
		}
	}
	return tasks, ctx.Err()
}

// make makes the task in one database.
func (f founded) make(ctx context.Context, box sandboxes.Provider, seed uint64) (t envs.Task, err error) {
	d := newDraft(nil, newCompany(seed, faults{Sales: "orphans", Billing: "clean", Support: "clean", ReadOnly: !f.mends()}))
	d.prompt = f.task
	d.look(salesFile)
	if f.mends() {
		d.deleteOrphans()
	}
	d.turn()
	for _, a := range f.assertions {
		if a.path != "" {
			d.lint(a.path)
		}
	}
	lease, err := box.Lease(ctx, d.c.world())
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, lease.Close()) }()
	if f.mends() {
		for _, call := range d.turns[1].Calls {
			if _, err := lease.Session().Call(ctx, call.Name, call.Arguments); err != nil {
				return t, err
			}
		}
	}
	for _, a := range f.assertions {
		if err := d.found(ctx, lease, a); err != nil {
			return t, fmt.Errorf("%s: %w", a.member, err)
		}
	}
	return d.task("", "founding"), nil
}

// found asks an assertion where the gold solution has been played, and makes the result a part of the task.
func (d *draft) found(ctx context.Context, lease sandboxes.Sandbox, a assertion) error {
	ask := sandboxes.Question{Kind: "postgres/sql", Text: a.sql}
	if a.path != "" {
		ask = sandboxes.Question{Kind: "lint/linter", Text: a.path}
	}
	answers, err := sandboxes.ProbeOf(ctx, lease, []sandboxes.Question{ask})
	if err != nil {
		return err
	}
	if answers[0].Err != "" {
		return errors.New(answers[0].Err)
	}
	raw := answers[0].Value
	d.asserts = append(d.asserts, envs.Assertion{Ask: ask, Want: raw})
	if a.path != "" {
		var result struct {
			ExitCode int `json:"exit_code"`
		}
		if err := json.Unmarshal(raw, &result); err != nil {
			return fmt.Errorf("read the linter's result: %w", err)
		}
		if result.ExitCode != a.exit {
			return fmt.Errorf("exit_code is %d after the repair of database %d, want %d", result.ExitCode, d.c.seed, a.exit)
		}
		return nil
	}
	v, err := envs.DecodeJSON(raw)
	if err != nil {
		return fmt.Errorf("read the value: %w", err)
	}
	value := rewards.Value{Kind: "number", Value: fmt.Sprint(v)}
	switch v := v.(type) {
	case json.Number, bool:
	case string:
		if !decimal.MatchString(v) {
			value.Kind = "text"
		}
	default:
		return errors.New("the SQL gives no single value, or NULL")
	}
	if a.expect != nil {
		if want := envs.Canonical(a.expect); string(want) != string(envs.Canonical(v)) {
			return fmt.Errorf("the value is %s after the repair of database %d, expected is %s", raw, d.c.seed, want)
		}
		return nil
	}
	from := d.c.named(a.sql)
	switch _, isBool := v.(bool); {
	case isBool || strings.TrimSpace(value.Value) == "" || strings.ContainsAny(value.Value, ";\n"):
		return errors.New("the value is a boolean, empty, or has a semicolon or line end in it: it cannot be an answer")
	case len(from) == 0:
		return errors.New("the SQL names no table of the database")
	}
	d.sql(a.sql)
	if d.show(a.sql, from, value); d.spoilt {
		return fmt.Errorf("the SQL has its own value %s in it, which makes it no evidence", value.Value)
	}
	return nil
}

var decimal = regexp.MustCompile(`^[+-]?\d+(\.\d+)?$`)

// named lists the tables that a statement names.
func (c *company) named(sql string) (tables []string) {
	for _, t := range c.tables {
		if regexp.MustCompile(`(?i)\b` + t.name + `\b`).MatchString(sql) {
			tables = append(tables, t.name)
		}
	}
	return tables
}
