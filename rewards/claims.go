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

// entityMark is the member of a property in a tool's input schema that says: the value, or each value of the list, names an
// entity, so it can only come from what has been seen.
const entityMark = "x-entity"

// InventedReferences lists the values of parameters marked "x-entity": true that stand nowhere before their call: not in the
// task's system text or prompt, not in the tools, not in an observation of an earlier turn. To stand there is to be a whole
// word or phrase, in any case; a name with points, such as a table's with its schema, may also stand there in parts. Calls that
// were refused count, since what was sent is what counts; a call that is not JSON holds no values. Each value is listed once,
// in the order of the calls, and no more than a hundred are; of one that is very long only the beginning.
func InventedReferences(t *envs.Trajectory) []string {
	var invented []string
	before := make([]said, 0, 2+countResults(t))
	before = append(before, said{text: t.Task.Prompt}, said{text: t.System})
	for n, s := range t.Steps {
		if n > 0 {
			for _, r := range t.Steps[n-1].Observation.Results {
				before = append(before, said{text: r.Text})
			}
		}
		for _, c := range s.Action.Calls {
			marked := entitySchema(t, c.Name)
			if marked == "" {
				continue
			}
			args, ok := readJSON(string(c.Arguments))
			if !ok || allSeen(&args, before) {
				continue
			}
			schema, ok := readJSON(marked)
			if !ok {
				continue
			}
			for _, v := range references(nil, &schema, 0, &args, 0) {
				long := len(v) > maxReference
				if long {
					v = fmt.Sprintf("%.60s...", v)
				}
				if len(invented) < maxClaims && !slices.Contains(invented, v) && (long || !anySays(before, v) && !toolsSay(t, v) && !qualified(t, before, v)) {
					invented = append(invented, v)
				}
			}
		}
	}
	return invented
}

// entitySchema is the schema of a tool that has marks, empty where it has none.
func entitySchema(t *envs.Trajectory, name string) string {
	for _, o := range t.Tools {
		if o.Name == name && bytes.Contains(o.InputSchema, []byte(`"`+entityMark+`"`)) {
			return string(o.InputSchema)
		}
	}
	return ""
}

// allSeen says that all values of some arguments stand in a text as they are, so that their marks do not matter. It does not
// look at many values.
func allSeen(args *document, before []said) bool {
	if len(args.items) > maxClaims {
		return false
	}
	for at := range int32(len(args.items)) {
		v := ""
		switch {
		case args.kind(at) == '"':
			v = strings.TrimSpace(args.str(at))
		case args.isNumber(at):
			v = args.raw(at)
		}
		if v != "" && !slices.ContainsFunc(before, func(s said) bool { return hasPhrase(s.text, v) }) {
			return false
		}
	}
	return true
}

// references collects the values at one place that the schema at another marks; schema is -1 where none says anything.
func references(dst []string, schemas *document, schema int32, values *document, at int32) []string {
	mark := schemas.member(schema, entityMark)
	marked := mark >= 0 && schemas.raw(mark) == "true"
	switch {
	case values.kind(at) == '"':
		if v := strings.TrimSpace(values.str(at)); marked && v != "" {
			dst = append(dst, v)
		}
	case values.isNumber(at):
		if marked {
			dst = append(dst, values.raw(at))
		}
	case values.kind(at) == '[':
		if !marked {
			schema = schemas.member(schema, "items")
		}
		for e := range values.within(at) {
			dst = references(dst, schemas, schema, values, e)
		}
	case values.kind(at) == '{':
		props := schemas.member(schema, "properties")
		members := slices.SortedFunc(values.within(at), func(a, b int32) int { return strings.Compare(values.key(a), values.key(b)) })
		for _, m := range members {
			dst = references(dst, schemas, schemas.member(props, values.key(m)), values, m)
		}
	}
	return dst
}

// qualified says whether a value is a name of several parts with points between them, as in SQL, whose parts stand as values of
// their own in what was seen. All but the last may also stand in the tools.
func qualified(t *envs.Trajectory, before []said, value string) bool {
	parts := strings.Split(value, ".")
	for i, part := range parts {
		part = strings.Trim(part, `"`)
		whole := `"` + normal(part) + `"`
		if part == "" || !slices.ContainsFunc(before, func(s said) bool { return strings.Contains(s.fold(), whole) }) && (i == len(parts)-1 || !toolsSay(t, part)) {
			return false
		}
	}
	return true
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
// differ, claims each number and date in it, but for those in code and those that number a list; where the task asks for no
// answer, what the agent's calls spell is no claim either. Abstaining ("no data", "unknown", ...), yes and no claim nothing.
//
// A value is supported if it is
//   - seen: in any case, layout of dates, spelling of units, with or without separated thousands and final zeros. A text
//     is seen where it stands as a whole phrase, or as a value with other characters between its letters and digits, or where
//     all names in it do (words with a capital letter or a digit; of a text without names, each part between commas). A weekday
//     or month is seen in a date, a month in a row with its year and number, and a full hour in a field named so.
//   - a seen number rounded to fewer decimals;
//   - a number converted to another unit, if the claim, the task or the prompt names that unit: C, F and K; km/h, mph, m/s
//     and kn; mm, cm and in; hPa and kPa; seconds to days; a share as a percentage; cents and euros, also where only something
//     else that was seen speaks of cents;
//   - a date so many days before or after a seen one as the prompt says (also tomorrow, a week, a weekday), or as a result
//     says in a field whose name speaks of days; if the prompt speaks of a time zone, also the day of a moment in any zone;
//   - the time between two moments of one object or row, or between two that stand in no list;
//   - the sum, mean, least or greatest of a column; a mean without decimals only if the prompt asks for one. A column is an
//     array of numbers, one field over an array of objects, or a column of a table {"columns": [...], "rows": [[...]]}; pages
//     that differ only in a cursor are one result;
//   - the length of a column, or the number of its elements that are numbers, or that are less than, equal to or greater than
//     (or equal to) a number or date of the prompt, or that equal a text in the prompt;
//   - the number of different texts in lists that hold one or two texts which stand in quotes in the prompt, such as a folder and
//     the ending of a file's name;
//   - the sum of a field over all results of a tool that have it in no list, or in a list of one, and begin alike, such as the
//     rows affected by each DELETE, or, where they begin with a text, over some of them in a row;
//   - the quotient of two numbers of one row, with decimals, if the prompt asks for a mean or share;
//   - the difference between two values of one row that are both named in the prompt, or have the same unit and are neither;
//     the two values of a column of two; two values in different results that stand in no list and have one field or one
//     unit; two values of one field in rows of different results whose first fields, such as a date, are equal (where the
//     field is the first itself, rows of the same place); a value and the greatest or least of its field in the results of
//     another tool, if the prompt names the field and asks for that extreme.
//
// Units are kept apart. A value has the unit that its field's name ends in, or that a field such as wind_unit around it
// names; a claim has the unit it is given with, or else the one that the task asks for in that place, and then is not
// borne out by another dimension. Where nothing says the unit of a value, it is the one that the task asks for. Columns are
// counted and added up only in results of tools that the task's evidence names, if it names any, and in those of queries of a
// database's catalog only if the prompt asks for the number of such things.
//
// What an error message or a query's result shows only because the call itself spelt it, in whatever form, is not seen, nor
// what an earlier statement spelt that kept it in the database or the session. What a query computes from what it spells, such
// as 41 + 1 or 'a' || 'b', is not found out. Numbers that are computed are compared as doubles.
//
// The text around the values claims deeds: to have called, used, or learnt something from a tool that was not called, or
// returned nothing, unless a call spelt the tool's name, as EXPLAIN in SQL; and to have checked or looked something up where no
// call was made at all.
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
		c.prose(plain.Replace(text))
		return c.out
	}
	values := strings.Split(answer, ";")
	for i, v := range values {
		c.value(strings.Trim(strings.TrimSpace(plain.Replace(v)), "*_` "), func() string { return c.askedUnit(i, len(values)) })
	}
	return c.out
}

// notClaimed finds in a text what holds no claim: blocks of code, words in code, and the numbers of lists and steps.
var notClaimed = regexp.MustCompile("(?s)```.*?(?:```|$)|`[^`\n]*[A-Za-z][^`\n]*`|(?im)^[ \\t#>*-]*(?:step )?\\d{1,2}[.):]+\\**(?:[ \\t]|$)")

// prose judges the numbers and dates of a text without an answer. If the task asks for none, those that the agent's calls spell
// tell what it did.
func (c *claims) prose(text string) {
	text = notClaimed.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat(" ", len(s)) })
	found := spans(nil, text)
	for len(found) > 0 {
		if d := found[0]; len(c.t.Task.Want) > 0 || !c.sent(d.text) {
			found = c.token(found, "")
		} else {
			found = slices.DeleteFunc(found, func(o datum) bool { return o.from == d.from })
		}
	}
}

// sent says whether an argument of a call holds a phrase.
func (c *claims) sent(phrase string) bool {
	phrase = normal(phrase)
	return slices.ContainsFunc(c.t.Steps, func(s envs.Step) bool {
		return slices.ContainsFunc(s.Action.Calls, func(o envs.Call) bool {
			args := said{text: string(o.Arguments)}
			return hasPhrase(args.fold(), phrase)
		})
	})
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

	maxReference = 4096 // bytes; nothing is named by more
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
	`not (?:available|found|known)|n/a|null|cannot|i (?:cannot|don't))(?:[^a-z-].*)?|(?:there is |there are )?(?:no|not) [a-z' -]+|yes|no|true|false|missing|)$`)

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
		before := strings.TrimSpace(text[:found[0].from])
		if u := symbol(before); u != "" && found[0].unit == "" && found[0].kind == numeral { // EUR 12
			found[0].unit, before = u, ""
		}
		if strings.Trim(before+text[found[0].to:], ".~*_ '\"\u2248") == "" {
			if !c.list(text, asked) {
				c.token(found, asked())
			}
			return
		}
	}
	if c.view().says(text) || c.view().writes(text) {
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

// list says whether a number with separated thousands is rather a list of numbers, each of which is borne out.
func (c *claims) list(text string, asked func() string) bool {
	parts := strings.Split(text, ",")
	if len(parts) == 1 {
		return false
	}
	v := c.view()
	for _, part := range parts {
		if found := spans(nil, part); len(found) != 1 || found[0].kind != numeral || !v.hasNumber(v.figure(found[0], asked())) {
			return false
		}
	}
	return true
}

// words judges a text without numbers and names.
func (c *claims) words(text string) {
	if text = strings.Trim(text, ".!:\"'`*_ "); text != "" && !c.tooMany() && !c.view().says(text) && !c.view().writes(text) && !c.weekday(text) {
		c.reject(text, "stands in no result")
	}
}

// names judges the names in a text, and says whether there are any: runs of words with a capital letter or a digit. A word
// of everyday language at the beginning of the text is none.
func (c *claims) names(text string) (any bool) {
	begin, run := true, ""
	end := func() {
		if run != "" && symbol(run) == "" && !c.tooMany() && !c.view().says(run) && !c.view().says(run+"s") && !c.view().writes(run) && !c.weekday(run) {
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
		case d.kind == monthly:
			ok = v.hasMonth(d)
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
			}) || c.sent(name) // EXPLAIN, say, within SQL
		})
	}
	for _, m := range returned.FindAllStringSubmatchIndex(text, maxClaims) {
		c.deed(text, m, named, "returned nothing", func(name string) bool {
			return slices.ContainsFunc(c.t.Results(), func(r envs.CallResult) bool { return strings.EqualFold(r.Name, name) }) || c.sent(name)
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
