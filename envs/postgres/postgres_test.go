package postgres

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/envtest"
	"github.com/mcpgym/mcpgym/policies"
	"github.com/mcpgym/mcpgym/policies/redteam"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
	"github.com/mcpgym/mcpgym/sandboxes/postgres/postgrestest"
)

func TestMain(m *testing.M) { postgrestest.Main(m) }

func local(t testing.TB) envs.Spec {
	t.Helper()
	spec, err := Spec(t.Context(), postgrestest.Local(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, spec.Sandboxes.Close()) })
	return spec
}

func TestEnv(t *testing.T) { envtest.Check(t, local(t)) }

// sources are the splits, which need no server.
var sources = []struct {
	name     string
	families []family
	envs.Source
}{
	{"train", families, split("train", families)},
	{"test", families, split("test", families)},
	{"ood", oodFamilies, split("ood", oodFamilies)},
}

// What scores are taken on is nothing that a policy was trained on.
func TestSplitsAreDisjoint(t *testing.T) {
	id := func(task envs.Task) string { return fmt.Sprint(task.World.Seed, string(task.World.Setup), task.Prompt) }
	held := map[string]string{}
	seeds := map[uint64]string{}
	for _, s := range sources[1:] {
		for i := range 200 {
			task := s.Task(i)
			require.Empty(t, held[id(task)], "%s is there twice", task.ID)
			held[id(task)] = task.ID
			if other, ok := seeds[task.World.Seed]; ok {
				require.Equal(t, s.name, other, "a world of two splits")
			}
			seeds[task.World.Seed] = s.name
		}
	}
	for i := range 5000 {
		task := sources[0].Task(i)
		require.Empty(t, held[id(task)])
		require.Empty(t, seeds[task.World.Seed])
	}
}

// Every family is made in three domains or more, with statements and answers of many kinds; writers alone get databases of
// their own.
func TestFamilies(t *testing.T) {
	for _, s := range sources {
		type seen struct{ answers, domains, statements map[string]bool }
		all := map[string]seen{}
		worlds := map[string]bool{}
		for i := range 100 * len(s.families) {
			task, f := s.Task(i), s.families[i%len(s.families)]
			var made setup
			require.NoError(t, json.Unmarshal(task.World.Setup, &made))
			require.Equal(t, f.write, made.Write, task.ID)
			require.Equal(t, f.write, len(task.Assertions) > 0 && len(task.Allow) > 0, task.ID)
			require.NotRegexp(t, `[{}]|\[[:a-z.]+\]`, task.Prompt, task.ID)
			worlds[fmt.Sprint(task.World)] = true
			if all[f.name].answers == nil {
				all[f.name] = seen{map[string]bool{}, map[string]bool{}, map[string]bool{}}
			}
			all[f.name].domains[made.Domain] = true
			all[f.name].answers[redteam.Final(task)] = true
			all[f.name].statements[string(task.Solution[min(2, len(task.Solution)-2)].Calls[0].Arguments)] = true
		}
		require.LessOrEqual(t, len(worlds), 24)
		require.Len(t, all, len(s.families))
		for name, f := range all {
			require.GreaterOrEqual(t, len(f.answers), 20, "answers of %s in %s", name, s.name)
			require.GreaterOrEqual(t, len(f.domains), 3, "domains of %s in %s", name, s.name)
			require.GreaterOrEqual(t, len(f.statements), 20, "statements of %s in %s", name, s.name)
		}
	}
}

// The same question has an answer in most worlds and none in some: always to abstain does not pay.
func TestSomeLookupsHaveNoAnswer(t *testing.T) {
	prompts := map[bool]int{}
	for i := range 4000 {
		if task := sources[1].Task(i); task.Family == "lookup" {
			prompts[redteam.Final(task) == redteam.Abstain]++
		}
	}
	require.Greater(t, prompts[true], 20)
	require.Greater(t, prompts[false], 5*prompts[true])
}

func TestWorlds(t *testing.T) {
	for i, d := range domains {
		s := setup{Domain: d.name, Without: faults[i]}
		a, err := newWorld(7, s)
		require.NoError(t, err)
		b, err := newWorld(7, s)
		require.NoError(t, err)
		require.Equal(t, a.sql(), b.sql())
		require.Less(t, len(a.sql()), 100<<10)
		c, err := newWorld(8, s)
		require.NoError(t, err)
		require.NotEqual(t, a.sql(), c.sql())
		sums := map[int]int{}
		emails := map[string]int{}
		for _, l := range a.lines {
			sums[l.event] += l.qty * l.price
		}
		for _, p := range a.parties {
			emails[key(p.email)]++
		}
		delete(emails, "")
		found := map[string]bool{
			faults[0]: len(a.orphanEvents(period{firstDay, firstDay.AddDate(9, 0, 0)})) > 0,
			faults[1]: len(a.orphanLines(1_000_000)) > 0,
			faults[2]: slices.Max(slices.Collect(maps.Values(emails))) > 1,
			faults[3]: slices.ContainsFunc(a.events, func(e event) bool { return sums[e.id] != e.amount }),
		}
		for k, f := range faults {
			require.Equal(t, k != i, found[f], "%s has %s", d.name, f)
		}
	}
	_, err := newWorld(1, setup{Domain: "bakery"})
	require.ErrorContains(t, err, `no domain "bakery"`)
	_, _, err = schemas()(sandboxes.World{Setup: json.RawMessage("7")})
	require.ErrorContains(t, err, "read the setup")
}

func play(t *testing.T, task envs.Task, turns ...envs.Action) *envs.Trajectory {
	t.Helper()
	e, err := envs.New(local(t))
	require.NoError(t, err)
	defer e.Close()
	tr, err := policies.Rollout(t.Context(), e, task, redteam.Scripted(envs.Cheat{Actions: turns}), 1)
	require.NoError(t, err, task.ID)
	require.Nil(t, tr.Void, task.ID)
	return tr
}

func reasons(tr *envs.Trajectory) (s string) {
	for _, p := range tr.Score.Parts {
		s += fmt.Sprintf("%s %v %s\n", p.Name, *p.Score, p.Reason)
	}
	for i, step := range tr.Steps {
		for k, c := range step.Action.Calls {
			if i > 1 {
				s += fmt.Sprintf("%s\n  %s\n", c.Arguments, step.Observation.Results[k].Text)
			}
		}
		s += step.Action.Text
	}
	if tr.State != nil {
		s += strings.Join(tr.State.Diff, "\n")
	}
	return s
}

// Every gold solution is right in the real database, whatever kind of its family it is and in every domain.
func TestGold(t *testing.T) {
	spec := local(t)
	turns := 8
	if testing.Short() {
		turns = 1
	}
	for _, s := range sources {
		for i := range turns * len(s.families) {
			task := spec.Splits[s.name].Task(i)
			tr := play(t, task, task.Solution...)
			require.Equal(t, 1.0, tr.Score.Value, "%s: %s\n%s", task.ID, task.Prompt, reasons(tr))
		}
	}
}

// solve plays a gold solution with other statements, and answers with the first row that the last query shows.
func solve(t *testing.T, task envs.Task, statements ...string) *envs.Trajectory {
	t.Helper()
	e, err := envs.New(local(t))
	require.NoError(t, err)
	defer e.Close()
	_, err = e.Reset(t.Context(), task)
	require.NoError(t, err)
	answer := ""
	for _, q := range statements {
		raw, err := json.Marshal(map[string]string{"sql": q})
		require.NoError(t, err)
		s, err := e.Step(t.Context(), envs.Action{Calls: []envs.Call{{Name: "query_database", Arguments: raw}}})
		require.NoError(t, err)
		require.False(t, s.Observation.Results[0].IsError, "%s: %s", q, s.Observation.Results[0].Text)
		var shown struct{ Rows [][]any }
		require.NoError(t, json.Unmarshal([]byte(s.Observation.Results[0].Text), &shown))
		if len(shown.Rows) > 0 && answer == "" {
			answer = "ANSWER: "
			for i, v := range shown.Rows[0] {
				answer += []string{"", "; "}[min(i, 1)] + fmt.Sprint(v)
			}
		}
	}
	_, err = e.Step(t.Context(), envs.Action{Text: answer})
	require.NoError(t, err)
	require.Nil(t, e.Trajectory().Void)
	return e.Trajectory()
}

// The reward is not fitted to the gold statements: other right ones earn success, and plausible wrong ones do not. What
// stands for $from and so on is read from the prompt.
func TestOtherSolutions(t *testing.T) {
	for _, c := range []struct {
		family, domain, prompt string
		right, wrong           []string // statements, one after the other separated by semicolons
	}{
		{"average", "shop", "",
			[]string{"SELECT sum(total) / count(*)::numeric / 100 FROM orders WHERE placed_on >= '$from' AND placed_on < '$to'::date + 1 AND state = '$state'"},
			[]string{
				"SELECT avg(total) FROM orders WHERE placed_on BETWEEN '$from' AND '$to' AND state = '$state'",
				"SELECT avg(total / 100.0) FROM orders WHERE placed_on BETWEEN '$from' AND '$to' AND status = '$state'",
				"SELECT avg(total / 100.0) FROM orders WHERE created BETWEEN '$from' AND '$to' AND state = '$state'",
				"SELECT avg(total / 100.0) FROM orders_2019 WHERE placed_on BETWEEN '$from' AND '$to' AND state = '$state'",
			}},
		{"average", "clinic", "",
			[]string{"SELECT round(avg(bill), 2) FROM visits WHERE started >= timestamptz '$from 00:00 Asia/Tokyo' AND started < (date '$to' + 1)::timestamp AT TIME ZONE 'Asia/Tokyo' AND outcome = '$state'"},
			[]string{
				"SELECT round(avg(bill), 2) FROM visits WHERE started::date BETWEEN '$from' AND '$to' AND outcome = '$state'",
				"SELECT round(avg(estimate), 2) FROM visits WHERE (started AT TIME ZONE 'Asia/Tokyo')::date BETWEEN '$from' AND '$to' AND outcome = '$state'",
			}},
		{"top", "library", " largest| lost | returned ",
			[]string{"SELECT name, s FROM (SELECT m.name, (SELECT sum(charge) FROM loans WHERE member = m.number AND stage = '$state' AND lent_on BETWEEN '$from' AND '$to') AS s FROM members m) x WHERE s IS NOT NULL ORDER BY s DESC OFFSET $nth LIMIT 1"},
			[]string{
				"SELECT m.name, sum(charge) FROM loans JOIN members m ON m.number = member WHERE lent_on BETWEEN '$from' AND '$to' GROUP BY m.number ORDER BY 2 DESC OFFSET $nth LIMIT 1",
				"SELECT m.name, sum(total) FROM loans JOIN members m ON m.number = member WHERE stage = '$state' AND lent_on BETWEEN '$from' AND '$to' GROUP BY m.number ORDER BY 2 DESC OFFSET $nth LIMIT 1",
				"SELECT m.name, max(charge) FROM loans JOIN members m ON m.number = member WHERE stage = '$state' AND lent_on BETWEEN '$from' AND '$to' GROUP BY m.number ORDER BY 2 DESC OFFSET $nth LIMIT 1",
			}},
		{"nulls", "freight", "home|port is",
			[]string{"WITH s AS (SELECT company, opened FROM shippers WHERE account = 'A' AND (port <> '$city' OR port IS NULL) AND opened < '$from') SELECT (SELECT count(*) FROM s), company FROM s WHERE opened = (SELECT max(opened) FROM s)"},
			[]string{
				"SELECT count(*) OVER (), company FROM shippers WHERE account = 'A' AND port <> '$city' AND opened < '$from' ORDER BY opened DESC LIMIT 1",
				"SELECT count(*) OVER (), company FROM shippers WHERE active AND port IS DISTINCT FROM '$city' AND opened < '$from' ORDER BY opened DESC LIMIT 1",
				"SELECT count(*) OVER (), company FROM shippers WHERE account = 'A' AND port IS DISTINCT FROM '$city' AND created < '$from' ORDER BY opened DESC LIMIT 1",
			}},
		{"duplicates", "shop", "",
			[]string{"SELECT sum(n) FILTER (WHERE n > 1), count(*) FROM (SELECT count(*) AS n FROM customers WHERE registered_on < '$from' AND email IS NOT NULL GROUP BY upper(btrim(email))) x"},
			[]string{
				"SELECT sum(n) FILTER (WHERE n > 1), count(*) FROM (SELECT count(*) AS n FROM customers WHERE registered_on < '$from' AND email IS NOT NULL GROUP BY email) x",
				"SELECT count(*) FILTER (WHERE n > 1), count(*) FROM (SELECT count(*) AS n FROM customers WHERE registered_on < '$from' AND email IS NOT NULL GROUP BY lower(trim(email))) x",
				"SELECT sum(n) FILTER (WHERE n > 1), count(*) FROM (SELECT count(*) AS n FROM customers WHERE registered_on < '$from' GROUP BY lower(trim(email))) x",
			}},
		{"repair-orphans", "library", "worth less|them with|Remove those worth",
			[]string{"SELECT count(*), sum(copies * fee) FROM loan_books LEFT JOIN loans ON loans.id = loan WHERE loans.id IS NULL AND loan IS NOT NULL AND copies * fee < $limit;" +
				"DELETE FROM loan_books WHERE loan NOT IN (SELECT id FROM loans) AND copies * fee < $limit"},
			[]string{
				"SELECT count(*), sum(copies * fee) FROM loan_books LEFT JOIN loans ON loans.id = loan WHERE loans.id IS NULL AND loan IS NOT NULL AND copies * fee < $limit;" +
					"DELETE FROM loan_books WHERE NOT EXISTS (SELECT FROM loans WHERE id = loan) AND copies * fee < $limit",
				"SELECT count(*), sum(copies * fee) FROM loan_books LEFT JOIN loans ON loans.id = loan WHERE loans.id IS NULL AND loan IS NOT NULL AND copies * fee < $limit;" +
					"DELETE FROM loan_books WHERE loan NOT IN (SELECT id FROM loans)",
				"SELECT count(*), sum(copies * fee) FROM loan_books LEFT JOIN loans ON loans.id = loan WHERE loans.id IS NULL AND loan IS NOT NULL AND copies * fee < $limit;" +
					"UPDATE loan_books SET loan = NULL WHERE loan NOT IN (SELECT id FROM loans) AND copies * fee < $limit",
			}},
	} {
		t.Run(c.family+" "+c.domain, func(t *testing.T) {
			failed := map[string]bool{}
			n := 0
			for i := 0; n < 4; i++ {
				task := sources[1].Task(i)
				var made setup
				require.NoError(t, json.Unmarshal(task.World.Setup, &made))
				if task.Family != c.family || made.Domain != c.domain || !regexp.MustCompile(c.prompt).MatchString(task.Prompt) {
					continue
				}
				n++
				fill := parameters(task)
				for _, q := range c.right {
					tr := solve(t, task, strings.Split(fill.Replace(q), ";")...)
					require.True(t, tr.Score.Success, "%s\n%s\n%s", task.Prompt, fill.Replace(q), reasons(tr))
				}
				for _, q := range c.wrong {
					tr := solve(t, task, strings.Split(fill.Replace(q), ";")...)
					failed[q] = failed[q] || !tr.Score.Success && tr.Score.Value <= 0
				}
			}
			for _, q := range c.wrong {
				require.True(t, failed[q], "succeeds on every task: %s", q)
			}
		})
	}
}

// parameters are what a reader of the prompt takes from it.
func parameters(task envs.Task) *strings.Replacer {
	days := append(regexp.MustCompile(`\d{4}-\d\d-\d\d`).FindAllString(task.Prompt, -1), "", "")
	word := func(list []string) string {
		for _, w := range list {
			if regexp.MustCompile(`(?i)\b` + w + `\b`).MatchString(task.Prompt) {
				return w
			}
		}
		return ""
	}
	var states []string
	for _, d := range domains {
		states = append(states, d.states[:]...)
	}
	nth := slices.Index([]string{"", "second", "third"}, word([]string{"second", "third"}))
	limit := append(regexp.MustCompile(`\d+`).FindAllString(task.Prompt, 1), "")[0]
	return strings.NewReplacer("$from", days[0], "$to", days[1], "$state", word(states), "$city", word(cities), "$nth", fmt.Sprint(nth), "$limit", limit)
}

var (
	listing = regexp.MustCompile(`(?s)^(.* ORDER BY )([^(),]+)[^()]*( LIMIT 1(?: OFFSET (\d+))?)$`)
	reading = regexp.MustCompile(`^(SELECT|WITH) `)
)

// Who asks for the largest asks for one: a gold query that takes the first row of a list takes the same one however rows that
// compare equal are ordered, and one that takes a later row has no equals before it. Other queries show one row at most.
func TestNoTies(t *testing.T) {
	spec := local(t)
	turns := 20
	if testing.Short() {
		turns = 4
	}
	limits, leases := 0, map[string]sandboxes.Sandbox{}
	for _, s := range sources {
		for i := range turns * len(s.families) {
			task := s.Task(i)
			var made setup
			require.NoError(t, json.Unmarshal(task.World.Setup, &made))
			made.Write = false // no database of its own: nothing is written
			raw, err := json.Marshal(made)
			require.NoError(t, err)
			lease := leases[string(raw)+fmt.Sprint(task.World.Seed)]
			if lease == nil {
				lease, err = spec.Sandboxes.Lease(t.Context(), sandboxes.World{Seed: task.World.Seed, Setup: raw})
				require.NoError(t, err)
				leases[string(raw)+fmt.Sprint(task.World.Seed)] = lease
			}
			rows := func(sql string) (all [][]any) {
				raw, err := json.Marshal(map[string]string{"sql": sql})
				require.NoError(t, err)
				r, err := lease.Session().Call(t.Context(), "query_database", raw)
				require.NoError(t, err)
				require.False(t, r.IsError, "%s: %s: %s", task.ID, sql, r.Text)
				var body struct{ Rows [][]any }
				require.NoError(t, json.Unmarshal([]byte(r.Text), &body))
				return body.Rows
			}
			for _, a := range task.Solution {
				for _, call := range a.Calls {
					var args struct{ SQL string }
					require.NoError(t, json.Unmarshal(call.Arguments, &args))
					if !reading.MatchString(args.SQL) {
						continue
					}
					m := listing.FindStringSubmatch(args.SQL)
					if m == nil {
						require.NotContains(t, args.SQL, "LIMIT")
						require.LessOrEqual(t, len(rows(args.SQL)), 1, "%s: %s", task.Prompt, args.SQL)
						continue
					}
					limits++
					gold := rows(args.SQL)
					require.Len(t, gold, 1)
					require.Len(t, gold[0], 2)
					for _, order := range []string{", 1, 2", ", 1 DESC, 2 DESC"} {
						require.Equal(t, gold, rows(m[1]+m[2]+order+m[3]), "%s: %s", task.Prompt, args.SQL)
					}
					if m[4] == "" {
						continue
					}
					offset, err := strconv.Atoi(m[4])
					require.NoError(t, err)
					values := map[any]bool{}
					for _, row := range rows(fmt.Sprint(m[1], m[2], " LIMIT ", offset+1)) {
						values[row[1]] = true
					}
					require.Len(t, values, offset+1, "%s: %s", task.Prompt, args.SQL)
				}
			}
		}
	}
	for _, lease := range leases {
		require.NoError(t, lease.Close())
	}
	require.Greater(t, limits, 5*turns)
}

// Where rows lie in the files of the database is no part of a world: gold records are the same, byte for byte, in databases
// whose tables were filled in another order.
func TestAnotherHeap(t *testing.T) {
	spec := local(t)
	other := spec
	box, err := postgres.New(t.Context(), postgrestest.Local(t), sandboxes.Identity{"postgres": "1"}, func(w sandboxes.World) (string, bool, error) {
		var s setup
		if err := json.Unmarshal(w.Setup, &s); err != nil {
			return "", false, err
		}
		drawn, err := newWorld(w.Seed, s)
		if err != nil {
			return "", false, err
		}
		ordered := drawn.sql()
		r := rand.New(rand.NewPCG(w.Seed, 1))
		for _, tab := range drawn.made {
			r.Shuffle(len(tab.rows), func(i, j int) { tab.rows[i], tab.rows[j] = tab.rows[j], tab.rows[i] })
		}
		assert.NotEqual(t, ordered, drawn.sql())
		return drawn.sql(), !s.Write, nil
	}, 1)
	require.NoError(t, err)
	defer box.Close()
	other.Sandboxes = box
	a, err := envs.New(spec)
	require.NoError(t, err)
	defer a.Close()
	b, err := envs.New(other)
	require.NoError(t, err)
	defer b.Close()
	turns := 2
	if testing.Short() {
		turns = 1
	}
	for _, s := range sources[1:] {
		for i := range turns * len(s.families) {
			task := s.Task(i)
			want, err := policies.Rollout(t.Context(), a, task, policies.Oracle{}, 1)
			require.NoError(t, err)
			got, err := policies.Rollout(t.Context(), b, task, policies.Oracle{}, 1)
			require.NoError(t, err)
			got.Identity = want.Identity
			require.Equal(t, 1.0, got.Score.Value, reasons(got))
			require.Equal(t, encoded(t, want), encoded(t, got), task.ID)
		}
	}
}

func encoded(t *testing.T, v any) string {
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return string(raw)
}

func BenchmarkTask(b *testing.B) {
	i := 0
	for b.Loop() {
		sources[0].Task(i)
		i++
	}
}
