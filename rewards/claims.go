package rewards

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/mcpgym/mcpgym/envs"
)

// Unsupported is the penalty for what an agent made up: references (InventedReferences) and claims (UnsupportedClaims). Each
// costs a fifth of the weight, up to all of it.
func Unsupported(weight float64) Component {
	return Component{"unsupported", envs.Penalty, weight, func(t *envs.Trajectory) (*float64, string, error) {
		refs, claims := InventedReferences(t), UnsupportedClaims(t)
		reason := fmt.Sprintf("%d invented references, %d unsupported claims", len(refs), len(claims))
		if len(refs) > 0 {
			reason += fmt.Sprintf("; reference %.60q stands nowhere before its call", refs[0])
		}
		if len(claims) > 0 {
			reason += fmt.Sprintf("; claim %.60q: %s", claims[0].Text, claims[0].Reason)
		}
		return scored(min(1, float64(len(refs)+len(claims))/fullHallucination), "%s", reason)
	}}
}

// entityMark is the member of a property in a tool's input schema that says: the value, or each value of the list, names an
// entity, so it can only come from what has been seen.
const entityMark = "x-entity"

// InventedReferences lists the values of parameters marked "x-entity": true that stand nowhere before their call: not in the
// task's system text or prompt, not in the tools, not in an observation of an earlier turn. To stand there is to be a whole
// word or phrase, in any case. Calls that were refused count, since what was sent is what counts; a call that is not JSON
// holds no values. Each value is listed once, in the order of the calls, and no more than a hundred are.
func InventedReferences(t *envs.Trajectory) []string {
	var invented []string
	var schemas map[string]any // of tools with marks; decoded when first needed
	for _, tool := range t.Tools {
		if bytes.Contains(tool.InputSchema, []byte(`"`+entityMark+`"`)) {
			if schemas == nil {
				schemas = map[string]any{}
			}
			schemas[tool.Name] = nil
		}
	}
	if schemas == nil {
		return nil
	}
	before := []said{{text: t.Task.Prompt}, {text: t.Task.System}}
	for n, s := range t.Steps {
		if n > 0 {
			for _, r := range t.Steps[n-1].Observation.Results {
				before = append(before, said{text: r.Text})
			}
		}
		for _, c := range s.Action.Calls {
			schema, marked := schemas[c.Name]
			if !marked || len(c.Arguments) == 0 {
				continue
			}
			args, err := envs.DecodeJSON(c.Arguments)
			if err != nil {
				continue
			}
			if schema == nil {
				schema = entitySchema(t, c.Name)
				schemas[c.Name] = schema
			}
			for _, v := range references(nil, schema, args) {
				if len(invented) < maxClaims && !slices.Contains(invented, v) && !anySays(before, v) && !toolsSay(t, v) {
					invented = append(invented, v)
				}
			}
		}
	}
	return invented
}

func entitySchema(t *envs.Trajectory, tool string) any {
	for _, o := range t.Tools {
		if o.Name == tool {
			if v, err := envs.DecodeJSON(o.InputSchema); err == nil {
				return v
			}
		}
	}
	return false // a schema without properties
}

// references collects the values that a schema marks.
func references(dst []string, schema, value any) []string {
	s, _ := schema.(map[string]any)
	mark, _ := s[entityMark].(bool)
	switch v := value.(type) {
	case string:
		if v = strings.TrimSpace(v); mark && v != "" {
			dst = append(dst, v)
		}
	case json.Number:
		if mark {
			dst = append(dst, v.String())
		}
	case []any:
		for _, e := range v {
			if mark {
				dst = references(dst, schema, e)
			} else {
				dst = references(dst, s["items"], e)
			}
		}
	case map[string]any:
		props, _ := s["properties"].(map[string]any)
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			dst = references(dst, props[k], v[k])
		}
	}
	return dst
}

func toolsSay(t *envs.Trajectory, phrase string) bool {
	for _, o := range t.Tools {
		for _, text := range []string{o.Name, o.Description, string(o.InputSchema), string(o.OutputSchema)} {
			if anySays([]said{{text: text}}, phrase) {
				return true
			}
		}
	}
	return false
}

// Claim is something that a final answer says and the record does not bear out.
type Claim struct {
	Text   string `json:"text"` // as the agent wrote it
	Reason string `json:"reason"`
}

// UnsupportedClaims lists what the final answer claims and what does not follow from what the agent saw: the prompt and the
// results of its calls. It asks whether a value was made up, not whether it is the right one: a value of another entity
// that the agent saw is supported, and wrong; the answer's own gate says so.
//
// Claims are the values of the ANSWER line, separated by semicolons. A final text that has no such line, or several that
// differ, claims each number and date in it. Abstaining ("no data", "unknown", ...), yes and no claim nothing.
//
// A value is supported if it is
//   - seen: in any case, layout of dates, spelling of units, with or without separated thousands and final zeros. A text
//     is seen where it stands as a whole phrase, or where all names in it do (words with a capital letter or a digit; of a
//     text without names, each part between commas). A weekday is seen in a date, and a full hour in a field named so.
//   - a seen number rounded to fewer decimals;
//   - a number converted to another unit, if the claim, the task or the prompt names that unit: C, F and K; km/h, mph, m/s
//     and kn; mm, cm and in; hPa and kPa; seconds to days; a share as a percentage;
//   - a date so many days before or after a seen one as the prompt says (also tomorrow, a week, a weekday), or as a result
//     says in a field whose name speaks of days;
//   - the time between two moments of one object or row, or between two that stand in no list;
//   - the sum, mean, least or greatest of a column. A column is an array of numbers, one field over an array of objects, or
//     a column of a table {"columns": [...], "rows": [[...]]}; pages that differ only in a cursor are one result;
//   - the length of a column, or the number of its elements that are less than, equal to or greater than (or equal to) a
//     number or date of the prompt, or that equal a text in the prompt;
//   - the difference between two values of one row that are both named in the prompt, or have the same unit and are neither;
//     the two values of a column of two; two values in different results that stand in no list and have one field or one
//     unit; two values of one field in rows of different results whose first fields, such as a date, are equal (where the
//     field is the first itself, rows of the same place); a value and the greatest or least of its field in the results of
//     another tool, if the prompt names the field and asks for that extreme.
//
// Units are kept apart. A value has the unit that its field's name ends in, or that a field such as wind_unit around it
// names; a claim has the unit it is given with, or else the one that the task asks for in that place, and then is not
// borne out by another dimension. What an error message or a query's result shows only because the call itself spelt it is
// not seen. Numbers that are computed are compared as doubles.
//
// The text around the values claims deeds: to have called, used, or learnt something from a tool that was not called, or
// returned nothing; and to have checked or looked something up where no call was made at all.
//
// Claims come in the order of the text, each once. Of an answer with more than a hundred values the others are not looked at
// and count as one claim.
func UnsupportedClaims(t *envs.Trajectory) []Claim {
	text, ok := t.Answer()
	if !ok {
		return nil
	}
	c := claims{t: t}
	c.deeds(text)
	answer, err := FinalAnswer(text)
	if err != nil {
		found := spans(nil, plain.Replace(text))
		for len(found) > 0 {
			found = c.token(found, "")
		}
		return c.out
	}
	values := strings.Split(answer, ";")
	for i, v := range values {
		c.value(strings.Trim(strings.TrimSpace(plain.Replace(v)), "*_` "), func() string { return c.askedUnit(i, len(values)) })
	}
	return c.out
}

// claims judges the claims of one record.
type claims struct {
	t     *envs.Trajectory
	v     *view // nil until a claim needs it
	units []string
	out   []Claim

	judged int // values
}

// Bounds on what an agent can make the verifier do.
const (
	maxClaims = 100  // of one answer, and invented references; more claims count as one that is not supported
	maxPaired = 1000 // numbers of a record whose differences are looked at
)

// tooMany counts a value that is about to be judged, and says whether it is one too many.
func (c *claims) tooMany() bool {
	if c.judged++; c.judged <= maxClaims {
		return false
	}
	c.reject("...", fmt.Sprintf("more than %d values", maxClaims))
	return true
}

func (c *claims) view() *view {
	if c.v == nil {
		c.v = look(c.t)
	}
	return c.v
}

func (c *claims) reject(text, reason string) {
	if !slices.ContainsFunc(c.out, func(o Claim) bool { return o.Text == text }) {
		c.out = append(c.out, Claim{text, reason})
	}
}

// askedUnit is the unit that the task asks for in one place of the answer, empty where it names none.
func (c *claims) askedUnit(i, n int) string {
	if c.units == nil {
		c.units = wantedUnits(c.t.Task.Want)
	}
	if len(c.units) != n {
		return ""
	}
	return c.units[i]
}

// wantedUnits reads the units of a Want, and nothing else: its evidence is long. A Want that cannot be read has none.
func wantedUnits(want json.RawMessage) []string {
	d := jsontext.NewDecoder(bytes.NewBuffer(want))
	for {
		tok, err := d.ReadToken()
		if err != nil {
			return []string{}
		}
		if tok.Kind() == jsontext.KindBeginObject || tok.Kind() == jsontext.KindEndObject {
			continue
		}
		if tok.String() != "answer" {
			if d.SkipValue() != nil {
				return []string{}
			}
			continue
		}
		all := []string{}
		for unit := false; ; { // whether the value of a member unit is next
			tok, err := d.ReadToken()
			switch depth := d.StackDepth(); {
			case err != nil:
				return []string{}
			case depth == 1: // the end of the array
				return all
			case tok.Kind() == jsontext.KindBeginObject && depth == 3:
				all = append(all, "")
			case unit:
				all[len(all)-1], unit = symbol(tok.String()), false
			case tok.Kind() == jsontext.KindString && depth == 3:
				_, n := d.StackIndex(3)
				unit = n%2 == 1 && tok.String() == "unit"
			}
		}
	}
}

// abstaining matches texts that claim nothing, if no number is in them.
var abstaining = regexp.MustCompile(`^(?:(?:no (?:data|answer|results?|such|information|value|record)|none|nothing|unknown|unavailable|` +
	`not (?:available|found|known)|n/a|null|cannot|i (?:cannot|don't))\b.*|yes|no|true|false|)$`)

var numberWords = strings.Fields("zero one two three four five six seven eight nine ten eleven twelve")

// value judges one value of the answer line.
func (c *claims) value(text string, asked func() string) {
	if c.judged > maxClaims {
		return
	}
	plainText := normal(text)
	if i := slices.Index(numberWords, plainText); i >= 0 {
		c.token([]datum{{kind: numeral, num: float64(i), text: text}}, asked())
		return
	}
	found := spans(nil, text)
	if len(found) == 0 && abstaining.MatchString(plainText) {
		return
	}
	if len(found) > 0 && found[0].from == found[len(found)-1].from {
		if strings.Trim(text[:found[0].from]+text[found[0].to:], ".~*_ $\u20ac\u00a3\u2248") == "" {
			c.token(found, asked())
			return
		}
	}
	if c.view().says(text) {
		return
	}
	if len(found) == 0 {
		if c.names(text) {
			return
		}
		for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(",()[]", r) }) {
			c.words(strings.TrimSpace(part))
		}
		return
	}
	at := 0
	for len(found) > 0 {
		c.names(text[at:found[0].from])
		at = found[0].to
		found = c.token(found, asked())
	}
	c.names(text[at:])
}

// words judges a text without numbers and names.
func (c *claims) words(text string) {
	if text = strings.Trim(text, ".!:\"'`*_ "); text != "" && !c.tooMany() && !c.view().says(text) && !c.weekday(text) {
		c.reject(text, "stands in no result")
	}
}

// names judges the names in a text, and says whether there are any: runs of words with a capital letter or a digit. A word
// of everyday language at the beginning of the text is none.
func (c *claims) names(text string) (any bool) {
	begin, run := true, ""
	end := func() {
		if run != "" && !c.tooMany() && !c.view().says(run) && !c.weekday(run) {
			c.reject(run, "stands in no result")
		}
		any, run = any || run != "", ""
	}
	for word := range strings.FieldsSeq(text) {
		if strings.HasPrefix(word, "(") {
			end()
		}
		bare := strings.TrimFunc(word, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		named := strings.ContainsFunc(bare, func(r rune) bool { return unicode.IsUpper(r) || unicode.IsDigit(r) })
		if !named || begin && slices.Contains(openers, strings.ToLower(bare)) {
			end()
		} else if run += " " + bare; run[0] == ' ' {
			run = bare
		}
		if strings.HasSuffix(word, ",") || strings.HasSuffix(word, ")") || strings.HasSuffix(word, ":") {
			end()
		}
		begin = begin && bare == ""
	}
	end()
	return any
}

var openers = strings.Fields("a about all an and approximately approx around at between both by c circa date day degrees " +
	"difference exactly f for from high hour i in is it its just km/h low mean mm mph nearly " +
	"of on only over roughly station sum temperature the there total value wind with")

func (c *claims) weekday(text string) bool {
	for d := time.Sunday; d <= time.Saturday; d++ {
		if strings.EqualFold(text, d.String()) {
			return slices.ContainsFunc(c.view().data, func(x datum) bool { return x.isMoment() && x.time().Weekday() == d })
		}
	}
	return false
}

// token judges the first of some numbers, dates and times, which may be read in several ways, and gives the others.
func (c *claims) token(found []datum, asked string) (others []datum) {
	others, ok := found, c.tooMany()
	v := c.view()
	for len(others) > 0 && others[0].from == found[0].from {
		switch d := others[0]; {
		case ok:
		case d.kind == numeral:
			ok = v.hasNumber(v.figure(d, asked))
		case d.kind == clock:
			ok = v.hasClock(d.num)
		default:
			ok = v.hasDate(d)
		}
		others = others[1:]
	}
	if !ok {
		c.reject(found[0].said(), "no result shows it, and it does not follow from any")
	}
	return others
}

// Deeds.

const toolName = "([a-z][a-z0-9]*(?:[_-][a-z0-9]+)*)"

var (
	deed = regexp.MustCompile("(?i)\\b(?:called|used|ran|queried|invoked|consulted|executed|checked|tried|asked|according to|" +
		"(?:results?|output|data|answers?) (?:of|from)) (?:the |tool |function |a call (?:of|to) )*[`'\"*]*" + toolName + "\\b")
	returned = regexp.MustCompile("(?i)\\b" + toolName + "[`'\"*]*(?:\\([^)\\n]*\\))? (?:tool |call )?" +
		"(?:returned|returns|showed|shows|said|says|gave|gives|reported|reports|confirmed|confirms)\\b")
	looked  = regexp.MustCompile(`(?i)\bI(?:'ve| have|)(?: just| already|) (?:checked|looked|searched|called|queried|verified|retrieved|fetched|consulted|measured)\b`)
	negated = regexp.MustCompile(`(?i)\b(?:not|never|without|would|could|should|cannot|if|unless|\w+n't)\b[^.!?\n]*$`)
)

// deeds judges what a text says about the use of tools.
func (c *claims) deeds(text string) {
	text = plain.Replace(text)
	calls := 0
	for _, s := range c.t.Steps {
		calls += len(s.Action.Calls)
	}
	if calls == 0 {
		if at := looked.FindStringIndex(text); at != nil && !denied(text[:at[1]]) {
			c.reject(text[at[0]:at[1]], "no call was made")
		}
	}
	lower := strings.ToLower(text)
	var named []string // tools, in lower case
	for _, o := range c.t.Tools {
		if name := strings.ToLower(o.Name); strings.Contains(lower, name) {
			named = append(named, name)
		}
	}
	if len(named) == 0 {
		return
	}
	for _, m := range deed.FindAllStringSubmatchIndex(text, maxClaims) {
		c.deed(text, m, named, "was not called", func(name string) bool {
			return slices.ContainsFunc(c.t.Steps, func(s envs.Step) bool {
				return slices.ContainsFunc(s.Action.Calls, func(o envs.Call) bool { return strings.EqualFold(o.Name, name) })
			})
		})
	}
	for _, m := range returned.FindAllStringSubmatchIndex(text, maxClaims) {
		c.deed(text, m, named, "returned nothing", func(name string) bool {
			return slices.ContainsFunc(c.t.Results(), func(r envs.CallResult) bool { return strings.EqualFold(r.Name, name) })
		})
	}
}

// denied says whether the sentence that a text ends in denies what it says, or only supposes it.
func denied(text string) bool { return negated.MatchString(text[max(0, len(text)-200):]) }

// deed judges one mention of a name, if it is that of a tool.
func (c *claims) deed(text string, m []int, tools []string, reason string, done func(name string) bool) {
	name := text[m[2]:m[3]]
	if slices.Contains(tools, strings.ToLower(name)) && !done(name) && !denied(text[:m[2]]) {
		c.reject(text[m[0]:m[1]], name+" "+reason)
	}
}
