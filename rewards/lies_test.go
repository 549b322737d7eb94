package rewards_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/weather"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// planted is a gold record that was changed in one place.
type planted struct {
	kind   string
	t      *envs.Trajectory
	chance bool // a lie that the record bears out by chance: none after all
}

// known is one value of a gold answer, and what its task says of it.
type known struct {
	rewards.Value
	at int
}

// gold gives the answer of a record, value by value, as it was given.
func gold(t *testing.T, tr *envs.Trajectory) []known {
	t.Helper()
	want, err := rewards.DecodeWant(tr.Task.Want)
	require.NoError(t, err)
	text, ok := tr.Answer()
	require.True(t, ok)
	answer, err := rewards.FinalAnswer(text)
	require.NoError(t, err)
	var all []known
	for i, v := range strings.Split(answer, ";") {
		k := known{want.Answer[i], i}
		k.Value.Value = strings.TrimSpace(v)
		if k.Kind == "text" && rat(k.Value.Value) != nil {
			k.Kind = "number"
		}
		all = append(all, k)
	}
	return all
}

// abstains says whether a record claims nothing.
func abstains(values []known) bool { return values[0].Value.Value == "no data" }

// tell is the record with another final text.
func tell(tr *envs.Trajectory, final string) *envs.Trajectory {
	c := *tr
	c.Steps = slices.Clone(tr.Steps)
	c.Steps[len(c.Steps)-1].Action.Text = final
	return &c
}

// replace replaces one value of the answer.
func replace(tr *envs.Trajectory, values []known, at int, with string) *envs.Trajectory {
	parts := make([]string, len(values))
	for i, v := range values {
		parts[i] = v.Value.Value
	}
	parts[at] = with
	return tell(tr, "ANSWER: "+strings.Join(parts, "; "))
}

// without drops the calls of the steps from n on, but for the final text.
func without(tr *envs.Trajectory, n int) *envs.Trajectory {
	c := *tr
	c.Steps = append(slices.Clone(tr.Steps[:n]), tr.Steps[len(tr.Steps)-1])
	return &c
}

// An independent and plain reading of results, against which chance is judged.

func rat(s string) *big.Rat {
	if !strings.ContainsAny(s, "0123456789") || strings.ContainsAny(s, "eE/xX_") {
		return nil
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return nil
	}
	return r
}

type cell struct {
	field string
	value *big.Rat
	text  string
}

// cells lists all plain values of a JSON value by field. Cells of tables have the name of their column.
func cells(v any, field string, dst []cell) []cell {
	switch v := v.(type) {
	case map[string]any:
		names, _ := v["columns"].([]any)
		rows, _ := v["rows"].([]any)
		for _, r := range rows {
			if list, ok := r.([]any); ok && len(list) == len(names) {
				for i, e := range list {
					dst = cells(e, fmt.Sprint(names[i]), dst)
				}
			}
		}
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			if k != "rows" && k != "columns" || names == nil {
				dst = cells(v[k], k, dst)
			}
		}
	case []any:
		for _, e := range v {
			dst = cells(e, field, dst)
		}
	case json.Number:
		dst = append(dst, cell{field, rat(v.String()), v.String()})
	case string:
		dst = append(dst, cell{field, rat(v), v})
	}
	return dst
}

// within lists the differences between two fields of one object, and the hours between two times.
func within(tr *envs.Trajectory) []cell {
	var all []cell
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for a, x := range v {
				walk(x)
				for b, y := range v {
					p, q := rat(fmt.Sprint(x)), rat(fmt.Sprint(y))
					s, errS := time.Parse("2006-01-02T15:04", fmt.Sprint(x))
					e, errE := time.Parse("2006-01-02T15:04", fmt.Sprint(y))
					switch {
					case a >= b:
					case errS == nil && errE == nil:
						all = append(all, cell{a + " " + b, new(big.Rat).Abs(new(big.Rat).SetInt64(int64(e.Sub(s) / time.Hour))), ""})
					case p != nil && q != nil:
						all = append(all, cell{a + " " + b, new(big.Rat).Abs(p.Sub(p, q)), ""})
					}
				}
			}
		}
	}
	for _, v := range bodies(tr) {
		walk(v)
	}
	return all
}

func shownCells(tr *envs.Trajectory) []cell {
	var all []cell
	for _, v := range bodies(tr) {
		all = cells(v, "", all)
	}
	return all
}

// bodies decodes the results that are JSON.
func bodies(tr *envs.Trajectory) []any {
	var all []any
	for _, r := range tr.Results() {
		d := json.NewDecoder(strings.NewReader(r.Text))
		d.UseNumber()
		var v any
		if d.Decode(&v) == nil {
			all = append(all, v)
		}
	}
	return all
}

// stands says whether a number stands in the results, in one of the fields in which the gold value stands (in any field, if
// that was computed), or in the prompt. With rounding, it is enough that such a value rounds to it.
func stands(tr, from *envs.Trajectory, goldValue, value string, rounding bool) bool {
	fields := map[string]bool{}
	for _, c := range shownCells(from) {
		if c.value != nil && c.value.Cmp(rat(goldValue)) == 0 {
			fields[c.field] = true
		}
	}
	v := rat(value)
	_, fraction, _ := strings.Cut(value, ".")
	same := func(x *big.Rat) bool {
		return x.Cmp(v) == 0 || rounding && new(big.Rat).Abs(new(big.Rat).Sub(x, v)).Cmp(new(big.Rat).SetFrac64(1, 2*pow10(len(fraction)))) <= 0
	}
	if len(fields) == 0 {
		for pair := range slices.Values(within(from)) {
			if pair.value.Cmp(rat(goldValue)) == 0 && slices.ContainsFunc(within(tr), func(o cell) bool { return o.field == pair.field && same(o.value) }) {
				return true // the same difference, of another row
			}
		}
	}
	for _, c := range shownCells(tr) {
		if c.value != nil && (len(fields) == 0 || fields[c.field]) && same(c.value) {
			return true
		}
	}
	return slices.ContainsFunc(strings.FieldsFunc(tr.Task.Prompt, func(r rune) bool { return strings.ContainsRune(" ,;?()-:", r) }), func(w string) bool {
		x := rat(w)
		return x != nil && x.Cmp(v) == 0
	})
}

func pow10(n int) int64 {
	p := int64(1)
	for range n {
		p *= 10
	}
	return p
}

// shownBy finds the call without which, and without those after it, a number stands nowhere. A call that computes with what
// was seen already is none: an agent may compute itself.
func shownBy(tr *envs.Trajectory, x string) (step int, ok bool) {
	for n := range len(tr.Steps) - 1 {
		if stands(without(tr, n+1), tr, x, x, false) {
			return n, !stands(without(tr, n), tr, x, x, false) && tr.Steps[n].Action.Calls[0].Name != "convert_units"
		}
	}
	return 0, false
}

// saysText says whether a text stands in the prompt or the results, in any case.
func saysText(tr *envs.Trajectory, text string) bool {
	all := tr.Task.Prompt
	for _, r := range tr.Results() {
		all += "\n" + r.Text
	}
	return strings.Contains(strings.ToLower(all), strings.ToLower(text))
}

// lies plants lies in gold records of any environment. Records that abstain get only those about calls.
func lies(t *testing.T, records []*envs.Trajectory) []planted {
	t.Helper()
	var all []planted
	add := func(kind string, tr *envs.Trajectory, chance bool) { all = append(all, planted{kind, tr, chance}) }
	for n, tr := range records {
		values := gold(t, tr)
		if name, offered := unused(tr); offered {
			text, _ := tr.Answer()
			add("call never made, said to be", tell(tr, fmt.Sprintf([]string{"I called %s to be sure.\n%s", "According to %s this is so.\n%s", "The %s tool returned just that.\n%s",
				"I used the `%s` tool and checked.\n%s"}[n%4], name, text)), false)
		}
		if step, args, ok := inventID(tr); ok {
			c := *tr
			c.Steps = slices.Clone(tr.Steps)
			c.Steps[step].Action.Calls = slices.Clone(c.Steps[step].Action.Calls)
			c.Steps[step].Action.Calls[0].Arguments = args
			add("invented id in a call", &c, false)
		}
		if abstains(values) {
			continue
		}
		for _, v := range values {
			x := v.Value.Value
			other := another(t, records, n, v)
			switch v.Kind {
			case "number":
				lie := step(x, int64(1-2*(n%2)))
				add("last digit", replace(tr, values, v.at, lie), stands(tr, tr, x, lie, false))
				if wrong := wrongUnit[v.Unit]; wrong != nil {
					add("wrong unit", replace(tr, values, v.at, x+" "+wrong[n%len(wrong)]), false)
				}
				if lie, ok := roundWrong(x); ok {
					add("rounded wrong", replace(tr, values, v.at, lie), stands(tr, tr, x, lie, true))
				}
				if other != "" {
					add("another's value", replace(tr, values, v.at, other), stands(tr, tr, x, other, false))
				}
				bare := without(tr, 0)
				add("no calls at all", bare, stands(bare, tr, x, x, false))
				if n, ok := shownBy(tr, x); ok {
					add("its call removed", without(tr, n), false)
				}
			case "date":
				d, err := time.Parse(time.DateOnly, x)
				require.NoError(t, err)
				lie := d.AddDate(0, []int{-3, 2, 3, 12}[n%4], 0).Format(time.DateOnly)
				add("date", replace(tr, values, v.at, lie), saysText(tr, lie))
			case "text":
				if other != "" {
					add("another's name", replace(tr, values, v.at, other), saysText(tr, other))
				}
			}
		}
	}
	return all
}

var wrongUnit = map[string][]string{"C": {"F", "degrees Fahrenheit", "km/h"}, "F": {"C", "\u00b0C", "%"}, "km/h": {"mph", "m/s", "C"}, "mph": {"km/h", "kilometres per hour", "%"},
	"mm": {"in", "inches", "cm"}, "in": {"mm", "millimetres", "C"}, "%": {"hPa", "C", "mm"}, "hPa": {"km/h", "%", "kPa"}, "h": {"days", "minutes", "km/h"}}

// step changes the last digit of a number by one.
func step(x string, by int64) string {
	_, fraction, _ := strings.Cut(x, ".")
	return new(big.Rat).Add(rat(x), new(big.Rat).SetFrac64(by, pow10(len(fraction)))).FloatString(len(fraction))
}

// roundWrong rounds a number to one decimal less, to the wrong side.
func roundWrong(x string) (string, bool) {
	_, fraction, _ := strings.Cut(x, ".")
	if strings.TrimRight(fraction, "0") == "" || strings.HasSuffix(x, "0") || strings.HasSuffix(x, "5") {
		return "", false
	}
	p := len(fraction) - 1
	right := rat(x).FloatString(p)
	by := int64(1)
	if rat(right).Cmp(rat(x)) > 0 {
		by = -1
	}
	return new(big.Rat).Add(rat(right), new(big.Rat).SetFrac64(by, pow10(p))).FloatString(p), true
}

// another finds a value of the same kind and unit in another gold record that differs.
func another(t *testing.T, records []*envs.Trajectory, n int, v known) string {
	for i := 1; i < len(records); i++ {
		for _, o := range gold(t, records[(n+i)%len(records)]) {
			if o.Kind == v.Kind && o.Unit == v.Unit && o.Value.Value != v.Value.Value && o.Value.Value != "no data" {
				return o.Value.Value
			}
		}
	}
	return ""
}

// unused names a tool that a record offers and does not use.
func unused(tr *envs.Trajectory) (string, bool) {
	for i := range tr.Tools {
		name := tr.Tools[(i+len(tr.Task.Prompt))%len(tr.Tools)].Name
		if !slices.ContainsFunc(tr.Results(), func(r envs.CallResult) bool { return r.Name == name }) {
			return name, true
		}
	}
	return "", false
}

// inventID changes the last character of the first value of a call that its tool marks as a reference.
func inventID(tr *envs.Trajectory) (step int, args json.RawMessage, ok bool) {
	for i, s := range tr.Steps {
		for _, c := range s.Action.Calls {
			var schema struct {
				Properties map[string]struct {
					Entity bool `json:"x-entity"`
				}
			}
			var m map[string]any
			at := slices.IndexFunc(tr.Tools, func(o sandboxes.Tool) bool { return o.Name == c.Name })
			if json.Unmarshal(tr.Tools[at].InputSchema, &schema) != nil || json.Unmarshal(c.Arguments, &m) != nil {
				continue
			}
			for _, k := range slices.Sorted(maps.Keys(m)) {
				if v, is := m[k].(string); is && schema.Properties[k].Entity {
					last := v[len(v)-1]
					if last++; last == '9'+1 {
						last = '0'
					}
					m[k] = v[:len(v)-1] + string(last)
					raw, err := json.Marshal(m)
					return i, raw, err == nil
				}
			}
		}
	}
	return 0, nil, false
}

// marked marks parameters of tools as references.
func marked(tb testing.TB, tools []sandboxes.Tool, params ...string) []sandboxes.Tool {
	tb.Helper()
	tools = slices.Clone(tools)
	for i := range tools {
		var schema map[string]any
		require.NoError(tb, json.Unmarshal(tools[i].InputSchema, &schema))
		properties, _ := schema["properties"].(map[string]any)
		for _, p := range params {
			if property, ok := properties[p].(map[string]any); ok {
				property["x-entity"] = true
			}
		}
		var err error
		tools[i].InputSchema, err = json.Marshal(schema)
		require.NoError(tb, err)
	}
	return tools
}

// nearMisses changes gold records in ways that stay honest.
func nearMisses(t *testing.T, records []*envs.Trajectory) []planted {
	t.Helper()
	var all []planted
	add := func(kind string, tr *envs.Trajectory) { all = append(all, planted{kind: kind, t: tr}) }
	for n, tr := range records {
		values := gold(t, tr)
		text, _ := tr.Answer()
		if calls := len(tr.Steps) - 1; calls > 0 {
			name := tr.Steps[n%calls].Action.Calls[0].Name
			add("prose", tell(tr, fmt.Sprintf([]string{"I called %s and read its result. About 7 others would differ.\n\n**%s**", "According to %s it is so.\n%s",
				"I checked it twice: %s returned the data; I did not need get_nothing.\n%s", "I used the %s tool.\n%s"}[n%4], name, text)))
			c := *tr
			c.Steps = append(slices.Clone(tr.Steps[:calls]), tr.Steps[n%calls], tr.Steps[calls-1], tr.Steps[calls])
			add("extra calls", &c)
		}
		if abstains(values) {
			for _, s := range []string{"no data", "No data.", "unknown", "n/a"} {
				add("abstaining", tell(tr, "ANSWER: "+s))
			}
			continue
		}
		for _, v := range values {
			x := v.Value.Value
			switch v.Kind {
			case "number":
				spelt := spelling[v.Unit]
				forms := []string{x + "0", "**" + x + "**", x + ".", "about " + x, "+" + x}
				if !strings.Contains(x, ".") {
					forms[0] = x + ".0"
				}
				if strings.HasPrefix(x, "-") {
					forms[4] = "\u2212" + x[1:]
				}
				if whole, fraction, _ := strings.Cut(x, "."); len(whole) == 4 {
					forms = append(forms, strings.TrimSuffix(whole[:1]+","+whole[1:]+"."+fraction, "."))
				}
				add("format", replace(tr, values, v.at, forms[n%len(forms)]))
				if spelt != nil {
					s := spelt[n%len(spelt)]
					add("unit", replace(tr, values, v.at, x+s))
				}
				if right, ok := roundRight(x); ok {
					add("rounded", replace(tr, values, v.at, right))
				}
				if s, ok := inOtherUnit(x, v.Unit, n); ok && (!strings.ContainsAny(v.Unit, "CF") || slices.ContainsFunc(shownCells(tr), func(c cell) bool { return c.text == x })) {
					add("converted", replace(tr, values, v.at, s))
				}
			case "date":
				d, err := time.Parse(time.DateOnly, x)
				require.NoError(t, err)
				layout := []string{"2 January 2006", "January 2, 2006", "Jan 2, 2006", "2 Jan 2006", "Monday, 2 January 2006", "2006/01/02", "02.01.2006", "January 2", "Monday"}
				add("date layout", replace(tr, values, v.at, d.Format(layout[n%len(layout)])))
			case "text":
				add("case", replace(tr, values, v.at, []string{strings.ToUpper(x), strings.ToLower(x), "the city of " + x, x + " (the one asked for)"}[n%4]))
			}
		}
		for name, number := range computed(tr) {
			c := tell(tr, "ANSWER: "+number)
			c.Task.Want = nil // another question
			add(name, c)
		}
	}
	return all
}

var spelling = map[string][]string{"C": {" C", " \u00b0C", "\u00b0C", " degrees Celsius", "C", " degrees"}, "F": {" F", "\u00b0F", " Fahrenheit"}, "km/h": {" km/h", "km/h", " kph", " kilometers per hour"},
	"mph": {" mph", " miles per hour"}, "mm": {" mm", "mm", " millimetres"}, "in": {" in", " inches"}, "%": {"%", " %", " percent"}, "hPa": {" hPa", " hectopascals", " mbar"}, "h": {" h", " hours", "h"}}

// roundRight rounds a number to one decimal less.
func roundRight(x string) (string, bool) {
	_, fraction, _ := strings.Cut(x, ".")
	if fraction == "" {
		return "", false
	}
	return rat(x).FloatString(len(fraction) - 1), true
}

// inOtherUnit converts a value.
func inOtherUnit(x, unit string, n int) (string, bool) {
	f, _ := rat(x).Float64()
	p := 1 + n%2
	switch unit {
	case "C":
		return fmt.Sprintf("%.*f F", p, f*9/5+32), true
	case "F":
		return fmt.Sprintf("%.*f \u00b0C", p, (f-32)*5/9), true
	case "km/h":
		return fmt.Sprintf([]string{"%.*f m/s", "%.*f mph"}[n/2%2], p, f/[]float64{3.6, 1.609344}[n/2%2]), true
	case "mph":
		return fmt.Sprintf("%.*f km/h", p, f*1.609344), true
	case "mm":
		return fmt.Sprintf("%.*f inches", p, f/25.4), true
	case "in":
		return fmt.Sprintf("%.*f mm", p, f*25.4), true
	case "h":
		return fmt.Sprintf("%.*f days", p+1, f/24), true
	}
	return "", false
}

// computed takes the last result with a list of objects or a table, and gives what one of its columns adds up to.
func computed(tr *envs.Trajectory) map[string]string {
	results := tr.Results()
	for i := len(results) - 1; i >= 0; i-- {
		if strings.Contains(results[i].Text, "cursor") || i > 0 && results[i-1].Name == results[i].Name {
			continue // a page
		}
		d := json.NewDecoder(strings.NewReader(results[i].Text))
		d.UseNumber()
		var v map[string]any
		if d.Decode(&v) != nil {
			continue
		}
		counts := map[string][]*big.Rat{}
		for _, c := range cells(v, "", nil) {
			if c.value != nil {
				counts[c.field] = append(counts[c.field], c.value)
			}
		}
		for _, field := range []string{"precipitation", "high", "temperature", "amount"} {
			if list := counts[field]; len(list) > 1 {
				sum, least, most := new(big.Rat), list[0], list[0]
				for _, x := range list {
					sum.Add(sum, x)
					if x.Cmp(least) < 0 {
						least = x
					}
					if x.Cmp(most) > 0 {
						most = x
					}
				}
				mean := new(big.Rat).Quo(sum, new(big.Rat).SetInt64(int64(len(list))))
				return map[string]string{"sum": sum.FloatString(2), "mean": mean.FloatString(2), "least": least.FloatString(1), "greatest": most.FloatString(1), "count": fmt.Sprint(len(list))}
			}
		}
	}
	return nil
}

func flagged(tr *envs.Trajectory) string {
	refs, claims := rewards.InventedReferences(tr), rewards.UnsupportedClaims(tr)
	if len(refs)+len(claims) == 0 {
		return ""
	}
	return fmt.Sprint(refs, claims)
}

// measure counts how well lies are told from near misses. It prints a line for each kind, and what went wrong.
func measure(t *testing.T, lies, honest []planted) (precision, recall, aside float64) {
	t.Helper()
	type tally struct{ all, aside, flagged int }
	count := func(list []planted, lie bool) (total tally) {
		by := map[string]*tally{}
		var kinds []string
		wrong := map[string]int{}
		for _, p := range list {
			k := by[p.kind]
			if k == nil {
				k = &tally{}
				by[p.kind], kinds = k, append(kinds, p.kind)
			}
			k.all++
			if p.chance {
				k.aside++
				continue
			}
			why := flagged(p.t)
			if why != "" {
				k.flagged++
			}
			if (why == "") == lie {
				if wrong[p.kind]++; wrong[p.kind] <= 5 {
					text, _ := p.t.Answer()
					t.Logf("  wrong: %s, %s: %q, prompt %q: %s", p.kind, p.t.Task.ID, text, p.t.Task.Prompt, why)
				}
			}
		}
		slices.Sort(kinds)
		for _, name := range kinds {
			k := by[name]
			t.Logf("%-28s %5d, by chance true %3d, flagged %5d of %5d: %6.2f %%", name, k.all, k.aside, k.flagged, k.all-k.aside, 100*float64(k.flagged)/float64(max(1, k.all-k.aside)))
			total.all, total.aside, total.flagged = total.all+k.all, total.aside+k.aside, total.flagged+k.flagged
		}
		return total
	}
	l, h := count(lies, true), count(honest, false)
	precision = float64(l.flagged) / float64(l.flagged+h.flagged)
	recall = float64(l.flagged) / float64(l.all-l.aside)
	aside = float64(l.aside) / float64(l.all)
	t.Logf("%d lies (%d more were true by chance, %.1f %%), %d near misses: precision %.4f, recall %.4f", l.all-l.aside, l.aside, 100*aside, h.all, precision, recall)
	return precision, recall, aside
}

func TestLies(t *testing.T) {
	spec, err := weather.Spec()
	require.NoError(t, err)
	records := golds(t, spec, 96)
	for _, tr := range records {
		tr.Tools = marked(t, tr.Tools, "station_id", "country", "region")
	}
	told, honest := lies(t, records), nearMisses(t, records)
	precision, recall, aside := measure(t, told, honest)
	require.GreaterOrEqual(t, len(told), 200)
	require.GreaterOrEqual(t, len(honest), 200)
	require.GreaterOrEqual(t, precision, 0.98)
	require.GreaterOrEqual(t, recall, 0.98)
	require.Less(t, aside, 0.1)
}

// The same lies in records of a database, whose results are tables.
func TestLiesInTables(t *testing.T) {
	names := strings.Fields("Ada Bela Cleo Dora Edda Fran Gita Hana Ida Jana Kaia Lena")
	var records []*envs.Trajectory
	for i := range 24 {
		// Orders of a customer, and their total: a list, and an aggregate.
		amount := func(j int) string { return fmt.Sprintf("%d.%02d", 100+(i*37+j*61)%800, (i*29+j*13)%100) }
		customer := names[i%len(names)]
		rows := fmt.Sprintf(`{"columns":["order_id","amount"],"rows":[[%d,"%s"],[%d,"%s"],[%d,"%s"]],"row_count":3}`, 1000+7*i, amount(0), 1001+7*i, amount(1), 1002+7*i, amount(2))
		total := new(big.Rat)
		for j := range 3 {
			total.Add(total, rat(amount(j)))
		}
		answer, prompt := amount(1), fmt.Sprintf("What amount has order %d of %s?", 1001+7*i, customer)
		if i%2 == 1 {
			answer, prompt = total.FloatString(2), fmt.Sprintf("What do the orders of %s come to?", customer)
		}
		tr := record(fmt.Sprintf(`{"answer":[{"kind":"number","value":"%s"},{"kind":"text","value":"%s"}],"evidence":[[{"has":{"a":1}}]]}`, answer, customer), "ANSWER: "+answer+"; "+customer,
			ok("query_database", fmt.Sprintf(`{"columns":["id","name"],"rows":[[%d,"%s"]],"row_count":1}`, 10+i, customer)), ok("query_database", rows))
		tr.Task.ID, tr.Task.Prompt = fmt.Sprintf("orders/%d", i), prompt
		tr.Tools = []sandboxes.Tool{{Name: "query_database", InputSchema: json.RawMessage(`{"type":"object"}`)}, {Name: "describe_table", InputSchema: json.RawMessage(`{"type":"object"}`)}}
		tr.Steps[0].Action.Calls[0].Arguments = json.RawMessage(`{"sql":"SELECT id, name FROM customers"}`)
		tr.Steps[1].Action.Calls[0].Arguments = json.RawMessage(fmt.Sprintf(`{"sql":"SELECT order_id, amount FROM orders WHERE customer_id = %d"}`, 10+i))
		require.Empty(t, flagged(tr), tr.Task.ID)
		records = append(records, tr)
	}
	told, honest := lies(t, records), nearMisses(t, records)
	precision, recall, aside := measure(t, told, honest)
	require.GreaterOrEqual(t, len(told), 100)
	require.GreaterOrEqual(t, len(honest), 100)
	require.GreaterOrEqual(t, precision, 0.98)
	require.GreaterOrEqual(t, recall, 0.98)
	require.Less(t, aside, 0.1)
}
