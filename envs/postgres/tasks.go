package postgres

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// family makes tasks of one kind. make returns false where the world at hand has no such task.
type family struct {
	name  string
	write bool
	make  func(d *draft) bool
}

// worldsOf are the worlds of a split: each domain has the same number, and each kind of fault is missing in some of them.
const worldsOf = 12

// split generates tasks: families take turns, and tasks vary the questions that they ask about a few worlds. Families that
// stand together ask about one world, as far as it has what they need. No two splits share a world or a seed stream.
func split(name string, families []family) envs.Source {
	h := fnv.New64a()
	h.Write([]byte(name))
	salt := h.Sum64()
	first := salt >> 32 << 8 // exact in readers that know only doubles
	var setups [worldsOf]setup
	var worlds [worldsOf]func() *world
	for i := range worlds {
		setups[i] = setup{Domain: domains[i%len(domains)].name, Without: faults[(i+i/len(domains))%len(faults)]}
		worlds[i] = sync.OnceValue(func() *world {
			w, err := newWorld(first+uint64(i), setups[i])
			if err != nil {
				panic(err) // the domain is one of ours
			}
			return w
		})
	}
	return envs.Generator(func(index int) envs.Task {
		f, turn := families[index%len(families)], index/len(families)
		for try := 0; ; try++ {
			r := rand.New(rand.NewPCG(salt^uint64(try)<<40, uint64(index)))
			i := (len(name) + turn + try/8) % worldsOf // so splits do not all begin with one domain
			d := &draft{Rand: r, w: worlds[i](), turn: turn}
			if !f.make(d) || d.givesAway() {
				continue
			}
			s := setups[i]
			s.Write = f.write
			raw, err := json.Marshal(s)
			if err != nil {
				panic(err) // plain strings
			}
			return d.task(fmt.Sprintf("%s/%s/%d", name, f.name, index), f.name, sandboxes.World{Seed: first + uint64(i), Setup: raw})
		}
	})
}

// draft collects a task while its family makes it.
type draft struct {
	*rand.Rand
	w          *world
	turn       int // how many tasks of the family came before
	prompt     string
	turns      []envs.Action
	calls      int
	answer     []rewards.Value
	evidence   [][]rewards.Fact
	assertions []envs.Assertion
	allow      []string
	changes    []change // allowed too
}

func (d *draft) task(id, family string, w sandboxes.World) envs.Task {
	for _, c := range d.changes {
		d.allow = append(d.allow, regexp.QuoteMeta(postgres.RowLine(c.sign, c.table.name, c.table.names, c.row)))
	}
	slices.Sort(d.allow)
	t := envs.Task{ID: id, Family: family, Prompt: d.prompt, World: w, Par: d.calls, Assertions: d.assertions, Allow: d.allow, Solution: d.turns}
	if len(d.answer) == 0 {
		t.Solution = append(t.Solution, envs.Action{Text: "Done."})
		return t
	}
	want, err := json.Marshal(rewards.Want{Answer: d.answer, Evidence: d.evidence})
	if err != nil {
		panic(err) // plain strings and numbers
	}
	t.Want = want
	t.Solution = append(t.Solution, envs.Action{Text: rewards.AnswerLine(d.answer)})
	return t
}

var numbers = regexp.MustCompile(`\d+(\.\d+)?`)

// common are numbers that right queries spell whatever they ask for; as an answer they would be no evidence.
var common = strings.Fields("0 1 2 3 10 12 24 30 100 1000")

// givesAway says whether a right query may have to spell a value of the answer, or the prompt holds it.
func (d *draft) givesAway() bool {
	given := append(numbers.FindAllString(d.prompt, -1), common...)
	for i := range given {
		given[i] = plain(given[i])
	}
	prompt := strings.ToLower(d.prompt)
	return slices.ContainsFunc(d.answer, func(v rewards.Value) bool {
		if v.Kind == "number" {
			return slices.Contains(given, plain(v.Value))
		}
		return strings.Contains(prompt, strings.ToLower(v.Value))
	})
}

// plain is a number without zeros that say nothing.
func plain(n string) string {
	n = strings.TrimLeft(n, "0")
	if strings.Contains(n, ".") {
		n = strings.TrimRight(strings.TrimRight(n, "0"), ".")
	}
	return n
}

// ask words the prompt in one of several ways. pairs are placeholders and what stands for them, beside the domain's words.
func (d *draft) ask(wordings []string, pairs ...string) bool {
	for k, v := range d.w.words {
		pairs = append(pairs, "{"+k+"}", v)
	}
	s := strings.NewReplacer(pairs...).Replace(pick(d.Rand, wordings))
	d.prompt = strings.ToUpper(s[:1]) + s[1:]
	return true
}

// Gold calls.

func (d *draft) call(tool string, args map[string]string) envs.Call {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err) // plain strings
	}
	d.calls++
	return envs.Call{ID: fmt.Sprintf("call_%d", d.calls-1), Name: tool, Arguments: raw}
}

// look reads the names of all tables, then the columns of those that are needed.
func (d *draft) look(roles ...string) {
	d.turns = append(d.turns, envs.Action{Calls: []envs.Call{d.call("list_tables", map[string]string{})}})
	var a envs.Action
	for _, r := range roles {
		a.Calls = append(a.Calls, d.call("describe_table", map[string]string{"table": d.w.columns[r]}))
	}
	d.turns = append(d.turns, a)
}

// query runs statements, in one turn.
func (d *draft) query(statements ...string) {
	var a envs.Action
	for _, s := range statements {
		a.Calls = append(a.Calls, d.call("query_database", map[string]string{"sql": d.w.gold(s)}))
	}
	d.turns = append(d.turns, a)
}

// Answers, with the tables that a query must have read to show them.

func (d *draft) need(v rewards.Value, roles ...string) {
	d.answer = append(d.answer, v)
	d.evidence = append(d.evidence, []rewards.Fact{{Tool: "query_database", Cell: &v, From: d.from(roles...)}})
}

// also accepts that the last value of the answer is shown from another table.
func (d *draft) also(role string) {
	last := len(d.evidence) - 1
	f := d.evidence[last][0]
	f.From = d.from(role)
	d.evidence[last] = append(d.evidence[last], f)
}

func (d *draft) from(roles ...string) []string {
	var from []string
	for _, r := range roles {
		from = append(from, d.w.bare(r))
	}
	return from
}

func (d *draft) number(n int, roles ...string) {
	d.need(rewards.Value{Kind: "number", Value: fmt.Sprint(n)}, roles...)
}

func (d *draft) euros(cents int, roles ...string) {
	d.need(rewards.Value{Kind: "number", Value: euros(cents), Unit: "EUR"}, roles...)
}

func (d *draft) text(s string, roles ...string) {
	d.need(rewards.Value{Kind: "text", Value: s}, roles...)
}

func (d *draft) date(t time.Time, roles ...string) {
	d.need(rewards.Value{Kind: "date", Value: t.Format(time.DateOnly)}, roles...)
}

// noData is the answer where the data cannot say; a fact of the group must show that the agent has looked.
func (d *draft) noData(group ...rewards.Fact) {
	d.answer = append(d.answer, rewards.NoData())
	d.evidence = append(d.evidence, group)
}

// What must hold at the end, and what may have changed.

// assert has the verifier ask a query, which must give these rows or, where it has one column and row, this value.
func (d *draft) assert(sql string, want any) {
	raw, err := json.Marshal(want)
	if err != nil {
		panic(err) // plain values
	}
	d.assertions = append(d.assertions, envs.Assertion{Ask: sandboxes.Question{Kind: "sql", Text: d.w.gold(sql)}, Want: raw})
}

// change allows one row of a table to become another; nil is no row.
func (d *draft) change(t table, before, after []any) {
	for sign, row := range map[string][]any{"-": before, "+": after} {
		if row != nil {
			d.changes = append(d.changes, change{sign, t, row})
		}
	}
}

// change is a line of a state's diff.
type change struct {
	sign  string
	table table
	row   []any
}

// with returns a row in which the column that stands for a key has another value.
func (d *draft) with(t table, row []any, key string, v any) []any {
	row = slices.Clone(row)
	row[slices.Index(t.names, d.w.columns[key])] = v
	return row
}

// Choices.

// period draws some months.
func (d *draft) period(low, high int) (p period) {
	months := low + d.IntN(high-low+1)
	p.from = firstDay.AddDate(0, d.IntN(25-months), 0)
	p.to = p.from.AddDate(0, months, -1)
	return p
}

type period struct{ from, to time.Time }

func (p period) holds(t time.Time) bool { return !t.Before(p.from) && !t.After(p.to) }

// sql is the condition on the days of events.
func (p period) sql() string {
	return fmt.Sprintf("[e.day] BETWEEN '%s' AND '%s'", p.from.Format(time.DateOnly), p.to.Format(time.DateOnly))
}

func (p period) String() string {
	return fmt.Sprintf("from %s to %s (both days included)", p.from.Format(time.DateOnly), p.to.Format(time.DateOnly))
}

// state draws a state of events.
func (d *draft) state() string { return d.w.states[d.IntN(3)] }

// party draws a party that the test accepts and whose name no other has, not even written in another way.
func (d *draft) party(ok func(party) bool) (party, bool) {
	for _, i := range d.Perm(len(d.w.parties)) {
		if p := d.w.parties[i]; d.w.named(p) && ok(p) {
			return p, true
		}
	}
	return party{}, false
}

// named says whether nobody else has the party's name.
func (w *world) named(p party) bool {
	n := 0
	for _, o := range w.parties {
		if key(o.name) == key(p.name) {
			n++
		}
	}
	return n == 1
}

// key is what is left of a text without regard to case and to spaces around it.
func key(s string) string { return strings.ToLower(strings.Trim(s, " ")) }

// partyOf finds a party by its id.
func (w *world) partyOf(id int) (p party, ok bool) {
	i, ok := w.partyAt[id]
	if ok {
		p = w.parties[i]
	}
	return p, ok
}

func (w *world) eventOf(id int) (e event, ok bool) {
	i, ok := w.eventAt[id]
	if ok {
		e = w.events[i]
	}
	return e, ok
}

func (w *world) thingOf(id int) (t thing, ok bool) {
	i, ok := w.thingAt[id]
	if ok {
		t = w.things[i]
	}
	return t, ok
}

// ranked sorts a copy by value, largest first. ok is false where the one at place n shares its value with another.
func ranked[T any](list []T, n int, value func(T) int) (sorted []T, ok bool) {
	sorted = slices.Clone(list)
	slices.SortStableFunc(sorted, func(a, b T) int { return value(b) - value(a) })
	for i, x := range sorted {
		if n < len(sorted) && i != n && value(x) == value(sorted[n]) {
			return nil, false
		}
	}
	return sorted, n < len(sorted)
}
