package dba

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// The files that declare the parts of the database.
const (
	salesFile   = "schema.sql"
	billingFile = "billing.sql"
	supportFile = "support.sql"
)

// faults says what is wrong with each part of the database. It is World.Setup.
type faults struct {
	Sales    string `json:"sales"`              // clean, keys (absent, though no row breaks them) or orphans
	Billing  string `json:"billing"`            // clean, check (not valid, and broken) or duplicates
	Support  string `json:"support"`            // clean, customers or agents (who do not exist), or nulls
	ReadOnly bool   `json:"readOnly,omitempty"` // the agent may only read
}

// company is a database: the tables as they are declared, the rules that it does not keep, and its rows. Once made it is not
// changed, except for a clone.
type company struct {
	*rand.Rand
	seed uint64
	faults
	words
	tables []*table
}

// words are the names that differ between companies.
type words struct {
	items, products, invoices, payments, tickets, agents string // tables
	phase, discontinued                                  string // column of products, and its value for what is not sold any more
	joined                                               string // column of customers
}

var (
	itemNames    = []string{"order_items", "order_lines", "order_positions"}
	productNames = []string{"products", "articles", "goods"}
	invoiceNames = []string{"invoices", "bills"}
	paymentNames = []string{"payments", "receipts", "transfers"}
	ticketNames  = []string{"tickets", "complaints", "inquiries"}
	agentNames   = []string{"agents", "staff", "operators"}
	phaseNames   = []string{"phase", "lifecycle", "status"}
	goneNames    = []string{"discontinued", "retired", "withdrawn"}
	joinedNames  = []string{"joined", "member_since", "signed_up"}
	cities       = []string{"Bergen", "Cork", "Ghent", "Graz", "Lille", "Malmo", "Porto", "Turin", "Utrecht", "Vigo"}
	firstNames   = []string{"Ada", "Bruno", "Clara", "Dario", "Elif", "Femke", "Goran", "Hanna", "Ivo", "Jana", "Kofi", "Lena", "Milo", "Nora", "Otto", "Petra"}
	lastNames    = []string{"Adler", "Brandt", "Costa", "Dahl", "Eriksen", "Fontana", "Gruber", "Horvat", "Ivanova", "Jansen", "Keller", "Lopez", "Moreau", "Novak", "O'Neil", "Peeters", "Quist", "Rossi", "Silva", "Toth"}
	wares        = []string{"Lamp", "Chair", "Desk", "Shelf", "Clock", "Vase", "Rug", "Mirror", "Stool", "Bench"}
	woods        = []string{"Oak", "Birch", "Elm", "Pine", "Ash", "Teak"}
	subjects     = []string{"late delivery", "wrong colour", "refund", "broken part", "change of address", "missing manual"}
	methods      = []string{"card", "cash", "cheque", "transfer"}
	teams        = []string{"first line", "second line", "accounts"}
	orderStates  = []string{"new", "shipped", "cancelled"}
	billStates   = []string{"open", "paid", "void"}
	ticketStates = []string{"open", "waiting", "closed"}
)

// table is a table as its file declares it, with its rows. The first column is named id.
type table struct {
	name, file string
	columns    []column
	rules      []*rule
	rows       [][]any
}

type column struct {
	name, typ string
	nullable  bool
	comment   string
}

// The kinds of a rule.
const (
	primary = "primary key"
	unique  = "unique"
	check   = "check"
	foreign = "foreign key"
	notNull = "not null"
	index   = "index"
)

// How the database keeps a rule.
const (
	kept    = ""
	absent  = "absent"
	newRows = "not valid"
)

// rule is something that a file declares of a table.
type rule struct {
	kind   string
	column string
	ref    string // foreign key: the table whose id it is
	expr   string // check
	shown  string // check: as Postgres prints it
	live   string // how the database keeps it
}

// readWorld makes the company of a world.
func readWorld(w sandboxes.World) (*company, error) {
	var f faults
	d := json.NewDecoder(bytes.NewReader(w.Setup))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("read the setup of world %d: %w", w.Seed, err)
	}
	if !slices.Contains([]string{"clean", "keys", "orphans"}, f.Sales) || !slices.Contains([]string{"clean", "check", "duplicates"}, f.Billing) ||
		!slices.Contains([]string{"clean", "customers", "agents", "nulls"}, f.Support) {
		return nil, fmt.Errorf("read the setup of world %d: there are no such faults: %+v", w.Seed, f)
	}
	return newCompany(w.Seed, f), nil
}

// world is what readWorld makes the company from.
func (c *company) world() sandboxes.World {
	setup, err := json.Marshal(c.faults)
	if err != nil {
		panic(err) // plain strings
	}
	return sandboxes.World{Seed: c.seed, Setup: setup}
}

func newCompany(seed uint64, f faults) *company {
	c := &company{Rand: rand.New(rand.NewPCG(seed, 0xdba)), seed: seed, faults: f}
	c.words = words{
		items: pick(c, itemNames), products: pick(c, productNames), invoices: pick(c, invoiceNames), payments: pick(c, paymentNames),
		tickets: pick(c, ticketNames), agents: pick(c, agentNames), phase: pick(c, phaseNames), discontinued: pick(c, goneNames), joined: pick(c, joinedNames),
	}
	c.declare()
	c.customers(9 + int(seed*7%24)) // no two of 24 consecutive worlds have as many inactive ones
	c.sales()
	c.billing()
	c.support()
	return c
}

func pick[T any](r interface{ IntN(int) int }, from []T) T { return from[r.IntN(len(from))] }

// declare makes the tables without rows.
func (c *company) declare() {
	id := column{name: "id", typ: "integer"}
	add := func(file, name string, columns []column, rules ...*rule) {
		t := &table{name: name, file: file, columns: columns, rules: append([]*rule{{kind: primary, column: "id"}}, rules...)}
		for _, r := range rules {
			if r.kind == foreign {
				t.rules = append(t.rules, &rule{kind: index, column: r.column})
			}
		}
		for _, col := range columns[1:] {
			if !col.nullable {
				t.rules = append(t.rules, &rule{kind: notNull, column: col.name})
			}
		}
		c.tables = append(c.tables, t)
	}
	oneOf := func(name string, values []string) *rule {
		list := "'" + strings.Join(values, "', '") + "'"
		shown := "(" + name + " = ANY (ARRAY['" + strings.Join(values, "'::text, '") + "'::text]))"
		return &rule{kind: check, column: name, expr: name + " IN (" + list + ")", shown: shown}
	}
	add(salesFile, "customers", []column{id, {name: "name", typ: "text"}, {name: "email", typ: "text"}, {name: "city", typ: "text"},
		{name: "status", typ: "text", comment: "active, inactive or suspended; compared as it is written"}, {name: c.joined, typ: "date"}},
		&rule{kind: unique, column: "email"})
	add(salesFile, c.products, []column{id, {name: "name", typ: "text"}, {name: "price", typ: "numeric(8,2)"},
		{name: c.phase, typ: "text", comment: "available or " + c.discontinued + "; typed by hand: neither capitals nor blanks around it mean anything"}},
		&rule{kind: check, column: "price", expr: "price > 0", shown: "(price > (0)::numeric)"})
	add(salesFile, "orders", []column{id, {name: "customer_id", typ: "integer"}, {name: "ordered", typ: "date"}, {name: "state", typ: "text"}},
		&rule{kind: foreign, column: "customer_id", ref: "customers"}, oneOf("state", orderStates))
	add(salesFile, c.items, []column{id, {name: "order_id", typ: "integer"}, {name: "product_id", typ: "integer"}, {name: "quantity", typ: "integer"}, {name: "price", typ: "numeric(8,2)", comment: "of one piece"}},
		&rule{kind: foreign, column: "order_id", ref: "orders"}, &rule{kind: foreign, column: "product_id", ref: c.products},
		&rule{kind: check, column: "quantity", expr: "quantity > 0", shown: "(quantity > 0)"})
	add(billingFile, c.invoices, []column{id, {name: "customer_id", typ: "integer"}, {name: "number", typ: "text"}, {name: "issued", typ: "date"}, {name: "amount", typ: "numeric(10,2)"}, {name: "state", typ: "text"}},
		&rule{kind: foreign, column: "customer_id", ref: "customers"}, &rule{kind: unique, column: "number"}, oneOf("state", billStates))
	add(billingFile, c.payments, []column{id, {name: "invoice_id", typ: "integer"}, {name: "paid", typ: "date"}, {name: "amount", typ: "numeric(10,2)"}, {name: "method", typ: "text"}},
		&rule{kind: foreign, column: "invoice_id", ref: c.invoices}, &rule{kind: check, column: "amount", expr: "amount > 0", shown: "(amount > (0)::numeric)"})
	add(supportFile, c.agents, []column{id, {name: "name", typ: "text"}, {name: "team", typ: "text"}})
	add(supportFile, c.tickets, []column{id, {name: "customer_id", typ: "integer"}, {name: "agent_id", typ: "integer", nullable: true, comment: "nobody works on it yet where it is NULL"},
		{name: "opened", typ: "date"}, {name: "subject", typ: "text"}, {name: "priority", typ: "integer", comment: "1 is the most urgent"}, {name: "state", typ: "text"}},
		&rule{kind: foreign, column: "customer_id", ref: "customers"}, &rule{kind: foreign, column: "agent_id", ref: c.agents},
		&rule{kind: check, column: "priority", expr: "priority BETWEEN 1 AND 5", shown: "((priority >= 1) AND (priority <= 5))"})
}

// ids returns n ascending numbers with gaps.
func (c *company) ids(n, first int) []int {
	out := make([]int, n)
	for i := range out {
		first += 1 + c.IntN(4)
		out[i] = first
	}
	return out
}

// day draws a day.
func (c *company) day() string { return c.date(c.IntN(1000)) }

// date is the nth day of the company.
func (*company) date(n int) string {
	return time.Date(2023, 1, 1+n, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
}

func money(cents int) postgres.Numeric {
	return postgres.Numeric(fmt.Sprintf("%s%d.%02d", []string{"", "-"}[min(1, max(0, -cents))], max(cents, -cents)/100, max(cents, -cents)%100))
}

func (c *company) customers(inactive int) {
	t := c.table("customers")
	ids := c.ids(62+c.IntN(14), 100)
	names := c.Perm(len(firstNames) * len(lastNames))
	status := make([]string, len(ids))
	trap := pick(c, []string{"Inactive", "INACTIVE", "inactive ", ""})
	for i, at := range c.Perm(len(ids)) {
		switch {
		case i < inactive:
			status[at] = "inactive"
		case i < inactive+4:
			status[at] = "suspended"
		case i < inactive+8 && trap != "":
			status[at] = trap
		default:
			status[at] = "active"
		}
	}
	if trap != "" {
		t.columns[4].comment += fmt.Sprintf(". Rows with %q were imported from the old shop, where it marked customers without a newsletter: they are active", trap)
	}
	for i, id := range ids {
		first, last := firstNames[names[i]%len(firstNames)], lastNames[names[i]/len(firstNames)]
		email := strings.ToLower(first+"."+strings.ReplaceAll(last, "'", "")) + "@example.com"
		t.rows = append(t.rows, []any{id, first + " " + last, email, pick(c, cities), status[i], c.day()})
	}
}

func (c *company) sales() {
	customers, products, orders, items := c.table("customers"), c.table(c.products), c.table("orders"), c.table(c.items)
	names := c.Perm(len(wares) * len(woods))
	for i, id := range c.ids(22+c.IntN(8), 10) {
		phase := "available"
		if i%3 == 0 {
			phase = pick(c, []string{c.discontinued, c.discontinued, strings.ToUpper(c.discontinued), c.discontinued + " "})
		}
		products.rows = append(products.rows, []any{id, woods[names[i]%len(woods)] + " " + wares[names[i]/len(woods)], money(500 + c.IntN(20000)), phase})
	}
	for _, id := range c.ids(60+c.IntN(20), 1000) {
		orders.rows = append(orders.rows, []any{id, pick(c, customers.rows)[0], c.day(), pick(c, orderStates)})
	}
	for _, id := range c.ids(110+c.IntN(30), 5000) {
		p := pick(c, products.rows)
		items.rows = append(items.rows, []any{id, pick(c, orders.rows)[0], p[0], 1 + c.IntN(9), p[2]})
	}
	links := []*rule{items.rule(foreign, "order_id"), items.rule(foreign, "product_id"), orders.rule(foreign, "customer_id")}
	switch c.Sales {
	case "keys":
		for _, i := range c.Perm(3)[:1+c.IntN(2)] {
			links[i].live = absent
		}
		if c.IntN(2) == 0 {
			pick(c, []*rule{customers.rule(unique, "email"), items.rule(primary, "id")}).live = absent
		}
	case "orphans":
		for _, i := range c.Perm(3)[:1+c.IntN(3)] {
			links[i].live = absent
			from := []*table{items, items, orders}[i]
			from.orphan(c.Rand, links[i].column, 2+c.IntN(3), c.table(links[i].ref))
		}
		pick(c, []*rule{customers.rule(unique, "email"), items.rule(primary, "id"), orders.rule(notNull, "ordered"),
			items.rule(check, "quantity"), products.rule(check, "price")}).live = absent
	}
	if c.Sales != "clean" {
		t := pick(c, []*table{orders, items})
		for _, r := range t.rules {
			if r.kind == index && c.IntN(3) > 0 {
				r.live = absent
			}
		}
	}
}

// orphan makes n rows refer to rows that other does not have.
func (t *table) orphan(r *rand.Rand, column string, n int, other *table) {
	at := t.at(column)
	first, last := other.rows[0][0].(int), other.rows[len(other.rows)-1][0].(int)
	for _, i := range r.Perm(len(t.rows))[:n] {
		for t.rows[i][at] == nil || other.find(t.rows[i][at].(int)) != nil {
			t.rows[i][at] = first + r.IntN(last-first+30)
		}
	}
}

func (c *company) billing() {
	customers, invoices, payments := c.table("customers"), c.table(c.invoices), c.table(c.payments)
	for i, id := range c.ids(46+c.IntN(14), 300) {
		invoices.rows = append(invoices.rows, []any{id, pick(c, customers.rows)[0], fmt.Sprintf("R-%04d", 2000+i*3+c.IntN(3)), c.day(), money(1000 + c.IntN(90000)), pick(c, billStates)})
	}
	for _, id := range c.ids(50+c.IntN(20), 700) {
		payments.rows = append(payments.rows, []any{id, pick(c, invoices.rows)[0], c.day(), money(500 + c.IntN(50000)), pick(c, methods)})
	}
	some := 3 + c.IntN(6)
	switch c.Billing {
	case "check":
		if c.IntN(2) == 0 {
			payments.rule(check, "amount").live = newRows
			for _, i := range c.Perm(len(payments.rows))[:some] {
				payments.rows[i][3] = "-" + payments.rows[i][3].(postgres.Numeric)
			}
			return
		}
		invoices.rule(check, "state").live = newRows
		for _, i := range c.Perm(len(invoices.rows))[:some] {
			s := invoices.rows[i][5].(string)
			invoices.rows[i][5] = pick(c, []string{strings.ToUpper(s), strings.ToUpper(s[:1]) + s[1:], s + " "})
		}
	case "duplicates":
		invoices.rule(unique, "number").live = absent
		last := invoices.rows[len(invoices.rows)-1][0].(int)
		for _, i := range c.Perm(len(invoices.rows))[:some] {
			twin := slices.Clone(invoices.rows[i])
			last += 1 + c.IntN(4)
			twin[0] = last
			invoices.rows = append(invoices.rows, twin)
			for n := range c.IntN(3) {
				payments.rows[c.IntN(len(payments.rows)/3)*3+n][1] = last
			}
		}
	}
}

func (c *company) support() {
	customers, agents, tickets := c.table("customers"), c.table(c.agents), c.table(c.tickets)
	for i, id := range c.ids(6+c.IntN(4), 20) {
		agents.rows = append(agents.rows, []any{id, firstNames[(i*5+c.IntN(5))%len(firstNames)] + " " + pick(c, lastNames), pick(c, teams)})
	}
	for _, id := range c.ids(44+c.IntN(16), 8000) {
		agent := any(pick(c, agents.rows)[0])
		if c.IntN(6) == 0 {
			agent = nil
		}
		tickets.rows = append(tickets.rows, []any{id, pick(c, customers.rows)[0], agent, c.day(), pick(c, subjects), 1 + c.IntN(5), pick(c, ticketStates)})
	}
	some := 3 + c.IntN(7)
	switch c.Support {
	case "customers":
		tickets.rule(foreign, "customer_id").live = absent
		tickets.orphan(c.Rand, "customer_id", some, customers)
	case "agents":
		tickets.rule(foreign, "agent_id").live = absent
		tickets.orphan(c.Rand, "agent_id", some, agents)
	case "nulls":
		tickets.rule(notNull, "priority").live = absent
		for _, i := range c.Perm(len(tickets.rows))[:some] {
			tickets.rows[i][5] = nil
		}
	}
	if c.Support != "clean" && c.IntN(2) == 0 {
		tickets.rule(index, "agent_id").live = absent
	}
}

func (c *company) table(name string) *table {
	for _, t := range c.tables {
		if t.name == name {
			return t
		}
	}
	panic("dba: no table " + name)
}

// at is the place of a column.
func (t *table) at(column string) int {
	for i := range t.columns {
		if t.columns[i].name == column {
			return i
		}
	}
	panic("dba: no column " + t.name + "." + column)
}

func (t *table) rule(kind, column string) *rule {
	for _, r := range t.rules {
		if r.kind == kind && r.column == column {
			return r
		}
	}
	panic("dba: no " + kind + " on " + t.name + "." + column)
}

// find returns the row with an id, nil where there is none.
func (t *table) find(id int) []any {
	for _, row := range t.rows {
		if row[0] == id {
			return row
		}
	}
	return nil
}

// names lists the columns.
func (t *table) names() []string {
	out := make([]string, len(t.columns))
	for i, col := range t.columns {
		out[i] = col.name
	}
	return out
}

// clause is the rule as SQL, as part of a table's definition; empty for an index.
func (r *rule) clause() string {
	switch r.kind {
	case primary, unique:
		return strings.ToUpper(r.kind) + " (" + r.column + ")"
	case check:
		return "CHECK (" + r.expr + ")"
	case foreign:
		return "FOREIGN KEY (" + r.column + ") REFERENCES " + r.ref + " (id)"
	}
	return ""
}

// name is that of a constraint or index, as Postgres would choose it.
func (r *rule) name(t *table) string {
	switch r.kind {
	case primary:
		return t.name + "_pkey"
	case unique:
		return t.name + "_" + r.column + "_key"
	case check:
		return t.name + "_" + r.column + "_check"
	case foreign:
		return t.name + "_" + r.column + "_fkey"
	}
	return t.name + "_" + r.column + "_idx"
}

// mend is the statement that makes the database keep the rule.
func (r *rule) mend(t *table) string {
	switch {
	case r.kind == index:
		return "CREATE INDEX " + r.name(t) + " ON " + t.name + " (" + r.column + ")"
	case r.kind == notNull:
		return "ALTER TABLE " + t.name + " ALTER COLUMN " + r.column + " SET NOT NULL"
	case r.live == newRows:
		return "ALTER TABLE " + t.name + " VALIDATE CONSTRAINT " + r.name(t)
	}
	return "ALTER TABLE " + t.name + " ADD CONSTRAINT " + r.name(t) + " " + r.clause()
}

// allow gives the patterns of the state's differences that mending the rule makes, whatever names are chosen.
func (r *rule) allow(t *table) []string {
	const prefix = "postgres: "
	constraint := func(def string) []string {
		return []string{prefix + `\+ constraint public\.\S+ on public\.` + t.name + ": " + regexp.QuoteMeta(def) + " valid t"}
	}
	byIndex := func(what, columns string) string {
		return prefix + `\+ index CREATE ` + what + ` \S+ ON public\.` + t.name + ` USING ` + columns + ` valid t clustered f`
	}
	switch r.kind {
	case index:
		return []string{byIndex("INDEX", `(btree|hash) \(`+r.column+`\b.*`)}
	case notNull:
		at := t.at(r.column)
		return []string{fmt.Sprintf(prefix+`[-+] column public\.%s\.%d %s type %s not null [tf] default  identity  generated  .*`, t.name, at+1, r.column, regexp.QuoteMeta(t.columns[at].typ))}
	case foreign:
		return constraint("FOREIGN KEY (" + r.column + ") REFERENCES public." + r.ref + "(id)")
	case check:
		if r.live == newRows {
			return append(constraint("CHECK ("+r.shown+")"), prefix+`- constraint public\.\S+ on public\.`+t.name+": "+regexp.QuoteMeta("CHECK ("+r.shown+") NOT VALID")+" valid f")
		}
		return constraint("CHECK (" + r.shown + ")")
	}
	return append(constraint(r.clause()), byIndex("UNIQUE INDEX", `btree \(`+r.column+`\)`))
}

// setup is the SQL that makes the database as it is.
func (c *company) setup() string {
	var b, later strings.Builder
	for _, t := range c.tables {
		fmt.Fprintf(&b, "CREATE TABLE %s (", t.name)
		for i, col := range t.columns {
			fmt.Fprintf(&b, "%s\n\t%s %s", []string{"", ","}[min(i, 1)], col.name, col.typ)
			if col.name == "id" || !col.nullable && t.rule(notNull, col.name).live == kept {
				b.WriteString(" NOT NULL")
			}
		}
		b.WriteString("\n);\n")
		b.WriteString(postgres.Insert(t.name, t.names(), t.rows))
		for _, col := range t.columns {
			if col.comment != "" {
				fmt.Fprintf(&b, "COMMENT ON COLUMN %s.%s IS %s;\n", t.name, col.name, postgres.Literal(col.comment))
			}
		}
		for _, r := range t.rules {
			switch {
			case r.live == absent || r.kind == notNull:
			case r.kind == index:
				fmt.Fprintf(&b, "CREATE INDEX %s ON %s (%s);\n", r.name(t), t.name, r.column)
			case r.live == newRows:
				fmt.Fprintf(&later, "ALTER TABLE %s ADD CONSTRAINT %s %s NOT VALID;\n", t.name, r.name(t), r.clause())
			default:
				fmt.Fprintf(&later, "ALTER TABLE %s ADD CONSTRAINT %s %s;\n", t.name, r.name(t), r.clause())
			}
		}
	}
	return b.String() + later.String()
}

// files are the declarations that the linter compares the database with. A table that a file only refers to is declared
// there with its key alone. An index of a foreign key is not declared: the linter wants one in any case.
func (c *company) files() map[string]string {
	all := map[string]string{salesFile: "-- Customers and what they order.\n", billingFile: "-- What customers owe and have paid.\n" + justKey, supportFile: "-- What customers complain about.\n" + justKey}
	for _, t := range c.tables {
		var lines []string
		for _, col := range t.columns {
			line := "\t" + col.name + " " + col.typ
			if !col.nullable {
				line += " NOT NULL"
			}
			lines = append(lines, line)
		}
		for _, r := range t.rules {
			if clause := r.clause(); clause != "" {
				lines = append(lines, "\t"+clause)
			}
		}
		all[t.file] += fmt.Sprintf("\nCREATE TABLE %s (\n%s\n);\n", t.name, strings.Join(lines, ",\n"))
	}
	return all
}

const justKey = "CREATE TABLE customers (id integer PRIMARY KEY);\n"

// clone copies the tables and rows, so that the copy can be repaired.
func (c *company) clone() *company {
	out := *c
	out.tables = nil
	for _, t := range c.tables {
		copied := *t
		copied.rows = make([][]any, len(t.rows))
		for i, row := range t.rows {
			copied.rows[i] = slices.Clone(row)
		}
		out.tables = append(out.tables, &copied)
	}
	return &out
}

// line is a row as the state shows it.
func (t *table) line(row []any) string {
	var cells []json.RawMessage
	if err := json.Unmarshal(postgres.Cells(row), &cells); err != nil {
		panic(err) // plain strings and numbers
	}
	parts := make([]string, len(cells))
	for i, cell := range cells {
		parts[i] = fmt.Sprintf("%q:%s", t.columns[i].name, cell)
	}
	return "row public." + t.name + " {" + strings.Join(parts, ",") + "}"
}
