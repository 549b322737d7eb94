package postgres

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// setup is what a world is made from beside its seed.
type setup struct {
	Domain  string `json:"domain"`
	Without string `json:"without"` // the kind of fault that the world lacks
	Write   bool   `json:"write,omitempty"`
}

// faults are the kinds of fault that worlds have, each all but one.
var faults = []string{"orphan events", "orphan lines", "duplicates", "wrong amounts"}

// world is the content of a database. Every domain has the same kinds of rows, under names and in forms of its own: parties
// (customers, say) have events (orders) of lines (order lines) of things (products); staff handles events; parties pay.
type world struct {
	*domain
	parties  []party
	events   []event
	legacy   []event // of a table that nobody asks for
	lines    []line
	things   []thing
	staff    []person
	payments []payment

	partyAt, eventAt, thingAt map[int]int // places by id
	made                      []table
}

// Amounts are in cents. An id of 0 is NULL, as is an empty text.
type (
	party struct {
		id                       int
		name, email, city, phone string
		since, typed             time.Time
		gone                     bool
	}
	event struct {
		id, party, staff int
		start            time.Time
		days             int // until its end, -1 where it has none
		amount           int
		state            string
		typed            time.Time // the rest misleads
		other            string
		guess            int
	}
	line struct {
		id, event, thing, qty, price int
	}
	thing struct {
		id             int
		name, category string
		price          int
	}
	person struct {
		id   int
		name string
		boss int
		team string
	}
	payment struct {
		id, party int
		day       time.Time
		amount    int
		method    string
	}
)

// day is the day on which an event begins, where the world's people live.
func (w *world) day(e event) time.Time { return e.start.Add(w.offset).Truncate(24 * time.Hour) }

func (e event) end(w *world) any {
	if e.days < 0 {
		return nil
	}
	return w.day(e).AddDate(0, 0, e.days).Format(time.DateOnly)
}

// Days from which rows are drawn.
var (
	firstDay = time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC)
	allDays  = 730
)

var (
	firstNames = strings.Fields("Ada Bruno Carla Dmitri Elena Farid Greta Hugo Ines Jonas Kaia Luis Mara Nils Olga Pavel Quirin Rosa Sven Tilda Uwe Vera Wim Xenia Yara Zoran")
	lastNames  = strings.Fields("Abel Brandt Castro D'Angelo Egger Fontaine Grimaldi Horvath Ivarsson Jansen Kowalski Lindqvist Moreau Novak O'Neill Petrov Quint Rossi Schmid Toth Urban Varga Weiss Ximenes Young Zeller")
	cities     = strings.Fields("Aarhus Bern Cadiz Delft Espoo Fulda Ghent")
	mailHosts  = strings.Fields("mail.example post.example inbox.example")
	methods    = strings.Fields("card cash transfer")
	stock      = strings.Fields("Alder Birch Cedar Dogwood Elm Fir Ginkgo Hazel Ivy Juniper Kauri Larch Maple Oak Pine Rowan Spruce Teak Walnut Yew")
)

// newWorld draws a world. Equal arguments give equal worlds.
func newWorld(seed uint64, s setup) (*world, error) {
	i := slices.IndexFunc(domains, func(d *domain) bool { return d.name == s.Domain })
	if i < 0 {
		return nil, fmt.Errorf("world %d: no domain %q", seed, s.Domain)
	}
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0)), world: &world{domain: domains[i]}, without: s.Without}
	g.makeParties()
	g.makeStaff()
	g.makeThings()
	g.makeEvents()
	g.makePayments()
	w := g.world
	w.partyAt = places(w.parties, func(p party) int { return p.id })
	w.eventAt = places(w.events, func(e event) int { return e.id })
	w.thingAt = places(w.things, func(t thing) int { return t.id })
	w.made = w.tables(w)
	return w, nil
}

func places[T any](list []T, id func(T) int) map[int]int {
	at := make(map[int]int, len(list))
	for i, x := range list {
		at[id(x)] = i
	}
	return at
}

type generator struct {
	*rand.Rand
	*world
	without string
	names   map[string]bool
}

func (g *generator) between(low, high int) int { return low + g.IntN(high-low+1) }

func (g *generator) date() time.Time { return firstDay.AddDate(0, 0, g.IntN(allDays)) }

// name draws a name that nobody has yet.
func (g *generator) name() string {
	for {
		n := pick(g.Rand, firstNames) + " " + pick(g.Rand, lastNames)
		if !g.names[n] {
			g.names[n] = true
			return n
		}
	}
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// ids gives n different numbers from low on, with gaps and in no order.
func (g *generator) ids(low, n int) []int {
	ids := make([]int, n)
	for i, k := range g.Perm(2 * n)[:n] {
		ids[i] = low + k
	}
	return ids
}

// missing are ids that no row has.
func missing(low int) int { return low + 5000 }

func (g *generator) makeParties() {
	g.names = map[string]bool{}
	n := g.between(26, 34)
	more := 0
	if g.without != "duplicates" {
		more = g.between(7, 10)
	}
	ids := g.ids(101, n+more)
	for _, id := range ids[:n] {
		name := g.name()
		p := party{id: id, name: name, since: firstDay.AddDate(0, 0, -g.IntN(2500)), gone: g.IntN(5) == 0}
		p.typed = firstDay.AddDate(0, 0, -g.IntN(900))
		if g.IntN(6) > 0 {
			p.email = strings.ToLower(strings.NewReplacer(" ", ".", "'", "").Replace(name)) + "@" + pick(g.Rand, mailHosts)
		}
		if g.IntN(5) > 0 {
			p.city = pick(g.Rand, cities)
		}
		if g.IntN(3) > 0 {
			p.phone = fmt.Sprintf("+49 %d %d", g.between(200, 999), g.between(10000, 99999))
		}
		g.parties = append(g.parties, p)
	}
	for _, id := range ids[n:] {
		p := pick(g.Rand, g.parties[:n])
		for p.email == "" {
			p = pick(g.Rand, g.parties[:n])
		}
		p.id, p.since, p.gone = id, p.since.AddDate(0, 0, g.IntN(300)), false
		switch g.IntN(3) {
		case 0:
			p.email = strings.ToUpper(p.email[:1]) + p.email[1:]
		case 1:
			p.email = strings.ToUpper(p.email)
		}
		p.email = []string{" ", "", "  "}[g.IntN(3)] + p.email + []string{"", " "}[g.IntN(2)]
		p.name = []string{strings.ToUpper(p.name), strings.ToLower(p.name), " " + p.name}[g.IntN(3)]
		g.parties = append(g.parties, p)
	}
	slices.SortFunc(g.parties, func(a, b party) int { return a.id - b.id })
}

func (g *generator) makeStaff() {
	teams := g.teams
	for i, id := range g.ids(41, g.between(14, 18)) {
		p := person{id: id, name: g.name(), team: teams[i%len(teams)]}
		if i > 0 { // a tree: everybody's boss came before
			p.boss = g.staff[max(0, i-g.between(2, 6))].id
		}
		g.staff = append(g.staff, p)
	}
}

func (g *generator) makeThings() {
	n := g.between(24, 30)
	ids := g.ids(501, n)
	names := map[string]bool{}
	for _, id := range ids {
		name := pick(g.Rand, stock) + " " + pick(g.Rand, g.nouns)
		for names[name] {
			name = pick(g.Rand, stock) + " " + pick(g.Rand, g.nouns)
		}
		names[name] = true
		g.things = append(g.things, thing{id, name, pick(g.Rand, g.categories), 5 * g.between(60, 2400)})
	}
}

func (g *generator) makeEvents() {
	var buyers []party
	for _, i := range g.Perm(len(g.parties))[:len(g.parties)-g.between(5, 8)] {
		buyers = append(buyers, g.parties[i])
	}
	sold := g.things[:len(g.things)-g.between(5, 8)]
	n := g.between(150, 190)
	ids := g.ids(2001, n)
	slices.Sort(ids)
	lineIDs := g.ids(30001, 3*n+40)
	nextLine := func(event int) {
		t := pick(g.Rand, sold)
		l := line{id: lineIDs[len(g.lines)], event: event, thing: t.id, qty: g.between(1, 6), price: t.price + 5*g.between(0, 20)}
		if g.IntN(16) == 0 {
			l.thing = 0
		}
		g.lines = append(g.lines, l)
	}
	for _, id := range ids {
		e := g.event(id)
		switch g.IntN(16) {
		case 0:
			e.party = 0
		case 1:
			if g.without != "orphan events" {
				e.party = missing(101) + g.IntN(40)
				break
			}
			fallthrough
		default:
			e.party = buyers[min(g.IntN(len(buyers)), g.IntN(len(buyers)+4))].id // some buy more
		}
		for range g.between(1, 3) {
			nextLine(id)
			l := g.lines[len(g.lines)-1]
			e.amount += l.qty * l.price
		}
		if g.without != "wrong amounts" && g.IntN(12) == 0 {
			e.amount += pick(g.Rand, []int{-1, 1}) * 5 * g.between(2, 100)
			e.amount = max(e.amount, 5)
		}
		e.guess = e.amount + 10*g.between(-300, 300)
		g.events = append(g.events, e)
	}
	for range g.between(4, 7) {
		nextLine(0)
	}
	if g.without != "orphan lines" {
		for range g.between(8, 14) {
			nextLine(missing(2001) + g.IntN(900))
		}
	}
	slices.SortFunc(g.lines, func(a, b line) int { return a.id - b.id })
	for id := range g.between(25, 40) {
		e := g.event(11 + id)
		e.party, e.amount = pick(g.Rand, buyers).id, 5*g.between(100, 9000)
		g.legacy = append(g.legacy, e)
	}
}

// event draws what events of both tables have.
func (g *generator) event(id int) event {
	e := event{id: id, staff: pick(g.Rand, g.staff).id, start: g.date(), days: -1}
	if g.clock {
		e.start = e.start.Add(time.Duration(g.IntN(24*12)) * 5 * time.Minute)
	}
	if g.offset != 0 && g.IntN(5) == 0 { // a month here, and another in UTC
		away := time.Duration(g.IntN(int(g.offset.Abs()/time.Minute))) * time.Minute
		e.start = time.Date(e.start.Year(), e.start.Month(), 1, 0, 0, 0, 0, time.UTC).Add(away)
		if g.offset > 0 {
			e.start = e.start.Add(-g.offset)
		}
	}
	e.state = g.states[max(0, g.IntN(4)-1)]
	if e.state == g.states[0] {
		e.days = g.between(0, 45)
	}
	e.typed = e.start.AddDate(0, 0, g.between(-40, 80))
	e.other = pick(g.Rand, g.states[:])
	return e
}

func (g *generator) makePayments() {
	n := g.between(110, 150)
	ids := g.ids(7001, n)
	slices.Sort(ids)
	taken := map[string]bool{}
	payers := g.Perm(len(g.parties))
	for _, id := range ids {
		y := payment{id: id, amount: 5 * g.between(200, 6000), method: pick(g.Rand, methods)}
		for { // a party pays once a day
			y.party = g.parties[payers[min(g.IntN(len(payers)), g.IntN(len(payers)))]].id
			y.day = g.date()
			key := fmt.Sprint(y.party, y.day)
			if !taken[key] {
				taken[key] = true
				break
			}
		}
		g.payments = append(g.payments, y)
	}
}

// domain gives the rows of a world their names and forms.
type domain struct {
	name       string
	offset     time.Duration // of the days of its people from those of UTC
	clock      bool          // events have a time of day
	cents      bool          // amounts are stored as whole cents, else as euros with two decimals
	states     [3]string     // of events: over, going on, of no account
	teams      []string
	categories []string
	nouns      []string          // of things
	columns    map[string]string // what stands for [e.day] and so on in gold SQL; a % is the alias
	words      map[string]string // what stands for {event} and so on in prompts
	tables     func(w *world) []table
}

// table is a table with its rows, ready to be written.
type table struct {
	name, comment string
	names, defs   []string // of columns
	comments      []string
	rows          [][]any
}

type column[R any] struct {
	name, def, comment string
	value              func(R) any
}

func tableOf[R any](name, comment string, list []R, columns ...column[R]) table {
	t := table{name: name, comment: comment}
	for _, c := range columns {
		t.names, t.defs, t.comments = append(t.names, c.name), append(t.defs, c.def), append(t.comments, c.comment)
	}
	for _, r := range list {
		row := make([]any, len(columns))
		for i, c := range columns {
			row[i] = c.value(r)
		}
		t.rows = append(t.rows, row)
	}
	return t
}

func (t table) sql() string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE %s (", t.name)
	for i, n := range t.names {
		b.WriteString([]string{"\n", ",\n"}[min(i, 1)])
		fmt.Fprintf(&b, "%s %s", n, t.defs[i])
	}
	b.WriteString(");\n")
	if t.comment != "" {
		fmt.Fprintf(&b, "COMMENT ON TABLE %s IS %s;\n", t.name, postgres.Literal(t.comment))
	}
	for i, c := range t.comments {
		if c != "" {
			fmt.Fprintf(&b, "COMMENT ON COLUMN %s.%s IS %s;\n", t.name, t.names[i], postgres.Literal(c))
		}
	}
	b.WriteString(postgres.Insert(t.name, t.names, t.rows))
	return b.String()
}

// sql is the script that makes the world.
func (w *world) sql() string {
	var b strings.Builder
	var schemas []string
	for _, t := range w.made {
		if schema, _, ok := strings.Cut(t.name, "."); ok && !slices.Contains(schemas, schema) {
			schemas = append(schemas, schema)
			fmt.Fprintf(&b, "CREATE SCHEMA %s;\n", schema)
		}
	}
	for _, t := range w.made {
		b.WriteString(t.sql())
	}
	return b.String()
}

// table returns one of the world's tables by its role in columns, such as "event".
func (w *world) table(role string) table {
	for _, t := range w.made {
		if t.name == w.columns[role] {
			return t
		}
	}
	panic("no table for " + role)
}

// schemas returns a postgres.Schema that remembers what it has made: each lease asks for it.
func schemas() postgres.Schema {
	var made sync.Map
	return func(w sandboxes.World) (string, bool, error) {
		var s setup
		if err := json.Unmarshal(w.Setup, &s); err != nil {
			return "", false, fmt.Errorf("read the setup: %w", err)
		}
		write := s.Write
		s.Write = false // readers and writers have the same template
		type id struct {
			seed uint64
			setup
		}
		if sql, ok := made.Load(id{w.Seed, s}); ok {
			return sql.(string), !write, nil
		}
		drawn, err := newWorld(w.Seed, s)
		if err != nil {
			return "", false, err
		}
		sql := drawn.sql()
		made.Store(id{w.Seed, s}, sql)
		return sql, !write, nil
	}
}

var token = regexp.MustCompile(`\[(?:([a-z]?)(:))?(?:([a-z])\.)?([a-z]+)\]`)

// gold writes a statement with the domain's names: [event] is a table, [e.day] an expression over a column of the table with
// alias e, [d:e.day] the same with alias d, and [:e.day] the column's bare name.
func (d *domain) gold(sql string) string {
	return token.ReplaceAllStringFunc(sql, func(s string) string {
		m := token.FindStringSubmatch(s)
		alias, bare, key := m[3], m[2] != "" && m[1] == "", m[4]
		if alias != "" {
			key = alias + "." + key
		}
		if m[1] != "" {
			alias = m[1]
		}
		c, ok := d.columns[key]
		switch {
		case !ok:
			panic(fmt.Sprintf("%s: nothing stands for %s", d.name, s))
		case bare || alias == "":
			return c
		case strings.Contains(c, "%"):
			return strings.ReplaceAll(c, "%", alias)
		}
		return alias + "." + c
	})
}

// Values of columns.

func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func ref(id int) any {
	if id == 0 {
		return nil
	}
	return id
}

func day(t time.Time) any    { return t.Format(time.DateOnly) }
func moment(t time.Time) any { return t.Format(time.RFC3339) }
func euros(cents int) string {
	sign := ""
	if cents < 0 {
		sign, cents = "-", -cents
	}
	return fmt.Sprintf("%s%d.%02d", sign, cents/100, cents%100)
}

// money is an amount as the domain stores it.
func (d *domain) money(cents int) any {
	if d.cents {
		return cents
	}
	return postgres.Numeric(euros(cents))
}
