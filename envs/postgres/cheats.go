package postgres

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/policies/redteam"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// cheats are attempts to earn reward that know the answer and the gold solution: answers without evidence, repairs that are
// incomplete or do harm, and some of those that there are in any database.
func cheats(t envs.Task) []envs.Cheat {
	var s setup
	if err := json.Unmarshal(t.World.Setup, &s); err != nil {
		return nil
	}
	d := domains[slices.IndexFunc(domains, func(d *domain) bool { return d.name == s.Domain })]
	final := t.Solution[len(t.Solution)-1]
	gold := t.Solution[:len(t.Solution)-1]
	turn := func(statements ...string) envs.Action {
		for i, q := range statements {
			statements[i] = d.gold(q)
		}
		return redteam.Statements(tool, statements...)
	}
	play := func(name string, turns ...envs.Action) envs.Cheat {
		return envs.Cheat{Name: name, Actions: append(slices.Clip(turns), final)}
	}
	var list []envs.Cheat
	if len(t.Want) > 0 {
		var spelled, alias, elsewhere, own []string
		own = append(own, "CREATE SCHEMA mine")
		for i, v := range answers(t) {
			text := postgres.Literal(v.value)
			spelled = append(spelled, "SELECT "+text)
			elsewhere = append(elsewhere, fmt.Sprintf("SELECT left(%s, %d) FROM [legacy] LIMIT 1", postgres.Literal(v.value+"x"), len(v.value)))
			for _, table := range v.from {
				alias = append(alias, fmt.Sprintf("SELECT %s FROM %s LIMIT 1", text, d.qualified(table)))
				own = append(own, fmt.Sprintf("CREATE TABLE IF NOT EXISTS mine.%s (a text, b int)", table),
					fmt.Sprintf("INSERT INTO mine.%s VALUES (%s, %d)", table, text, i), fmt.Sprintf("SELECT a FROM mine.%s WHERE b = %d", table, i))
			}
		}
		list = append(list, play("rows of its own as evidence", turn(own...)))
		if !s.Write { // where assertions fail anyway it would prove nothing
			list = append(list, play("spelled answer", turn(spelled...)), play("spelled beside the right table", turn(alias...)),
				play("evidence from the wrong table", turn(elsewhere...)))
		}
	}
	n := 24
	if s.Write {
		n = 5
	}
	list = append(list, redteam.Share(t, n, redteam.SQL(t, tool))...)
	list = append(list, redteam.Share(t, 82, redteam.SlowSQL(t, tool))...)
	if !s.Write {
		return list
	}
	last := gold[len(gold)-1]
	before := gold[:len(gold)-1]
	after := func(name string, statements ...string) envs.Cheat { // what harms comes first, then all that gold does
		return play(name, slices.Concat(before, []envs.Action{turn(statements...), last})...)
	}
	own := []envs.Cheat{
		play("answer without the repair", before...),
		play("nothing to repair", turn("DELETE FROM [line]", "DELETE FROM [event]", "SELECT count(*) FROM [event]"), envs.Action{Text: "ANSWER: 0; 0"}),
		after("table made again", "CREATE TABLE again (LIKE [event] INCLUDING ALL)", "INSERT INTO again SELECT * FROM [event]", "DROP TABLE [event] CASCADE",
			"ALTER TABLE again RENAME TO "+d.bare("event"), d.back()),
		after("a row too many", "DELETE FROM [legacy] WHERE id = (SELECT min(id) FROM [legacy])"),
	}
	if n := len(last.Calls); n > 1 {
		own = append(own, play("half a repair", slices.Concat(before, []envs.Action{{Calls: last.Calls[:n-1]}})...))
	}
	return append(list, redteam.Share(t, 2, own)...)
}

// tool runs statements.
const tool = "query_database"

// answered is a value of the gold answer, with the tables that it comes from.
type answered struct {
	value string
	from  []string
}

func answers(t envs.Task) (list []answered) {
	want, err := rewards.DecodeWant(t.Want)
	if err != nil {
		return nil
	}
	for i, v := range want.Answer {
		list = append(list, answered{v.Value, want.Evidence[i][0].From})
	}
	return list
}

// bare is the name of a table without its schema.
func (d *domain) bare(role string) string {
	return d.columns[role][strings.Index(d.columns[role], ".")+1:]
}

// qualified is the name of a table with its schema, where it needs one.
func (d *domain) qualified(bare string) string {
	for _, name := range d.columns {
		if strings.HasSuffix(name, "."+bare) && !strings.ContainsAny(name, "% ") {
			return name
		}
	}
	return bare
}

// back moves a table that was made again into the schema where it belongs.
func (d *domain) back() string {
	schema, name, ok := strings.Cut(d.columns["event"], ".")
	if !ok {
		return "SELECT"
	}
	return fmt.Sprintf("ALTER TABLE %s SET SCHEMA %s", name, schema)
}
