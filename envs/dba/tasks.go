package dba

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// family makes tasks of one kind, in the databases whose faults fit. make returns false where the draw makes no task.
type family struct {
	name  string
	write bool
	fits  func(faults) bool
	make  func(d *draft) bool
}

// firstSeed keeps the databases of the splits apart.
var firstSeed = map[string]uint64{"train": 1000, "test": 2000, "ood": 3000, "founding": 4000}

// split generates tasks in n databases, whose faults are as planned, over and over: families take turns.
func split(name string, n int, plans []faults, families []family) envs.Source {
	companies := make([]func() *company, n)
	for i := range companies {
		companies[i] = sync.OnceValue(func() *company { return newCompany(firstSeed[name]+uint64(i), plans[i%len(plans)]) })
	}
	return envs.Generator(func(index int) envs.Task {
		f := families[index%len(families)]
		var fit []int
		for i := range n {
			if f.fits(plans[i%len(plans)]) {
				fit = append(fit, i)
			}
		}
		for try := uint64(0); ; try++ {
			r := rand.New(rand.NewPCG(firstSeed[name]<<32|try, uint64(index)))
			i := pick(r, fit)
			c := *companies[i]()
			c.ReadOnly = !f.write
			d := newDraft(r, &c)
			if f.make(d) && !d.spoilt && len(d.lines()) <= mostLines {
				return d.task(fmt.Sprintf("%s/%s/%d", name, f.name, index), f.name)
			}
		}
	})
}

// mostLines bounds the rows that a repair changes: with what it adds to the schema, a state lists no more than 50 differences.
const mostLines = 40

// draft collects a task while its family makes it.
type draft struct {
	*rand.Rand
	c        *company // at the start
	after    *company // as the gold solution leaves it
	prompt   string
	turns    []envs.Action
	calls    int
	answer   []rewards.Value
	evidence [][]rewards.Fact
	asserts  []envs.Assertion
	allow    []string
	spoilt   bool // a query spells its own result
}

func newDraft(r *rand.Rand, c *company) *draft { return &draft{Rand: r, c: c, after: c.clone()} }

func (d *draft) task(id, family string) envs.Task {
	t := envs.Task{ID: id, Family: family, Prompt: d.prompt, World: d.c.world(), Par: d.calls, Solution: d.turns,
		Assertions: append(d.asserts, d.rows()...), Allow: d.allow}
	if len(d.answer) > 0 {
		want, err := json.Marshal(rewards.Want{Answer: d.answer, Evidence: d.evidence})
		if err != nil {
			panic(err) // plain strings and numbers
		}
		t.Want = want
	}
	for _, line := range d.lines() {
		t.Allow = append(t.Allow, regexp.QuoteMeta("postgres: "+line))
	}
	t.Solution = append(t.Solution, envs.Action{Text: rewards.AnswerLine(d.answer)})
	return t
}

// ask words the prompt in one of several ways; pairs are placeholders and what stands for them, beside those of the company.
func (d *draft) ask(wordings []string, pairs ...string) bool {
	d.prompt = d.c.fill(pick(d, wordings), pairs...)
	return true
}

// Gold calls. Those between two calls of turn are one turn.

func (d *draft) turn() { d.turns = append(d.turns, envs.Action{}) }

func (d *draft) call(tool string, args any) {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err) // plain strings
	}
	last := &d.turns[len(d.turns)-1]
	last.Calls = append(last.Calls, envs.Call{ID: fmt.Sprintf("call_%d", d.calls), Name: tool, Arguments: raw})
	d.calls++
}

func (d *draft) sql(statement string) { d.call("query_database", map[string]string{"sql": statement}) }
func (d *draft) lint(path string)     { d.call("run_linter", map[string]string{"path": path}) }

const columnsSQL = `SELECT table_name, column_name, data_type, col_description(table_name::regclass, ordinal_position) FROM information_schema.columns WHERE table_schema = 'public' ORDER BY table_name, ordinal_position`

// look is the first turn: what there is, and what the linter says of it.
func (d *draft) look(files ...string) {
	d.turn()
	d.sql(columnsSQL)
	for _, f := range files {
		d.lint(f)
	}
}

// restore makes the database keep every rule of a file's tables.
func (d *draft) restore(file string) {
	for _, t := range d.c.tables {
		for _, r := range t.rules {
			if t.file == file && r.live != kept {
				d.sql(r.mend(t))
				d.allow = append(d.allow, r.allow(t)...)
			}
		}
	}
}

// clean asserts that the linter finds nothing in a file.
func (d *draft) clean(file string) {
	d.lint(file)
	d.asserts = append(d.asserts, envs.Assertion{Ask: sandboxes.Question{Kind: "lint/linter", Text: file}, Want: cleanResult(file)})
}

func cleanResult(file string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"path":%q,"exit_code":0,"findings":[]}`, file))
}

// Answers, each with the results that show it.

// query asks for numbers that one row shows, from tables that the query names.
func (d *draft) query(sql string, from []string, numbers ...string) {
	d.sql(sql)
	for _, n := range numbers {
		d.show(sql, from, rewards.Value{Kind: "number", Value: n})
	}
}

// show asks for a value that a query shows.
func (d *draft) show(sql string, from []string, v rewards.Value) {
	d.spoilt = d.spoilt || slices.Contains(literal.FindAllString(sql, -1), v.Value) || strings.Contains(sql, postgres.Literal(v.Value))
	d.answer = append(d.answer, v)
	d.evidence = append(d.evidence, []rewards.Fact{{Tool: "query_database", Cell: &v, From: from}})
}

var literal = regexp.MustCompile(`\d+(\.\d+)?`)

// repaired asks for the number of rows that a repair changes. The world shows that they are repaired; that the agent has
// seen how many, any of these shows: the linter, a statement that changes as many, a query that counts them.
func (d *draft) repaired(n int, rule string, tables ...string) {
	value := rewards.Value{Kind: "number", Value: fmt.Sprint(n)}
	d.answer = append(d.answer, value)
	var facts []rewards.Fact
	for _, t := range tables {
		facts = append(facts, rewards.Fact{Tool: "run_linter", Has: map[string]any{"rule": rule, "table": t}},
			rewards.Fact{Tool: "query_database", Cell: &value, From: []string{t}})
	}
	facts = append(facts, rewards.Fact{Tool: "query_database", Has: map[string]any{"rows_affected": n}})
	d.evidence = append(d.evidence, facts)
}

// What the repair changes.

// lines are the differences of the rows, as the state shows them.
func (d *draft) lines() (lines []string) {
	for i, before := range d.c.tables {
		after := d.after.tables[i]
		for _, row := range before.rows {
			if now := after.find(row[0].(int)); !slices.Equal(now, row) {
				lines = append(lines, "- "+before.line(row))
			}
		}
		for _, row := range after.rows {
			if was := before.find(row[0].(int)); !slices.Equal(was, row) {
				lines = append(lines, "+ "+before.line(row))
			}
		}
	}
	return lines
}

// rows asks for the rows that the repair changes or deletes, as they must be in the end.
func (d *draft) rows() (all []envs.Assertion) {
	for i, before := range d.c.tables {
		after := d.after.tables[i]
		var ids []string
		left := []json.RawMessage{}
		for _, row := range before.rows {
			now := after.find(row[0].(int))
			if slices.Equal(now, row) {
				continue
			}
			ids = append(ids, fmt.Sprint(row[0]))
			if now != nil {
				left = append(left, postgres.Cells(now))
			}
		}
		if len(ids) == 0 {
			continue
		}
		want, err := json.Marshal(left)
		if err != nil {
			panic(err) // JSON already
		}
		text := fmt.Sprintf("SELECT %s FROM public.%s WHERE id IN (%s) ORDER BY id", strings.Join(before.names(), ", "), before.name, strings.Join(ids, ", "))
		all = append(all, envs.Assertion{Ask: sandboxes.Question{Kind: "postgres/sql", Text: text}, Want: want})
	}
	return all
}

// finding is what the linter must find.
type finding struct{ rule, table string }

// findings lists what the linter finds in a file.
func (c *company) findings(file string) (all []finding) {
	for _, t := range c.tables {
		if t.file != file {
			continue
		}
		for _, r := range t.rules {
			broken := map[string]string{foreign: "orphaned-rows", unique: "duplicate-keys", check: "broken-check", notNull: "null-values"}[r.kind]
			if r.live != kept {
				all = append(all, finding{map[string]string{
					primary: "missing-key", unique: "missing-key", foreign: "missing-key", check: "broken-check", notNull: "column-differs", index: "unindexed-foreign-key",
				}[r.kind], t.name})
			}
			if len(c.broken(t, r)) > 0 {
				all = append(all, finding{broken, t.name})
			}
		}
	}
	return all
}

// broken lists the rows that break a rule.
func (c *company) broken(t *table, r *rule) (rows [][]any) {
	at, seen := t.at(r.column), map[any]int{}
	for _, row := range t.rows {
		seen[row[at]]++
	}
	for _, row := range t.rows {
		v := row[at]
		bad := false
		switch r.kind {
		case foreign:
			bad = v != nil && c.table(r.ref).find(v.(int)) == nil
		case unique:
			bad = seen[v] > 1
		case notNull:
			bad = v == nil
		case check:
			switch v := v.(type) {
			case postgres.Numeric:
				bad = strings.HasPrefix(string(v), "-")
			case string:
				bad = !strings.Contains(r.expr, "'"+v+"'")
			}
		}
		if bad {
			rows = append(rows, row)
		}
	}
	return rows
}

// remove deletes the rows that break a rule, and gives their number.
func (t *table) remove(broken [][]any) int {
	n := len(t.rows)
	t.rows = slices.DeleteFunc(t.rows, func(row []any) bool {
		return slices.ContainsFunc(broken, func(b []any) bool { return b[0] == row[0] })
	})
	return n - len(t.rows)
}
