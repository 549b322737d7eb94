package postgres

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// mostChanged bounds the lines of a state's diff that a repair makes: a state keeps no more than 50.
const mostChanged = 48

// Amounts that are not the sum of their lines, with a log of what is changed.
func reconcile(d *draft) bool {
	p := d.period(6, 24)
	sums := map[int]int{}
	for _, l := range d.w.lines {
		sums[l.event] += l.qty * l.price
	}
	t, log := d.w.table("event"), d.w.table("log")
	n, total := 0, 0
	var logged, repaired [][]any
	for i, e := range d.w.events {
		if e.amount == sums[e.id] || !p.holds(d.w.day(e)) {
			continue
		}
		n++
		total += sums[e.id]
		after := d.with(t, t.rows[i], "e.raw", d.w.money(sums[e.id]))
		entry := []any{e.id, d.w.money(e.amount), d.w.money(sums[e.id])}
		d.change(t, t.rows[i], after)
		d.change(log, nil, entry)
		repaired, logged = append(repaired, []any{e.id, d.w.money(sums[e.id])}), append(logged, entry)
	}
	if n < 4 || 3*n > mostChanged {
		return false
	}
	d.look("event", "line", "log")
	sum := "(SELECT sum([l.qty] * [l.raw]) FROM [line] l WHERE [l.event] = [e.id])"
	wrong := fmt.Sprintf("[e.raw] <> %s AND %s", sum, p.sql())
	d.query("SELECT count(*), sum((SELECT sum([l.qty] * [l.price]) FROM [line] l WHERE [l.event] = [e.id])) FROM [event] e WHERE "+wrong,
		"BEGIN",
		fmt.Sprintf("INSERT INTO [log] ([:c.event], [:c.old], [:c.new]) SELECT [e.id], [e.raw], %s FROM [event] e WHERE %s", sum, wrong),
		fmt.Sprintf("UPDATE [event] e SET [:e.raw] = %s WHERE %s", sum, wrong),
		"COMMIT")
	d.number(n, "event")
	d.also("log")
	d.euros(total, "event")
	d.also("log")
	d.assert(fmt.Sprintf("SELECT [e.id], [e.raw] FROM [event] e WHERE [e.id] IN (%s) ORDER BY 1", idList(repaired)), repaired)
	d.assert("SELECT [c.event], [c.old], [c.new] FROM [log] c ORDER BY 1, 2, 3", logged)
	return d.ask([]string{
		"For some {events} {placed} {period} the stored {amount} is not the sum of their {lines} ({qty} times price). In one transaction, enter the {event} with its old and its new {amount} in the table {log}, and set the {amount} to that sum. Do this for exactly those {events}. How many were wrong, and what is their right {amount} in all, in euros?{zone}",
		"Check the {amount} of each {event} {placed} {period}: it must be what its {lines} add up to ({qty} times price). Where it is not, put it right, and in the same transaction note {event}, old and new {amount} in {log}. Answer with the number of corrected {events} and their new {amount} in all in euros.{zone}",
		"Correct every {amount} of {events} {placed} {period} that differs from the sum over the {lines} of {qty} times price, and log each correction in {log}, all in one transaction. How many {events} did you correct, and how many euros is their {amount} now, taken together?{zone}",
	}, "{period}", p.String(), "{log}", d.w.columns["log"])
}

// idList writes the first column of rows.
func idList(rows [][]any) string {
	ids := make([]string, len(rows))
	for i, r := range rows {
		ids[i] = fmt.Sprint(r[0])
	}
	return strings.Join(ids, ", ")
}

// References to rows that do not exist: those of events are emptied, lines are deleted, on demand with a key for the future.
func repairOrphans(d *draft) bool {
	if d.IntN(2) == 0 {
		return emptyOrphans(d)
	}
	limit, forever := 20*(3+d.IntN(30)), d.IntN(3) == 0
	if forever {
		limit = 1_000_000
	}
	list := d.w.orphanLines(limit)
	if len(list) < 4 {
		return false
	}
	t := d.w.table("line")
	sum := 0
	for i, l := range d.w.lines {
		if slices.Contains(list, l) {
			sum += l.qty * l.price
			d.change(t, t.rows[i], nil)
		}
	}
	which := orphanLines(limit)
	which = strings.TrimSuffix(which, " AND [l.qty] * [l.price] < 1000000")
	what := fmt.Sprintf(" worth less than %d euros each ({qty} times price)", limit)
	d.look("line", "event")
	d.query("SELECT count(*), sum([l.qty] * [l.price]) FROM " + which)
	change := []string{"DELETE FROM " + which}
	also := ""
	if forever {
		what = ""
		also = " Then add a foreign key from {lines} to {events}, so that it cannot happen again."
		change = append(change, "ALTER TABLE [line] ADD FOREIGN KEY ([:l.event]) REFERENCES [event] ([:e.id])")
		d.allow = append(d.allow, fmt.Sprintf(`\+ constraint \S+ on (\w+\.)?%s: FOREIGN KEY \(%s\) REFERENCES (\w+\.)?%s\(%s\).* valid t`,
			d.w.bare("line"), d.w.columns["l.event"], d.w.bare("event"), d.w.columns["e.id"]))
		d.assert("SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND convalidated AND conrelid = '[line]'::regclass AND confrelid = '[event]'::regclass", 1)
	}
	d.query(change...)
	d.number(len(list), "line")
	d.euros(sum, "line")
	d.assert("SELECT count(*), count(*) FILTER (WHERE [l.event] IS NULL) FROM [line] l", [][]any{{len(d.w.lines) - len(list), d.w.loose()}})
	d.assert("SELECT count(*) FROM "+which, 0)
	return d.ask([]string{
		"Delete the {lines}{what} that name {an-event} which does not exist; those without any {event} stay.{also} How many did you delete, and what were they worth together ({qty} times price, in euros)?",
		"Some {lines} refer to {an-event} that is not among the {events}. Remove those{what}, and nothing else: those without any {event} are in order.{also} Answer with their number and the sum of {qty} times price in euros.",
		"Clean up: {lines}{what} whose {event} is missing in the table of {events} have to go (not those where it is empty).{also} Report how many there were and the sum of {qty} times price over them in euros.",
	}, "{what}", d.words(what), "{also}", d.words(also))
}

// loose counts the lines without an event.
func (w *world) loose() (n int) {
	for _, l := range w.lines {
		if l.event == 0 {
			n++
		}
	}
	return n
}

func emptyOrphans(d *draft) bool {
	p := d.period(9, 24)
	list := d.w.orphanEvents(p)
	if len(list) < 4 || 2*len(list) > mostChanged {
		return false
	}
	t := d.w.table("event")
	sum, none := 0, 0
	for i, e := range d.w.events {
		if e.party == 0 {
			none++
		}
		if slices.Contains(list, e) {
			sum += e.amount
			d.change(t, t.rows[i], d.with(t, t.rows[i], "e.party", nil))
		}
	}
	which := orphanEvents(p)
	d.look("event", "party")
	d.query("SELECT count(*), sum([e.amount]) FROM " + which)
	d.query("UPDATE " + strings.Replace(which, " e WHERE", " e SET [:e.party] = NULL WHERE", 1))
	d.number(len(list), "event")
	d.euros(sum, "event")
	d.assert("SELECT count(*), count(*) FILTER (WHERE [e.party] IS NULL) FROM [event] e", [][]any{{len(d.w.events), none + len(list)}})
	d.assert("SELECT count(*) FROM "+which, 0)
	return d.ask([]string{
		"Some {events} {placed} {period} name a {party} that does not exist. Set that reference to NULL in exactly those. How many are they, and what is their {amount} in all, in euros?{zone}",
		"Of the {events} {placed} {period}, take those whose {party} is missing among the {parties}, and empty the reference to the {party} (NULL). Change nothing else. Answer with their number and their summed {amount} in euros.{zone}",
		"Repair the {events} {placed} {period} that point to a {party} which is not there: make the pointer NULL. Report the number of repaired {events} and the sum of their {amount} in euros.{zone}",
	}, "{period}", p.String())
}

// Duplicates are merged, and what referred to them is kept.
func merge(d *draft) bool {
	from := firstDay.AddDate(0, -85+d.IntN(60), 0)
	to := from.AddDate(0, 12+d.IntN(48), -1)
	groups := map[string][]int{}
	for i, p := range d.w.parties { // by id
		if k := key(p.email); k != "" && !p.since.Before(from) && !p.since.After(to) {
			groups[k] = append(groups[k], i)
		}
	}
	t := d.w.table("party")
	into := map[int]int{}
	var kept [][]any
	for _, k := range slices.Sorted(maps.Keys(groups)) {
		g := groups[k]
		for _, i := range g[1:] {
			into[d.w.parties[i].id] = d.w.parties[g[0]].id
			d.change(t, t.rows[i], nil)
		}
	}
	for _, p := range d.w.parties {
		if into[p.id] == 0 {
			kept = append(kept, []any{p.id, p.name})
		}
	}
	if len(into) == 0 {
		return false
	}
	var events, payments [][]any // as they must be
	moved, paid := 0, 0
	t = d.w.table("event")
	for i, e := range d.w.events {
		if to := into[e.party]; to != 0 {
			moved++
			events = append(events, []any{e.id, to})
			d.change(t, t.rows[i], d.with(t, t.rows[i], "e.party", to))
		}
	}
	t = d.w.table("payment")
	for i, y := range d.w.payments {
		if to := into[y.party]; to != 0 {
			paid += y.amount
			payments = append(payments, []any{y.id, to})
			d.change(t, t.rows[i], d.with(t, t.rows[i], "y.party", to))
		}
	}
	if moved < 4 || paid == 0 || len(d.changes) > mostChanged {
		return false
	}
	which := fmt.Sprintf("[p.email] IS NOT NULL AND [p.since] BETWEEN '%s' AND '%s'", day(from), day(to))
	twins := "(SELECT [p.id] AS a, min([p.id]) OVER (PARTITION BY lower(trim([p.email]))) AS k FROM [party] p WHERE " + which + ") q"
	d.look("party", "event", "payment")
	d.query(fmt.Sprintf("SELECT (SELECT count(*) FROM [event] e JOIN %s ON [e.party] = q.a WHERE q.a > q.k), (SELECT sum([y.amount]) FROM [payment] y JOIN %s ON [y.party] = q.a WHERE q.a > q.k)", twins, twins))
	d.query("BEGIN",
		fmt.Sprintf("UPDATE [event] e SET [:e.party] = q.k FROM %s WHERE [e.party] = q.a AND q.a > q.k", twins),
		fmt.Sprintf("UPDATE [payment] y SET [:y.party] = q.k FROM %s WHERE [y.party] = q.a AND q.a > q.k", twins),
		fmt.Sprintf("DELETE FROM [party] d USING %s WHERE [d:p.id] = q.a AND q.a > q.k", twins),
		"COMMIT")
	d.number(moved, "event")
	d.euros(paid, "payment")
	d.assert("SELECT [p.id], [p.name] FROM [party] p ORDER BY 1", kept)
	d.assert(fmt.Sprintf("SELECT [e.id], [e.party] FROM [event] e WHERE [e.id] IN (%s) ORDER BY 1", idList(events)), events)
	d.assert(fmt.Sprintf("SELECT [y.id], [y.party] FROM [payment] y WHERE [y.id] IN (%s) ORDER BY 1", idList(payments)), payments)
	return d.ask([]string{
		"Some of the {among} are the same person twice: their addresses are equal but for upper and lower case and spaces at the ends. Of each such group, within those, keep the row with the lowest primary key as it is, let the {events} and {payments} of the others refer to it, and delete the others. How many {events} were moved, and how many euros of {payments}?",
		"Merge the duplicates among the {among} (same e-mail address, ignoring case and spaces at either end; nobody else takes part): the row with the lowest primary key stays unchanged and takes over the {events} and {payments} of the rest, which are deleted. Answer with the number of {events} that changed hands and the sum of the {payments} that did, in euros.",
		"Remove double entries of the {among}; the others are left alone. Two are the same if their e-mail addresses differ only in case or in spaces around them; the one with the lowest primary key survives without change and inherits all {events} and {payments}. Report how many {events} had to be moved, and the amount of the moved {payments} in euros.",
	}, "{among}", d.words("{parties} who {joined} ")+period{from, to}.String())
}

// A column is added, filled from another table and constrained.
func migrate(d *draft) bool {
	st := d.state()
	kind := d.IntN(3)
	name := []string{"handled_count", "handled_euros", "handled_last"}[kind]
	count, sum, last := map[int]int{}, map[int]int{}, map[int]time.Time{}
	for _, e := range d.w.events {
		if e.state == st {
			count[e.staff]++
			sum[e.staff] += e.amount
			if on := d.w.day(e); on.After(last[e.staff]) {
				last[e.staff] = on
			}
		}
	}
	kinds := []struct {
		typ, column, fill, check string
		value                    func(person) any
		rank                     func(person) int
		say                      string
	}{
		{"integer", "integer not null t default 0", "count(*)", "CHECK ((handled_count >= 0))", func(s person) any { return count[s.id] }, func(s person) int { return count[s.id] },
			"an integer, NOT NULL with default 0, that holds the number of {st} {events} that the {staff} handled"},
		{"numeric(12,2)", `numeric\(12,2\) not null t default 0`, "coalesce(sum([e.amount]), 0)", "CHECK ((handled_euros >= (0)::numeric))",
			func(s person) any { return postgres.Numeric(euros(sum[s.id])) }, func(s person) int { return sum[s.id] },
			"a numeric(12,2), NOT NULL with default 0, that holds the summed {amount} in euros of the {st} {events} that the {staff} handled"},
		{"date", "date not null f default ", "max([e.day])", "", func(s person) any {
			if count[s.id] == 0 {
				return nil
			}
			return day(last[s.id])
		}, func(s person) int { return int(last[s.id].Unix()) },
			"a date, NULL where there is none, that holds the latest day of the {st} {events} that the {staff} handled"},
	}
	k := kinds[kind]
	list, ok := ranked(d.w.staff, 0, k.rank)
	if !ok {
		return false
	}
	t := d.w.table("staff")
	after := t
	after.names = append(slices.Clone(t.names), name)
	var want [][]any
	for i, s := range d.w.staff {
		row := append(slices.Clone(t.rows[i]), k.value(s))
		want = append(want, row)
		d.change(t, t.rows[i], nil)
		d.change(after, nil, row)
	}
	staff := d.w.columns["staff"]
	d.allow = append(d.allow, fmt.Sprintf(`\+ column public\.%s\.\d+ %s type %s.*`, staff, name, k.column))
	d.look("event", "staff")
	filter := fmt.Sprintf("FROM [event] e WHERE [e.staff] = [s.id] AND [e.state] = '%s'", st)
	d.query(fmt.Sprintf("SELECT [s.name], (SELECT %s %s) AS n FROM [staff] s ORDER BY n DESC NULLS LAST LIMIT 1", k.fill, filter))
	def := " NOT NULL DEFAULT 0"
	if kind == 2 {
		def = ""
	}
	change := []string{
		fmt.Sprintf("ALTER TABLE [staff] ADD COLUMN %s %s%s", name, k.typ, def),
		fmt.Sprintf("UPDATE [staff] s SET %s = (SELECT %s %s)", name, k.fill, filter),
	}
	also := ""
	if k.check != "" {
		also = fmt.Sprintf(" Secure it with CHECK (%s >= 0), under the constraint name %s_ok.", name, name)
		change = append(change, fmt.Sprintf("ALTER TABLE [staff] ADD CONSTRAINT %s_ok CHECK (%s >= 0)", name, name))
		d.allow = append(d.allow, regexp.QuoteMeta(fmt.Sprintf("+ constraint public.%s_ok on public.%s: %s valid t", name, staff, k.check)))
		d.assert(fmt.Sprintf("SELECT pg_get_constraintdef(oid), convalidated FROM pg_constraint WHERE conrelid = '[staff]'::regclass AND conname = '%s_ok'", name), [][]any{{k.check, true}})
	}
	d.query(change...)
	d.text(list[0].name, "staff")
	switch kind {
	case 0:
		d.number(count[list[0].id], "event")
	case 1:
		d.euros(sum[list[0].id], "event")
	default:
		d.date(last[list[0].id], "event")
	}
	d.also("staff") // in the filled column
	d.assert(fmt.Sprintf("SELECT %s FROM [staff] s ORDER BY 1", strings.Join(after.names, ", ")), want)
	d.assert(fmt.Sprintf("SELECT format_type(atttypid, atttypmod), attnotnull FROM pg_attribute WHERE attrelid = '[staff]'::regclass AND attname = '%s'", name), [][]any{{k.typ, kind < 2}})
	return d.ask([]string{
		"Add a column {col} to the table {table}: {what}. Fill it for every row.{also} Which {staff} has the {most} value, and what is it?{zone}",
		"The table {table} needs a new column {col}, {what}, filled for all {staffs}.{also} Answer with the name of the {staff} who has the {most} value in it, and that value.{zone}",
		"Extend {table} by {col}: {what}. All rows have to be filled.{also} Then tell me whose value is the {most} one, and the value.{zone}",
	}, "{col}", name, "{table}", staff, "{what}", d.words(strings.ReplaceAll(k.say, "{st}", st)), "{also}", also, "{most}", []string{"highest", "highest", "latest"}[kind])
}

// An index for a query. The world alone is judged.
func index(d *draft) bool {
	var role, first, second, where string
	switch d.IntN(5) {
	case 0:
		role, first, second = "event", "e.party", "e.start"
		where = fmt.Sprintf("%s = %d", d.w.columns[first], d.w.parties[d.IntN(len(d.w.parties))].id)
	case 1:
		role, first, second = "event", "e.staff", "e.start"
		where = fmt.Sprintf("%s = %d", d.w.columns[first], d.w.staff[d.IntN(len(d.w.staff))].id)
	case 2:
		role, first, second = "event", "e.state", "e.end"
		where = fmt.Sprintf("%s = '%s'", d.w.columns[first], d.state())
	case 3:
		role, first, second = "payment", "y.party", "y.day"
		where = fmt.Sprintf("%s = %d", d.w.columns[first], d.w.parties[d.IntN(len(d.w.parties))].id)
	default:
		role, first = "party", "p.email"
	}
	table := d.w.columns[role]
	if table == d.w.bare(role) {
		table = "public." + table
	}
	a := d.w.columns[first]
	keys := []string{a}
	if second == "" {
		keys = []string{"lower(" + a + ")"}
		p, ok := d.party(func(p party) bool { return p.email != "" })
		if !ok {
			return false
		}
		where = fmt.Sprintf("lower(%s) = %s", a, postgres.Literal(key(p.email)))
	} else {
		keys = append(keys, d.w.columns[second])
		where += fmt.Sprintf(" AND %s >= '%s'", keys[1], firstDay.AddDate(0, 0, d.IntN(allDays)).Format(time.DateOnly))
	}
	d.look(role)
	d.query(fmt.Sprintf("CREATE INDEX ON [%s] (%s)", role, strings.Join(keys, ", ")))
	conditions := ""
	for i, k := range keys {
		conditions += fmt.Sprintf(" AND pg_get_indexdef(i.indexrelid, %d, true) = '%s'", i+1, k)
	}
	d.assert(fmt.Sprintf("SELECT count(*) > 0 FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam"+
		" WHERE i.indrelid = '[%s]'::regclass AND m.amname = 'btree' AND i.indisvalid AND i.indpred IS NULL%s", role, conditions), true)
	for i := range keys {
		keys[i] = regexp.QuoteMeta(keys[i])
	}
	d.allow = append(d.allow, fmt.Sprintf(`\+ index CREATE INDEX \S+ ON %s USING btree \(%s([ ,)].*)?\) valid t clustered f`, regexp.QuoteMeta(table), strings.Join(keys, ", ")))
	order := ""
	if second != "" {
		order = " The column that is compared by equality comes first in it, the one with the range second."
	}
	return d.ask([]string{
		"Queries of this form are slow: SELECT count(*) FROM {table} WHERE {where}. Create one btree index over the whole table that serves all their conditions.{order} Nothing else may change.",
		"Make a btree index (not a partial one) for the query SELECT * FROM {table} WHERE {where}; other values will be asked for, too.{order} One index is enough, and leave the rest as it is.",
		"We often run SELECT count(*) FROM {table} WHERE {where} with changing values. Add the one btree index that covers its conditions, for all rows of the table.{order}",
	}, "{table}", d.w.columns[role], "{where}", where, "{order}", order)
}
