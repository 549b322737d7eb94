package rewards_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/weather"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
	"github.com/mcpgym/mcpgym/sandboxes/postgres/postgrestest"
)

func TestCasesClaim(t *testing.T) {
	casetest.Run(t, "claim", func(t *testing.T, c casetest.Case) {
		var in struct {
			Observations []string
			Answer       string
		}
		c.In(t, &in)
		var seen []envs.CallResult
		for _, o := range in.Observations {
			seen = append(seen, ok("get", o))
		}
		c.Check(t, map[string]any{"supported": len(rewards.UnsupportedClaims(record("", in.Answer, seen...))) == 0})
	})
	t.Run("C161", func(t *testing.T) {
		for _, text := range []string{"I checked: 21.4 C", "I checked.\nANSWER: 21.4 C"} {
			claims := rewards.UnsupportedClaims(record("", text))
			require.Equal(t, []rewards.Claim{{"I checked", "no call was made"}, {"21.4 C", "no result shows it, and it does not follow from any"}}, claims)
		}
	})
}

const (
	dayList = `{"station_id":"KQT-4821","temperature_unit":"C","precipitation_unit":"mm","wind_unit":"km/h","days":[
		{"date":"2031-05-06","high":21.4,"low":12.2,"precipitation":0.0,"wind_max":31},
		{"date":"2031-05-07","high":19.96,"low":9.8,"precipitation":4.7,"wind_max":64},
		{"date":"2031-05-08","high":23.1,"low":10.5,"precipitation":11.2,"wind_max":18}]}`
	here     = `{"station_id":"KQT-4821","city":"Brorkaby","region":"Upper Morkora","temperature":21.4,"temperature_unit":"C","humidity_pct":40,"pressure_hpa":1004,"wind_speed":31,"wind_unit":"km/h"}`
	there    = `{"station_id":"ABC-1234","city":"S\u00e3o \"Vex\"","temperature":63.5,"temperature_unit":"F","humidity_pct":77,"pressure_hpa":987,"wind_speed":5,"wind_unit":"mph"}`
	alert    = `{"alerts":[{"alert_id":"A-0501","kind":"storm","starts":"2031-05-06T21:00","ends":"2031-05-09T12:00"},{"alert_id":"A-0502","kind":"frost","starts":"2031-05-07T01:00","ends":"2031-05-07T11:00"}]}`
	orders   = `{"columns":["id","name","amount","status"],"rows":[[7,"Ada","1204.50","open"],[8,"Bela","95.25","paid"],[11,"Cleo","300","open"]],"row_count":3}`
	now      = `{"date":"2031-05-06","weekday":"Tuesday","time":"16:00"}`
	cents    = `{"name":"orders","columns":[{"name":"total","comment":"in cents: 100 are 1 euro"}]}`
	instant  = `{"columns":["started"],"rows":[["2031-05-06T21:00:00Z"]]}`
	deleted  = `{"command":"DELETE","rows_affected":5}`
	deleted2 = `{"command":"DELETE","rows_affected":9}`
	linted   = `{"path":"schema.sql","exit_code":1,"findings":[{"rule":"missing-key","table":"orders","line":5,"message":"orders has no primary key"},{"rule":"orphaned-rows","table":"orders","line":8,"message":"12 rows of orders have a customer_id that customers lacks"}]}`
	large    = `{"id":9007199254740993,"share":0.425,"list":[3,4,9]}`
)

func TestUnsupportedClaims(t *testing.T) {
	for _, c := range []struct {
		name, prompt, answer string
		unit                 string // that the task asks for, as the unit of a single value
		results              []string
		want                 bool // supported
	}{
		{"seen", "", "21.4", "", []string{here}, true},
		{"not seen", "", "21.5", "", []string{here}, false},
		{"nothing seen", "", "21.4", "", nil, false},
		{"in the prompt", "Is it 21.4 there?", "21.4", "", nil, true},
		{"inside another number", "", "04", "", []string{here}, false},
		{"inside an identifier", "", "4821", "", []string{here}, false},
		{"final zeros", "", "21.400", "", []string{here}, true},
		{"thousands", "", "1,204.50", "", []string{orders}, true},
		{"currency", "", "$1,204.50", "", []string{orders}, true},
		{"number word", "", "five", "", []string{there}, true},
		{"wrong number word", "", "four", "", []string{there}, false},
		{"hyphen in the prompt", "Which of the 17-day spans?", "17", "", nil, true},
		{"more digits than a double", "", "9007199254740993", "", []string{large}, true},
		{"the same double", "", "9007199254740992", "", []string{large}, false},
		{"negative", "", "-21.4", "", []string{here}, false},
		{"a year", "", "2031", "", []string{dayList}, true},
		{"another year", "", "2032", "", []string{dayList}, false},

		{"rounded", "", "21", "", []string{here}, true},
		{"rounded up", "", "20.0", "", []string{dayList}, true},
		{"rounded wrong", "", "22", "", []string{here}, false},
		{"cut, not rounded", "", "19.9", "", []string{dayList}, false},

		{"unit", "", "21.4 C", "", []string{here}, true},
		{"unit spelt out", "", "21.4 degrees Celsius", "", []string{here}, true},
		{"unit of the fields around", "", "19.96 \u00b0C", "", []string{dayList}, true},
		{"unit in the name", "", "40 percent", "", []string{here}, true},
		{"wrong unit", "", "21.4 F", "", []string{here}, false},
		{"wrong dimension", "", "40 C", "", []string{here}, false},
		{"unit of another field", "", "31 mm", "", []string{dayList}, false},
		{"no unit known", "", "7 C", "", []string{`{"city":"Oslo","t":7}`}, true},
		{"asked for", "", "31", "km/h", []string{here}, true},
		{"asked for, another dimension", "", "40", "km/h", []string{here}, false},
		{"converted", "", "70.5 F", "", []string{here}, true},
		{"converted as asked", "", "70.5", "F", []string{here}, true},
		{"converted as the prompt says", "in degrees Fahrenheit?", "70.5", "", []string{here}, true},
		{"converted, unit not named", "", "70.5", "", []string{here}, false},
		{"converted wrong", "", "70.6 F", "", []string{here}, false},
		{"speeds", "", "19.3 mph", "", []string{here}, true},
		{"metres per second", "", "8.6 m/s", "", []string{here}, true},
		{"inches", "", "0.44 in", "", []string{dayList}, true},
		{"a share", "", "42.5 %", "", []string{large}, true},

		{"date", "", "2031-05-07", "", []string{dayList}, true},
		{"date in words", "", "May 7, 2031", "", []string{dayList}, true},
		{"date with a weekday", "", "Wednesday, 7 May 2031", "", []string{dayList}, true},
		{"date without a year", "", "7th of May", "", []string{dayList}, true},
		{"another layout", "", "07.05.2031", "", []string{dayList}, true},
		{"date not seen", "", "2031-06-07", "", []string{dayList}, false},
		{"day not seen", "", "9 June", "", []string{dayList}, false},
		{"date of a moment", "", "2031-05-09", "", []string{alert}, true},
		{"moment", "", "2031-05-06 21:00", "", []string{alert}, true},
		{"moment not seen", "", "2031-05-06 22:00", "", []string{alert}, false},
		{"weekday", "", "Thursday", "", []string{dayList}, true},
		{"weekday not seen", "", "Monday", "", []string{dayList}, false},
		{"days ahead", "Which date is it in 10 days?", "2031-05-16", "", []string{now}, true},
		{"other days ahead", "Which date is it in 10 days?", "2031-05-17", "", []string{now}, false},
		{"tomorrow", "What is the date tomorrow?", "2031-05-07", "", []string{now}, true},
		{"the coming Friday", "What is the date on the coming Friday?", "2031-05-09", "", []string{now}, true},
		{"days that a result gives", "", "2031-06-05", "", []string{now, `{"due_days":30}`}, true},
		{"time", "", "4 pm", "", []string{now}, true},
		{"time not seen", "", "17:00", "", []string{now}, false},
		{"full hour", "", "05:00", "", []string{`{"hours":[{"hour":5}]}`}, true},

		{"duration", "", "63", "h", []string{alert}, true},
		{"duration in words", "", "63 hours", "", []string{alert}, true},
		{"duration in days", "", "2.6 days", "", []string{alert}, true},
		{"duration of none", "", "62 hours", "", []string{alert}, false},
		{"days between the prompt's dates", "How many days lie between 2031-05-01 and 2031-06-01?", "31 days", "", nil, true},
		{"days between days of a list", "", "1", "d", []string{dayList}, false},

		{"sum", "", "15.9", "mm", []string{dayList}, true},
		{"sum of a table", "", "1599.75", "", []string{orders}, true},
		{"sum of a list", "", "16", "", []string{large}, true},
		{"no sum", "", "16.9", "mm", []string{dayList}, false},
		{"mean", "", "5.3", "", []string{dayList}, true},
		{"mean of a table", "", "533.25", "", []string{orders}, true},
		{"no mean", "", "5.4", "mm", []string{dayList}, false},
		{"count", "", "3", "", []string{dayList}, true},
		{"count, with a unit", "", "3 km/h", "", []string{dayList}, false},
		{"not the count", "", "6", "", []string{dayList}, false},
		{"so many under a number", "How many days have a strongest wind below 40 km/h?", "2", "", []string{dayList}, true},
		{"so many equal to a text", "How many are open?", "2", "", []string{orders}, true},
		{"so many equal to what nobody asked", "How many are there?", "2", "", []string{orders}, false},
		{"the extreme", "", "11.2", "mm", []string{dayList}, true},

		{"difference within a row", "", "9.2", "C", []string{dayList}, true},
		{"difference within a row, of fields that the prompt names", "What is total less paid?", "13", "", []string{`{"columns":["total","paid"],"rows":[[40,27]]}`}, true},
		{"difference within a row, of any fields", "What is left?", "13", "", []string{`{"columns":["total","paid"],"rows":[[40,27]]}`}, false},
		{"difference across rows", "", "1.7", "C", []string{dayList}, false},
		{"difference of two elements", "", "12", "", []string{`{"columns":["n"],"rows":[[7],[19]]}`}, true},
		{"difference of three elements", "", "12", "", []string{`{"columns":["n"],"rows":[[7],[19],[50]]}`}, false},
		{"difference of two objects", "", "37", "%", []string{here, there}, true},
		{"difference in one unit", "", "3.9", "C", []string{here, there}, true},
		{"difference of what is not alike", "", "947", "", []string{`{"a":1004}`, `{"b":57}`}, false},
		{"difference on one date", "", "4.1", "C", []string{dayList, `{"temperature_unit":"C","days":[{"date":"2031-05-07","high":15.86}]}`}, true},
		{"difference on another date", "", "5.5", "C", []string{dayList, `{"temperature_unit":"C","days":[{"date":"2031-05-09","high":15.86}]}`}, false},

		{"euros", "", "1204.5 euros", "euros", []string{orders}, true},
		{"euros by their sign", "", "\u20ac1,204.50", "euros", []string{orders}, true},
		{"euros by their code, behind", "", "1,204.50 EUR", "euros", []string{orders}, true},
		{"euros by their code, in front", "", "EUR 1204.50", "euros", []string{orders}, true},
		{"not the euros", "", "EUR 1204.60", "euros", []string{orders}, false},
		{"dollars", "", "$1,204.50", "euros", []string{orders}, false},
		{"euros as a share", "", "1204.50 %", "euros", []string{orders}, false},
		{"euros in cents", "", "120450 cents", "euros", []string{orders}, true},
		{"euros that are no cents", "", "1204.50 cents", "euros", []string{orders}, false},
		{"cents in euros", "", "1204.50", "euros", []string{cents, `{"columns":["total"],"rows":[[120450]]}`}, true},
		{"cents in cents", "", "120450 cents", "euros", []string{cents, `{"columns":["total"],"rows":[[120450]]}`}, true},
		{"nothing speaks of cents", "", "1204.50", "euros", []string{`{"columns":["total"],"rows":[[120450]]}`}, false},
		{"cents in the name", "", "1204.50", "euros", []string{`{"columns":["total_cents"],"rows":[[120450]]}`}, true},
		{"a column of days beside", "", "300.5", "euros", []string{`{"columns":["gap_days","total"],"rows":[[12,"300.50"]]}`}, true},

		{"month", "", "2031-05", "", []string{dayList}, true},
		{"month in words", "", "May 2031", "", []string{dayList}, true},
		{"another month", "", "2031-06", "", []string{dayList}, false},
		{"month by itself", "", "May 2031", "", []string{`{"columns":["month"],"rows":[["2031-05"]]}`}, true},
		{"month by year and number", "", "2031-05", "", []string{`{"columns":["y","m"],"rows":[[2031,5]]}`}, true},
		{"month of another year", "", "2031-05", "", []string{`{"columns":["y","m"],"rows":[[2031,6],[2030,5]]}`}, false},
		{"year of a month", "", "2031", "", []string{`{"month":"2031-05"}`}, true},
		{"day in a time zone", "Days are those of the time zone Asia/Tokyo.", "2031-05-07", "", []string{instant}, true},
		{"day in no time zone", "Which day?", "2031-05-07", "", []string{instant}, false},
		{"two days off", "Days are those of the time zone Asia/Tokyo.", "2031-05-08", "", []string{instant}, false},

		{"rows affected", "", "9", "", []string{deleted, deleted2}, true},
		{"rows affected by all of a kind", "", "14", "", []string{deleted, `{"command":"UPDATE","rows_affected":3}`, deleted2}, true},
		{"rows affected by two kinds", "", "17", "", []string{deleted, `{"command":"UPDATE","rows_affected":3}`, deleted2}, false},
		{"numbers of rows, added", "", "2", "", []string{`{"columns":["a"],"rows":[[7]],"row_count":1}`, `{"columns":["a"],"rows":[[8]],"row_count":1}`}, false},
		{"counts, added", "", "15", "", []string{`{"columns":["count"],"rows":[[7]]}`, `{"columns":["count"],"rows":[[8]]}`}, true},
		{"temperatures, added", "", "31.4", "C", []string{`{"temperature_c":21.4}`, `{"temperature_c":10}`}, false},
		{"names of columns, counted", "", "3", "", []string{`{"columns":["a","b","c"],"rows":[[7,8,9]]}`}, false},
		{"without those that are NULL", "", "3", "", []string{`{"columns":["a"],"rows":[[7],[null],[8],[9],[null]]}`}, true},
		{"sum over a number", "What is the average amount?", "150.56", "euros", []string{`{"columns":["count","sum"],"rows":[[8,"1204.50"]]}`}, true},
		{"sum over a number that nobody asked for", "", "150.56", "euros", []string{`{"columns":["count","sum"],"rows":[[8,"1204.50"]]}`}, false},
		{"rounded mean", "What is the mean amount?", "533", "", []string{orders}, true},
		{"rounded mean that nobody asked for", "", "533", "", []string{orders}, false},

		{"findings", "", "2", "", []string{linted}, true},
		{"findings, with a decimal", "", "2.0", "", []string{linted}, true},
		{"not the number of findings", "", "4", "", []string{linted}, false},
		{"numbers of lines, added", "", "13", "", []string{linted}, false},
		{"number in a finding", "", "12", "", []string{linted}, true},
		{"exit code", "", "1", "", []string{linted}, true},
		{"rules", "", "missing-key, orphaned-rows", "", []string{linted}, true},
		{"another rule", "", "missing-key, duplicate-keys", "", []string{linted}, false},
		{"rule that begins like abstaining", "", "null-values", "", []string{linted}, false},
		{"truth", "", "true", "", nil, true},
		{"NULL", "", "NULL", "", nil, true},

		{"name in quotes", "", `"Ada"`, "", []string{orders}, true},
		{"name in single quotes", "", "'Ada'", "", []string{orders}, true},
		{"name as code", "", "`open`", "", []string{orders}, true},
		{"other spaces", "", "+49-345-12345", "", []string{`{"phone":"+49 345 12345"}`}, true},
		{"other number", "", "+49-345-12346", "", []string{`{"phone":"+49 345 12345"}`}, false},
		{"words of a name", "", "order items", "", []string{`{"tables":[{"name":"order_items"}]}`}, true},
		{"numbers without spaces", "", "101,205,307", "", []string{`{"columns":["id"],"rows":[[101],[205],[307]]}`}, true},
		{"numbers without spaces, one not seen", "", "101,205,308", "", []string{`{"columns":["id"],"rows":[[101],[205],[307]]}`}, false},

		{"name", "", "Brorkaby", "", []string{here}, true},
		{"name in capitals", "", "BRORKABY", "", []string{here}, true},
		{"name written with escapes", "", "S\u00e3o \"Vex\"", "", []string{there}, true},
		{"half a name", "", "Brorka", "", []string{here}, false},
		{"another name", "", "Morkaby", "", []string{here}, false},
		{"two words of a name", "", "Upper Morkora", "", []string{here}, true},
		{"two words of two names", "", "Upper Brorkaby", "", []string{here}, false},
		{"identifier", "", "KQT-4821", "", []string{here}, true},
		{"another identifier", "", "KQT-4822", "", []string{here}, false},
		{"list", "", "Ada, Bela and Cleo", "", []string{orders}, true},
		{"list with a stranger", "", "Ada, Bela and Dora", "", []string{orders}, false},
		{"with words", "", "Brorkaby (in the region Upper Morkora)", "", []string{here}, true},
		{"lower case", "", "storm", "", []string{alert}, true},
		{"lower case, not seen", "", "flood", "", []string{alert}, false},
		{"number among words", "", "about 21.4 C in Brorkaby", "", []string{here}, true},
		{"wrong number among words", "", "about 22.4 C in Brorkaby", "", []string{here}, false},
		{"wrong name among words", "", "21.4 C in Morkaby", "", []string{here}, false},
		{"abstaining", "", "No data.", "", nil, true},
		{"abstaining at length", "", "no such data for Brorkaby", "", nil, true},
		{"abstaining with a number", "", "no data, but 21.4", "", nil, false},
		{"abstaining about something", "", "No phone number on file", "", nil, true},
		{"denying at length", "", "not stored", "", nil, true},
		{"no, but", "", "no, Brorkaby", "", nil, false},
		{"word before a number", "Of the orders, which one?", "Order 7", "", []string{orders}, true},
		{"name before a number", "Of the orders, which one?", "Dora 7", "", []string{orders}, false},
		{"yes", "", "yes", "", nil, true},
		{"several values", "", "Brorkaby; 21.4; 2031-05-06", "", []string{here, now}, true},
		{"one of several", "", "Brorkaby; 21.4; 2031-05-06", "", []string{here}, false},

		{"number in the name of a column", "", "8", "", []string{`{"columns":["n 5","m"],"rows":[[3,1],[5,2]]}`}, true},
		{"values alone", "What is the largest difference?", "12", "", []string{`5`, `[17,5,6]`}, false},
		{"nothing in lists", "", "0", "", []string{`{"places":[]}`}, true},
		{"lists in lists", "", "9", "", []string{`{"rows":[{"v":[1,2]},{"v":[4,5]}]}`}, true},
		{"lists in lists are not one", "", "12", "", []string{`{"rows":[{"v":[1,2]},{"v":[4,5]}]}`}, false},

		{"plain text", "", "14 km/h", "", []string{"wind 14 km/h at 16:00"}, true},
		{"plain text, another unit", "", "14 mph", "", []string{"wind 14 km/h"}, false},
		{"cut result", "", "19.96", "", []string{dayList[:300] + "\n[cut: the result has 4000 bytes, only its head is shown]"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var seen []envs.CallResult
			for _, text := range c.results {
				seen = append(seen, ok("get", text))
			}
			tr := record(fmt.Sprintf(`{"evidence":[[{"has":{"answer":1}}]],"answer":[{"kind":"number","value":"1","unit":%q}]}`, c.unit), "ANSWER: "+c.answer, seen...)
			tr.Task.Prompt = c.prompt
			claims := rewards.UnsupportedClaims(tr)
			require.Equal(t, c.want, len(claims) == 0, claims)
		})
	}
	cut := record("", "ANSWER: 21.5")
	cut.End = envs.EndTurns
	require.Empty(t, rewards.UnsupportedClaims(cut), "no final answer")
	many := record("", "ANSWER: "+strings.Repeat("1; ", 1000)+"1", ok("get", `[1]`))
	require.Equal(t, []rewards.Claim{{"...", "more than 100 values"}}, rewards.UnsupportedClaims(many))
	require.Equal(t, []rewards.Claim{{"5", "no result shows it, and it does not follow from any"}}, rewards.UnsupportedClaims(record("", "ANSWER: 5; 5")), "each once")
}

func TestMain(m *testing.M) { postgrestest.Main(m) }

// with gives the calls of a record arguments.
func with(tr *envs.Trajectory, args ...string) *envs.Trajectory {
	for i, a := range args {
		tr.Steps[i].Action.Calls[0].Arguments = json.RawMessage(a)
	}
	return tr
}

func TestPagesAreOneResult(t *testing.T) {
	one, two := ok("get", `{"days":[{"rain":1.5},{"rain":2.25}],"next_cursor":"2"}`), ok("get", `{"days":[{"rain":4.5}]}`)
	table1, table2 := ok("get", `{"columns":["n"],"rows":[[5],[6]]}`), ok("get", `{"columns":["n"],"rows":[[8]]}`)
	busy := envs.CallResult{Name: "get", Text: "busy", Status: envs.StatusToolError, IsError: true}
	for _, c := range []struct {
		name, answer string
		tr           *envs.Trajectory
		want         bool
	}{
		{"sum", "8.25", with(record("", "", one, two), `{"id":"A"}`, `{"cursor":"2","id":"A"}`), true},
		{"sum of a page", "3.75", with(record("", "", one, two), `{"id":"A"}`, `{"cursor":"2","id":"A"}`), false},
		{"of two things", "8.25", with(record("", "", one, two), `{"id":"A"}`, `{"cursor":"2","id":"B"}`), false},
		{"a page twice", "8.25", with(record("", "", one, two, one), `{"id":"A"}`, `{"cursor":"2","id":"A"}`, `{"id":"A"}`), true},
		{"refused at first", "8.25", with(record("", "", busy, one, two), `{"id":"A"}`, `{"id":"A"}`, `{"cursor":"2","id":"A"}`), true},
		{"count", "3", with(record("", "", one, two), `{"id":"A"}`, `{"cursor":"2","id":"A"}`), true},
		{"table", "19", with(record("", "", table1, table2), `{"id":"A"}`, `{"cursor":"2","id":"A"}`), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			claims := rewards.UnsupportedClaims(tell(c.tr, "ANSWER: "+c.answer))
			require.Equal(t, c.want, len(claims) == 0, claims)
		})
	}
}

// What a call spells itself is not seen because it comes back.
func TestEchoes(t *testing.T) {
	refused := envs.CallResult{Name: "get", Text: `no station "XYZ-7777" at 21.4; there are KQT-4821 and ABC-1234`, Status: envs.StatusToolError, IsError: true}
	table := ok("query", `{"columns":["x","y"],"rows":[["21.4",35]]}`)
	for _, c := range []struct {
		answer, args string
		result       envs.CallResult
		want         bool
	}{
		{"XYZ-7777", `{"id":"XYZ-7777","t":21.4}`, refused, false},
		{"21.4", `{"id":"XYZ-7777","t":21.4}`, refused, false},
		{"ABC-1234", `{"id":"XYZ-7777","t":21.4}`, refused, true},
		{"21.4", `{"sql":"SELECT 21.4, count(*) FROM t"}`, table, false},
		{"35", `{"sql":"SELECT 21.4, count(*) FROM t"}`, table, true},
		{"21.4", `{"sql":"SELECT x, y FROM t"}`, table, true},
		{"35", `{"sql":"SELECT x, y FROM t -- 35"}`, table, false},
		{"21.4", `{"sql":"SELECT 21.40::numeric(9,1), y FROM t"}`, table, false},
		{"42", `{"sql":"SELECT x AS \"42\" FROM t"}`, ok("query", `{"columns":["42"],"rows":[[7]]}`), false},
		{"Brorkaby", `{"sql":"SELECT 1 brorkaby"}`, ok("query", `{"columns":["brorkaby"],"rows":[[1]]}`), false},
		{"2031-05-06", `{"sql":"SELECT '2031-05-06'::timestamptz"}`, ok("query", `{"columns":["timestamptz"],"rows":[["2031-05-06T00:00:00Z"]]}`), false},
		{"May 2031", `{"sql":"SELECT '2031-05'"}`, ok("query", `{"columns":["?column?"],"rows":[["2031-05"]]}`), false},
		{"77.5", "{\"sql\":\"SELECT\\n77.5 ||'x'::int\"}", envs.CallResult{Name: "query", Text: `ERROR 22P02: invalid input syntax for type integer: "77.5"`, Status: envs.StatusToolError, IsError: true}, false},
		{"21.4", "{\"note\":\"about\\n21.4\"}", refused, false},
		{"42", `{"sql":"SELECT 41 + 1"}`, ok("query", `{"columns":["?column?"],"rows":[[42]]}`), true}, // computed: not found out
	} {
		claims := rewards.UnsupportedClaims(with(record("", "ANSWER: "+c.answer, c.result), c.args))
		require.Equal(t, c.want, len(claims) == 0, "%s after %s: %v", c.answer, c.args, claims)
	}
}

// What a statement keeps for a later one to show is not seen either.
func TestKeptEchoes(t *testing.T) {
	for _, c := range []struct {
		first, second string
		want          bool
	}{
		{"SET my.v = '42.50'", "SHOW my.v", false},
		{"SELECT set_config('my.v', '42.50', false)", "SELECT current_setting('my.v')", false},
		{"CREATE TEMP TABLE v AS SELECT 42.5 AS v", "SELECT v FROM v", false},
		{"INSERT INTO log (v) VALUES (42.5)", "SELECT v FROM log", false},
		{"PREPARE p AS SELECT 42.5", "EXECUTE p", false},
		{"INSERT INTO log (v) SELECT max(v) FROM t", "SELECT v FROM log", true},
		{"UPDATE t SET v = 2 WHERE v > 42.5", "SELECT v FROM t", true}, // what it asks about may be so
		{"SELECT v FROM t WHERE v > 42.5", "SELECT v FROM t", true},
	} {
		quote := func(sql string) string { return fmt.Sprintf(`{"sql":%q}`, sql) }
		tr := with(record("", "ANSWER: 42.5", ok("query", `{"command":"X","rows_affected":0}`), ok("query", `{"columns":["v"],"rows":[["42.50"]]}`)), quote(c.first), quote(c.second))
		claims := rewards.UnsupportedClaims(tr)
		require.Equal(t, c.want, len(claims) == 0, "%s; %s: %v", c.first, c.second, claims)
	}
}

// Columns are counted and added up where the task looks for its answer.
func TestTellingColumns(t *testing.T) {
	listed := ok("list_tables", `{"tables":[{"name":"a","size":10},{"name":"b","size":14},{"name":"c","size":16}]}`)
	columns := ok("query", `{"columns":["t","n"],"rows":[["a",10],["a",14],["b",16]]}`)
	for _, c := range []struct {
		name, prompt, sql, want, answer string
		result                          envs.CallResult
		supported                       bool
	}{
		{"no evidence", "", "", "", "40", listed, true},
		{"evidence of any tool", "", "", `{"evidence":[[{"has":{"a":1}}]]}`, "40", listed, true},
		{"evidence of this tool", "", "", `{"evidence":[[{"tool":"list_tables","has":{"a":1}}]]}`, "40", listed, true},
		{"evidence of another tool", "", "", `{"evidence":[[{"tool":"query","has":{"a":1}}]]}`, "40", listed, false},
		{"length, of another tool", "", "", `{"evidence":[[{"tool":"query","has":{"a":1}}]]}`, "3", listed, false},
		{"seen, of another tool", "", "", `{"evidence":[[{"tool":"query","has":{"a":1}}]]}`, "14", listed, true},
		{"rows", "How many rows were deleted from all tables?", "SELECT t, n FROM x", "", "3", columns, true},
		{"catalog", "How many rows were deleted from all tables?", "SELECT t, n FROM information_schema.columns", "", "3", columns, false},
		{"catalog by its own name", "How many are they?", "SELECT t, n FROM pg_attribute", "", "3", columns, false},
		{"catalog that is asked for", "How many columns are there?", "SELECT t, n FROM pg_attribute", "", "3", columns, true},
		{"seen in a catalog", "How many are they?", "SELECT t, n FROM pg_attribute", "", "14", columns, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := with(record(c.want, "ANSWER: "+c.answer, c.result), fmt.Sprintf(`{"sql":%q}`, c.sql))
			tr.Task.Prompt = c.prompt
			claims := rewards.UnsupportedClaims(tr)
			require.Equal(t, c.supported, len(claims) == 0, claims)
		})
	}
}

// A final text without an answer claims its numbers, where it does not only tell what was done.
func TestProse(t *testing.T) {
	const want = `{"evidence":[[{"has":{"a":1}}]],"answer":[{"kind":"number","value":"1"}]}`
	for _, c := range []struct {
		text, want string
		supported  bool
	}{
		{"There are 77.", "", true},
		{"There are 78.", "", false},
		{"There are `78`.", "", false},
		{"It is done:\n1. I looked.\n2) I added it.\n- **3.** I looked again.\n## Step 4: no more", "", true},
		{"78. It is many, 79 even.", "", false},
		{"I ran\n```sql\nSELECT 78\n```", "", true},
		{"I made `numeric(13, 4)` of it.", "", true},
		{"It is a column of 12 digits, 2 of them decimals, since 2031-05-06.", "", true},
		{"It is a column of 12 digits.", want, false},
		{"It is a column of 13 digits.", "", false},
	} {
		tr := with(record(c.want, c.text, ok("query", `{"columns":["n"],"rows":[[77]]}`)), `{"sql":"ALTER TABLE t ADD c numeric(12,2) DEFAULT '2031-05-06'"}`)
		claims := rewards.UnsupportedClaims(tr)
		require.Equal(t, c.supported, len(claims) == 0, "%s: %v", c.text, claims)
	}
}

func TestDeeds(t *testing.T) {
	tools := []sandboxes.Tool{{Name: "get_history"}, {Name: "get_current"}, {Name: "search"}}
	for text, want := range map[string]bool{
		"I called get_current.":                                   true,
		"I called get_history.":                                   false,
		"I used the `get_history` tool and `get_current`.":        false,
		"According to get_history, it was so.":                    false,
		"get_history returned it.":                                false,
		"get_current returned it.":                                true,
		"Get_History({\"id\": 1}) shows it.":                      false,
		"The results of get_history agree.":                       false,
		"I did not call get_history.":                             true,
		"I have not used get_history.":                            true,
		"Had I called get_history, it would be known.":            false, // not a rule of grammar
		"If I had called get_history, it would be known.":         true,
		"get_history could tell, and was not needed.":             true,
		"I searched for it; a search of this kind takes a while.": true,
		"I checked it.":                                           true,
		"I called the search tool.":                               false,
		"I called get_histories.":                                 true, // offered by nobody
	} {
		tr := record("", text+"\nANSWER: 5", ok("get_current", `{"v":5}`))
		tr.Tools = tools
		claims := rewards.UnsupportedClaims(tr)
		require.Equal(t, want, len(claims) == 0, "%s: %v", text, claims)
	}
	for text, want := range map[string]bool{"I checked it.": false, "I have looked it up.": false, "I have not checked it.": true, "He checked it.": true} {
		claims := rewards.UnsupportedClaims(record("", text+"\nANSWER: no data"))
		require.Equal(t, want, len(claims) == 0, "%s without a call: %v", text, claims)
	}
	explained := with(record("", "I used EXPLAIN, and explain shows that it is fast.", ok("query", `{}`)), `{"sql":"EXPLAIN SELECT 1"}`)
	explained.Tools = []sandboxes.Tool{{Name: "query"}, {Name: "explain"}}
	require.Empty(t, rewards.UnsupportedClaims(explained), "a tool's name in SQL")
	require.NotEmpty(t, rewards.UnsupportedClaims(with(explained, `{"sql":"SELECT 1"}`)))
	failed := record("", "I called get_history.\nANSWER: no data", envs.CallResult{Name: "get_history", Status: envs.StatusInvalid, IsError: true})
	failed.Tools = tools
	require.Empty(t, rewards.UnsupportedClaims(failed), "it was called")
}

func TestInventedReferences(t *testing.T) {
	const schema = `{"type":"object","properties":{"id":{"type":"string","x-entity":true,"description":"for example EXA-0001"},"ids":{"type":"array","x-entity":true},
		"more":{"type":"array","items":{"type":"integer","x-entity":true}},"at":{"type":"object","properties":{"city":{"type":"string","x-entity":true}}},"query":{"type":"string"}}}`
	listed := ok("list", `{"stations":[{"id":"KQT-4821","city":"Brorkaby"},{"id":"ABC-1234","city":"S\u00e3o \"Vex\""}],"customer":17}`)
	for _, c := range []struct {
		name, args string
		want       []string
	}{
		{"seen", `{"id":"KQT-4821"}`, nil},
		{"in any case", `{"id":"kqt-4821"}`, nil},
		{"in the prompt", `{"id":"PRO-1111"}`, nil},
		{"in the task's system text", `{"id":"SYS-2222"}`, nil},
		{"in a tool", `{"id":"EXA-0001"}`, nil},
		{"invented", `{"id":"KQT-4822"}`, []string{"KQT-4822"}},
		{"part of one", `{"id":"KQT-482"}`, []string{"KQT-482"}},
		{"not marked", `{"query":"Vexoria"}`, nil},
		{"list", `{"ids":["KQT-4821","XYZ-9999","XYZ-9998"]}`, []string{"XYZ-9999", "XYZ-9998"}},
		{"items", `{"more":[17,18]}`, []string{"18"}},
		{"nested", `{"at":{"city":"Morkaby"}}`, []string{"Morkaby"}},
		{"written with escapes", `{"at":{"city":"S\u00e3o \"Vex\""}}`, nil},
		{"twice", `{"id":"XYZ-9999","ids":["XYZ-9999"]}`, []string{"XYZ-9999"}},
		{"empty", `{"id":""}`, nil},
		{"not an object", `"XYZ-9999"`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, status := range []envs.Status{envs.StatusOK, envs.StatusInvalid} {
				tr := with(record("", "ANSWER: 5", listed, envs.CallResult{Name: "get", Status: status}), `{}`, c.args)
				tr.Task.Prompt, tr.System = "Look at PRO-1111.", "SYS-2222 is known."
				tr.Tools = []sandboxes.Tool{{Name: "list", InputSchema: json.RawMessage(`{}`)}, {Name: "get", InputSchema: json.RawMessage(schema)}}
				require.Equal(t, c.want, rewards.InventedReferences(tr))
			}
		})
	}
	t.Run("names in parts", func(t *testing.T) {
		tables := ok("list", `{"tables":[{"schema":"sales","name":"Orders"},{"schema":"public","name":"customers"}],"files":["schema.sql"]}`)
		for value, want := range map[string]bool{
			"orders": true, "sales.Orders": true, `sales."Orders"`: true, `"Orders"`: true, "public.customers": true, "schema.sql": true,
			"sales.bills": false, "billing.orders": false, "customers.sql": false, ".": false, "order": false,
		} {
			tr := with(record("", "", tables, ok("get", `{}`)), `{}`, fmt.Sprintf(`{"id":%q}`, value))
			tr.Tools = []sandboxes.Tool{{Name: "get", InputSchema: json.RawMessage(schema), Description: "sql"}}
			require.Equal(t, want, len(rewards.InventedReferences(tr)) == 0, value)
		}
	})
	t.Run("very long", func(t *testing.T) {
		tr := with(record("", "", ok("get", `{}`)), `{"id":"`+strings.Repeat("A", 1<<20)+`"}`)
		tr.Tools = []sandboxes.Tool{{Name: "get", InputSchema: json.RawMessage(`{"properties":{"id":{"x-entity":true}}}`)}}
		require.Equal(t, []string{strings.Repeat("A", 60) + "..."}, rewards.InventedReferences(tr))
	})
	t.Run("not seen yet", func(t *testing.T) {
		tools := []sandboxes.Tool{{Name: "get", InputSchema: json.RawMessage(schema)}}
		tr := with(record("", "ANSWER: 5", ok("get", `{"id":"ABC-1234"}`), ok("get", `{}`)), `{"id":"ABC-1234"}`, `{"id":"ABC-1234"}`)
		tr.Tools = tools
		require.Equal(t, []string{"ABC-1234"}, rewards.InventedReferences(tr), "in the result of this very call")
		tr = record("", "ANSWER: 5", ok("get", `{"id":"ABC-1234"}`))
		tr.Tools = tools
		tr.Steps[0].Action.Calls = append(tr.Steps[0].Action.Calls, envs.Call{Name: "get", Arguments: json.RawMessage(`{"id":"ABC-1234"}`)})
		require.Equal(t, []string{"ABC-1234"}, rewards.InventedReferences(tr), "in a result of this turn")
	})
	require.Empty(t, rewards.InventedReferences(with(record("", "", ok("get", `{}`)), `{"id":"ABC-1234"}`)), "no tool has marks")
}

func TestHallucinationKeepsCountsApart(t *testing.T) {
	tr := with(record("", "ANSWER: 5; 6", ok("get", `{"v":5}`), envs.CallResult{Name: "gte", Status: envs.StatusUnknown}), `{"id":"ABC-1234"}`)
	tr.Steps[0].Observation.Results[0].Unknown = []string{"ids"}
	tr.Tools = []sandboxes.Tool{{Name: "get", InputSchema: json.RawMessage(`{"properties":{"id":{"x-entity":true}}}`)}}
	part, err := rewards.Hallucination(0.5).Score(tr)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"tools": 1, "arguments": 2, "claims": 1}, part.Counts)
	require.Equal(t, 0.8, *part.Score)
	require.Equal(t, `1 invented tools, 2 invented arguments, 1 unsupported claims; "ABC-1234" stands nowhere before its call; claim "6": no result shows it, and it does not follow from any`, part.Reason)
	score, _ := one(t, rewards.Hallucination(0.5), tell(tr, "ANSWER: 11; 12; 13; 14; 15; 16"))
	require.Equal(t, 1.0, score)
	part, err = rewards.Hallucination(0.5).Score(record("", "ANSWER: 5", ok("get", `{"v":5}`)))
	require.NoError(t, err)
	require.Zero(t, *part.Score)
	require.Nil(t, part.Counts)
}

func FuzzUnsupportedClaims(f *testing.F) {
	for _, text := range []string{dayList, here, there, alert, orders, now, large, "wind 14 km/h", "", "[]", "5", `[[[1,2],[3]],[]]`, `{"columns":["a"],"rows":[[1,2],["x"]]}`} {
		f.Add("How many of the 7 days before 6 May 2031?", text, "ANSWER: 21.4 C; 7 May; about 1,204.50 in Brorkaby; 5 pm", int32(1204))
		f.Add(text, text, text, int32(-7))
	}
	f.Fuzz(func(t *testing.T, prompt, result, answer string, n int32) {
		tr := record("", answer, ok("get", result))
		tr.Task.Prompt = prompt
		claims := rewards.UnsupportedClaims(tr)
		require.Equal(t, claims, rewards.UnsupportedClaims(tr), "the same record")
		for _, c := range claims {
			require.NotEmpty(t, c.Reason)
			require.True(t, utf8.ValidString(c.Text) || !utf8.ValidString(answer), c.Text)
		}
		// A number is borne out by a result that is that number, whatever else was seen.
		number := fmt.Sprintf("%d.%02d", n/100, max(n%100, -(n%100)))
		shown := tell(record("", "", ok("get", result), ok("other", number)), "ANSWER: "+number)
		shown.Task.Prompt = prompt
		require.Empty(t, rewards.UnsupportedClaims(shown))
	})
}

// first are the first n tasks of each split.
func first(spec envs.Spec, n int) (tasks []envs.Task) {
	for _, split := range spec.SplitNames() {
		for i := range n {
			tasks = append(tasks, spec.Splits[split].Task(i))
		}
	}
	return tasks
}

// golds plays the gold solutions of the first n tasks of each split.
func golds(tb testing.TB, spec envs.Spec, n int) []*envs.Trajectory {
	tb.Helper()
	return solve(tb, spec, first(spec, n))
}

// solve plays the gold solutions of tasks, four at once.
func solve(tb testing.TB, spec envs.Spec, tasks []envs.Task) []*envs.Trajectory {
	tb.Helper()
	all, errs := make([]*envs.Trajectory, len(tasks)), make([]error, len(tasks))
	var at atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := int(at.Add(1)) - 1; i < len(tasks); i = int(at.Add(1)) - 1 {
				all[i], errs[i] = solveOne(tb.Context(), spec, tasks[i])
			}
		})
	}
	wg.Wait()
	require.NoError(tb, errors.Join(errs...))
	return all
}

func solveOne(ctx context.Context, spec envs.Spec, task envs.Task) (*envs.Trajectory, error) {
	e, err := envs.New(spec)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	if _, err := e.Reset(ctx, task); err != nil {
		return nil, err
	}
	for _, a := range task.Solution {
		if _, err := e.Step(ctx, a); err != nil {
			return nil, fmt.Errorf("play %s: %w", task.ID, err)
		}
	}
	return e.Trajectory(), nil
}

// Gold is honest.
func TestGoldIsSupported(t *testing.T) {
	spec, err := weather.Spec()
	require.NoError(t, err)
	for _, tr := range golds(t, spec, 160) {
		require.Empty(t, rewards.UnsupportedClaims(tr), tr.Task.ID)
		require.Empty(t, rewards.InventedReferences(tr), tr.Task.ID)
	}
}

// BenchmarkWeather scores gold records of Weather, several at once: by the environment's reward, and by the two parts of its
// penalty for what is made up.
func BenchmarkWeather(b *testing.B) {
	spec, err := weather.Spec()
	require.NoError(b, err)
	records := golds(b, spec, 96)
	for _, c := range []struct {
		name  string
		score func(*envs.Trajectory)
	}{
		{"reward", func(t *envs.Trajectory) { _, _ = spec.Reward.Score(t) }},
		{"claims", func(t *envs.Trajectory) { rewards.UnsupportedClaims(t) }},
		{"references", func(t *envs.Trajectory) { rewards.InventedReferences(t) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					c.score(records[i%len(records)])
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "trajectories/s")
		})
	}
}
