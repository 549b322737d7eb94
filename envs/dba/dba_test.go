package dba

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/envtest"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/redteam"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
	"github.com/mcpgym/mcpgym/sandboxes/files"
	"github.com/mcpgym/mcpgym/sandboxes/lint"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
	"github.com/mcpgym/mcpgym/sandboxes/postgres/postgrestest"
)

func TestMain(m *testing.M) { postgrestest.Main(m) }

var confined = sync.OnceValues(func() (confine.Runner, error) { return confine.Local(context.Background()) })

// runner skips the test where linters of code cannot be run, or fails it where MCPGYM_REQUIRE names lint.
func runner(t testing.TB) confine.Runner {
	t.Helper()
	run, err := confined()
	if err == nil {
		_, err = lint.NewCode(t.Context(), run)
	}
	missing := errors.Is(err, confine.ErrUnavailable) || errors.Is(err, lint.ErrNoLinters)
	if missing && !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), "lint") {
		t.Skip(err)
	}
	require.NoError(t, err)
	return run
}

func newSpec(t testing.TB) envs.Spec {
	t.Helper()
	spec, err := Spec(t.Context(), postgrestest.Local(t), files.New, runner(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, spec.Sandboxes.Close()) })
	return spec
}

// The splits are proven one by one, which keeps each rule within its time. Train has the families of test in other databases,
// and every episode that writes costs a database, so its proof is left to MCPGYM_SOAK.
func TestEnv(t *testing.T) {
	for _, split := range []string{"test", "ood", "train"} {
		t.Run(split, func(t *testing.T) {
			if split == "train" && os.Getenv("MCPGYM_SOAK") == "" {
				t.Skip("proven with MCPGYM_SOAK=1")
			}
			spec := newSpec(t)
			spec.Splits = map[string]envs.Source{split: spec.Splits[split]}
			envtest.Check(t, spec)
		})
	}
}

func TestSplitsAreDisjoint(t *testing.T) {
	spec := newSpec(t)
	split := map[uint64]string{} // of a database
	for _, name := range spec.SplitNames() {
		for i := range 500 {
			task := spec.Splits[name].Task(i)
			if other, ok := split[task.World.Seed]; ok {
				require.Equal(t, other, name, "%s has the database of another split", task.ID)
			}
			split[task.World.Seed] = name
		}
	}
	require.Len(t, split, 24+16+16)
}

// What the linter finds, and what the generator says that it must find.
func TestFindings(t *testing.T) {
	spec := newSpec(t)
	for i, f := range append(append([]faults{}, plans...), oodPlans...) {
		f.ReadOnly = true
		c := newCompany(uint64(7000+i), f)
		lease, err := spec.Sandboxes.Lease(t.Context(), c.world())
		require.NoError(t, err)
		for _, file := range []string{salesFile, billingFile, supportFile} {
			answers, err := sandboxes.ProbeOf(t.Context(), lease, []sandboxes.Question{{Kind: "lint/linter", Text: file}})
			require.NoError(t, err)
			var got struct {
				ExitCode int `json:"exit_code"`
				Findings []struct{ Rule, Table, Message string }
			}
			require.NoError(t, json.Unmarshal(answers[0].Value, &got), answers[0].Err)
			var all []finding
			for _, f := range got.Findings {
				all = append(all, finding{f.Rule, f.Table})
			}
			require.ElementsMatch(t, c.findings(file), all, "%s of %+v: %s", file, f, answers[0].Value)
			require.Equal(t, min(1, len(all)), got.ExitCode)
		}
		require.NoError(t, lease.Close())
	}
}

// The databases have what their comments and the tasks' wording rest on.
func TestCompanies(t *testing.T) {
	inactive := map[int]bool{}
	for i := range 24 {
		f := plans[i%len(plans)]
		c, again := newCompany(uint64(i), f), newCompany(uint64(i), f)
		require.Equal(t, c.setup(), again.setup(), "equal worlds, equal bytes")
		require.NotEqual(t, c.setup(), newCompany(uint64(i+1), f).setup())
		require.Less(t, len(c.setup()), 100<<10)
		n, names := 0, map[any]bool{}
		for _, row := range c.table("customers").rows {
			require.False(t, names[row[1]], "a customer is named by name")
			names[row[1]] = true
			if row[4] == "inactive" {
				n++
			}
		}
		inactive[n] = true
		for _, tab := range c.tables {
			last := 0
			for _, row := range tab.rows {
				require.Less(t, last, row[0], "ids ascend")
				last = row[0].(int)
			}
		}
	}
	require.Len(t, inactive, 24, "no two databases have as many inactive customers")
	_, err := readWorld(sandboxes.World{Setup: json.RawMessage(`{"sales":"clean","billing":"clean","support":"lost"}`)})
	require.ErrorContains(t, err, "no such faults")
	_, err = readWorld(sandboxes.World{Setup: json.RawMessage(`{"sale":"clean"}`)})
	require.ErrorContains(t, err, "unknown field")
}

// Where rows lie in the files of the database is no part of a world: gold records are the same, byte for byte, in databases
// whose tables were filled in another order. And no task asks for the first of several: what a gold query shows, but for the
// list of columns, is one row.
func TestAnotherHeap(t *testing.T) {
	spec := newSpec(t)
	server := postgrestest.Local(t)
	pg, err := postgres.New(t.Context(), server, sandboxes.Identity{"dba": "2"}, func(w sandboxes.World) (string, bool, error) {
		c, err := readWorld(w)
		if err != nil {
			return "", false, err
		}
		ordered := c.setup()
		r := rand.New(rand.NewPCG(w.Seed, 1))
		for _, tab := range c.tables {
			r.Shuffle(len(tab.rows), func(i, j int) { tab.rows[i], tab.rows[j] = tab.rows[j], tab.rows[i] })
		}
		assert.NotEqual(t, ordered, c.setup())
		return c.setup(), c.ReadOnly, nil
	}, 1, "query_database")
	require.NoError(t, err)
	other := spec
	trees, err := files.New(sandboxes.Identity{"dba": "2"}, func(w sandboxes.World) (files.Setup, error) {
		c, err := readWorld(w)
		if err != nil {
			return files.Setup{}, err
		}
		return c.tree(), nil
	}, 1)
	require.NoError(t, err)
	code, err := lint.NewCode(t.Context(), runner(t))
	require.NoError(t, err)
	other.Sandboxes, err = lint.Both(t.Context(), pg, server, func(w sandboxes.World) (map[string]string, error) {
		c, err := readWorld(w)
		if err != nil {
			return nil, err
		}
		return c.files(), nil
	}, trees, code)
	require.NoError(t, err)
	defer other.Sandboxes.Close()
	a, err := envs.New(spec)
	require.NoError(t, err)
	defer a.Close()
	b, err := envs.New(other)
	require.NoError(t, err)
	defer b.Close()
	for name, families := range map[string][]family{"test": families, "ood": oodFamilies} {
		for i := range families {
			task := spec.Splits[name].Task(i)
			want, err := policies.Rollout(t.Context(), a, task, policies.Oracle{}, 1)
			require.NoError(t, err)
			got, err := policies.Rollout(t.Context(), b, task, policies.Oracle{}, 1)
			require.NoError(t, err)
			require.True(t, got.Score.Success, task.ID)
			require.Equal(t, encoded(t, want), encoded(t, got), task.ID)
			for _, s := range got.Steps {
				for k, sql := range statements(s.Action) {
					require.NotContains(t, sql, "LIMIT")
					if strings.HasPrefix(sql, "SELECT ") && sql != columnsSQL {
						require.Contains(t, s.Observation.Results[len(s.Action.Calls)-len(statements(s.Action))+k].Text, `"row_count":1`, sql)
					}
				}
			}
		}
	}
}

func encoded(t *testing.T, v any) string {
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return string(raw)
}

var newNames = regexp.MustCompile(`(ADD CONSTRAINT|CREATE INDEX) \w+`)

type edit func(c *company, gold []string) []string

// Repairs that another hand might make. Each takes the place of the gold solution's repair; before it the agent looks, and
// after it the agent asks what the gold solution asks and gives the right answer.
func TestOtherRepairs(t *testing.T) {
	change := func(old, by string) edit {
		return func(c *company, gold []string) []string {
			for i, s := range gold {
				gold[i] = strings.ReplaceAll(s, c.fill(old), c.fill(by))
			}
			return gold
		}
	}
	also := func(statement string) edit {
		return func(c *company, gold []string) []string { return append(gold, c.fill(statement)) }
	}
	first := func(statement string) edit { // instead of the first
		return func(c *company, gold []string) []string { return append([]string{c.fill(statement)}, gold[1:]...) }
	}
	same := func(_ *company, gold []string) []string { return gold }
	renamed := func(_ *company, gold []string) []string {
		for i, s := range gold {
			gold[i] = newNames.ReplaceAllString(s, fmt.Sprintf("$1 my_%d", i))
		}
		return gold
	}
	begun := func(_ *company, gold []string) []string { return append([]string{"BEGIN"}, gold...) }
	inOne := func(c *company, gold []string) []string { return append(begun(c, gold), "COMMIT") }
	backwards := func(_ *company, gold []string) []string {
		rows := slices.IndexFunc(gold, func(s string) bool { return strings.HasPrefix(s, "ALTER") || strings.HasPrefix(s, "CREATE") })
		slices.Reverse(gold[rows:])
		return gold
	}
	const reorder = "CREATE INDEX orders_customer_id_idx ON orders (customer_id)"
	for _, tc := range []struct {
		family, name string
		has          string // what the gold repair must have in it
		edit         edit
		right        bool
	}{
		{"founding", "gold", "DELETE", same, true},
		{"founding", "other names", "CREATE INDEX", renamed, true},
		{"founding", "one transaction", "DELETE", inOne, true},
		{"founding", "another order", "CREATE INDEX", backwards, true},
		{"founding", "hash index", reorder, change(reorder, "CREATE INDEX ON orders USING hash (customer_id)"), true},
		{"founding", "partial index", reorder, change(reorder, "CREATE INDEX ON orders (customer_id) WHERE customer_id > 0"), false},
		{"founding", "not committed", "DELETE", begun, false},
		{"founding", "another file mended, too", "DELETE", also("DELETE FROM {tickets} WHERE id = (SELECT min(id) FROM {tickets})"), false},
		{"founding", "a row more", "DELETE", also("DELETE FROM {items} WHERE id = (SELECT max(id) FROM {items})"), false},
		{"founding", "a customer made up", "DELETE", also("INSERT INTO customers SELECT 1, 'x', 'x', city, 'active', {joined} FROM customers LIMIT 1"), false},
		{"founding", "a table more", "DELETE", also("CREATE TABLE backup AS SELECT * FROM orders"), false},
		{"founding", "nothing to do", "", same, true},
		{"founding", "nothing to do, and an index for good measure", "", also("CREATE INDEX ON customers (status)"), false},
		{"foreign-key", "other names", "CREATE INDEX", renamed, true},
		{"foreign-key", "another order", "CREATE INDEX", backwards, true},
		{"foreign-key", "a wider index", reorder, change(reorder, "CREATE INDEX wide ON orders (customer_id, ordered)"), true},
		{"foreign-key", "not valid, then validated", "orders_customer_id_fkey FOREIGN", func(_ *company, gold []string) []string {
			for i, s := range gold {
				if strings.Contains(s, "orders_customer_id_fkey") {
					gold[i] += " NOT VALID"
				}
			}
			return append(gold, "ALTER TABLE orders VALIDATE CONSTRAINT orders_customer_id_fkey")
		}, true},
		{"foreign-key", "cascading", " (id)", change(" (id)", " (id) ON DELETE CASCADE"), false},
		{"foreign-key", "a check nobody declared", "FOREIGN", also("ALTER TABLE orders ADD CHECK (id > 0)"), false},
		{"reassign", "one transaction", "UPDATE", inOne, true},
		{"reassign", "deleted", "UPDATE", first("DELETE FROM {tickets} t WHERE NOT EXISTS (SELECT FROM customers c WHERE c.id = t.customer_id)"), false},
		{"reassign", "to somebody else", "UPDATE", change("(SELECT c.id FROM customers c WHERE c.name =", "(SELECT max(c.id) FROM customers c WHERE c.name <>"), false},
		{"reassign", "the missing customer made up", "UPDATE", first("INSERT INTO customers SELECT DISTINCT t.customer_id, 'x', 'x' || t.customer_id, 'x', 'active', t.opened FROM {tickets} t LEFT JOIN customers c ON c.id = t.customer_id WHERE c.id IS NULL"), false},
		{"validate-check", "dropped and added", "VALIDATE", func(c *company, gold []string) []string {
			for i, s := range gold {
				if table, name, ok := strings.Cut(strings.TrimPrefix(s, "ALTER TABLE "), " VALIDATE CONSTRAINT "); ok {
					column := map[bool]string{true: "amount", false: "state"}[strings.HasSuffix(name, "_amount_check")]
					gold[i] = "ALTER TABLE " + table + " DROP CONSTRAINT " + name + ", ADD CONSTRAINT sound " + c.table(table).rule(check, column).clause()
				}
			}
			return gold
		}, true},
		{"validate-check", "the check dropped", "VALIDATE", change(" VALIDATE ", " DROP "), false},
		{"validate-check", "rows deleted", "VALIDATE", func(_ *company, gold []string) []string {
			return append([]string{"DELETE FROM " + strings.Fields(gold[0])[1] + gold[0][strings.Index(gold[0], " WHERE "):]}, gold[1:]...)
		}, false},
		{"validate-check", "a cent instead", "SET amount = -amount", change("SET amount = -amount", "SET amount = 0.01"), false},
		{"merge-duplicates", "one transaction", "DELETE", inOne, true},
		{"merge-duplicates", "an index instead of the key", "UNIQUE", change("ALTER TABLE {invoices} ADD CONSTRAINT {invoices}_number_key UNIQUE", "CREATE UNIQUE INDEX ON {invoices}"), false},
		{"merge-duplicates", "the highest stays", "DELETE", func(c *company, gold []string) []string {
			return change("k.id < i.id", "k.id > i.id")(c, change("min(", "max(")(c, gold))
		}, false},
		{"merge-duplicates", "payments deleted", "DELETE", first("DELETE FROM {payments} WHERE invoice_id NOT IN (SELECT min(id) FROM {invoices} GROUP BY number)"), false},
		{"two-files", "another order", "UPDATE", backwards, true},
		{"two-files", "orphans deleted", "UPDATE", change("UPDATE {tickets} t SET agent_id = NULL WHERE", "DELETE FROM {tickets} t WHERE t.agent_id IS NOT NULL AND"), false},
		{"two-files", "everybody unassigned", "UPDATE", first("UPDATE {tickets} SET agent_id = NULL"), false},
		{"fill-nulls", "two updates", "UPDATE", func(c *company, gold []string) []string {
			var state string
			var high, low int
			_, err := fmt.Sscanf(gold[0], c.fill("UPDATE {tickets} SET priority = CASE WHEN state = %s THEN %d ELSE %d END"), &state, &high, &low)
			require.NoError(t, err)
			return append([]string{
				c.fill(fmt.Sprintf("UPDATE {tickets} SET priority = %d WHERE priority IS NULL AND state <> %s", low, state)),
				c.fill(fmt.Sprintf("UPDATE {tickets} SET priority = %d WHERE priority IS NULL", high)),
			}, gold[1:]...)
		}, true},
		{"fill-nulls", "the values swapped", "UPDATE", change("WHEN state =", "WHEN state <>"), false},
		{"fill-nulls", "a default beside it", "UPDATE", also("ALTER TABLE {tickets} ALTER COLUMN priority SET DEFAULT 3"), false},
	} {
		t.Run(tc.family+"/"+tc.name, func(t *testing.T) { repair(t, tc.family, tc.has, tc.edit, tc.right) })
	}
}

// repair plays an edited repair in the first task whose gold repair has something in it.
func repair(t *testing.T, family, has string, edit edit, right bool) {
	spec := newSpec(t)
	var (
		task envs.Task
		c    *company
		gold []string
	)
	for i := 0; ; i++ {
		require.Less(t, i, 300, "no task has such a repair")
		split := "test"
		if i%2 == 1 {
			split = "ood"
		}
		if task = spec.Splits[split].Task(i / 2); task.Family != family {
			continue
		}
		var err error
		c, err = readWorld(task.World)
		require.NoError(t, err)
		if gold = nil; len(task.Solution) == 4 {
			gold = statements(task.Solution[1])
		}
		if text := strings.Join(gold, "\n"); has != "" && strings.Contains(text, has) || has == text {
			break
		}
	}
	before := strings.Join(gold, "\n")
	look, verify, final := task.Solution[0], task.Solution[len(task.Solution)-2], task.Solution[len(task.Solution)-1]
	edited := edit(c, gold)
	actions := []envs.Action{look, querying(edited...), verify, final}
	if len(edited) == 0 {
		actions = slices.Delete(actions, 1, 2)
	}
	e, err := envs.New(spec)
	require.NoError(t, err)
	defer e.Close()
	tr, err := policies.Rollout(t.Context(), e, task, redteam.Scripted(envs.Cheat{Name: t.Name(), Actions: actions}), 1)
	require.NoError(t, err)
	require.NotNil(t, tr.Score)
	var why []string
	for _, p := range tr.Score.Parts {
		why = append(why, p.Name+": "+p.Reason)
	}
	require.Equal(t, right, tr.Score.Success, "%s\n%s\ninstead of\n%s\n%s", task.ID, strings.Join(edited, "\n"), before, strings.Join(why, "\n"))
	if !right {
		require.LessOrEqual(t, tr.Score.Value, 0.0)
	}
}

// The linter finds in a repository what the generator says, and nothing once the jobs are mended.
func TestRepositories(t *testing.T) {
	spec := newSpec(t)
	rules := map[string]bool{}
	for i := range 4 {
		c := newCompany(uint64(7000+i), plans[i%len(plans)])
		c.ReadOnly = true
		lease, err := spec.Sandboxes.Lease(t.Context(), c.world())
		require.NoError(t, err)
		ask := func(sql string) string {
			answers, err := sandboxes.ProbeOf(t.Context(), lease, []sandboxes.Question{{Kind: "postgres/sql", Text: sql}})
			require.NoError(t, err)
			require.Empty(t, answers[0].Err, sql)
			return string(answers[0].Value)
		}
		lint := func() (found [][2]string) {
			answers, err := sandboxes.ProbeOf(t.Context(), lease, []sandboxes.Question{{Kind: "lint/linter", Text: "/"}})
			require.NoError(t, err)
			var got struct{ Findings []struct{ File, Rule string } }
			require.NoError(t, json.Unmarshal(answers[0].Value, &got), answers[0].Err)
			for _, f := range got.Findings {
				found = append(found, [2]string{f.File, f.Rule})
			}
			return found
		}
		var want [][2]string
		jobs := c.repository()
		for _, j := range jobs {
			want = append(want, [2]string{j.path, j.rule})
			rules[j.rule] = true
			require.Equal(t, 1, strings.Count(j.now(), j.bad), "one place to mend in %s", j.path)
			require.Equal(t, 1, strings.Count(j.now(), j.line(j.has)+"\n"), "one list in %s", j.path)
			right := j.right(c)
			require.NotEqual(t, right, j.has, j.path)
			if len(right) > 0 {
				separator := map[string]string{"tables": " ", "columns": ","}[j.list]
				if j.isPython() {
					separator = ", "
				}
				require.Equal(t, encoded(t, strings.Join(right, separator)), ask(j.sql), j.sql)
				require.Equal(t, fmt.Sprint(j.count(c, right)), ask(j.query(right)), j.query(right))
			}
		}
		require.ElementsMatch(t, want, lint())
		for _, j := range jobs {
			text := map[string]string{"path": j.path, "content": j.mended(j.right(c))}
			r, err := lease.Session().Call(t.Context(), "write_file", json.RawMessage(encoded(t, text)))
			require.NoError(t, err)
			require.False(t, r.IsError, r.Text)
		}
		require.Empty(t, lint())
		require.NoError(t, lease.Close())
	}
	require.Len(t, rules, 6)
}

// Each way around the work on a job fails at the gate that is there for it.
func TestJobCheats(t *testing.T) {
	e, err := envs.New(newSpec(t))
	require.NoError(t, err)
	defer e.Close()
	gates := map[string]string{"job left as it was": "assertions", "finding left": "assertions", "list left": "assertions", "finding suppressed": "assertions", "linter set up": "assertions collateral",
		"job deleted": "assertions collateral", "job emptied": "assertions", "job moved": "assertions collateral", "another job mended": "assertions collateral", "another job mended, too": "collateral",
		"declaration of its own": "collateral", "more in the job": "assertions", "database left as it was": "assertions", "linter alone": "answer", "spelt answer": "answer",
		"a job mended unasked": "collateral", "an answer in a file": "answer collateral"}
	seen := map[string]bool{}
	for split, list := range map[string][]family{"test": families, "ood": oodFamilies} {
		for i := range list {
			task := Rules().Splits[split].Task(i)
			if !isJob(task) {
				continue
			}
			c, err := readWorld(task.World)
			require.NoError(t, err)
			for _, cheat := range allCheats(task, c) {
				t.Run(task.Family+"/"+cheat.Name, func(t *testing.T) {
					tr, err := policies.Rollout(t.Context(), e, task, redteam.Scripted(cheat), 1)
					require.NoError(t, err)
					require.Nil(t, tr.Void)
					require.LessOrEqual(t, tr.Score.Value, 0.0)
					require.False(t, tr.Score.Success)
					for _, p := range tr.Score.Parts {
						if p.Kind == envs.Gate {
							require.Equal(t, !strings.Contains(gates[cheat.Name], p.Name), *p.Score == 1, "%s: %s", p.Name, p.Reason)
						}
					}
					for _, r := range tr.Results() {
						require.NotEqual(t, envs.StatusInvalid, r.Status, r.Text)
					}
				})
				seen[cheat.Name] = true
			}
		}
	}
	require.Len(t, seen, len(gates))
}
