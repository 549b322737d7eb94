package rewards_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/envs/dba"
	"github.com/mcpgym/mcpgym/envs/postgres"
	"github.com/mcpgym/mcpgym/envs/weather"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/confine"
	"github.com/mcpgym/mcpgym/sandboxes/files"
	"github.com/mcpgym/mcpgym/sandboxes/lint"
	"github.com/mcpgym/mcpgym/sandboxes/postgres/postgrestest"
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
		for word := range strings.FieldsFuncSeq(v, func(r rune) bool { return strings.ContainsRune(" ,;:()", r) }) {
			if x := rat(word); x != nil && word != v {
				dst = append(dst, cell{field, x, word})
			}
		}
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

// follows says whether a whole number without a unit stands in the results, is the length of a list in them, or counts values
// that are equal to, less or greater than one of the prompt.
func follows(tr *envs.Trajectory, value string) bool {
	x := rat(value)
	if !x.IsInt() {
		return false
	}
	prompt := strings.FieldsFunc(tr.Task.Prompt, func(r rune) bool { return strings.ContainsRune(" ,;?()", r) })
	for i, body := range bodies(tr) {
		if slices.ContainsFunc(cells(body, "", nil), func(c cell) bool { return c.value != nil && c.value.Cmp(x) == 0 }) {
			return true
		}
		if catalog(tr, i) {
			continue
		}
		fields := map[string][]cell{}
		for _, c := range cells(body, "", nil) {
			fields[c.field] = append(fields[c.field], c)
		}
		for _, list := range fields {
			for _, word := range prompt {
				var n [3]int64 // less, equal, greater
				for _, c := range list {
					p := rat(strings.TrimRight(word, ".:"))
					switch {
					case p != nil && c.value != nil:
						n[1+c.value.Cmp(p)]++
					case p == nil && c.value == nil:
						n[1+strings.Compare(c.text[:min(len(c.text), 10)], word)]++
					}
				}
				for _, k := range []int64{n[0], n[1], n[2], n[0] + n[1], n[1] + n[2], int64(len(list))} {
					if x.Cmp(new(big.Rat).SetInt64(k)) == 0 {
						return true
					}
				}
			}
		}
	}
	return false
}

// catalog says whether a result shows what a database is made of.
func catalog(tr *envs.Trajectory, result int) bool {
	for _, s := range tr.Steps {
		if result -= len(s.Action.Calls); result < 0 {
			c := s.Action.Calls[result+len(s.Action.Calls)]
			return strings.Contains(string(c.Arguments), "information_schema") || c.Name == "describe_table" || c.Name == "list_tables"
		}
	}
	return false
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
	answers := make([][]known, len(records))
	for n, tr := range records {
		answers[n] = gold(t, tr)
	}
	for n, tr := range records {
		values := answers[n]
		if name, offered := unused(tr); offered {
			text, _ := tr.Answer()
			add("call never made, said to be", tell(tr, fmt.Sprintf([]string{"I called %s to be sure.\n%s", "According to %s this is so.\n%s", "The %s tool returned just that.\n%s",
				"I used the `%s` tool and checked.\n%s"}[n%4], name, text)), false)
		}
		if step, call, args, ok := inventID(tr); ok {
			c := *tr
			c.Steps = slices.Clone(tr.Steps)
			c.Steps[step].Action.Calls = slices.Clone(c.Steps[step].Action.Calls)
			c.Steps[step].Action.Calls[call].Arguments = args
			add("invented id in a call", &c, false)
		}
		sums := computed(tr)
		for _, name := range slices.Sorted(maps.Keys(sums)) {
			if name != "sum" && name != "mean" {
				continue
			}
			lie := step(sums[name], int64(1-2*(n%2)))
			c := tell(tr, "ANSWER: "+lie)
			c.Task.Want = nil // another question
			add("wrong "+name, c, stands(tr, tr, lie, lie, true))
		}
		if abstains(values) {
			continue
		}
		for _, v := range values {
			x := v.Value.Value
			// Of the lies that may be told, the first that is one.
			plant := func(kind string, lies []string, true func(lie string) bool) {
				if len(lies) == 0 {
					return
				}
				i := slices.IndexFunc(lies, func(lie string) bool { return !true(lie) })
				add(kind, replace(tr, values, v.at, lies[max(0, i)]), i < 0)
			}
			by := int64(1 - 2*(n%2))
			others := another(answers, n, v)
			switch v.Kind {
			case "number":
				borneOut := func(lie string) bool { return stands(tr, tr, x, lie, false) || v.Unit == "" && follows(tr, lie) }
				lies := []string{step(x, by), step(x, -by)}
				if x == "0" {
					lies = []string{"1"}
				}
				plant("last digit", lies, borneOut)
				plant("another's value", others, borneOut)
				if wrong := wrongUnit[v.Unit]; wrong != nil {
					add("wrong unit", replace(tr, values, v.at, x+" "+wrong[n%len(wrong)]), false)
				}
				if lie, ok := roundWrong(x); ok {
					add("rounded wrong", replace(tr, values, v.at, lie), stands(tr, tr, x, lie, true))
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
				plant("another's name", others, func(lie string) bool { return saysText(tr, lie) })
			}
		}
	}
	return all
}

var wrongUnit = map[string][]string{"C": {"F", "degrees Fahrenheit", "km/h"}, "F": {"C", "\u00b0C", "%"}, "km/h": {"mph", "m/s", "C"}, "mph": {"km/h", "kilometres per hour", "%"},
	"mm": {"in", "inches", "cm"}, "in": {"mm", "millimetres", "C"}, "%": {"hPa", "C", "mm"}, "hPa": {"km/h", "%", "kPa"}, "h": {"days", "minutes", "km/h"}, "EUR": {"cents", "%", "days", "USD"}}

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

// another finds values of the same kind and unit in other gold records that differ.
func another(answers [][]known, n int, v known) (others []string) {
	for i := 1; i < len(answers) && len(others) < 8; i++ {
		for _, o := range answers[(n+i)%len(answers)] {
			if o.Kind == v.Kind && o.Unit == v.Unit && o.Value.Value != v.Value.Value && o.Value.Value != "no data" {
				others = append(others, o.Value.Value)
			}
		}
	}
	return others
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
func inventID(tr *envs.Trajectory) (step, call int, args json.RawMessage, ok bool) {
	for i, s := range tr.Steps {
		for n, c := range s.Action.Calls {
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
					return i, n, raw, err == nil
				}
			}
		}
	}
	return 0, 0, nil, false
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
				if v.Unit == "EUR" {
					forms = append(forms, "\u20ac"+x, "EUR "+x, "\u20ac "+forms[len(forms)-1])
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
				if m, err := time.Parse("2006-01", x); err == nil {
					add("month layout", replace(tr, values, v.at, m.Format([]string{"January 2006", "Jan 2006"}[n%2])))
				}
				add("case", replace(tr, values, v.at, []string{strings.ToUpper(x), strings.ToLower(x), "the city of " + x, x + " (the one asked for)", `"` + x + `"`, "`" + x + "`"}[n%6]))
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
	"mph": {" mph", " miles per hour"}, "mm": {" mm", "mm", " millimetres"}, "in": {" in", " inches"}, "%": {"%", " %", " percent"}, "hPa": {" hPa", " hectopascals", " mbar"}, "h": {" h", " hours", "h"},
	"EUR": {" euros", " EUR", "\u20ac", " \u20ac", " Euro"}}

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
	case "EUR":
		return new(big.Rat).Mul(rat(x), big.NewRat(100, 1)).FloatString(0) + []string{" cents", " ct"}[n%2], true
	}
	return "", false
}

// computed takes the last result with a list of objects or a table, and gives what one of its columns adds up to.
func computed(tr *envs.Trajectory) map[string]string {
	results := tr.Results()
	for i := len(results) - 1; i >= 0; i-- {
		d := json.NewDecoder(strings.NewReader(results[i].Text))
		d.UseNumber()
		var v map[string]any
		if d.Decode(&v) != nil {
			continue
		}
		rows, table := v["rows"].([]any)
		if table && len(rows) < 3 || !table && (strings.Contains(results[i].Text, "cursor") || i > 0 && results[i-1].Name == results[i].Name) {
			continue // a value, or a page
		}
		counts := map[string][]*big.Rat{}
		for _, c := range cells(v, "", nil) {
			if c.value != nil {
				counts[c.field] = append(counts[c.field], c.value)
			}
		}
		fields := append(strings.Fields("precipitation high temperature"), slices.Sorted(maps.Keys(counts))...)
		if !table {
			fields = fields[:3]
		}
		for _, field := range fields {
			if list := counts[field]; len(list) > 1 && (!table || len(list) == len(rows)) {
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
func measure(t *testing.T, env string, lies, honest []planted) (precision, recall, aside float64) {
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
			t.Logf("%-12s %-32s %5d, by chance true %3d, flagged %5d of %5d: %6.2f %%", env, name, k.all, k.aside, k.flagged, k.all-k.aside, 100*float64(k.flagged)/float64(max(1, k.all-k.aside)))
			total.all, total.aside, total.flagged = total.all+k.all, total.aside+k.aside, total.flagged+k.flagged
		}
		return total
	}
	l, h := count(lies, true), count(honest, false)
	precision = float64(l.flagged) / float64(l.flagged+h.flagged)
	recall = float64(l.flagged) / float64(l.all-l.aside)
	aside = float64(l.aside) / float64(l.all)
	t.Logf("%s: %d lies (%d more were true by chance, %.1f %%), %d near misses: precision %.4f, recall %.4f", env, l.all-l.aside, l.aside, 100*aside, h.all, precision, recall)
	return precision, recall, aside
}

// browsing are those tasks that change nothing, with gold solutions that also list some rows of a table that they are about,
// which is more to lie about.
func browsing(t *testing.T, tasks []envs.Task) (all []envs.Task) {
	t.Helper()
	for _, task := range tasks {
		if len(task.Assertions) > 0 {
			continue
		}
		table := ""
		for _, a := range task.Solution {
			for _, c := range a.Calls {
				if c.Name == "describe_table" && table == "" {
					var args struct{ Table string }
					require.NoError(t, json.Unmarshal(c.Arguments, &args))
					table = args.Table
				}
			}
		}
		if want, err := rewards.DecodeWant(task.Want); err == nil && table == "" {
			for _, group := range want.Evidence {
				for _, f := range group {
					if len(f.From) > 0 {
						table = f.From[0]
					}
				}
			}
		}
		args, err := json.Marshal(map[string]string{"sql": "SELECT * FROM " + table + " ORDER BY 1 LIMIT 12"})
		require.NoError(t, err)
		task.ID += "+list"
		task.Solution = slices.Insert(slices.Clone(task.Solution), len(task.Solution)-1, envs.Action{Calls: []envs.Call{{ID: "list", Name: "query_database", Arguments: args}}})
		if table != "" {
			all = append(all, task)
		}
	}
	return all
}

// inCents are those tasks that change nothing and whose gold solutions turn cents into euros, with the cents as they are.
func inCents(tasks []envs.Task) (all []envs.Task) {
	for _, task := range tasks {
		solution, changed := slices.Clone(task.Solution), false
		for i := range solution {
			solution[i].Calls = slices.Clone(solution[i].Calls)
			for n, c := range solution[i].Calls {
				args := strings.ReplaceAll(string(c.Arguments), " / 100::numeric", "")
				changed = changed || args != string(c.Arguments)
				solution[i].Calls[n].Arguments = json.RawMessage(args)
			}
		}
		if changed && len(task.Assertions) == 0 {
			task.ID, task.Solution = task.ID+"+cents", solution
			all = append(all, task)
		}
	}
	return all
}

// How well made-up answers are told from honest ones in each environment, on its gold records.
func TestLies(t *testing.T) {
	for _, c := range []struct {
		name string
		spec func(t *testing.T) (envs.Spec, error)
		n    int // tasks of each split
	}{
		{"Weather-v0", func(*testing.T) (envs.Spec, error) { return weather.Spec() }, 96},
		{"Postgres-v0", func(t *testing.T) (envs.Spec, error) { return postgres.Spec(t.Context(), postgrestest.Local(t)) }, 18},
		{"DBA-v0", func(t *testing.T) (envs.Spec, error) {
			run, err := confine.Local(t.Context())
			if err != nil {
				return envs.Spec{}, err
			}
			t.Cleanup(func() { require.NoError(t, run.Close()) })
			return dba.Spec(t.Context(), postgrestest.Local(t), files.New, run)
		}, 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec, err := c.spec(t)
			missing := errors.Is(err, confine.ErrUnavailable) || errors.Is(err, lint.ErrNoLinters)
			if missing && !slices.Contains(strings.Split(os.Getenv("MCPGYM_REQUIRE"), ","), "lint") {
				t.Skip(err)
			}
			require.NoError(t, err)
			defer func() { require.NoError(t, spec.Sandboxes.Close()) }()
			tasks := first(spec, c.n)
			var honest []planted
			if c.name != "Weather-v0" {
				more, cents := browsing(t, tasks), inCents(tasks)
				tasks = append(tasks, more[:min(len(more), 12)]...)
				for _, tr := range solve(t, spec, cents[:min(len(cents), 24)]) {
					for _, v := range gold(t, tr) {
						if v.Unit != "EUR" {
							continue
						}
						if c := new(big.Rat).Mul(rat(v.Value.Value), big.NewRat(100, 1)).FloatString(0); stands(tr, tr, c, c, false) {
							honest = append(honest, planted{kind: "from cents", t: tr})
						}
					}
				}
			}
			records := solve(t, spec, tasks)
			for _, tr := range records {
				if f := flagged(tr); f != "" {
					t.Errorf("gold of %s: %s", tr.Task.ID, f)
				}
			}
			records = slices.DeleteFunc(records, func(tr *envs.Trajectory) bool { return len(tr.Task.Want) == 0 })
			told := lies(t, records)
			honest = append(honest, nearMisses(t, records)...)
			precision, recall, aside := measure(t, c.name, told, honest)
			require.GreaterOrEqual(t, len(told), 200)
			require.GreaterOrEqual(t, len(honest), 200)
			require.GreaterOrEqual(t, precision, 0.98)
			require.GreaterOrEqual(t, recall, 0.98)
			require.Less(t, aside, 0.1)
		})
	}
}
