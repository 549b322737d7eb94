package envtest

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
)

var dates = regexp.MustCompile(`\d{4}-\d{2}-\d{2}`)

func (c *checker) derivable() {
	for _, task := range c.tasks {
		t := c.gold(task)
		if t == nil {
			continue
		}
		known := c.spec.System + "\n" + task.System + "\n" + task.Prompt + "\n" + string(encode(t.Tools))
		for _, s := range t.Steps {
			for _, call := range s.Action.Calls {
				v, err := envs.DecodeJSON(call.Arguments)
				if err != nil {
					c.Errorf("%s: gold call %s: %v", task.ID, call.Name, err)
					continue
				}
				for _, leaf := range leaves(v) {
					if !derived(leaf, known) {
						what := leaf
						if sqlStart.MatchString(leaf) {
							what = underived(leaf, known) + " in " + leaf
						}
						c.Errorf("%s: gold call %s uses %q, which stands nowhere before it", task.ID, call.Name, what)
					}
				}
			}
			for _, r := range s.Observation.Results {
				known += "\n" + r.Text
			}
		}
		for _, ref := range rewards.InventedReferences(t) {
			c.Errorf("%s: the gold solution refers to %q, which was not seen before", task.ID, ref)
		}
		for _, claim := range rewards.UnsupportedClaims(t) {
			c.Errorf("%s: the gold answer says %q, which does not follow from what was seen: %s", task.ID, claim.Text, claim.Reason)
		}
	}
}

// derived says whether an agent could have a literal: it stands in what it saw, is a small count, is a date near one seen, is
// a statement made of such, or a path or a text whose words stand there.
func derived(leaf, known string) bool {
	if strings.Contains(strings.ToLower(known), strings.ToLower(leaf)) {
		return true
	}
	if len(leaf) <= 2 && strings.Trim(leaf, "0123456789") == "" {
		return true
	}
	day, err := time.Parse(time.DateOnly, leaf)
	if err != nil {
		if sqlStart.MatchString(leaf) {
			return underived(leaf, known) == ""
		}
		return strings.ContainsAny(leaf, "/\n ") && composed(leaf, known)
	}
	return slices.ContainsFunc(dates.FindAllString(known, -1), func(s string) bool {
		near, err := time.Parse(time.DateOnly, s)
		return err == nil && day.Sub(near).Abs() < 400*24*time.Hour
	})
}

// composed says whether each word of a path or a text stands in what is known.
func composed(text, known string) bool {
	known = strings.ToLower(known)
	for word := range strings.FieldsFuncSeq(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		if !strings.Contains(known, word) {
			return false
		}
	}
	return true
}

func leaves(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case json.Number:
		return []string{v.String()}
	case []any:
		var out []string
		for _, e := range v {
			out = append(out, leaves(e)...)
		}
		return out
	case map[string]any:
		var out []string
		for _, e := range v {
			out = append(out, leaves(e)...)
		}
		slices.Sort(out)
		return out
	}
	return nil
}
