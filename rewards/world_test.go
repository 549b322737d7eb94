package rewards_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
)

func TestCasesRows(t *testing.T) {
	casetest.Run(t, "sql-rows", func(t *testing.T, c casetest.Case) {
		var in struct {
			Columns, Types []string
			Gold, Got      [][]any
			Ordered        bool
			Places         *int
			GotColumns     []string `json:"got_columns"`
		}
		c.In(t, &in)
		rows := rewards.Rows{Columns: in.Columns, Types: in.Types, Gold: in.Gold, Ordered: in.Ordered, Places: in.Places}
		match, err := rows.Match(in.Got, in.GotColumns...)
		require.NoError(t, err)
		got := map[string]any{"match": match, "credit": match}
		if err := rows.Validate(); err != nil {
			got["credit"], got["reason"] = false, err.Error()
		}
		c.Check(t, got)
	})
}

func TestRows(t *testing.T) {
	two := 2
	n := func(s string) json.Number { return json.Number(s) }
	for _, c := range []struct {
		name    string
		gold    rewards.Rows
		got     [][]any
		columns []string
		want    bool
	}{
		{"columns in another order", rewards.Rows{Columns: []string{"a", "b"}, Gold: [][]any{{n("1"), "x"}}}, [][]any{{"x", n("1")}}, []string{"b", "a"}, true},
		{"columns of other names go by place", rewards.Rows{Columns: []string{"a", "b"}, Gold: [][]any{{n("1"), "x"}}}, [][]any{{n("1"), "x"}}, []string{"count", "label"}, true},
		{"a column too many", rewards.Rows{Columns: []string{"a"}, Gold: [][]any{{n("1")}}}, [][]any{{n("1"), n("1")}}, []string{"a", "b"}, false},
		{"a cell too many", rewards.Rows{Gold: [][]any{{n("1")}}}, [][]any{{n("1"), n("1")}}, nil, false},
		{"a row too many", rewards.Rows{Gold: [][]any{{n("1")}}}, [][]any{{n("1")}, {n("1")}}, nil, false},
		{"rounded", rewards.Rows{Gold: [][]any{{n("2.345")}}, Places: &two}, [][]any{{n("2.3451")}}, nil, true},
		{"rounded apart", rewards.Rows{Gold: [][]any{{n("2.345")}}, Places: &two}, [][]any{{n("2.336")}}, nil, false},
		{"large integers are exact", rewards.Rows{Gold: [][]any{{n("9007199254740993")}}}, [][]any{{n("9007199254740992")}}, nil, false},
		{"integers are exact", rewards.Rows{Gold: [][]any{{n("10000000000")}}}, [][]any{{n("10000000001")}}, nil, false},
		{"1 and 1.0", rewards.Rows{Gold: [][]any{{n("1")}}}, [][]any{{n("1.0")}}, nil, true},
		{"text is no number", rewards.Rows{Gold: [][]any{{n("1")}}}, [][]any{{"1"}}, nil, false},
		{"numerics are exact", rewards.Rows{Gold: [][]any{{"0.1"}}, Types: []string{"numeric"}}, [][]any{{"0.1000000000001"}}, nil, false},
		{"text keeps its zeros", rewards.Rows{Gold: [][]any{{"0.10"}}}, [][]any{{"0.1"}}, nil, false},
		{"NaN is a text", rewards.Rows{Gold: [][]any{{"NaN"}}, Types: []string{"numeric"}}, [][]any{{"NaN"}}, nil, true},
		{"an endless exponent", rewards.Rows{Gold: [][]any{{n("1")}}}, [][]any{{n("1e999999999")}}, nil, false},
		{"no instant", rewards.Rows{Gold: [][]any{{"2026-01-15T22:30:00Z"}}, Types: []string{"timestamptz"}}, [][]any{{"soon"}}, nil, false},
		{"lists", rewards.Rows{Gold: [][]any{{[]any{n("1"), nil}}}}, [][]any{{[]any{n("1"), nil}}}, nil, true},
		{"in order", rewards.Rows{Gold: [][]any{{"a"}, {"b"}}, Ordered: true}, [][]any{{"a"}, {"b"}}, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.gold.Match(c.got, c.columns...)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	_, err := rewards.Rows{Gold: [][]any{{"soon"}}, Types: []string{"timestamptz"}}.Match([][]any{{"2026-01-15T22:30:00Z"}})
	require.ErrorContains(t, err, "gold unreadable")
	require.ErrorIs(t, rewards.Rows{}.Validate(), rewards.ErrEmptyGold)
}

// one scores a record by one component: -1 stands for not scored.
// scoreOf gives what a component says of a record.
func scoreOf(c rewards.Component, tr *envs.Trajectory) (score *float64, reason string, err error) {
	p, err := c.Score(tr)
	return p.Score, p.Reason, err
}

func one(t *testing.T, c rewards.Component, tr *envs.Trajectory) (float64, string) {
	score, reason, err := scoreOf(c, tr)
	require.NoError(t, err)
	if score == nil {
		return -1, reason
	}
	return *score, reason
}

func TestAssertions(t *testing.T) {
	answer := func(v string) sandboxes.Answer { return sandboxes.Answer{Value: json.RawMessage(v)} }
	for _, c := range []struct {
		name  string
		want  string
		got   sandboxes.Answer
		end   envs.End
		score float64
	}{
		{"equal", `17`, answer(`17`), envs.EndAnswer, 1},
		{"equal but for the form", `{"a":1,"b":[2.0]}`, answer(`{"b":[2],"a":1}`), envs.EndAnswer, 1},
		{"other", `17`, answer(`18`), envs.EndAnswer, 0},
		{"null", `null`, answer(`null`), envs.EndTurns, 1},
		{"no rows", `[]`, answer(`[]`), envs.EndAnswer, 1},
		{"rows where none are wanted", `[]`, answer(`[[1]]`), envs.EndAnswer, 0},
		{"rows in another order", `[[1,"a"],[2,"b"]]`, answer(`[[2,"b"],[1,"a"]]`), envs.EndAnswer, 1},
		{"a row too many", `[[1,"a"],[2,"b"]]`, answer(`[[1,"a"],[2,"b"],[3,"c"]]`), envs.EndAnswer, 0},
		{"a row too few", `[[1,"a"],[2,"b"]]`, answer(`[[1,"a"]]`), envs.EndAnswer, 0},
		{"a list that is no row", `["a","b"]`, answer(`["a","b"]`), envs.EndAnswer, 1},
		{"a list that is no row, in another order", `["a","b"]`, answer(`["b","a"]`), envs.EndAnswer, 0},
		{"a file", `"one\ntwo\n"`, answer(`"one\u000atwo\n"`), envs.EndAnswer, 1},
		{"a file with other line ends", `"one\ntwo\n"`, answer(`"one\r\ntwo\r\n"`), envs.EndAnswer, 0},
		{"a file without its last line end", `"one\ntwo\n"`, answer(`"one\ntwo"`), envs.EndAnswer, 0},
		{"a file with one line end more", `"one\ntwo\n"`, answer(`"one\ntwo\n\n"`), envs.EndAnswer, 0},
		{"a file in another case", `"one"`, answer(`"One"`), envs.EndAnswer, 0},
		{"a file of decomposed letters", `"M\u00e1laga"`, answer(`"Ma\u0301laga"`), envs.EndAnswer, 0},
		{"an empty file", `""`, answer(`""`), envs.EndAnswer, 1},
		{"an empty file is not nothing", `""`, answer(`null`), envs.EndAnswer, 0},
		{"an exit code", `0`, answer(`0`), envs.EndAnswer, 1},
		{"an exit code written otherwise", `0`, answer(`-0.0`), envs.EndAnswer, 1},
		{"another exit code", `0`, answer(`1`), envs.EndAnswer, 0},
		{"an exit code as text", `0`, answer(`"0"`), envs.EndAnswer, 0},
		{"no exit code", `0`, answer(`null`), envs.EndAnswer, 0},
		{"an exit code is no word", `0`, answer(`false`), envs.EndAnswer, 0},
		{"large numbers", `9007199254740993`, answer(`9007199254740992`), envs.EndAnswer, 0},
		{"a row twice", `[[1,"a"],[2,"b"]]`, answer(`[[1,"a"],[1,"a"]]`), envs.EndAnswer, 0},
		{"the table is gone", `17`, sandboxes.Answer{Err: `relation "orders" does not exist`}, envs.EndAnswer, 0},
		{"the sandbox is gone", `17`, answer(`17`), envs.EndKilled, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := &envs.Trajectory{End: c.end, Probes: []sandboxes.Answer{c.got}, Task: envs.Task{Assertions: []envs.Assertion{{Want: json.RawMessage(c.want)}}}}
			score, reason := one(t, rewards.Assertions(0.5), tr)
			require.Equal(t, c.score, score, reason)
			require.NotEmpty(t, reason)
		})
	}
	for got, want := range map[string]float64{`[[1,"a"],[2,"b"],[2,"b"]]`: 1, `[[1.0,"a"],[2,"b"],[2,"b"]]`: 1, `[[2,"b"],[1,"a"],[2,"b"]]`: 0, `[[2,"b"],[2,"b"],[1,"a"]]`: 0, `[[1,"a"],[2,"b"]]`: 0, `[]`: 0} {
		ordered := envs.Assertion{Want: json.RawMessage(`[[1,"a"],[2,"b"],[2,"b"]]`), Ordered: true}
		score, reason := one(t, rewards.Assertions(1), &envs.Trajectory{End: envs.EndAnswer, Probes: []sandboxes.Answer{answer(got)}, Task: envs.Task{Assertions: []envs.Assertion{ordered}}})
		require.Equal(t, want, score, "%s: %s", got, reason)
	}
	// Each question counts, and has its own answer; a report is not asserted.
	mixed := &envs.Trajectory{End: envs.EndAnswer, Task: envs.Task{Assertions: []envs.Assertion{{Report: true}, {Want: json.RawMessage(`1`)}, {Want: json.RawMessage(`2`)}}}}
	for _, c := range []struct {
		second, third string
		want          float64
	}{{`1`, `2`, 1}, {`2`, `2`, 0}, {`1`, `1`, 0}, {`2`, `1`, 0}} {
		mixed.Probes = []sandboxes.Answer{{Err: "no report"}, answer(c.second), answer(c.third)}
		score, reason := one(t, rewards.Assertions(1), mixed)
		require.Equal(t, c.want, score, reason)
	}
	score, _ := one(t, rewards.Assertions(1), &envs.Trajectory{})
	require.Equal(t, 1.0, score, "nothing is asserted")
	score, _ = one(t, rewards.Assertions(1), &envs.Trajectory{Task: envs.Task{Assertions: mixed.Task.Assertions[:1]}})
	require.Equal(t, 1.0, score, "nothing is asserted beside a report")
	unanswered := &envs.Trajectory{End: envs.EndAnswer, Task: envs.Task{Assertions: []envs.Assertion{{Want: json.RawMessage(`1`)}}}}
	score, _ = one(t, rewards.Assertions(1), unanswered)
	require.Equal(t, -1.0, score)
	unanswered.Probes = []sandboxes.Answer{answer(`1`)}
	unanswered.Task.Assertions[0].Want = nil
	_, _, err := scoreOf(rewards.Assertions(1), unanswered)
	require.ErrorContains(t, err, "assertion 0: read the wanted answer")
	require.False(t, errors.Is(err, envs.ErrUnscored))
}

func TestCollateral(t *testing.T) {
	allow := []string{`[-+] row public\.orders \{"id":17[,}].*`, `\+ index .*`}
	for _, c := range []struct {
		name  string
		state *sandboxes.State
		end   envs.End
		score float64
	}{
		{"nothing changed", &sandboxes.State{}, envs.EndAnswer, 1},
		{"what may change", &sandboxes.State{Diff: []string{`- row public.orders {"id":17,"n":"a` + "\n" + `b"}`, "+ index CREATE INDEX i ON orders (n)"}}, envs.EndAnswer, 1},
		{"another row", &sandboxes.State{Diff: []string{`- row public.orders {"id":170,"n":1}`}}, envs.EndAnswer, 0},
		{"an index gone", &sandboxes.State{Diff: []string{"- index CREATE INDEX i ON orders (n)"}}, envs.EndAnswer, 0},
		{"a pattern must match the whole line", &sandboxes.State{Diff: []string{`x + index y`}}, envs.EndAnswer, 0},
		{"more than is listed", &sandboxes.State{Diff: []string{"+ index a"}, More: 1}, envs.EndAnswer, 0},
		{"the sandbox is gone", nil, envs.EndKilled, 0},
		{"no state", nil, envs.EndAnswer, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			score, reason := one(t, rewards.Collateral(0.5), &envs.Trajectory{End: c.end, State: c.state, Task: envs.Task{Allow: allow}})
			require.Equal(t, c.score, score, reason)
		})
	}
	_, _, err := scoreOf(rewards.Collateral(1), &envs.Trajectory{State: &sandboxes.State{Diff: []string{"x"}}, Task: envs.Task{Allow: []string{"("}}})
	require.ErrorContains(t, err, "allowed difference 0")
}

// Evidence from queries: the value must come out of the right tables, and not have been put in.
func TestCellEvidence(t *testing.T) {
	number := rewards.Value{Kind: "number", Value: "17.50"}
	for _, c := range []struct {
		name   string
		fact   rewards.Fact
		sql    string
		result string
		score  float64
	}{
		{"a cell", rewards.Fact{Cell: &number, From: []string{"orders"}}, "SELECT sum(amount) FROM orders", `{"columns":["sum"],"rows":[["17.50"]],"row_count":1}`, 1},
		{"a number", rewards.Fact{Cell: &number, From: []string{"orders"}}, "SELECT sum(amount) FROM Orders", `{"columns":["sum"],"rows":[["a",17.5]],"row_count":1}`, 1},
		{"a quoted name", rewards.Fact{Cell: &number, From: []string{"orders"}}, `SELECT sum(amount) FROM public."orders"`, `{"rows":[[17.5]]}`, 1},
		{"another value", rewards.Fact{Cell: &number, From: []string{"orders"}}, "SELECT sum(amount) FROM orders", `{"rows":[[17.51]]}`, 0},
		{"no table", rewards.Fact{Cell: &number, From: []string{"orders"}}, "SELECT 35 / 2.0", `{"rows":[[17.5]]}`, 0},
		{"another table", rewards.Fact{Cell: &number, From: []string{"orders"}}, "SELECT sum(amount) FROM orders_old", `{"rows":[[17.5]]}`, 0},
		{"the table in a comment", rewards.Fact{Cell: &number, From: []string{"orders"}}, "SELECT 35 / 2.0 -- orders\n/* orders /* */ orders */", `{"rows":[[17.5]]}`, 0},
		{"the table in a text", rewards.Fact{Cell: &number, From: []string{"orders"}}, "SELECT 35 / 2.0, 'orders', $$orders$$, E'\\'orders'", `{"rows":[[17.5]]}`, 0},
		{"spelt as a number", rewards.Fact{Cell: &number, From: []string{"orders"}}, "SELECT 17.5 FROM orders", `{"rows":[[17.5]]}`, 0},
		{"spelt as a text", rewards.Fact{Cell: &number, From: []string{"orders"}}, "SELECT '17.50' FROM orders", `{"rows":[["17.50"]]}`, 0},
		{"spelt between dollars", rewards.Fact{Cell: &number, From: []string{"orders"}}, "SELECT $x$17.50$x$ FROM orders", `{"rows":[["17.50"]]}`, 0},
		{"spelt with a backslash", rewards.Fact{Cell: &number, From: []string{"orders"}}, `SELECT E'17.5\0' FROM orders`, `{"rows":[["17.50"]]}`, 0},
		{"one of two tables", rewards.Fact{Cell: &number, From: []string{"orders", "customers"}}, "SELECT sum(amount) FROM orders", `{"rows":[[17.5]]}`, 0},
		{"the number of rows", rewards.Fact{Cell: &rewards.Value{Kind: "number", Value: "2"}, From: []string{"orders"}}, "SELECT * FROM orders", `{"rows":[["a"],["b"]],"row_count":2}`, 1},
		{"the number of rows, by a limit", rewards.Fact{Cell: &rewards.Value{Kind: "number", Value: "2"}, From: []string{"orders"}}, "SELECT * FROM orders LIMIT 2", `{"rows":[["a"],["b"]],"row_count":2}`, 0},
		{"a name", rewards.Fact{Cell: &rewards.Value{Kind: "text", Value: "Anna O'Hara"}, From: []string{"customers"}}, "SELECT name FROM customers", `{"rows":[["Anna O'Hara"]]}`, 1},
		{"a name that was given", rewards.Fact{Cell: &rewards.Value{Kind: "text", Value: "Anna O'Hara"}, From: []string{"customers"}}, "SELECT name FROM customers WHERE name = 'anna o''hara' OR true", `{"rows":[["Anna O'Hara"]]}`, 0},
		{"no rows", rewards.Fact{Cell: &rewards.Value{Kind: "none"}, From: []string{"customers"}}, "SELECT name FROM customers WHERE id = 17.5", `{"rows":[],"row_count":0}`, 1},
		{"rows", rewards.Fact{Cell: &rewards.Value{Kind: "none"}, From: []string{"customers"}}, "SELECT name FROM customers", `{"rows":[["x"]],"row_count":1}`, 0},
		{"no table of rows", rewards.Fact{Cell: &number, From: []string{"orders"}}, "UPDATE orders SET a = 1", `{"command":"UPDATE","rows_affected":17.5}`, 0},
		{"a null", rewards.Fact{Cell: &number, From: []string{"orders"}}, "SELECT a FROM orders", `{"rows":[[null,true]]}`, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			value, answer := *c.fact.Cell, c.fact.Cell.Value
			if value.Kind == "none" {
				value, answer = rewards.Value{Kind: "text", Value: "no data"}, "no data"
			}
			want, err := json.Marshal(rewards.Want{Answer: []rewards.Value{value}, Evidence: [][]rewards.Fact{{c.fact}}})
			require.NoError(t, err)
			args, err := json.Marshal(map[string]string{"sql": c.sql})
			require.NoError(t, err)
			tr := &envs.Trajectory{End: envs.EndAnswer, Task: envs.Task{Want: want}, Steps: []envs.Step{
				{Action: envs.Action{Calls: []envs.Call{{Name: "query_database", Arguments: args}}}, Observation: envs.Observation{Results: []envs.CallResult{{Name: "query_database", Status: envs.StatusOK, Text: c.result}}}},
				{Action: envs.Action{Text: "ANSWER: " + answer}},
			}}
			score, reason := one(t, rewards.Answer(1), tr)
			require.Equal(t, c.score, score, reason)
		})
	}
}

// A task without a wanted answer is done when the agent says so.
func TestAnswerOfState(t *testing.T) {
	task := envs.Task{Assertions: []envs.Assertion{{}}}
	done := []envs.Step{{Action: envs.Action{Text: "done"}}}
	for end, want := range map[envs.End]float64{envs.EndAnswer: 1, envs.EndTurns: 0, envs.EndKilled: 0} {
		score, _ := one(t, rewards.Answer(1), &envs.Trajectory{End: end, Task: task, Steps: done})
		require.Equal(t, want, score, end)
	}
}
