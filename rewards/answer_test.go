package rewards_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
)

// numberAndUnit is a gold value such as "21.4 C" or "40 %".
var numberAndUnit = regexp.MustCompile(`^([+-]?[\d,]*\d(?:\.\d+)?)(?:\s+|\b)([^\s\d.,;:/-]+(?:/\S+)?)?$`)

func TestCasesAnswer(t *testing.T) {
	casetest.Run(t, "answer", func(t *testing.T, c casetest.Case) {
		var in struct {
			Gold    string
			Numeric bool
			Tol     json.Number
			Answer  string
			Answers []string
		}
		c.In(t, &in)
		gold := rewards.Value{Kind: "text", Value: in.Gold, Tol: in.Tol.String()}
		if m := numberAndUnit.FindStringSubmatch(in.Gold); m != nil && (in.Numeric || m[2] != "") {
			gold.Kind, gold.Value, gold.Unit = "number", m[1], m[2]
		} else if in.Numeric {
			gold.Kind = "number"
		}
		match, err := gold.Match(in.Answer)
		matchAny := false
		for _, a := range in.Answers {
			m, aerr := gold.Match(a)
			matchAny = matchAny || m
			if aerr != nil {
				err = aerr
			}
		}
		got := map[string]any{"match": match, "match_any": matchAny}
		if err != nil {
			got = map[string]any{"error": err.Error()}
			var want struct{ Error string }
			require.NoError(t, json.Unmarshal([]byte(c.Want), &want))
			if want.Error != "" && strings.Contains(err.Error(), want.Error) {
				got["error"] = want.Error
			}
		}
		c.Check(t, got)
	})
}

func TestFinalAnswer(t *testing.T) {
	for _, c := range []struct {
		name, text, want string
		err              string // part of the error, empty where there is none
	}{
		{"the only line", "ANSWER: 21.4 C", "21.4 C", ""},
		{"the last line", "It is warm.\n\nANSWER: 21.4 C", "21.4 C", ""},
		{"blank lines after it", "ANSWER: 5\n \n\t\n", "5", ""},
		{"CRLF", "It is warm.\r\nANSWER: 5\r\n", "5", ""},
		{"CR alone", "It is warm.\rANSWER: 5\r", "5", ""},
		{"indented", "   ANSWER: 5", "5", ""},
		{"any case", "Answer: 5", "5", ""},
		{"no space", "ANSWER:5", "5", ""},
		{"several values", "ANSWER: Brorkaby; 21.4", "Brorkaby; 21.4", ""},
		{"bold line", "**ANSWER: 5**", "5", ""},
		{"bold word", "**ANSWER:** 5", "5", ""},
		{"bold word, colon outside", "__Answer__: 5", "5", ""},
		{"bold value", "ANSWER: **5**", "5", ""},
		{"a colon in the value", "ANSWER: 12:30", "12:30", ""},
		{"the same twice", "ANSWER: 5\nANSWER: **5**", "5", ""},
		{"the same in another case", "ANSWER: No data\n\nanswer: no data.", "no data.", ""},

		{"nothing", "", "", "the last line"},
		{"blank", " \n\t\r\n", "", "the last line"},
		{"prose", "It is 5.", "", "the last line"},
		{"in mid-line", "The ANSWER: 5", "", "the last line"},
		{"another word", "ANSWERS: 5", "", "the last line"},
		{"no colon", "ANSWER 5", "", "the last line"},
		{"empty", "ANSWER:", "", "the answer is empty"},
		{"only markup", "**ANSWER: **", "", "the answer is empty"},
		{"only a hard space", "ANSWER:\u00a0", "", "the answer is empty"},
		{"value on the next line", "ANSWER:\n5", "", "text after"},
		{"text after it", "ANSWER: 5\nI hope that helps.", "", "text after"},
		{"text after it, CR alone", "ANSWER: 5\rI hope that helps.", "", "text after"},
		{"several answers", "ANSWER: 5\nANSWER: 6", "", "several different answers"},
		{"several answers, text between", "ANSWER: 5\nor\nANSWER: 6", "", "text after"},
		{"empty, then an answer", "ANSWER:\nANSWER: 5", "", "several different answers"},
		{"an answer, then empty", "ANSWER: 5\nANSWER:", "", "several different answers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := rewards.FinalAnswer(c.text)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.Empty(t, got)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestMatch(t *testing.T) {
	var (
		temp     = rewards.Value{Kind: "number", Value: "21.4", Unit: "C"}
		near     = rewards.Value{Kind: "number", Value: "21.4", Tol: "0.1"}
		count    = rewards.Value{Kind: "number", Value: "1204"}
		large    = rewards.Value{Kind: "number", Value: "9007199254740993"}
		negative = rewards.Value{Kind: "number", Value: "-3.0", Unit: "C"}
		share    = rewards.Value{Kind: "number", Value: "40", Unit: "%"}
		wind     = rewards.Value{Kind: "number", Value: "31", Unit: "km/h"}
		price    = rewards.Value{Kind: "number", Value: "1234.50", Unit: "EUR"}
		either   = rewards.Value{Kind: "number", Value: "1", Accept: []string{"2", "3.5"}}
		day      = rewards.Value{Kind: "date", Value: "2031-05-06"}
		days     = rewards.Value{Kind: "date", Value: "2031-05-06", Accept: []string{"2031-05-07"}}
		city     = rewards.Value{Kind: "text", Value: "Saint M\u00e1laga's"}
		file     = rewards.Value{Kind: "text", Value: "__init__.py"}
		none     = rewards.Value{Kind: "text", Value: "no data", Accept: []string{"N/A"}}
	)
	for _, c := range []struct {
		v     rewards.Value
		given string
		want  bool
	}{
		{temp, "21.4", true},
		{temp, " 21.4 ", true},
		{temp, "21.40", true},
		{temp, "+21.4", true},
		{temp, "21.4.", true},
		{temp, "21.4 C", true},
		{temp, "21.4C", true},
		{temp, "21.4 c.", true},
		{temp, "21.4\u00a0\u00b0C", true},
		{temp, "21.4\u202fdegrees Celsius", true},
		{temp, "**21.4 C**.", true},
		{temp, "21.4 F", false},
		{temp, "21.4 \u00b0F", false},
		{temp, "21.4 K", false},
		{temp, "21.4 C or so", false},
		{temp, "21.5", false},
		{temp, "21.41", false},
		{temp, "21", false},
		{temp, "-21.4", false},
		{temp, "121.4", false},
		{temp, "21.4 22.4", false},
		{temp, "21.4, 22.4", false},
		{temp, "21.4/22.4", false},
		{temp, "between 21 and 22", false},
		{temp, "it is 21.4", false},
		{temp, "", false},
		{temp, "C", false},
		{temp, "2.14e1", false},
		{temp, strings.Repeat("0", 200) + "21.4", false},

		{near, "21.3", true}, // as floats, 21.4 - 21.3 is more than 0.1
		{near, "21.5", true},
		{near, "21.30", true},
		{near, "21.299999999999999999999", false},
		{near, "21.500000000000000000001", false},
		{near, "21.4 C", false}, // no unit was asked for

		{count, "1204", true},
		{count, "1,204", true},
		{count, "1204.0", true},
		{count, "12,04", false},
		{count, "1,2040", false},
		{count, "1.204", false},
		{count, "1 204", false},
		{count, ",204", false},
		{large, "9,007,199,254,740,993", true},
		{large, "9007199254740992", false}, // the same double

		{negative, "-3", true},
		{negative, "\u22123.0 C", true},
		{negative, "3", false},
		{negative, "- 3", false},
		{share, "40 %", true},
		{share, "40%", true},
		{share, "40 percent", true},
		{share, "0.4", false},
		{wind, "31 km/h", true},
		{wind, "31 kph", true},
		{wind, "31 mph", false},
		{wind, "31 knots", false},
		{price, "1234.5", true},
		{price, "1,234.50 EUR", true},
		{price, "1234.50 euros", true},
		{price, "\u20ac1,234.50", true},
		{price, "\u20ac 1234.50", true},
		{price, "1234.50\u20ac", true},
		{price, "1234.50 USD", false},
		{price, "\u20ac1234.50 USD", false},
		{price, "\u20ac", false},
		{wind, "\u20ac31", false},
		{either, "2.0", true},
		{either, "3.5", true},
		{either, "3", false},

		{day, "2031-05-06", true},
		{day, " 2031-05-06. ", true},
		{day, "2031\u201105\u201106", true},
		{day, "6 May 2031", true},
		{day, "06 may 2031", true},
		{day, "May 6, 2031", true},
		{day, "2031-05-07", false},
		{day, "2030-05-06", false},
		{day, "2031-5-6", false},
		{day, "05/06/2031", false},
		{day, "May 6", false},
		{day, "2031-05-06 or 2031-05-07", false},
		{day, "", false},
		{days, "7 May 2031", true},
		{days, "8 May 2031", false},

		{city, "Saint M\u00e1laga's", true},
		{city, "saint ma\u0301laga\u2019S.", true},
		{city, "Saint\u00a0 M\u00e1laga's\r\n", true},
		{city, "Saint Malaga's", false},
		{city, "Saint M\u00e1laga's, Spain", false},
		{city, "M\u00e1laga's", false},
		{city, "", false},
		{file, "__init__.py", true},
		{file, "init__.py", true}, // as FinalAnswer gives it
		{file, "__init__", false},
		{none, "No data.", true},
		{none, "n/a", true},
		{none, "no", false},
		{none, "data", false},
		{none, ".", false},
	} {
		got, err := c.v.Match(c.given)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%q against %+v", c.given, c.v)
	}
}

// several is a set or list.
func several(kind string, items ...rewards.Value) rewards.Value {
	return rewards.Value{Kind: kind, Items: items}
}

func word(s string, accept ...string) rewards.Value {
	return rewards.Value{Kind: "text", Value: s, Accept: accept}
}

func TestMatchItems(t *testing.T) {
	var (
		number = func(s string) rewards.Value { return rewards.Value{Kind: "number", Value: s, Tol: "0.1", Unit: "C"} }
		date   = func(s string) rewards.Value { return rewards.Value{Kind: "date", Value: s} }
		cities = []rewards.Value{word("Oslo", "Christiania"), word("M\u00e1laga"), word("St. Anna's")}
		temps  = []rewards.Value{number("1204"), number("-3.5"), number("7")}
		days   = []rewards.Value{date("2031-05-06"), date("2031-06-05")}
		once   = []rewards.Value{word("a"), word("b")}
		twice  = []rewards.Value{word("a"), word("a"), word("b")}
		mixed  = []rewards.Value{word("5"), number("5"), date("2031-05-06")}
	)
	for _, c := range []struct {
		items     []rewards.Value
		given     string
		set, list bool
	}{
		{cities, "Oslo, M\u00e1laga, St. Anna's", true, true},
		{cities, "oslo,ma\u0301laga,st. anna\u2019s.", true, true},
		{cities, " Oslo ,\tM\u00e1laga\u00a0, **St. Anna's** ", true, true},
		{cities, "Christiania, M\u00e1laga, St. Anna's", true, true},
		{cities, "St. Anna's, Oslo, M\u00e1laga", true, false},
		{cities, "Oslo, St. Anna's, M\u00e1laga", true, false},
		{cities, "Oslo, M\u00e1laga", false, false},
		{cities, "Oslo, M\u00e1laga, M\u00e1laga", false, false},
		{cities, "Oslo, Christiania, M\u00e1laga", false, false}, // one city by both its names
		{cities, "Oslo, M\u00e1laga, St. Anna's, Rome", false, false},
		{cities, "Oslo, M\u00e1laga, St. Anna's, Oslo", false, false},
		{cities, "Oslo, M\u00e1laga, Rome", false, false},
		{cities, "Oslo, M\u00e1laga, St. Anna's,", false, false},
		{cities, "Oslo, , M\u00e1laga, St. Anna's", false, false},
		{cities, "Oslo M\u00e1laga St. Anna's", false, false},
		{cities, "Oslo; M\u00e1laga; St. Anna's", false, false},
		{cities, "Oslo, M\u00e1laga and St. Anna's", false, false},
		{cities, "", false, false},
		{cities, ",,", false, false},
		{temps, "1204, -3.5, 7", true, true},
		{temps, "1204.1 C, \u22123.4\u00b0C, 6.90", true, true},
		{temps, "7, 1204, -3.5", true, false},
		{temps, "1,204, -3.5, 7", false, false}, // commas separate elements
		{temps, "1204, -3.5, 7.11", false, false},
		{temps, "1204, -3.5, 7 F", false, false},
		{temps, "1204, 3.5, 7", false, false},
		{days, "6 May 2031, 2031-06-05", true, true},
		{days, "2031-06-05, 2031-05-06", true, false},
		{days, "May 6, 2031, June 5, 2031", false, false},
		{once, "a, b", true, true},
		{once, "b, a", true, false},
		{once, "a, a, b", false, false},
		{once[:1], "a", true, true},
		{once[:1], "a, a", false, false},
		{once[:1], "b", false, false},
	} {
		for kind, want := range map[string]bool{"set": c.set, "list": c.list} {
			got, err := several(kind, c.items...).Match(c.given)
			require.NoError(t, err)
			require.Equal(t, want, got, "%q against a %s of %+v", c.given, kind, c.items)
		}
	}
	for _, c := range []struct {
		items []rewards.Value
		given string
		want  bool
	}{
		{twice, "a, a, b", true},
		{twice, "a, b, a", false},
		{twice, "a, b", false},
		{mixed, "5, 5.0 C, 6 May 2031", true},
		{mixed, "5.0 C, 5, 6 May 2031", false},
	} { // which no set can be
		got, err := several("list", c.items...).Match(c.given)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%q against a list of %+v", c.given, c.items)
	}
}

// A value is matched by each form that is listed for it, and an answer by the line that is made of values.
func TestTexts(t *testing.T) {
	ab := []rewards.Value{word("a", "x", "y"), word("b", "z")}
	for _, c := range []struct {
		v    rewards.Value
		want []string
	}{
		{word("a"), []string{"a"}},
		{word("a", "b", "c"), []string{"a", "b", "c"}},
		{several("list", ab...), []string{"a, b", "x, z", "y, z"}},
		{several("set", ab...), []string{"a, b", "x, z", "y, z", "z, y"}},
		{several("set", ab[0]), []string{"a", "x", "y"}},
		{rewards.NoData(), []string{"no data", "none", "unknown", "not available", "n/a", "no answer"}},
	} {
		require.Equal(t, c.want, c.v.Texts())
		for _, text := range c.v.Texts() {
			match, err := c.v.Match(text)
			require.NoError(t, err)
			require.True(t, match, text)
		}
	}
	values := []rewards.Value{several("set", ab...), {Kind: "number", Value: "1204", Unit: "C"}, word("last", "or not")}
	require.Equal(t, "ANSWER: a, b; 1204; last", rewards.AnswerLine(values))
	want, err := json.Marshal(rewards.Want{Answer: values, Evidence: [][]rewards.Fact{{{Has: map[string]any{"t": 20}}}}})
	require.NoError(t, err)
	require.NotContains(t, string(want), `"value":""`)
	for text, score := range map[string]float64{rewards.AnswerLine(values): 1, "ANSWER: z, x; 1,204 C; or not": 1, "ANSWER: a, b, 1204; last": 0, "ANSWER: a; b; 1204; last": 0} {
		got, reason := one(t, rewards.Answer(1), record(string(want), text, ok("get", `{"t":20}`)))
		require.Equal(t, score, got, "%s: %s", text, reason)
	}
}

// Who abstains claims nothing, in whatever accepted words.
func TestNoData(t *testing.T) {
	for _, text := range rewards.NoData().Texts() {
		require.Empty(t, rewards.UnsupportedClaims(record("", "ANSWER: "+text)), text)
	}
	require.NotEmpty(t, rewards.UnsupportedClaims(record("", "ANSWER: 5")))
}

// The claims of a set are its elements.
func TestItemsAreClaims(t *testing.T) {
	shown := ok("get", `{"rows":[{"n":1204,"city":"Oslo"},{"n":-3.5,"city":"Rome"},{"n":700,"city":"Bergen"}]}`)
	for text, unsupported := range map[string]int{
		"ANSWER: 1204, -3.5, 700":          0,
		"ANSWER: 700, 1204; Oslo, Bergen":  0,
		"ANSWER: 1204, -3.5, 701":          1,
		"ANSWER: 700; Oslo, Paris, Bergen": 1,
	} {
		require.Len(t, rewards.UnsupportedClaims(record("", text, shown)), unsupported, text)
	}
	// The unit that the task asks for is that of its own place.
	warm := ok("get", `{"city":"Oslo","temperature":5,"temperature_unit":"F"}`)
	for _, c := range []struct {
		item, value string // units
		unsupported int
	}{{"mm", "F", 0}, {"F", "mm", 1}} {
		want := fmt.Sprintf(`{"answer":[{"kind":"list","items":[{"kind":"text","value":"Oslo","unit":%q},{"kind":"text","value":"Rome"}]},
			{"kind":"number","value":"5","unit":%q}],"evidence":[[{"has":{"t":1}}]]}`, c.item, c.value)
		require.Len(t, rewards.UnsupportedClaims(record(want, "ANSWER: Oslo; 5", warm)), c.unsupported, c.value)
	}
}

// Each of these differences says nothing about an answer.
func TestNormalisation(t *testing.T) {
	for gold, given := range map[string]string{
		"M\u00e1laga":     "Ma\u0301laga", // composed and not
		"it's":            "it\u2019s",
		"'tis":            "\u2018tis",
		`the "old" town`:  "the \u201cold\u201d town",
		"well-known":      "well\u2010known",
		"half-time":       "half\u2011time",
		"minus -1":        "minus \u22121",
		"hard space":      "hard\u00a0space",
		"narrow space":    "narrow\u202fspace",
		"thin space":      "thin\u2009space",
		"several   ones":  "several ones",
		"a tab":           "a\ttab",
		"line ends":       "line ends\r\n",
		"within a line":   "within\r\na line",
		"STRASSE":         "stra\u00dfe", // the same in another case
		"a full stop":     "a full stop.",
		"markup":          "**markup**",
		"more markup":     "_more markup_",
		" spaces around ": "spaces around",
	} {
		for _, pair := range [][2]string{{gold, given}, {given, gold}} {
			match, err := rewards.Value{Kind: "text", Value: pair[0]}.Match(pair[1])
			require.NoError(t, err)
			require.True(t, match, "%q against %q", pair[1], pair[0])
		}
	}
	for gold, given := range map[string]string{"resume": "r\u00e9sum\u00e9", "wellknown": "well-known", "hardspace": "hard space", "a b": "a-b", "1": "\uff11", "stop": "stop..", "it's": "its"} {
		match, err := rewards.Value{Kind: "text", Value: gold}.Match(given)
		require.NoError(t, err)
		require.False(t, match, "%q against %q", given, gold)
	}
}

func TestMatchRefusesUnreadableGold(t *testing.T) {
	n := func(s, tol string) rewards.Value { return rewards.Value{Kind: "number", Value: s, Tol: tol} }
	for _, v := range []rewards.Value{
		{Kind: "text"},
		{Kind: "text", Value: " \u00a0"},
		{Kind: "text", Value: "."},
		{Kind: "text", Value: "right", Accept: []string{""}},
		{Kind: "number"},
		{Kind: "number", Value: "many"},
		{Kind: "number", Value: "21.4 C"},
		{Kind: "number", Value: "1 2"},
		{Kind: "number", Value: strings.Repeat("1", 101)},
		{Kind: "number", Value: "1", Tol: "little"},
		{Kind: "number", Value: "1", Tol: "-1"},
		{Kind: "number", Value: "1", Accept: []string{"n/a"}},
		{Kind: "date"},
		{Kind: "date", Value: "2031-02-30"},
		{Kind: "date", Value: "6 May 2031"},
		{Kind: "date", Value: "2031-05-06", Accept: []string{"today"}},
		{Value: "1"},
		{Kind: "float", Value: "1"},
		{Kind: "number", Value: "1", Tol: "0.1 C"},
		{Kind: "text", Value: "right", Items: []rewards.Value{word("right")}},

		several("set"),
		several("list"),
		{Kind: "set", Value: "right"},
		{Kind: "list", Value: "right", Items: []rewards.Value{word("right")}},
		{Kind: "list", Tol: "1", Items: []rewards.Value{word("right")}},
		{Kind: "list", Unit: "C", Items: []rewards.Value{word("right")}},
		{Kind: "list", Accept: []string{"other"}, Items: []rewards.Value{word("right")}},
		several("list", word("right"), word("")),
		several("list", word("right"), word("a, b")),
		several("list", word("right"), word("a; b")),
		several("list", word("right"), word("a", "a, b")),
		several("list", n("1,204", "")),
		several("list", rewards.Value{Kind: "number", Value: "many"}),
		several("list", rewards.Value{Kind: "float", Value: "1"}),
		several("list", several("list", word("right"))),
		several("list", several("set", word("right"))),
		several("set", word("right"), word("Right.")),
		several("set", word("right", "correct"), word("true", "Correct")),
		several("set", n("1", ""), n("1.0", "")),
		several("set", n("1", "0.3"), n("1.5", "0.2")), // 1.3 would be both
		several("set", word("right"), n("1", "")),
		several("set", rewards.Value{Kind: "date", Value: "2031-05-06"}, rewards.Value{Kind: "date", Value: "2031-05-07", Accept: []string{"2031-05-06"}}),
	} {
		for _, given := range []string{"", v.Value, "right", "other", v.Texts()[0]} {
			match, err := v.Match(given)
			require.ErrorContains(t, err, "gold unreadable", "%q against %+v", given, v)
			require.False(t, match)
		}
	}
	match, err := several("set", n("1", "0.3"), n("1.5", "0.19")).Match("1.31, 1.3")
	require.NoError(t, err)
	require.True(t, match)
}

// ok is the result of a call that worked.
func ok(tool, text string) envs.CallResult {
	return envs.CallResult{Name: tool, Text: text, Status: envs.StatusOK}
}

// record is an episode that saw results, one a turn, and ended with a final text.
func record(want, final string, results ...envs.CallResult) *envs.Trajectory {
	t := &envs.Trajectory{Task: envs.Task{Want: json.RawMessage(want), Par: 1}, End: envs.EndAnswer}
	for _, r := range results {
		t.Steps = append(t.Steps, envs.Step{Action: envs.Action{Calls: []envs.Call{{Name: r.Name}}}, Observation: envs.Observation{Results: []envs.CallResult{r}}})
	}
	t.Steps = append(t.Steps, envs.Step{Action: envs.Action{Text: final}, Terminated: true})
	return t
}

func TestAnswer(t *testing.T) {
	const want = `{"answer":[{"kind":"text","value":"Brorkaby"},{"kind":"number","value":"2.5","unit":"C"}],
		"evidence":[[{"tool":"get","has":{"city":"Brorkaby","t":20}}],[{"tool":"get","has":{"city":"Morkora","t":17.5}}]]}`
	a, b := ok("get", `{"city":"Brorkaby","t":20}`), ok("get", `{"city":"Morkora","t":17.5}`)
	for _, c := range []struct {
		name   string
		t      *envs.Trajectory
		want   float64
		reason string
	}{
		{"right and shown", record(want, "ANSWER: Brorkaby; 2.5 C", a, b), 1, "right, and shown"},
		{"order of results does not matter", record(want, "ANSWER: Brorkaby; 2.5", b, a), 1, "right, and shown"},
		{"right, nothing shown", record(want, "ANSWER: Brorkaby; 2.5"), 0, `no result shows {"city":"Brorkaby","t":20}`},
		{"right, half shown", record(want, "ANSWER: Brorkaby; 2.5", a), 0, `no result shows {"city":"Morkora","t":17.5}`},
		{"shown, first value wrong", record(want, "ANSWER: Morkora; 2.5", a, b), 0, `"Morkora" is not the right text`},
		{"shown, second value wrong", record(want, "ANSWER: Brorkaby; 2.4", a, b), 0, `"2.4" is not the right number`},
		{"values exchanged", record(want, "ANSWER: 2.5; Brorkaby", a, b), 0, "is not the right text"},
		{"a value too few", record(want, "ANSWER: Brorkaby", a, b), 0, "1 values given, 2 asked for"},
		{"a value too many", record(want, "ANSWER: Brorkaby; 2.5; 2.6", a, b), 0, "3 values given, 2 asked for"},
		{"no answer line", record(want, "Brorkaby; 2.5", a, b), 0, "last line"},
		{"several answers", record(want, "ANSWER: Brorkaby; 2.5\nANSWER: Brorkaby; 3.5", a, b), 0, "several different answers"},
		{"empty text", record(want, "", a, b), 0, "last line"},
		{"cut short", func() *envs.Trajectory {
			t := record(want, "ANSWER: Brorkaby; 2.5 C", a, b)
			t.End = envs.EndTurns
			return t
		}(), 0, "no final answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			score, reason, err := scoreOf(rewards.Answer(1), c.t)
			require.NoError(t, err)
			require.Equal(t, c.want, *score)
			require.Contains(t, reason, c.reason)
		})
	}
	part := rewards.Answer(0.8)
	require.Equal(t, envs.Gate, part.Kind)
	require.Equal(t, 0.8, part.Weight)

	file := `{"answer":[{"kind":"text","value":"__init__.py"}],"evidence":[[{"has":{"t":20}}]]}`
	score, reason, err := scoreOf(part, record(file, "ANSWER: __init__.py", a))
	require.NoError(t, err)
	require.Equal(t, 1.0, *score, reason)

	for _, bad := range []string{"", `{"answer":[{"kind":"number","value":"many"}],"evidence":[[{"has":{}}]]}`} {
		score, _, err := scoreOf(rewards.Answer(1), record(bad, "ANSWER: many", a))
		require.Error(t, err, bad)
		require.Nil(t, score, bad)
	}
}

func TestEvidence(t *testing.T) {
	day := `{"station":"A","unit":"C","days":[{"date":"d1","high":12.30,"more":{"wind":[1,{"gust":40}]}},{"date":"d2","high":9,"unit":"F"}]}`
	for _, c := range []struct {
		name    string
		groups  string
		results []envs.CallResult
		want    bool
	}{
		{"the object itself", `[[{"tool":"get","has":{"city":"A","t":3}}]]`, []envs.CallResult{ok("get", `{"city":"A","t":3,"x":null}`)}, true},
		{"another value", `[[{"has":{"city":"A","t":3}}]]`, []envs.CallResult{ok("get", `{"city":"A","t":4}`)}, false},
		{"a field is missing", `[[{"has":{"city":"A","t":3}}]]`, []envs.CallResult{ok("get", `{"city":"A"}`)}, false},
		{"fields of two objects", `[[{"has":{"city":"A","t":3}}]]`, []envs.CallResult{ok("get", `[{"city":"A","t":4},{"city":"B","t":3}]`)}, false},
		{"fields of two results", `[[{"has":{"city":"A","t":3}}]]`, []envs.CallResult{ok("get", `{"city":"A"}`), ok("get", `{"t":3}`)}, false},
		{"the wrong tool", `[[{"tool":"get","has":{"t":3}}]]`, []envs.CallResult{ok("guess", `{"t":3}`)}, false},
		{"any tool", `[[{"has":{"t":3}}]]`, []envs.CallResult{ok("guess", `{"t":3}`)}, true},
		{"equal numbers, written otherwise", `[[{"has":{"t":12.30}}]]`, []envs.CallResult{ok("get", `{"t":12.3}`)}, true},
		{"equal numbers, exponent", `[[{"has":{"t":12.3}}]]`, []envs.CallResult{ok("get", `{"t":1.23e1}`)}, true},
		{"equal doubles are not equal numbers", `[[{"has":{"t":9007199254740993}}]]`, []envs.CallResult{ok("get", `{"t":9007199254740992}`)}, false},
		{"a number is not its text", `[[{"has":{"t":3}}]]`, []envs.CallResult{ok("get", `{"t":"3"}`)}, false},
		{"text keeps its case", `[[{"has":{"t":"A"}}]]`, []envs.CallResult{ok("get", `{"t":"a"}`)}, false},
		{"null is not absence", `[[{"has":{"t":null}}]]`, []envs.CallResult{ok("get", `{"u":1}`)}, false},

		{"inherited from around", `[[{"has":{"station":"A","date":"d1","high":12.3}}]]`, []envs.CallResult{ok("get", day)}, true},
		{"inherited from two levels around", `[[{"has":{"station":"A","date":"d1","gust":40}}]]`, []envs.CallResult{ok("get", day)}, true},
		{"not from a sibling", `[[{"has":{"station":"A","date":"d2","high":12.3}}]]`, []envs.CallResult{ok("get", day)}, false},
		{"not from within", `[[{"has":{"station":"A","high":9,"gust":40}}]]`, []envs.CallResult{ok("get", day)}, false},
		{"the inner field hides the outer", `[[{"has":{"date":"d2","unit":"C"}}]]`, []envs.CallResult{ok("get", day)}, false},
		{"the inner field counts", `[[{"has":{"date":"d2","unit":"F"}}]]`, []envs.CallResult{ok("get", day)}, true},
		{"a whole list", `[[{"has":{"l":[1,{"a":2}]}}]]`, []envs.CallResult{ok("get", `{"l":[1.0,{"a":2}]}`)}, true},

		{"each group is needed", `[[{"has":{"a":1}}],[{"has":{"b":1}}]]`, []envs.CallResult{ok("get", `{"a":1}`)}, false},
		{"groups from different results", `[[{"has":{"a":1}}],[{"has":{"b":1}}]]`, []envs.CallResult{ok("get", `{"a":1}`), ok("get", `{"b":1}`)}, true},
		{"one of a group is enough", `[[{"has":{"a":1}},{"has":{"b":1}}]]`, []envs.CallResult{ok("get", `{"b":1}`)}, true},
		{"an empty group is never shown", `[[{"has":{"a":1}}],[]]`, []envs.CallResult{ok("get", `{"a":1}`)}, false},

		{"no results", `[[{"has":{"t":3}}]]`, nil, false},
		{"prose", `[[{"has":{"t":3}}]]`, []envs.CallResult{ok("get", `t is 3: {"t":3}`)}, false},
		{"not an object", `[[{"has":{"t":3}}]]`, []envs.CallResult{ok("get", `3`)}, false},
		{"a repeated key", `[[{"has":{"t":3}}]]`, []envs.CallResult{ok("get", `{"t":3,"t":4}`)}, false},
		{"a truncated result", `[[{"has":{"t":3}}]]`, []envs.CallResult{{Name: "get", Status: envs.StatusOK, Bytes: 9999, Text: "{\"t\":3}\n[cut: the result has 9999 bytes, only its head is shown]"}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := `{"answer":[{"kind":"text","value":"yes"}],"evidence":` + c.groups + `}`
			score, reason, err := scoreOf(rewards.Answer(1), record(want, "ANSWER: yes", c.results...))
			require.NoError(t, err)
			require.Equal(t, c.want, *score == 1, reason)
			if !c.want {
				require.Contains(t, reason, "right, but no result shows")
			}
		})
	}
	for _, status := range []envs.Status{envs.StatusToolError, envs.StatusUnknown, envs.StatusMalformed, envs.StatusInvalid, envs.StatusLimit, envs.StatusDefect, envs.StatusKilled} {
		t.Run("status "+string(status), func(t *testing.T) {
			r := envs.CallResult{Name: "get", Text: `{"t":3}`, Status: status, IsError: true}
			score, _, err := scoreOf(rewards.Answer(1), record(`{"answer":[{"kind":"text","value":"yes"}],"evidence":[[{"has":{"t":3}}]]}`, "ANSWER: yes", r))
			require.NoError(t, err)
			require.Zero(t, *score)
		})
	}
}

func TestDecodeWant(t *testing.T) {
	w, err := rewards.DecodeWant(json.RawMessage(`{"answer":[{"kind":"number","value":"3","tol":"0.5"}],"evidence":[[{"tool":"get","has":{"t":9007199254740993}}]]}`))
	require.NoError(t, err)
	require.Equal(t, rewards.Want{Answer: []rewards.Value{{Kind: "number", Value: "3", Tol: "0.5"}},
		Evidence: [][]rewards.Fact{{{Tool: "get", Has: map[string]any{"t": json.Number("9007199254740993")}}}}}, w)
	for _, bad := range []string{``, `null`, `{}`, `[]`, `"yes"`, `{"answer":[{"kind":"text","value":"yes"}]}`, `{"evidence":[[{"has":{"t":3}}]]}`,
		`{"answer":[],"evidence":[[{"has":{"t":3}}]]}`, `{"answer":[{"kind":"text","value":"yes"}],"evidence":[]}`, `{"answer":[{"kind":"text"`} {
		_, err := rewards.DecodeWant(json.RawMessage(bad))
		require.ErrorContains(t, err, "wanted answer", bad)
	}
}

func FuzzFinalAnswer(f *testing.F) {
	for _, s := range []string{"", "ANSWER: 5", "**Answer:** 5\r\n", "ANSWER: 5\nANSWER: 6", "ANSWER:", "answer\u00a0: \u2028", "__ANSWER__: __init__.py", "ANSWER: 5\rtext"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := rewards.FinalAnswer(text)
		if (err == nil) != (strings.TrimSpace(got) != "") {
			t.Errorf("answer %q with error %v", got, err)
		}
		if strings.ContainsAny(got, "\r\n") {
			t.Errorf("answer of several lines: %q", got)
		}
		// Whatever stands before it, a last line counts as it is or not at all.
		got, err = rewards.FinalAnswer(text + "\nANSWER: 42")
		if match, _ := (rewards.Value{Kind: "text", Value: "42"}).Match(got); err == nil && !match {
			t.Errorf("answer %q, the last line says 42", got)
		}
	})
}

func FuzzMatch(f *testing.F) {
	for _, kind := range []string{"number", "text", "date", "set", "list"} {
		for _, value := range []string{"", "21.4", "-1,204", "2031-05-06", "no data", ".", "_"} {
			f.Add(kind, value, "0.1", "C", "n/a", value+" C")
			f.Add(kind, value, "", "", "", "")
		}
	}
	f.Fuzz(func(t *testing.T, kind, value, tol, unit, accept, given string) {
		v := rewards.Value{Kind: kind, Value: value, Tol: tol, Unit: unit}
		if accept != "" {
			v.Accept = []string{accept}
		}
		checkMatch(t, v, given)
	})
}

// checkMatch checks what holds for every value and text.
func checkMatch(t *testing.T, v rewards.Value, given string) {
	match, err := v.Match(given)
	if match && (err != nil || strings.TrimSpace(given) == "") {
		t.Errorf("%q matches %+v, error %v", given, v, err)
	}
	for _, text := range v.Texts() {
		if match, again := v.Match(text); (again == nil) != (err == nil) || match != (again == nil) {
			t.Errorf("%+v against its own %q: match %v, error %v; against %q: error %v", v, text, match, again, given, err)
		}
	}
}

// Elements are separated by line ends in what is fuzzed.
func FuzzMatchItems(f *testing.F) {
	for _, kind := range []string{"number", "text", "date"} {
		f.Add(kind, "1204\n-3.5\n7", "0.1", "C", "7, 1204, -3.5")
		f.Add(kind, "2031-05-06\n2031-05-07", "", "", "6 May 2031, 2031-05-07")
		f.Add(kind, "a\nb\na.", "", "", "b,a")
		f.Add(kind, "a, b\n;\n", "", "", ",")
	}
	f.Fuzz(func(t *testing.T, kind, items, tol, unit, given string) {
		set, list := several("set"), several("list")
		for text := range strings.SplitSeq(items, "\n") {
			set.Items = append(set.Items, rewards.Value{Kind: kind, Value: text, Tol: tol, Unit: unit})
		}
		if len(set.Items) > 20 {
			return
		}
		list.Items = set.Items
		checkMatch(t, set, given)
		checkMatch(t, list, given)
		inSet, err := set.Match(given)
		if inList, _ := list.Match(given); inList && !inSet && err == nil {
			t.Errorf("%q is the list %q and not the set", given, items)
		}
		parts := strings.Split(given, ",")
		slices.Reverse(parts)
		if again, _ := set.Match(strings.Join(parts, ",")); again != inSet {
			t.Errorf("%q is the set %q: %v, backwards %v", given, items, inSet, again)
		}
		if twice, _ := set.Match(given + "," + given); twice {
			t.Errorf("%q twice is the set %q", given, items)
		}
	})
}
