package rewards

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"github.com/mcpgym/mcpgym/envs"
)

// Want is a task's right answer and the evidence that it must follow from, as JSON in Task.Want.
type Want struct {
	Answer   []Value  `json:"answer"`   // the values after "ANSWER:", in order, separated by semicolons
	Evidence [][]Fact `json:"evidence"` // of each group, one fact must stand in a result that the agent got
}

// Value is one value of an answer. A set or list has several elements, written with commas between them, in any order or in
// that of Items: there a number has no separated thousands and a date no comma. Elements are numbers, texts or dates, each
// with its own Tol, Unit and Accept. Those of a set are of one kind, none may be taken for another, and each is given once.
type Value struct {
	Kind   string   `json:"kind"`             // number, text, date, set or list
	Value  string   `json:"value,omitempty"`  // not of a set or list
	Items  []Value  `json:"items,omitempty"`  // set, list: the elements
	Tol    string   `json:"tol,omitempty"`    // number: largest difference that still counts, a decimal; exact if empty
	Unit   string   `json:"unit,omitempty"`   // number: may follow it; another unit is wrong
	Accept []string `json:"accept,omitempty"` // other right values
}

// Answer is the gate for the final answer: it must be right, and the record must hold the results it follows from. Credit
// without evidence would pay for guessing. Task.Want holds a Want; where it is empty and the task
// asserts something instead, the agent must only have ended the episode itself.
func Answer(weight float64) Component {
	return Component{"answer", envs.Gate, weight, func(t *envs.Trajectory) (envs.Part, error) {
		if len(t.Task.Want) == 0 && len(t.Task.Assertions) > 0 {
			if _, ok := t.Answer(); !ok {
				return scored(0, "the agent did not say that it has finished")
			}
			return scored(1, "no value is asked for")
		}
		want, err := DecodeWant(t.Task.Want)
		if err != nil {
			return envs.Part{}, err
		}
		text, ok := t.Answer()
		if !ok {
			return scored(0, "no final answer")
		}
		given, err := FinalAnswer(text)
		if err != nil {
			return scored(0, "%v", err)
		}
		values := strings.Split(given, ";")
		if len(values) != len(want.Answer) {
			return scored(0, "%d values given, %d asked for", len(values), len(want.Answer))
		}
		for i, v := range want.Answer {
			match, err := v.Match(values[i])
			if err != nil {
				return envs.Part{}, err
			}
			if !match {
				return scored(0, "%.60q is not the right %s", strings.TrimSpace(values[i]), v.Kind)
			}
		}
		lack, err := missing(want.Evidence, t)
		if err != nil {
			return envs.Part{}, err
		}
		if lack != "" {
			return scored(0, "right, but no result shows %s", lack)
		}
		return scored(1, "right, and shown by the results")
	}}
}

// DecodeWant reads a Want. One without an answer or without evidence is an error: it would pay for nothing.
func DecodeWant(raw json.RawMessage) (Want, error) {
	var w Want
	// Version 2 is twice as fast, and every score begins here.
	if err := jsonv2.Unmarshal(raw, &w, jsonv2.MatchCaseInsensitiveNames(true)); err != nil {
		return w, fmt.Errorf("read the wanted answer: %w", err)
	}
	if len(w.Answer) == 0 || len(w.Evidence) == 0 {
		return w, errors.New("the wanted answer names no value or no evidence")
	}
	for _, group := range w.Evidence {
		for _, f := range group {
			ways := 0
			for _, is := range []bool{len(f.Has) > 0, f.Cell != nil, f.File != ""} {
				if is {
					ways++
				}
			}
			if ways != 1 {
				return w, errors.New("the wanted answer names a fact that any result shows, or one that is said in two ways")
			}
			if f.Cell != nil && len(f.From) == 0 {
				return w, errors.New("the wanted answer names a cell of no table")
			}
		}
	}
	return w, nil
}

var answerLine = regexp.MustCompile(`(?i)^[*_\s]*answer[*_\s]*:[*_\s]*(.*?)[*_\s]*$`)

// FinalAnswer finds the answer in an agent's last text: its last line that is not blank must be "ANSWER: value". Several
// different answers are an error, whichever is right.
func FinalAnswer(text string) (string, error) {
	answer, found := "", false
	for line := range strings.Lines(strings.ReplaceAll(text, "\r", "\n")) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		given, is := answerIn(line)
		switch {
		case !is && found:
			return "", errors.New("there is text after the line with the answer")
		case !is:
		case found && normal(given) != normal(answer):
			return "", errors.New("several different answers")
		default:
			answer, found = given, true
		}
	}
	if !found {
		return "", errors.New("the last line is not of the form ANSWER: value")
	}
	if answer == "" {
		return "", errors.New("the answer is empty")
	}
	return answer, nil
}

// answerIn reads a line of the form of an answer.
func answerIn(line string) (answer string, ok bool) {
	if answer, ok = strings.CutPrefix(line, "ANSWER:"); ok { // as most are; the expression takes its time
		return strings.Trim(answer, "*_ \t\n\f\r"), true
	}
	if m := answerLine.FindStringSubmatch(line); m != nil {
		return m[1], true
	}
	return "", false
}

// countAnswers counts the lines of a text that are of the form of an answer.
func countAnswers(text string) (n int) {
	for line := range strings.Lines(strings.ReplaceAll(text, "\r", "\n")) {
		if answerLine.MatchString(strings.TrimSpace(line)) {
			n++
		}
	}
	return n
}

// NoData is the answer of a task whose world cannot say: abstaining, in its usual words.
func NoData() Value {
	return Value{Kind: "text", Value: "no data", Accept: []string{"none", "unknown", "not available", "n/a", "no answer"}}
}

// AnswerLine is the line that gives these values, as a gold solution ends with it.
func AnswerLine(values []Value) string {
	said := make([]string, len(values))
	for i, v := range values {
		said[i] = v.Texts()[0]
	}
	return "ANSWER: " + strings.Join(said, "; ")
}

// Texts are forms in which the value may be given: first that of the gold solution, then what Accept holds. In a set or list
// the elements vary together; a set also comes in reverse.
func (v Value) Texts() []string {
	if v.Kind != "set" && v.Kind != "list" {
		return append([]string{v.Value}, v.Accept...)
	}
	items, forms := make([][]string, len(v.Items)), 1
	for i, item := range v.Items {
		items[i] = item.Texts()
		forms = max(forms, len(items[i]))
	}
	var all []string
	said := make([]string, len(items))
	for k := range forms {
		for i, texts := range items {
			said[i] = texts[min(k, len(texts)-1)]
		}
		all = append(all, strings.Join(said, ", "))
	}
	if v.Kind == "set" && len(said) > 1 {
		slices.Reverse(said)
		all = append(all, strings.Join(said, ", "))
	}
	return all
}

// Match says whether a given text is this value. The error says that the value itself, not the answer, cannot be read.
func (v Value) Match(given string) (bool, error) {
	if v.Kind == "set" || v.Kind == "list" {
		return v.matchItems(given)
	}
	if len(v.Items) > 0 {
		return false, fmt.Errorf("gold unreadable: a %s has no elements", v.Kind)
	}
	found := false
	for _, gold := range v.Texts() {
		if normal(gold) == "" {
			return false, errors.New("gold unreadable: it is empty")
		}
		var match bool
		switch v.Kind {
		case "text":
			match = normal(given) == normal(gold)
		case "date":
			want, err := time.Parse(time.DateOnly, gold)
			if err != nil {
				return false, fmt.Errorf("gold unreadable: %w", err)
			}
			got, err := parseDate(given)
			match = err == nil && got.Equal(want)
		case "number":
			want, unit, ok := parseNumber(gold)
			if !ok || unit != "" {
				return false, fmt.Errorf("gold unreadable: %q is not a number", gold)
			}
			tol := v.tolerance()
			if tol == nil {
				return false, fmt.Errorf("gold unreadable: tolerance %q is not a number of 0 or more", v.Tol)
			}
			got, unit, ok := parseNumber(given)
			match = ok && (unit == "" || sameUnit(unit, v.Unit)) && new(big.Rat).Abs(got.Sub(got, want)).Cmp(tol) <= 0
		default:
			return false, fmt.Errorf("gold unreadable: kind %q, want number, text, date, set or list", v.Kind)
		}
		found = found || match // go on: what cannot be read must not depend on the answer
	}
	return found, nil
}

// matchItems is Match for a set or list.
func (v Value) matchItems(given string) (bool, error) {
	if err := v.checkItems(); err != nil {
		return false, fmt.Errorf("gold unreadable: %w", err)
	}
	parts := strings.Split(given, ",")
	if len(parts) != len(v.Items) {
		return false, nil
	}
	left := slices.Clone(v.Items)
	for _, part := range parts {
		at := -1
		for i, item := range left {
			match, err := item.Match(part)
			if err != nil {
				return false, err
			}
			if match {
				at = i
			}
			if match || v.Kind == "list" {
				break
			}
		}
		if at < 0 {
			return false, nil
		}
		left = slices.Delete(left, at, at+1)
	}
	return true, nil
}

// checkItems says what is wrong with the elements of a set or list.
func (v Value) checkItems() error {
	if len(v.Items) == 0 || v.Value != "" || v.Tol != "" || v.Unit != "" || len(v.Accept) > 0 {
		return fmt.Errorf("a %s must have elements and nothing else", v.Kind)
	}
	for i, item := range v.Items {
		if item.Kind == "set" || item.Kind == "list" {
			return fmt.Errorf("a %s within a %s", item.Kind, v.Kind)
		}
		if _, err := item.Match(""); err != nil {
			return fmt.Errorf("element %d of a %s: %w", i, v.Kind, err)
		}
		for _, text := range item.Texts() {
			if strings.ContainsAny(text, ",;") {
				return fmt.Errorf("element %q of a %s holds a separator", text, v.Kind)
			}
		}
		for _, other := range v.Items[:i] {
			if v.Kind == "set" && (item.Kind != other.Kind || item.meets(other)) {
				return fmt.Errorf("elements %q and %q of a set: they are of two kinds, or one may be taken for the other", other.Value, item.Value)
			}
		}
	}
	return nil
}

// meets says whether some text is both of two values of one kind, which can be read.
func (v Value) meets(o Value) bool {
	return slices.ContainsFunc(v.Texts(), func(a string) bool {
		return slices.ContainsFunc(o.Texts(), func(b string) bool {
			if v.Kind != "number" { // a gold date has one form
				return normal(a) == normal(b)
			}
			x, _, _ := parseNumber(a)
			y, _, _ := parseNumber(b)
			return new(big.Rat).Abs(x.Sub(x, y)).Cmp(new(big.Rat).Add(v.tolerance(), o.tolerance())) <= 0
		})
	})
}

// tolerance is Tol as a number, 0 where there is none, nil where it cannot be read.
func (v Value) tolerance() *big.Rat {
	if v.Tol == "" {
		return new(big.Rat)
	}
	tol, unit, ok := parseNumber(v.Tol)
	if !ok || unit != "" || tol.Sign() < 0 {
		return nil
	}
	return tol
}

var (
	fold   = cases.Fold()
	plain  = strings.NewReplacer("\u2018", "'", "\u2019", "'", "\u201c", `"`, "\u201d", `"`, "\u2010", "-", "\u2011", "-", "\u2212", "-", "\u00a0", " ", "\u202f", " ", "\u2009", " ")
	number = regexp.MustCompile(`^([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)\s*([^\d].*)?$`)
)

// normal is the form in which texts are compared: composed letters, plain quotes, hyphens and spaces, one case, no full stop,
// and nothing at the ends that FinalAnswer takes for markup.
func normal(s string) string {
	if isPlain(s) {
		s = strings.ToLower(s)
	} else {
		s = fold.String(strings.Join(strings.Fields(plain.Replace(norm.NFC.String(s))), " "))
	}
	return strings.Trim(strings.TrimSuffix(s, "."), "*_ ")
}

// isPlain says that a text is ASCII with no more space than one between words, as most are: its normal form is made quickly.
func isPlain(s string) bool {
	before := byte(' ')
	for _, c := range []byte(s) {
		if c >= utf8.RuneSelf || '\t' <= c && c <= '\r' || c == ' ' && before == ' ' {
			return false
		}
		before = c
	}
	return before != ' '
}

// parseNumber reads one decimal number, thousands separated by commas or not, and the unit after it. Anything else in the
// text, such as a second number, means that it is not one number.
func parseNumber(s string) (*big.Rat, string, bool) {
	s = normal(s)
	if len(s) > 100 {
		return nil, "", false
	}
	if isDecimal(s) { // as most are; the expression takes its time
		r, ok := new(big.Rat).SetString(s)
		return r, "", ok
	}
	if rest, ok := strings.CutPrefix(s, "\u20ac"); ok { // the one sign that stands before its number
		s = strings.TrimSpace(rest) + "\u20ac"
	}
	m := number.FindStringSubmatch(s)
	if m == nil {
		return nil, "", false
	}
	r, ok := new(big.Rat).SetString(strings.ReplaceAll(m[1], ",", ""))
	return r, m[2], ok
}

// isDecimal says that a text is digits, perhaps with a minus before and a point within them.
func isDecimal(s string) bool {
	whole, fraction, point := strings.Cut(strings.TrimPrefix(s, "-"), ".")
	if whole == "" || point && fraction == "" {
		return false
	}
	notDigit := func(r rune) bool { return r < '0' || r > '9' }
	return !strings.ContainsFunc(whole, notDigit) && !strings.ContainsFunc(fraction, notDigit)
}

// units lists the spellings of a unit beside its symbol. Symbols are as the environments write them.
var units = map[string][]string{
	"C":    {"\u00b0c", "celsius", "degrees celsius", "degrees c", "deg c"},
	"F":    {"\u00b0f", "fahrenheit", "degrees fahrenheit", "degrees f", "deg f"},
	"%":    {"percent", "per cent"},
	"km/h": {"kph", "kmh", "kilometres per hour", "kilometers per hour"},
	"mph":  {"miles per hour"},
	"mm":   {"millimetres", "millimeters"},
	"in":   {"inch", "inches"},
	"hPa":  {"hectopascal", "hectopascals"},
	"h":    {"hour", "hours"},
	"EUR":  {"\u20ac", "euro", "euros"},
}

func sameUnit(given, want string) bool {
	return want != "" && (given == normal(want) || slices.Contains(units[want], given))
}

func parseDate(s string) (time.Time, error) {
	s = normal(s)
	for _, layout := range []string{time.DateOnly, "2 January 2006", "January 2, 2006"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a date", s)
}
