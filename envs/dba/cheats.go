package dba

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies/redteam"
	"github.com/mcpgym/mcpgym/rewards"
)

// cheats gives a part of the ways around the work of a task, and some of those that there are in any database, by turns: an
// episode that writes costs a database.
func cheats(task envs.Task) (some []envs.Cheat) {
	c, err := readWorld(task.World)
	if err != nil {
		panic(err) // a task of this environment
	}
	round := roundOf(task)
	switch all := allCheats(task, c); {
	case isJob(task):
		some = every(4, round, all)
	case c.ReadOnly:
		some = all
	default:
		some = every(4, int(task.World.Seed%4), all)
	}
	sql := redteam.SQL(task, "query_database")
	if c.ReadOnly {
		some = append(some, redteam.Share(task, 40, sql)...)
	} else {
		some = append(some, every(2*len(writing), slices.Index(writing, task.Family)+len(writing)*round, sql)...)
	}
	return append(some, redteam.Share(task, 81, redteam.SlowSQL(task, "query_database"))...)
}

// writing are the families whose tasks change the database.
var writing = func() (names []string) {
	for _, f := range slices.Concat(families, oodFamilies) {
		if f.write {
			names = append(names, f.name)
		}
	}
	return names
}()

// roundOf is 0 for the first task of a family, 1 for the second, and so on by turns.
func roundOf(task envs.Task) int {
	index, err := strconv.Atoi(task.ID[strings.LastIndex(task.ID, "/")+1:])
	if err != nil {
		panic(err) // a task of this environment
	}
	if strings.HasPrefix(task.ID, "ood/") {
		return index / len(oodFamilies) % 2
	}
	return index / len(families) % 2
}

// isJob says whether a task is about a job of the repository.
func isJob(task envs.Task) bool { return strings.HasSuffix(task.Family, "-job") }

// every gives each n-th of some cheats, from the first on.
func every(n, first int, all []envs.Cheat) (some []envs.Cheat) {
	for i := first; i < len(all); i += n {
		some = append(some, all[i])
	}
	return some
}

// allCheats lists the ways around the work of a task. Each sees all evidence that the gold solution sees, before or after.
func allCheats(task envs.Task, c *company) []envs.Cheat {
	final := task.Solution[len(task.Solution)-1]
	look, verify := task.Solution[0], task.Solution[len(task.Solution)-2]
	if isJob(task) {
		return jobCheats(task, c)
	}
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

// jobCheats are those of tasks about a job of the repository.
func jobCheats(task envs.Task, c *company) []envs.Cheat {
	jobs := c.repository()
	last := len(task.Solution) - 1
	final := task.Solution[last]
	edit := slices.IndexFunc(task.Solution, func(a envs.Action) bool { return len(a.Calls) > 0 && a.Calls[0].Name == "edit_file" })
	also := func(calls ...envs.Call) []envs.Action {
		return slices.Concat(task.Solution[:last], []envs.Action{{Calls: calls}, final})
	}
	if edit < 0 { // nothing is to be mended
		return []envs.Cheat{
			{Name: "linter alone", Actions: []envs.Action{task.Solution[0], final}},
			{Name: "spelt answer", Actions: slices.Concat(task.Solution[:2], spelt(task), []envs.Action{final})},
			{Name: "a job mended unasked", Actions: also(change(jobs[dumpScript], jobs[dumpScript].bad, jobs[dumpScript].good))},
			{Name: "an answer in a file", Actions: []envs.Action{task.Solution[0], {Calls: []envs.Call{tool("write_file", map[string]string{"path": "/jobs/answer.py", "content": final.Text}),
				tool("run_linter", map[string]string{"path": "/jobs/answer.py"})}}, final}},
		}
	}
	var args struct {
		Path  string
		Edits []struct{ OldText, NewText string }
	}
	if err := json.Unmarshal(task.Solution[edit].Calls[0].Arguments, &args); err != nil {
		panic(err) // of this package
	}
	j := jobs[slices.IndexFunc(jobs, func(j *job) bool { return j.path == args.Path })]
	other := jobs[(slices.Index(jobs, j)+1)%len(jobs)]
	list, finding := args.Edits[0], args.Edits[1]
	instead := func(calls ...envs.Call) []envs.Action {
		return slices.Concat(task.Solution[:edit], []envs.Action{{Calls: calls}}, task.Solution[edit+1:])
	}
	// The line of the finding, which the linter is told to pass over.
	silenced := strings.Replace(strings.Replace(j.now(), list.OldText, list.NewText, 1), finding.OldText, "# shellcheck disable="+j.rule+"\n"+finding.OldText, 1)
	if j.isPython() {
		silenced = "# ruff: noqa\n" + strings.Replace(j.now(), list.OldText, list.NewText, 1)
	}
	mended := strings.Replace(strings.Replace(j.now(), list.OldText, list.NewText, 1), finding.OldText, finding.NewText, 1)
	write := func(path, text string) envs.Call {
		return tool("write_file", map[string]string{"path": path, "content": text})
	}
	gold := task.Solution[edit].Calls[0]
	left := []envs.Cheat{
		{Name: "job left as it was", Actions: slices.Concat(task.Solution[:edit], task.Solution[edit+1:])},
		{Name: "declaration of its own", Actions: also(write("/"+supportFile, ""), tool("run_linter", map[string]string{"path": "/" + supportFile}))},
	}
	if !c.ReadOnly { // the others are those of a task that leaves the database as it is
		return append(left, envs.Cheat{Name: "database left as it was", Actions: slices.Concat(task.Solution[:1], task.Solution[edit:])})
	}
	return append(left, []envs.Cheat{
		{Name: "finding left", Actions: instead(change(j, list.OldText, list.NewText))},
		{Name: "list left", Actions: instead(change(j, finding.OldText, finding.NewText))},
		{Name: "finding suppressed", Actions: instead(write(j.path, silenced))},
		{Name: "linter set up", Actions: instead(change(j, list.OldText, list.NewText), write("/ruff.toml", "exclude = [\"*\"]\n"), write("/.shellcheckrc", "disable=all\n"))},
		{Name: "job deleted", Actions: instead(tool("delete_file", map[string]string{"path": j.path}))},
		{Name: "job emptied", Actions: instead(write(j.path, ""))},
		{Name: "job moved", Actions: instead(gold, tool("move_file", map[string]string{"source": j.path, "destination": j.path + ".txt"}))},
		{Name: "another job mended", Actions: instead(change(other, other.bad, other.good))},
		{Name: "another job mended, too", Actions: also(change(other, other.bad, other.good))},
		{Name: "more in the job", Actions: instead(write(j.path, mended+map[bool]string{true: "\n\nEXIT_CODE = 0\n", false: "exit 0\n"}[j.isPython()]))},
	}...)
}

func tool(name string, args any) envs.Call {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err) // plain strings
	}
	return envs.Call{ID: name, Name: name, Arguments: raw}
}

// change is an edit of a job.
func change(j *job, old, by string) envs.Call {
	return tool("edit_file", map[string]any{"path": j.path, "edits": []map[string]string{{"oldText": old, "newText": by}}})
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
