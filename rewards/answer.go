package rewards

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"github.com/mcpgym/mcpgym/envs"
)

// Want is a task's right answer and the evidence that it must follow from, as JSON in Task.Want.
type Want struct {
	Answer   []Value  `json:"answer"`   // the values after "ANSWER:", in order, separated by semicolons
	Evidence [][]Fact `json:"evidence"` // of each group, one fact must stand in a result that the agent got
}

// Value is one value of an answer.
type Value struct {
	Kind   string   `json:"kind"` // number, text or date
	Value  string   `json:"value"`
	Tol    string   `json:"tol,omitempty"`    // number: largest difference that still counts, a decimal; exact if empty
	Unit   string   `json:"unit,omitempty"`   // number: may follow it; another unit is wrong
	Accept []string `json:"accept,omitempty"` // other right values
}

// Answer is the gate for the final answer: it must be right, and the record must hold the results it follows from. Credit
// without evidence would pay for guessing. Task.Want holds a Want; where it is empty and the task
// asserts something instead, the agent must only have ended the episode itself.
func Answer(weight float64) Component {
	return Component{"answer", envs.Gate, weight, func(t *envs.Trajectory) (*float64, string, error) {
		if len(t.Task.Want) == 0 && len(t.Task.Assertions) > 0 {
			if _, ok := t.Answer(); !ok {
				return scored(0, "the agent did not say that it has finished")
			}
			return scored(1, "no value is asked for")
		}
		want, err := DecodeWant(t.Task.Want)
		if err != nil {
			return nil, "", err
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
				return nil, "", err
			}
			if !match {
				return scored(0, "%.60q is not the right %s", strings.TrimSpace(values[i]), v.Kind)
			}
		}
		lack, err := missing(want.Evidence, t)
		if err != nil {
			return nil, "", err
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
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&w); err != nil {
		return w, fmt.Errorf("read the wanted answer: %w", err)
	}
	if len(w.Answer) == 0 || len(w.Evidence) == 0 {
		return w, errors.New("the wanted answer names no value or no evidence")
	}
	for _, group := range w.Evidence {
		for _, f := range group {
			if (len(f.Has) == 0) == (f.Cell == nil) {
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
		m := answerLine.FindStringSubmatch(line)
		switch {
		case m == nil && found:
			return "", errors.New("there is text after the line with the answer")
		case m == nil:
		case found && normal(m[1]) != normal(answer):
			return "", errors.New("several different answers")
		default:
			answer, found = m[1], true
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

// Match says whether a given text is this value. The error says that the value itself, not the answer, cannot be read.
func (v Value) Match(given string) (bool, error) {
	found := false
	for _, gold := range append([]string{v.Value}, v.Accept...) {
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
			tol := new(big.Rat)
			if v.Tol != "" {
				if tol, _, ok = parseNumber(v.Tol); !ok || tol.Sign() < 0 {
					return false, fmt.Errorf("gold unreadable: tolerance %q is not a number of 0 or more", v.Tol)
				}
			}
			got, unit, ok := parseNumber(given)
			match = ok && (unit == "" || sameUnit(unit, v.Unit)) && new(big.Rat).Abs(got.Sub(got, want)).Cmp(tol) <= 0
		default:
			return false, fmt.Errorf("gold unreadable: kind %q, want number, text or date", v.Kind)
		}
		found = found || match // go on: what cannot be read must not depend on the answer
	}
	return found, nil
}

var (
	fold   = cases.Fold()
	plain  = strings.NewReplacer("\u2018", "'", "\u2019", "'", "\u201c", `"`, "\u201d", `"`, "\u2010", "-", "\u2011", "-", "\u2212", "-", "\u00a0", " ", "\u202f", " ", "\u2009", " ")
	number = regexp.MustCompile(`^([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)\s*([^\d].*)?$`)
)

// normal is the form in which texts are compared: composed letters, plain quotes, hyphens and spaces, one case, no full stop,
// and nothing at the ends that FinalAnswer takes for markup.
func normal(s string) string {
	s = strings.Join(strings.Fields(plain.Replace(norm.NFC.String(s))), " ")
	return strings.Trim(strings.TrimSuffix(fold.String(s), "."), "*_ ")
}

// parseNumber reads one decimal number, thousands separated by commas or not, and the unit after it. Anything else in the
// text, such as a second number, means that it is not one number.
func parseNumber(s string) (*big.Rat, string, bool) {
	s = normal(s)
	if len(s) > 100 {
		return nil, "", false
	}
	m := number.FindStringSubmatch(s)
	if m == nil {
		return nil, "", false
	}
	r, ok := new(big.Rat).SetString(strings.ReplaceAll(m[1], ",", ""))
	return r, m[2], ok
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
