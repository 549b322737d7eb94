package policies

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// Crowd plays tasks as agents of mixed quality do, whose unfiltered traces a model can learn the forms of a task from: about a
// third of its episodes succeed. Each episode is played by one of five members, who follow the task's solution and err at
// stated rates. After an error they are honest: an answer is made of what was seen, and a value that was never seen is
// replaced by another of its kind. An episode's seed decides all. It is never ranked.
//
// An episode makes at most three turns more than the solution has.
type Crowd struct{}

// member is one kind of agent, and how often it errs: of its calls, where nothing else is said.
type member struct {
	name    string
	share   int     // of the episodes
	skip    float64 // leaves the call out
	stop    float64 // of its turns from the second on: answers from what it has seen
	muddle  float64 // names another thing of the same kind that it has seen: another station, the country for the city, another date
	invent  float64 // calls a tool that does not exist, gives an argument that the tool does not know, or makes a name up
	blurt   float64 // of its episodes: answers at once, with something of the right form
	misread float64 // of its answers after all that it takes was seen: gives other values
}

var members = []member{
	{name: "careful", share: 1},
	{name: "hasty", share: 2, skip: 0.35, stop: 0.25},
	{name: "muddled", share: 2, muddle: 0.6},
	{name: "inventive", share: 2, invent: 0.6},
	{name: "guesser", share: 2, blurt: 0.4, misread: 0.6},
}

const (
	givesUp  = 0.35 // of errors that a member has earned: it answers from what it has seen. Else it goes back to the first call that it has not made right
	lucky    = 0.1  // of values that it needs and has not seen: guessed right
	abstains = 0.1  // of answers for which not all was seen
	terse    = 0.25 // of its episodes: it does not write down what the solution does on the way to a call or an answer
	patience = 3    // errors that it has earned, after which it answers
)

// Start fails: without the task there is no solution to err from.
func (Crowd) Start(context.Context, Episode) (Agent, error) {
	return nil, fmt.Errorf("crowd plays only tasks whose solution it is given")
}

// StartTask returns a member of the crowd.
func (Crowd) StartTask(_ context.Context, ep Episode, task envs.Task) (Agent, error) {
	c, err := newCrowd(ep, task)
	if err != nil {
		return nil, err
	}
	return AgentFunc(c.act), nil
}

// crowd is a member that plays an episode.
type crowd struct {
	*rand.Rand
	member
	tools     []sandboxes.Tool
	turns     []envs.Action // of the solution, without the answer
	final     string
	prompt    string
	mentioned []value // in the prompt
	seen      []value // in all results
	last      []value // in the results of the last turn
	done      map[place]bool
	made      []attempt // the calls of the last turn
	at        int       // turn of the solution
	played    int       // turns
	calls     int
	terse     bool
	errors    int  // earned
	altered   bool // the world may not be what the solution has seen
}

// place is a call of the solution.
type place struct{ turn, call int }

// attempt is a call made for one of the solution: exactly that one, or one that shows the same.
type attempt struct {
	place
	exact, same bool
}

// value is a plain value, and the field that it stood in.
type value struct{ field, text string }

func newCrowd(ep Episode, task envs.Task) (*crowd, error) {
	if len(task.Solution) == 0 {
		return nil, fmt.Errorf("task %s has no solution", task.ID)
	}
	n := len(task.Solution) - 1
	c := &crowd{Rand: rand.New(rand.NewPCG(ep.Seed, 0x63726f7764)), tools: ep.Tools, turns: task.Solution[:n], final: task.Solution[n].Text, prompt: ep.Prompt, done: map[place]bool{}}
	for _, m := range readMentions(ep.Prompt) {
		before := strings.TrimRight(ep.Prompt[:m.start], " ")
		if m.kind != "name" || before != "" && !strings.ContainsAny(before[len(before)-1:], ".?!") { // a sentence rarely begins with a name
			c.mentioned = append(c.mentioned, value{"", m.text})
		}
	}
	var all []member
	for _, m := range members {
		all = append(all, slices.Repeat([]member{m}, m.share)...)
	}
	c.member, c.terse = all[c.IntN(len(all))], c.draw(terse)
	return c, nil
}

func (c *crowd) draw(rate float64) bool { return c.Float64() < rate }

func (c *crowd) act(_ context.Context, o envs.Observation) (envs.Action, error) {
	wrong, first := c.look(o), c.played == 0
	if c.played++; c.played > len(c.turns)+patience {
		return c.answer(), nil
	}
	if wrong > 0 {
		if c.errors += wrong; c.errors >= patience || c.draw(givesUp) {
			return c.answer(), nil
		}
		c.at = 0
	}
	if first && c.draw(c.blurt) || !first && c.draw(c.stop) {
		return c.answer(), nil
	}
	for ; c.at < len(c.turns); c.at++ {
		var calls []envs.Call
		c.made = nil
		for i, gold := range c.turns[c.at].Calls {
			at := place{c.at, i}
			if c.done[at] || c.draw(c.skip) {
				continue
			}
			call, exact, same := c.call(gold, at)
			call.ID = fmt.Sprintf("call_%d", c.calls)
			c.calls++
			calls, c.made = append(calls, call), append(c.made, attempt{at, exact, same})
		}
		if len(calls) > 0 {
			a := envs.Action{Calls: calls}
			if c.writes(place{c.at, 0}) && !slices.ContainsFunc(c.made, func(m attempt) bool { return !m.exact }) {
				a.Text = c.turns[c.at].Text
			}
			c.at++
			return a, nil
		}
	}
	return c.answer(), nil
}

// look reads the results of the calls that were made, and counts the errors among them that the solution would not have seen.
func (c *crowd) look(o envs.Observation) (wrong int) {
	c.last = nil
	for i, res := range o.Results {
		c.last = append(c.last, readValues(res.Text)...)
		if i >= len(c.made) {
			continue
		}
		m, ok := c.made[i], res.Status == envs.StatusOK
		before := c.sawAll(m.place)
		readOnly := slices.ContainsFunc(c.tools, func(t sandboxes.Tool) bool { return t.Name == res.Name && t.ReadOnly })
		switch {
		case m.exact && before, m.same && ok:
			c.done[m.place] = true
			c.altered = c.altered || !before && !readOnly
		case ok:
			c.altered = c.altered || !readOnly
		default:
			wrong++
		}
	}
	c.seen = append(c.seen, c.last...)
	return wrong
}

// writes says that the member has seen what the solution makes of the results before a place, and writes it down.
func (c *crowd) writes(end place) bool { return !c.terse && c.sawAll(end) && !c.altered }

// sawAll says whether every call of the solution before a place was made right.
func (c *crowd) sawAll(end place) bool {
	for t, turn := range c.turns {
		for i := range turn.Calls {
			if (t < end.turn || t == end.turn && i < end.call) && !c.done[place{t, i}] {
				return false
			}
		}
	}
	return true
}

// call makes a call of the solution as the member does. exact says that it is that very call, same that it shows the same.
func (c *crowd) call(gold envs.Call, at place) (call envs.Call, exact, same bool) {
	args, err := envs.DecodeJSON(gold.Arguments)
	object, ok := args.(map[string]any)
	if err != nil || !ok {
		return gold, true, true
	}
	call, exact, same = gold, true, true
	if !c.sawAll(at) { // some of its values may come from what it has not seen
		changed := edit(object, "", func(field string, v string) string {
			return inText(v, func(v string) string {
				if c.known(gold.Name, v) || c.draw(lucky) {
					return v
				}
				return c.other(v, field, c.seen, c.mentioned)
			})
		})
		exact, same = !changed, !changed
	}
	switch {
	case c.draw(c.muddle):
		if c.muddled(gold.Name, object) {
			exact, same = false, false
		}
	case c.draw(c.invent):
		exact = false
		switch c.IntN(3) {
		case 0:
			call.Name, same = c.noTool(gold.Name), false
		case 1:
			object[c.noArgument(object)] = []any{"metric", true, json.Number("10")}[c.IntN(3)]
		default:
			if same = false; !c.misnamed(object) {
				call.Name = c.noTool(gold.Name)
			}
		}
	}
	if exact {
		return gold, true, true
	}
	if call.Arguments, err = json.Marshal(object); err != nil {
		return gold, true, true
	}
	return call, exact, same
}

// known says that a value stands in the prompt, in a result, or in the tool's description.
func (c *crowd) known(name, v string) bool {
	for _, t := range c.tools {
		if t.Name == name && (standsIn(string(t.InputSchema), v) || standsIn(t.Description, v)) {
			return true
		}
	}
	return standsIn(c.prompt, v) || c.saw(v)
}

func (c *crowd) saw(v string) bool {
	return slices.ContainsFunc(c.seen, func(s value) bool { return standsIn(s.text, v) })
}

// muddled replaces one value of a call's arguments by another of its kind that was seen, or by a name. It is false where none
// was seen.
func (c *crowd) muddled(name string, args map[string]any) bool {
	for _, k := range c.Perm(leaves(args)) {
		i, changed := 0, false
		edit(args, "", func(field, v string) string {
			if i++; i-1 != k {
				return v
			}
			changed = true
			now := v
			if parts := partsOf(v); len(parts) > 0 {
				part := parts[c.IntN(len(parts))]
				if other, ok := c.find(v[part[0]:part[1]], "", c.seen, c.mentioned); ok {
					now = v[:part[0]] + other + v[part[1]:]
				}
			} else if other, ok := c.find(v, field, c.seen, c.mentioned); ok && c.fits(name, field, other) {
				now = other
			} else if day, err := time.Parse(time.DateOnly, v); err == nil {
				now = day.AddDate(0, 0, []int{-7, -1, 1, 7}[c.IntN(4)]).Format(time.DateOnly)
			} else if other, ok := c.find("Name", "", c.mentioned, c.seen); ok && kindOf(v) != "number" {
				now = other
			}
			changed = now != v
			return now
		})
		if changed {
			return true
		}
	}
	return false
}

// fits says that a tool takes a value for a parameter.
func (c *crowd) fits(name, field, v string) bool {
	i := slices.IndexFunc(c.tools, func(t sandboxes.Tool) bool { return t.Name == name })
	if i < 0 {
		return true
	}
	doc, err := envs.DecodeJSON(c.tools[i].InputSchema)
	root, ok := doc.(map[string]any)
	if err != nil || !ok {
		return true
	}
	for _, p := range properties(root, resolve(root, root, schemaDepth)) {
		if p.name == field {
			_, ok := p.coerce(v)
			return ok
		}
	}
	return true
}

// misnamed makes one name in a call's arguments up. It is false where there is none.
func (c *crowd) misnamed(args map[string]any) bool {
	for _, k := range c.Perm(leaves(args)) {
		i, changed := 0, false
		edit(args, "", func(_, v string) string {
			if i++; i-1 != k {
				return v
			}
			if parts := partsOf(v); len(parts) > 0 {
				changed = true
				part := parts[c.IntN(len(parts))]
				return v[:part[0]] + c.madeUp(v[part[0]:part[1]]) + v[part[1]:]
			}
			switch kindOf(v) {
			case "id", "path", "name", "date":
				changed = true
				return c.madeUp(v)
			}
			return v
		})
		if changed {
			return true
		}
	}
	return false
}

// noTool is the name of a tool that does not exist, such as get_weather.
func (c *crowd) noTool(name string) string {
	verb, _, _ := strings.Cut(name, "_")
	for {
		made := verb + "_" + []string{"weather", "data", "info", "details", "records", "all"}[c.IntN(6)]
		if !slices.ContainsFunc(c.tools, func(t sandboxes.Tool) bool { return t.Name == made }) {
			return made
		}
		verb += "_more"
	}
}

// noArgument is the name of an argument that no tool here knows.
func (c *crowd) noArgument(args map[string]any) string {
	made := []string{"units", "format", "lang", "limit", "verbose"}[c.IntN(5)]
	for {
		_, given := args[made]
		if !given && !slices.ContainsFunc(c.tools, func(t sandboxes.Tool) bool { return strings.Contains(string(t.InputSchema), `"`+made+`"`) }) {
			return made
		}
		made += "_mode"
	}
}

// answer is the member's final answer. What the solution writes down before it goes with one that it makes right.
func (c *crowd) answer() envs.Action {
	_, line, ok := strings.Cut(c.final, answerMark)
	if !ok {
		return envs.Action{Text: c.final}
	}
	all := c.sawAll(place{len(c.turns), 0}) && !c.altered
	wrong := all && c.draw(c.misread)
	switch {
	case all && !wrong && !c.terse:
		return envs.Action{Text: c.final}
	case all && !wrong:
		return envs.Action{Text: answerMark + line}
	case !all && c.draw(abstains):
		return envs.Action{Text: answerMark + noData}
	}
	values := strings.Split(line, "; ")
	for i, v := range values {
		items := strings.Split(v, ", ")
		for k, item := range items {
			switch {
			case item == noData: // who has not looked does not know that there is none
				items[k] = c.other("10", "", c.last, c.seen, c.mentioned)
			case wrong || !c.saw(item):
				items[k] = c.other(item, "", c.last, c.seen, c.mentioned)
			}
		}
		values[i] = strings.Join(items, ", ")
	}
	return envs.Action{Text: answerMark + strings.Join(values, "; ")}
}

// other is another value of a kind, out of the first pool that has one, or made up.
func (c *crowd) other(v, field string, pools ...[]value) string {
	if found, ok := c.find(v, field, pools...); ok {
		return found
	}
	return c.madeUp(v)
}

// find draws another value of a kind out of the first pool that has one: of the same field, else of the same form, else of the
// same kind.
func (c *crowd) find(v, field string, pools ...[]value) (string, bool) {
	kind, form := kindOf(v), formOf(v)
	for _, pool := range pools {
		for _, like := range []func(value) bool{
			func(s value) bool { return field != "" && s.field == field },
			func(s value) bool { return kindOf(s.text) == kind && formOf(s.text) == form },
			func(s value) bool { return kindOf(s.text) == kind },
		} {
			var fit []string
			for _, s := range pool {
				if s.text != v && like(s) && len(partsOf(s.text)) == 0 {
					fit = append(fit, s.text)
				}
			}
			if len(fit) > 0 {
				return fit[c.IntN(len(fit))], true
			}
		}
	}
	return "", false
}

const vowels, consonants = "aeiou", "bcdfghjklmnpqrstvwxyz"

// madeUp is a value of the same form that is another: of a name some letters differ, of a path those of its last part.
func (c *crowd) madeUp(v string) string {
	kind := kindOf(v)
	for {
		if kind == "date" {
			if made := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, c.IntN(4000)).Format(time.DateOnly); made != v {
				return made
			}
			continue
		}
		made := []rune(v)
		changed := false
		for i, r := range made {
			if kind == "path" && i <= utf8.RuneCountInString(v[:strings.LastIndex(strings.TrimSuffix(v, "/"), "/")+1])-1 {
				continue
			}
			letters := consonants
			switch low := unicode.ToLower(r); {
			case r >= '1' && r <= '9':
				made[i] = '1' + rune(c.IntN(9))
				continue
			case r == '0':
				made[i] = '0' + rune(c.IntN(10))
				continue
			case strings.ContainsRune(vowels, low):
				letters = vowels
			case !strings.ContainsRune(consonants, low):
				continue
			}
			if kind != "id" && !c.draw(0.3) {
				continue
			}
			to := rune(letters[c.IntN(len(letters))])
			if unicode.IsUpper(r) {
				to = unicode.ToUpper(to)
			}
			made[i] = to
		}
		for i, r := range []rune(v) {
			changed = changed || made[i] != r
		}
		if changed {
			return string(made)
		}
		if !strings.ContainsFunc(v, func(r rune) bool { return unicode.IsDigit(r) || r < unicode.MaxASCII && unicode.IsLetter(r) }) {
			return v + "x"
		}
	}
}

var (
	numberForm = regexp.MustCompile(`^-?(?:0|[1-9]\d*)(?:\.\d+)?$`)
	dateForm   = regexp.MustCompile(`^\d{4}-\d\d-\d\d$`)
	// partForm finds what a statement or a text names: what is quoted, dates, numbers, and names with an underscore.
	partForm = regexp.MustCompile(`'([^'\s]+)'|\b\d{4}-\d\d-\d\d\b|\b\d+(?:\.\d+)?\b|\b[a-z]+_[a-z_]+\b`)
)

// kindOf is what a value looks like: a date, a number, a path, an id, a name or a word.
func kindOf(v string) string {
	first, _ := utf8.DecodeRuneInString(v)
	switch {
	case dateForm.MatchString(v):
		return "date"
	case numberForm.MatchString(v):
		return "number"
	case strings.Contains(v, "/"):
		return "path"
	case !strings.Contains(v, " ") && strings.ContainsFunc(v, unicode.IsDigit):
		return "id"
	case unicode.IsUpper(first) && utf8.RuneCountInString(v) > 2:
		return "name"
	}
	return "word"
}

// formOf tells values of one kind apart: numbers by their decimals, ids by their letters and digits.
func formOf(v string) string {
	switch kindOf(v) {
	case "number":
		_, decimals, _ := strings.Cut(v, ".")
		return fmt.Sprint(len(decimals))
	case "id":
		return strings.Map(func(r rune) rune {
			switch {
			case unicode.IsDigit(r):
				return '9'
			case unicode.IsUpper(r):
				return 'A'
			case unicode.IsLetter(r):
				return 'a'
			}
			return r
		}, v)
	}
	return ""
}

// partsOf finds the values in a statement or a longer text; a plain value has none.
func partsOf(v string) [][2]int {
	if len(v) < 30 || !strings.ContainsAny(v, " \n") {
		return nil
	}
	var parts [][2]int
	for _, m := range partForm.FindAllStringSubmatchIndex(v, -1) {
		if m[2] >= 0 { // without the quotes
			m = m[2:]
		}
		parts = append(parts, [2]int{m[0], m[1]})
	}
	return parts
}

// inText applies a change to a value, or to each of those in a statement.
func inText(v string, change func(string) string) string {
	parts := partsOf(v)
	if len(parts) == 0 {
		return change(v)
	}
	var b strings.Builder
	at := 0
	for _, p := range parts {
		b.WriteString(v[at:p[0]])
		b.WriteString(change(v[p[0]:p[1]]))
		at = p[1]
	}
	return b.String() + v[at:]
}

// edit applies a change to each text and number of arguments, in the order of their names, and says whether any is another now.
func edit(v any, field string, change func(field, v string) string) (changed bool) {
	one := func(field string, e any) any {
		switch e := e.(type) {
		case string:
			now := change(field, e)
			changed = changed || now != e
			return now
		case json.Number:
			now := change(field, string(e))
			changed = changed || now != string(e)
			if numberForm.MatchString(now) {
				return json.Number(now)
			}
			return now
		}
		changed = edit(e, field, change) || changed
		return e
	}
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			v[k] = one(k, v[k])
		}
	case []any:
		for i := range v {
			v[i] = one(field, v[i])
		}
	}
	return changed
}

// leaves counts the texts and numbers of arguments.
func leaves(args map[string]any) int {
	n := 0
	edit(args, "", func(_, v string) string { n++; return v })
	return n
}

// readValues lists the values of a result: those of its fields, what is mentioned in its longer texts, and the days of times.
func readValues(text string) []value {
	var out []value
	add := func(field, v string) string {
		out = append(out, value{field, v})
		if len(v) > 10 && v[10] == 'T' && dateForm.MatchString(v[:10]) {
			out = append(out, value{"", v[:10]})
		}
		if strings.ContainsAny(v, " \n") {
			for _, m := range readMentions(v) {
				out = append(out, value{"", m.text})
			}
		}
		return v
	}
	doc, err := envs.DecodeJSON([]byte(text))
	if err != nil {
		doc = text
	}
	edit([]any{doc}, "", add)
	return out
}

// standsIn says that a value stands in a text by itself: not as a part of a longer word or number.
func standsIn(text, v string) bool {
	inner := func(r rune, digit bool) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '/' && strings.Contains(v, "/") || digit && strings.ContainsRune(".-:", r)
	}
	number := kindOf(v) == "number"
	for from := 0; v != "" && from < len(text); {
		i := strings.Index(text[from:], v)
		if i < 0 {
			return false
		}
		start, end := from+i, from+i+len(v)
		before, _ := utf8.DecodeLastRuneInString(text[:start])
		after, size := utf8.DecodeRuneInString(text[end:])
		next, _ := utf8.DecodeRuneInString(text[min(len(text), end+size):])
		if !inner(before, number) && !inner(after, number && unicode.IsDigit(next)) {
			return true
		}
		from = start + 1
	}
	return false
}
