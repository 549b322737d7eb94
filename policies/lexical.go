package policies

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
)

// Lexical plays by hand-made rules that compare words: those of the prompt with those of tools, parameters and results. It
// knows how tools are used, and nothing of what they are about: no synonyms, no calendar, no units, no arithmetic but a
// difference. It is frozen; what is trained must beat it.
//
// It was cut down from rules three times as long, which had all of these and were improved on failures in the train split of
// Weather-v0: they solved 93 % of its test split and 40 % of ood. Tasks that are worded by templates are within reach of rules
// for those templates; such rules know the environment, which a baseline of all environments must not.
//
// Its rules, in the order of the code:
//
//  1. Rank the tools by the rare words that they share with the prompt.
//  2. Fill a tool's parameters from the prompt: choices by name, all else by form and by the words beside it.
//  3. Fill what is lacking from results: a field of that name, in the object that shares most names with the prompt, or in every
//     object of a list where the prompt asks for the highest or lowest of several.
//  4. If nothing there fits, first call the tool that most likely gives it, its parameters filled in the same way.
//  5. Repeat a call once if its error sounds passing; after another error avoid the value that it names. Turn pages.
//  6. Keep the rows of results that hold a text of the prompt, and choose the field whose name shares most with it. Answer with its
//     value for each subject; with the label and the value of the highest or lowest row; with the larger of two subjects and the
//     difference.
//  7. Where there is no such field, or the result says so, there are no data.
type Lexical struct{}

const (
	maxCalls   = 15         // in an episode
	maxGoals   = 2          // tools tried as the one with the answer
	maxPages   = 6          // of one list
	maxDepth   = 3          // of calls that only serve to fill a parameter
	answerMark = "ANSWER: " // before the values of an answer
	noData     = "no data"
)

// Start returns an agent. It chooses nothing at random.
func (Lexical) Start(_ context.Context, ep Episode) (Agent, error) {
	l := &lexical{tools: readTools(ep.Tools), refused: map[string]bool{}}
	l.readQuestion(strings.ToValidUTF8(ep.Prompt, "?"))
	l.rank()
	return AgentFunc(l.act), nil
}

type lexical struct {
	text     string    // the prompt
	stems    []string  // of its words
	mentions []mention // without names
	subjects []subject // what it is about, one at least, perhaps without names
	sign     int       // 1: it asks for the highest, -1: for the lowest
	compare  bool      // of two subjects
	differ   bool      // it asks for a difference

	tools   []tool
	goals   []*tool // best first
	made    []*made
	refused map[string]bool // tool, parameter and value that led to an error
}

// subject is a name, and other names that say which of that name is meant.
type subject []mention

// made is a call and what came of it.
type made struct {
	t            *tool
	args         map[string]any
	root         string // key of the first page's call
	tries        int
	open, failed bool
	text         string
	records      []record
}

// key names a call, or one argument of it.
func key(t *tool, args map[string]any) string { return fmt.Sprint(t.Name, args) }

var (
	common = wordSet(`a an the of in on at to for from by with and or is are was were be been being do does did has have had it its this that these
		those there here i you we me my our us he she they them their what which who whom whose when where how why can could will would shall should may
		must please tell give find list show name compare report read look looking get make add answer want need between among as than then not no any
		all each every both also only such same other one if so but about into over under up down per via until since during`)
	keyWords  = wordSet(`id key code ref identifier uuid number`)
	textWords = wordSet(`query q search text term keyword keywords name title pattern`)
	fromWords = wordSet(`from start since begin after first min`)
	toWords   = wordSet(`to end until before last max`)

	joins      = regexp.MustCompile(`\b(?:and|or|versus|vs|than|with)\b`)
	graded     = regexp.MustCompile(`(?i)\b(?:(most|more|highest|higher|maximum|largest|greatest|biggest|strongest|longest|\w{3,}est|\w{3,}er than|where is it \w+er)|(least|less|fewest|lowest|lower|minimum|smallest|shortest|coldest|cheapest))\b`)
	lowest     = regexp.MustCompile(`(?i)\b(?:least|less|fewest|lowest|lower|minimum|smallest|shortest|coldest|coolest|cheapest)\b`)
	comparing  = regexp.MustCompile(`(?i)\b(?:compare|which|or|difference|than)\b`)
	differing  = regexp.MustCompile(`(?i)\bdifference|\bby how (?:much|many)\b|\bhow much \w+er\b`)
	labelled   = regexp.MustCompile(`(?i)\b(?:which|who|whose|where|when|name|find)\b`)
	absent     = regexp.MustCompile(`(?i)offline|unavailable|not available|no (\w+ )?(data|records?|information)\b`)
	passing    = regexp.MustCompile(`(?i)retry|again|temporar|busy|unavailable|time(d )?out|overload|rate limit`)
	turns      = regexp.MustCompile(`(?i)next|cursor`)
	sentenceAt = regexp.MustCompile(`[.?!]\s`)
)

func wordSet(s string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(s) {
		set[w] = true
	}
	return set
}

// readQuestion sorts what the prompt mentions into subjects and the rest. A new subject begins after a word such as "or".
func (l *lexical) readQuestion(text string) {
	l.text, l.stems = text, stems(text)
	known := map[string]bool{} // words that are no names: they stand elsewhere in small letters
	for _, t := range l.tools {
		for _, w := range words(t.doc()) {
			known[w] = true
		}
	}
	last := 0
	for _, m := range readMentions(text) {
		if m.kind != "name" && m.kind != "quoted" {
			l.mentions = append(l.mentions, m)
			continue
		}
		before := strings.TrimRight(text[:m.start], " ")
		for opens := m.kind == "name" && (before == "" || strings.ContainsAny(before[len(before)-1:], ".?!:\n")); opens && m.text != ""; {
			word, rest, _ := strings.Cut(m.text, " ")
			if w := strings.ToLower(word); !common[w] && !known[w] {
				break
			}
			m.text, m.start = rest, m.end-len(rest)
		}
		if m.text == "" {
			continue
		}
		gap := text[last:m.start]
		if n := len(l.subjects); n == 0 || joins.MatchString(gap) && len(strings.Fields(gap)) <= 5 && !sentenceAt.MatchString(gap) {
			l.subjects = append(l.subjects, subject{m})
		} else {
			l.subjects[n-1] = append(l.subjects[n-1], m)
		}
		last = m.end
	}
	if len(l.subjects) == 0 {
		l.subjects = []subject{nil}
	}
	if graded.MatchString(text) {
		l.sign = 1
		if lowest.MatchString(text) {
			l.sign = -1
		}
	}
	l.differ = differing.MatchString(text)
	l.compare = len(l.subjects) == 2 && (l.sign != 0 || l.differ || comparing.MatchString(text))
}

// all says that every object of a list matters.
func (l *lexical) all() bool { return len(l.subjects) == 1 && l.sign != 0 }

// rank orders the tools as those that may hold the answer.
func (l *lexical) rank() {
	docs := make([][]string, len(l.tools))
	for i := range l.tools {
		docs[i] = stems(l.tools[i].doc())
	}
	score := make(map[*tool]float64, len(l.tools))
	for _, w := range slices.Compact(slices.Sorted(slices.Values(l.stems))) {
		in := 1.0
		for _, doc := range docs {
			in += share([]string{w}, doc)
		}
		for i := range l.tools {
			rare := math.Log(1 + float64(len(docs))/in)
			score[&l.tools[i]] += rare * (share([]string{w}, docs[i]) + share([]string{w}, stems(l.tools[i].Name)))
		}
	}
	for i := range l.tools {
		t := &l.tools[i]
		for _, m := range l.mentions { // an identifier or a date must go somewhere
			if slices.ContainsFunc(t.params, func(p param) bool { return l.fits(p, m, -1) >= 2 }) {
				score[t] += 1.5
			}
		}
		l.goals = append(l.goals, t)
	}
	slices.SortStableFunc(l.goals, func(a, b *tool) int { return cmp.Compare(score[b], score[a]) })
}

// act plays a turn. It plans anew from all that is known.
func (l *lexical) act(_ context.Context, o envs.Observation) (envs.Action, error) {
	tries := 0
	for _, m := range l.made {
		tries += m.tries
		if !m.open {
			continue
		}
		m.open, m.failed = false, true
		if len(o.Results) > 0 {
			m.failed, m.text, m.records = o.Results[0].IsError, o.Results[0].Text, readRecords(o.Results[0].Text)
			o.Results = o.Results[1:]
		}
		if m.failed && !passing.MatchString(m.text) {
			l.refuse(m)
		}
	}
	calls, answer := l.plan()
	calls = calls[:max(0, min(len(calls), maxCalls-tries))]
	if len(calls) == 0 {
		return envs.Action{Text: answerMark + cmp.Or(answer, noData)}, nil
	}
	var a envs.Action
	for i, m := range calls {
		args, err := json.Marshal(m.args)
		if err != nil {
			return a, fmt.Errorf("encode the arguments of %s: %w", m.t.Name, err)
		}
		if m.tries++; m.tries == 1 {
			l.made = append(l.made, m)
		}
		m.open = true
		a.Calls = append(a.Calls, envs.Call{ID: fmt.Sprintf("call_%d", i), Name: m.t.Name, Arguments: args})
	}
	return a, nil
}

// plan returns the calls to make next, or else the answer.
func (l *lexical) plan() ([]*made, string) {
	for _, m := range l.made {
		if m.failed && m.tries == 1 && passing.MatchString(m.text) {
			return []*made{m}, ""
		}
		if next := l.page(m); next != nil {
			return []*made{next}, ""
		}
	}
	tried := 0
	for _, g := range l.goals {
		var calls []*made
		possible := false
		for s := range l.subjects {
			more, ok := l.want(g, s, maxDepth)
			possible = possible || ok
			for _, m := range more {
				if !slices.ContainsFunc(calls, func(c *made) bool { return key(c.t, c.args) == key(m.t, m.args) }) {
					calls = append(calls, m)
				}
			}
		}
		if len(calls) > 0 {
			return calls, ""
		}
		if possible {
			if answer := l.answer(g); answer != "" {
				return nil, answer
			}
			if len(l.rows(g, 0)) > 0 {
				tried++
			}
			if tried == maxGoals {
				break
			}
		}
	}
	return nil, noData
}

// want returns the calls that lead to a tool's results about a subject. None and true: they are there. None and false: there is
// no way.
func (l *lexical) want(t *tool, s, depth int) (calls []*made, ok bool) {
	sets, lacking := l.fill(t, s)
	if lacking != nil && depth > 0 && lacking.choices() == nil {
		for _, giver := range l.givers(t, *lacking) {
			if calls, _ := l.want(giver, s, depth-1); len(calls) > 0 {
				return calls, true
			}
		}
	}
	for _, args := range sets {
		if m := l.find(t, args); m != nil {
			ok = ok || !m.failed
		} else if raw, err := json.Marshal(args); err == nil && t.valid(raw) {
			calls, ok = append(calls, &made{t: t, args: args, root: key(t, args)}), true
		}
	}
	return calls, ok
}

func (l *lexical) find(t *tool, args map[string]any) *made {
	for _, m := range l.made {
		if key(m.t, m.args) == key(t, args) {
			return m
		}
	}
	return nil
}

// fill finds arguments for a call about a subject, several sets if every object of a list is meant. Where a parameter cannot be
// filled, it returns that.
func (l *lexical) fill(t *tool, s int) ([]map[string]any, *param) {
	type offer struct {
		p, source int
		value     any
		score     float64
	}
	var offers []offer
	for i, p := range t.params {
		for n, m := range slices.Concat(l.subjects[s], l.mentions, l.chosen(p)) {
			if n >= len(l.subjects[s]) {
				n = -1
			}
			v, ok := p.take(m)
			score := l.fits(p, m, n)
			if ok && (score >= 1 || p.required) && !p.isCursor() && !l.refused[key(t, map[string]any{p.name: v})] {
				offers = append(offers, offer{i, m.start, v, score})
			}
		}
	}
	slices.SortStableFunc(offers, func(a, b offer) int { return cmp.Compare(b.score, a.score) })
	args, spent := map[string]any{}, map[int]bool{}
	for _, o := range offers {
		if name := t.params[o.p].name; args[name] == nil && !spent[o.source] {
			args[name], spent[o.source] = o.value, true
		}
	}
	sets := []map[string]any{args}
	for i, p := range t.params {
		if args[p.name] != nil || !p.required {
			continue
		}
		values := l.found(t, p, s)
		if len(values) == 0 {
			return nil, &t.params[i]
		}
		var longer []map[string]any
		for _, set := range sets {
			for _, v := range values {
				set = maps.Clone(set)
				set[p.name] = v
				longer = append(longer, set)
			}
		}
		sets = longer
	}
	return sets, nil
}

// found looks through results for values of a parameter, in objects about the subject.
func (l *lexical) found(t *tool, p param, s int) []any {
	var values []any
	best := 0.0
	for _, m := range l.made {
		for _, r := range m.records {
			about := l.about(m, r, s)
			for _, f := range r.fields[:r.own] {
				v, ok := p.coerce(f.value)
				score := 100*nearName(f.name, p.name, r.list+" "+m.t.Name) + about
				if !ok || about == 0 || score < max(best, 100) || m.t == t || l.refused[key(t, map[string]any{p.name: v})] {
					continue
				}
				if score > best {
					best, values = score, nil
				}
				if len(values) == 0 || l.all() && !slices.Contains(values, v) {
					values = append(values, v)
				}
			}
		}
	}
	return values
}

// about says how many of a subject's names stand in an object, or led to it; 0 if it is about something else.
func (l *lexical) about(m *made, r record, s int) float64 {
	if len(l.subjects[s]) == 0 {
		return 1
	}
	sum := 0.0
	for i, name := range l.subjects[s] {
		best := 0.0
		for _, f := range r.fields {
			if text, _ := f.value.(string); strings.EqualFold(text, name.text) {
				best = 3
			} else if strings.Contains(text, name.text) {
				best = max(best, 1)
			}
		}
		for _, v := range m.args {
			if v == name.text {
				best = max(best, 0.5)
			}
		}
		sum += best / float64(1+i)
	}
	return sum
}

// givers are the tools that may give a value for a tool's parameter, best first.
func (l *lexical) givers(t *tool, p param) []*tool {
	var out []*tool
	score := map[*tool]float64{}
	for i, o := range l.goals {
		if o == t || slices.ContainsFunc(o.params, func(q param) bool { return q.required && q.name == p.name }) {
			continue
		}
		out = append(out, o)
		doc := p.text("description") + " " + t.Description
		score[o] = share(stems(p.name), stems(o.Name+" "+o.Description)) + share(stems(o.Name), stems(doc)) - 0.01*float64(i)
		if !l.all() && slices.ContainsFunc(o.params, func(q param) bool { return q.required && textWords[q.name] }) {
			score[o] += 2
		}
	}
	slices.SortStableFunc(out, func(a, b *tool) int { return cmp.Compare(score[b], score[a]) })
	return out[:min(3, len(out))]
}

// refuse remembers the values that an error names, or all of the call's if it names none.
func (l *lexical) refuse(m *made) {
	named := false
	for _, v := range m.args {
		named = named || strings.Contains(m.text, fmt.Sprint(v))
	}
	for name, v := range m.args {
		if !named || strings.Contains(m.text, fmt.Sprint(v)) {
			l.refused[key(m.t, map[string]any{name: v})] = true
		}
	}
}

// page is the call for the page after a result, by the cursor in it.
func (l *lexical) page(m *made) *made {
	if m.open || m.failed || len(m.records) == 0 {
		return nil
	}
	pages := 0
	for _, o := range l.made {
		if o.root == m.root {
			pages++
		}
	}
	for _, r := range m.records {
		for s, names := range l.subjects {
			if len(names) > 0 && l.about(m, r, s) >= 3 && !l.all() {
				return nil // found what was looked for
			}
		}
	}
	top := m.records[len(m.records)-1]
	for _, p := range m.t.params {
		for _, f := range top.fields[:top.own] {
			if v, ok := p.coerce(f.value); ok && v != "" && p.isCursor() && turns.MatchString(f.name) && pages < maxPages {
				args := maps.Clone(m.args)
				args[p.name] = v
				if l.find(m.t, args) == nil {
					return &made{t: m.t, args: args, root: m.root}
				}
			}
		}
	}
	return nil
}

// answer reads the answer off a tool's results, "" if it is not there.
func (l *lexical) answer(g *tool) string {
	var rows []record
	for s := range l.subjects {
		rows = append(rows, l.rows(g, s)...)
	}
	numeric := l.sign != 0 || l.compare
	measure := pick(rows, l.stems, func(r record, f field) bool {
		said, _ := f.value.(string) // what the prompt says is not asked for
		return r.isNumber(f) || !numeric && r.has(f) && !strings.Contains(l.text, said)
	})
	rows = slices.DeleteFunc(rows, func(r record) bool { return !r.has(field{measure, r.get(measure)}) })
	if measure == "" || len(rows) == 0 {
		if slices.ContainsFunc(l.made, func(m *made) bool { return m.t == g && !m.failed && absent.MatchString(m.text) }) {
			return noData
		}
		return ""
	}
	rows = l.said(rows)
	number := func(r record) *big.Rat {
		n, ok := r.number(measure)
		if !ok {
			return new(big.Rat)
		}
		return n
	}
	if numeric {
		slices.SortStableFunc(rows, func(a, b record) int { return number(b).Cmp(number(a)) * cmp.Or(l.sign, 1) })
	}
	best := rows[0]
	switch {
	case l.compare:
		i := slices.IndexFunc(rows, func(r record) bool { return r.subject != best.subject })
		if i < 0 {
			return noData // of the other
		}
		name := l.subjects[best.subject][0].text
		difference := new(big.Rat).Sub(number(best), number(rows[i]))
		text := strings.TrimSuffix(strings.TrimRight(difference.Abs(difference).FloatString(3), "0"), ".")
		switch {
		case !l.differ:
			return name
		case !labelled.MatchString(l.text):
			return text
		}
		return name + "; " + text
	case l.sign != 0 && labelled.MatchString(l.text):
		label := pick([]record{best}, l.stems, func(r record, f field) bool {
			said, isText := f.value.(string)
			return isText && !strings.Contains(l.text, said)
		})
		if label != "" {
			return fmt.Sprintf("%v; %v", best.get(label), best.get(measure))
		}
	}
	values := make([]string, len(l.subjects))
	for s := range values {
		values[s] = noData
		if i := slices.IndexFunc(rows, func(r record) bool { return r.subject == s }); i >= 0 {
			values[s] = fmt.Sprint(rows[i].get(measure))
		}
	}
	return strings.Join(values, "; ")
}

// said keeps the rows of which the prompt says a text, where it says one of any.
func (l *lexical) said(rows []record) []record {
	kept := slices.DeleteFunc(slices.Clone(rows), func(r record) bool {
		return !slices.ContainsFunc(r.fields[:r.own], func(f field) bool {
			text, _ := f.value.(string)
			_, isTime := asTime(f.value) // may be the end of a range
			return len(text) > 2 && !isTime && strings.Contains(l.text, text)
		})
	})
	if len(kept) == 0 {
		return rows
	}
	return kept
}

// rows are the objects in a tool's results about a subject. After the fields of the result come those of the objects that
// the call's arguments were taken from.
func (l *lexical) rows(t *tool, s int) []record {
	var out []record
	sets, _ := l.fill(t, s)
	for _, args := range sets {
		var behind []field
		for _, o := range l.made {
			for _, r := range o.records {
				if o.t != t && l.about(o, r, s) > 0 && slices.ContainsFunc(r.fields[:r.own], func(f field) bool { return f.value != nil && args[f.name] == f.value }) {
					behind = append(behind, r.fields...)
				}
			}
		}
		for _, m := range l.made {
			for _, r := range m.records {
				if r.fields = slices.Concat(r.fields, behind); r.own > 0 && m.root == key(t, args) && !m.failed && l.about(m, r, s) > 0 {
					r.subject = s
					out = append(out, r)
				}
			}
		}
	}
	return out
}

// pick chooses the field of the rows whose name shares most with some stems, or none.
func pick(rows []record, about []string, ok func(record, field) bool) string {
	best, name := 0.6, ""
	for _, r := range rows {
		for _, f := range r.fields {
			w := stems(f.name)
			n := share(w, about)
			n += n / float64(2*len(w)+1) // of two that share as much, the one that says less besides
			if (n > best || n == best && f.name < name) && ok(r, f) {
				best, name = n, f.name
			}
		}
	}
	return name
}

// chosen finds a parameter's choices in the prompt, as words of their own.
func (l *lexical) chosen(p param) []mention {
	var out []mention
	for _, c := range p.choices() {
		value := fmt.Sprint(c)
		if value == "" || common[strings.ToLower(value)] || !strings.Contains(strings.ToLower(l.text), strings.ToLower(value)) {
			continue
		}
		for _, at := range regexp.MustCompile(`(?i)(?:^|[^\pL\d])(`+regexp.QuoteMeta(value)+`)(?:$|[^\pL\d])`).FindAllStringSubmatchIndex(l.text, -1) {
			out = append(out, mention{"choice", value, at[2], at[3]})
		}
	}
	return out
}

// fits says how well a mention suits a parameter: 0 not at all, 1 well enough for an optional one, 2 if its form or a word beside
// it points there. A name has a place: 0 for a subject's own, higher for those that say which of that name is meant.
func (l *lexical) fits(p param, m mention, place int) float64 {
	if _, ok := p.take(m); !ok {
		return 0
	}
	score := map[string]float64{"date": 2, "time": 2, "choice": 2, "quoted": 1.5, "name": 1}[m.kind] + 0.4
	isText := p.named(textWords)
	switch { // a text to look for is the own name; anything else is rather what the place lies in
	case place > 0 && isText:
		score -= 0.5
	case place > 0 || place == 0 && isText:
		score += 0.5
	case m.kind == "id" && (p.isKey() || p.pattern != nil):
		score += 2
	}
	var same []mention // of a kind with it: the ends of a range
	for _, o := range l.mentions {
		if o.kind == m.kind {
			same = append(same, o)
		}
	}
	before, after := words(l.text[:m.start]), words(l.text[m.end:])
	near := slices.Concat(before[max(0, len(before)-2):], after[:min(2, len(after))])
	for _, w := range words(p.name) {
		if len(same) > 1 && (fromWords[w] && m == same[0] || toWords[w] && m == same[len(same)-1]) {
			score++
		}
		if slices.ContainsFunc(near, func(n string) bool { return strings.TrimSuffix(n, "s") == strings.TrimSuffix(w, "s") }) {
			score += 2
		}
	}
	return score
}

// take gives a mention as a value of the parameter, if it may be one.
func (p param) take(m mention) (any, bool) {
	numeric := p.kind == "integer" || p.kind == "number"
	switch {
	case (m.kind == "choice") != (p.choices() != nil), (m.kind == "date") != p.isDate(), (m.kind == "number") != numeric,
		m.kind == "time" && !p.named(wordSet("time hour")), m.kind == "name" && p.isKey():
		return nil, false
	case numeric:
		return p.coerce(json.Number(m.text))
	}
	return p.coerce(m.text)
}

// isDate says that a parameter takes a day.
func (p param) isDate() bool {
	const day, word = "2031-05-04", "word"
	return p.kind == "string" && (p.text("format") == "date" || p.pattern != nil && p.pattern.MatchString(day) && !p.pattern.MatchString(word) || p.pattern == nil && p.named(wordSet("date day")))
}

// isCursor says that a parameter only turns pages.
func (p param) isCursor() bool { return !p.required && p.named(wordSet("cursor page offset token")) }

// isKey says that a parameter takes identifiers, which do not follow from names.
func (p param) isKey() bool {
	w := words(p.name)
	return len(w) > 0 && keyWords[w[len(w)-1]]
}

func (p param) named(set map[string]bool) bool {
	return slices.ContainsFunc(words(p.name), func(w string) bool { return set[w] })
}

// nearName compares a field's name with a parameter's: 3 if they are the same, 1 if one is part of the other and the context
// makes up for the rest, as id fills book_id out of a list of books.
func nearName(field, param, context string) float64 {
	f, p := words(field), words(param)
	short, long := f, p
	if len(f) > len(p) {
		short, long = p, f
	}
	rest, isEnd := strings.CutSuffix(strings.Join(long, " "), strings.Join(short, " "))
	switch {
	case slices.Equal(f, p):
		return 3
	case len(short) == 0:
		return 0
	case isEnd && (len(p) < len(f) || share(stems(rest), stems(context)) > 0):
		return 1
	case slices.Equal(p, f[:len(short)]) && keyWords[f[len(f)-1]]: // book_id fills book
		return 1
	}
	return 0
}

// stems gives the words of a text that carry meaning, without plural endings.
func stems(s string) []string {
	var out []string
	for _, w := range words(s) {
		switch {
		case common[w] || w[0] <= '9':
			continue
		case strings.HasSuffix(w, "ies") && len(w) > 4:
			w = w[:len(w)-3] + "y"
		case strings.HasSuffix(w, "s") && !strings.HasSuffix(w, "ss") && len(w) > 3:
			w = w[:len(w)-1]
		}
		out = append(out, w)
	}
	return out
}

// share adds up how well the stems of a name are met by those of a text: 1 for the same, less for one that begins the other, as
// an abbreviation does.
func share(name, text []string) float64 {
	sum := 0.0
	for _, a := range name {
		best := 0.0
		for _, b := range text {
			if a == b {
				best = 1
			} else if min(len(a), len(b)) >= 4 && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a)) {
				best = max(best, 0.8)
			}
		}
		sum += best
	}
	return sum
}

// doc is all that is said of a tool.
func (t *tool) doc() string {
	s := t.Name + " " + t.Description
	for _, p := range t.params {
		s += " " + p.name + " " + p.text("description")
		for _, c := range p.choices() {
			s += " " + fmt.Sprint(c)
		}
	}
	return s
}
