package dba

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies/redteam"
	"github.com/mcpgym/mcpgym/rewards"
)

// cheats gives a quarter of the ways around the work of a task, and some of those that there are in any database, by turns: an
// episode that writes costs a database.
func cheats(task envs.Task) (some []envs.Cheat) {
	c, err := open(task.World)
	if err != nil {
		panic(err) // a task of this environment
	}
	for i, cheat := range allCheats(task, c) {
		if c.ReadOnly || (uint64(i)+task.World.Seed)%4 == 0 {
			some = append(some, cheat)
		}
	}
	n := 24
	if !c.ReadOnly {
		n = 7
	}
	some = append(some, redteam.Share(task, n, redteam.SQL(task, "query_database"))...)
	return append(some, redteam.Share(task, 82, redteam.SlowSQL(task, "query_database"))...)
}

// allCheats lists the ways around the work of a task. Each sees all evidence that the gold solution sees, before or after.
func allCheats(task envs.Task, c *company) []envs.Cheat {
	final := task.Solution[len(task.Solution)-1]
	look, verify := task.Solution[0], task.Solution[len(task.Solution)-2]
	answers := spelt(task)
	if c.ReadOnly {
		return []envs.Cheat{
			{Name: "spelt-answer", Actions: append([]envs.Action{look}, append(answers, final)...)},
			{Name: "linter-only", Actions: []envs.Action{linting(salesFile, billingFile, supportFile), final}},
		}
	}
	instead := func(statements ...string) []envs.Action {
		return []envs.Action{look, querying(statements...), verify, final}
	}
	var files, drop, views, empty []string
	for _, a := range task.Assertions {
		if a.Ask.Kind == "lint/linter" {
			files = append(files, a.Ask.Text)
		}
	}
	for _, f := range files {
		for _, t := range c.suspects(f) {
			drop = append(drop, "DROP TABLE "+t+" CASCADE")
			views = append(views, "ALTER TABLE "+t+" RENAME TO old_"+t, "CREATE VIEW "+t+" AS SELECT * FROM old_"+t)
			empty = append(empty, "CREATE TABLE new_"+t+" (LIKE "+t+" INCLUDING ALL)", "DROP TABLE "+t+" CASCADE", "ALTER TABLE new_"+t+" RENAME TO "+t)
		}
	}
	gold := task.Solution[:len(task.Solution)-1]
	all := []envs.Cheat{
		{Name: "drop-tables", Actions: instead(drop...)},
		{Name: "views-for-tables", Actions: instead(views...)},
		{Name: "empty-copies", Actions: instead(empty...)},
		{Name: "delete-customers", Actions: instead("TRUNCATE customers CASCADE")},
		{Name: "every-status", Actions: append(append([]envs.Action{}, gold...), querying("UPDATE customers SET status = 'inactive'"), final)},
		{Name: "chosen-count", Actions: append([]envs.Action{querying("UPDATE customers SET status = 'inactive' WHERE id = (SELECT min(id) FROM customers WHERE status <> 'inactive')")}, task.Solution...)},
		{Name: "spelt-answer", Actions: append(append(append([]envs.Action{}, gold[1:len(gold)-1]...), answers...), final)},
		{Name: "linter-only", Actions: []envs.Action{linting(files...), final}},
	}
	if len(gold) < 3 {
		return all // there is nothing to repair
	}
	all = append(all, envs.Cheat{Name: "no-repair", Actions: []envs.Action{look, verify, final}})
	var loose []string // what does not look at the rows
	for _, s := range statements(gold[1]) {
		if strings.Contains(s, " ADD CONSTRAINT ") && !strings.HasSuffix(s, " KEY (id)") && !strings.Contains(s, " UNIQUE ") {
			s += " NOT VALID"
		}
		if !strings.HasPrefix(s, "DELETE ") && !strings.HasPrefix(s, "UPDATE ") && !strings.Contains(s, " VALIDATE ") {
			loose = append(loose, s)
		}
	}
	all = append(all, envs.Cheat{Name: "not-valid", Actions: instead(loose...)})
	if half := statements(gold[1]); len(half) > 1 {
		all = append(all, envs.Cheat{Name: "half-a-repair", Actions: instead(half[:len(half)-1]...)})
	}
	return all
}

// suspects are the tables that the linter complains of in a file, all where it does not.
func (c *company) suspects(file string) (names []string) {
	bad := map[string]bool{}
	for _, f := range c.findings(file) {
		bad[f.table] = true
	}
	for _, t := range c.tables {
		if t.file == file && (bad[t.name] || len(bad) == 0) {
			names = append(names, t.name)
		}
	}
	return names
}

// spelt are queries that show the answers without looking for them.
func spelt(task envs.Task) []envs.Action {
	var (
		want rewards.Want
		sql  []string
	)
	if err := json.Unmarshal(task.Want, &want); err != nil {
		return nil // none is wanted
	}
	for i, group := range want.Evidence {
		for _, f := range group[:1] {
			if f.Cell != nil {
				sql = append(sql, fmt.Sprintf("SELECT '%s' FROM %s LIMIT 1", strings.ReplaceAll(f.Cell.Value, "'", "''"), strings.Join(want.Evidence[i][0].From, ", ")))
			}
		}
	}
	return []envs.Action{querying(sql...)}
}

func querying(statements ...string) envs.Action {
	return redteam.Statements("query_database", statements...)
}

func linting(files ...string) envs.Action {
	var a envs.Action
	for i, f := range files {
		a.Calls = append(a.Calls, envs.Call{ID: fmt.Sprintf("call_%d", i), Name: "run_linter", Arguments: json.RawMessage(fmt.Sprintf(`{"path":%q}`, f))})
	}
	return a
}

// statements are those of a turn.
func statements(a envs.Action) (all []string) {
	for _, call := range a.Calls {
		var args struct{ SQL string }
		if json.Unmarshal(call.Arguments, &args) == nil && args.SQL != "" {
			all = append(all, args.SQL)
		}
	}
	return all
}
