package postgres

import (
	"fmt"
	"maps"
	"slices"

	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// oodFamilies compose skills in ways that families never do.
var oodFamilies = []family{
	{"best-month", false, bestMonth},
	{"hierarchy", false, hierarchy},
	{"favourite", false, favourite},
	{"either-not-both", false, eitherNotBoth},
	{"conditional-repair", true, conditionalRepair},
}

// The month in which some had the most.
func bestMonth(d *draft) bool {
	city, st, p := pick(d.Rand, cities), d.state(), d.period(12, 24)
	live := d.IntN(2) == 0
	months := map[string]int{}
	for _, e := range d.w.events {
		if o, ok := d.w.partyOf(e.party); ok && o.city == city && e.state == st && !(live && o.gone) && p.holds(d.w.day(e)) {
			months[d.w.day(e).Format("2006-01")] += e.amount
		}
	}
	list, ok := ranked(slices.Sorted(maps.Keys(months)), 0, func(m string) int { return months[m] })
	if !ok {
		return false
	}
	who, cond := "{parties}", ""
	if live {
		who, cond = "{live}", " AND [p.live]"
	}
	d.look("event", "party")
	d.query(fmt.Sprintf("SELECT to_char([e.day], 'YYYY-MM') AS a, sum([e.amount]) AS n FROM [event] e JOIN [party] p ON [p.id] = [e.party]"+
		" WHERE [e.state] = '%s' AND [p.city] = '%s'%s AND %s GROUP BY 1 ORDER BY n DESC LIMIT 1", st, city, cond, p.sql()))
	d.text(list[0], "event")
	d.euros(months[list[0]], "event")
	return d.ask([]string{
		"Look at the {st} {events} of {who}, restricted to the {city} {c} and to what was {placed} {period}. In which calendar month were those {placed} that have the highest {amount} in all? Give the month as YYYY-MM and that sum in euros.{zone}",
		"Among {who}, take those with the {city} {c}. By the calendar month in which they were {placed}, when was the sum of {amount} over their {st} {events}, {placed} {period}, at its peak? Month as YYYY-MM, then the sum in euros.{zone}",
	}, "{who}", d.words(who), "{c}", city, "{st}", st, "{period}", p.String())
}

// Everybody below somebody, at any depth.
func hierarchy(d *draft) bool {
	head, st, p := pick(d.Rand, d.w.staff), d.state(), d.period(9, 24)
	below := map[int]bool{}
	for grown := true; grown; {
		grown = false
		for _, s := range d.w.staff {
			if !below[s.id] && (s.boss == head.id || below[s.boss]) {
				below[s.id], grown = true, true
			}
		}
	}
	n, sum := 0, 0
	for _, e := range d.w.events {
		if below[e.staff] && e.state == st && p.holds(d.w.day(e)) {
			n++
			sum += e.amount
		}
	}
	direct := 0
	for _, s := range d.w.staff {
		if s.boss == head.id {
			direct++
		}
	}
	if direct == 0 || direct == len(below) || n < 4 { // one step down would do
		return false
	}
	d.look("event", "staff")
	d.query(fmt.Sprintf("WITH RECURSIVE q AS (SELECT [s.id] AS a FROM [staff] s JOIN [staff] h ON [h:s.id] = [s.boss] WHERE [h:s.name] = %s"+
		" UNION SELECT [s.id] FROM [staff] s JOIN q ON [s.boss] = q.a)"+
		" SELECT count(*), sum([e.amount]) FROM [event] e JOIN q ON [e.staff] = q.a WHERE [e.state] = '%s' AND %s", postgres.Literal(head.name), st, p.sql()))
	d.number(n, "event")
	d.euros(sum, "event")
	return d.ask([]string{
		"How many {st} {events} {placed} {period} were handled by {staffs} who are below {name} in the hierarchy, directly or through others, and what is their {amount} in all, in euros? What {name} handled does not count.{zone}",
		"Take everybody under the {staff} {name}, at any depth but without {name}. Number and summed {amount} in euros of the {st} {events} {placed} {period} that they handled?{zone}",
	}, "{name}", head.name, "{st}", st, "{period}", p.String())
}

// What the frequent ones take most.
func favourite(d *draft) bool {
	least, p := 5+d.IntN(4), d.period(6, 24)
	count := map[int]int{}
	for _, e := range d.w.events {
		count[e.party]++
	}
	qty := map[int]int{}
	for _, l := range d.w.lines {
		e, ok := d.w.eventOf(l.event)
		if _, is := d.w.partyOf(e.party); ok && is && count[e.party] >= least && p.holds(d.w.day(e)) {
			qty[l.thing] += l.qty
		}
	}
	list, ok := ranked(d.w.things, 0, func(t thing) int { return qty[t.id] })
	if !ok || qty[list[0].id] < 4 {
		return false
	}
	d.look("event", "line", "thing", "party")
	d.query(fmt.Sprintf("SELECT [t.name], sum([l.qty]) AS n FROM [line] l JOIN [event] e ON [e.id] = [l.event] JOIN [thing] t ON [t.id] = [l.thing] JOIN [party] p ON [p.id] = [e.party]"+
		" WHERE (SELECT count(*) FROM [event] d WHERE [d:e.party] = [p.id]) >= %d AND %s GROUP BY [t.id], [t.name] ORDER BY n DESC LIMIT 1",
		least, p.sql()))
	d.text(list[0].name, "thing")
	d.number(qty[list[0].id], "line")
	return d.ask([]string{
		"Consider the {parties} with at least {n} {events} of any state and date. In their {events} {placed} {period}, which {thing} has the highest total of {qty}, and how much is it?{zone}",
		"First find the {parties} who have {n} or more {events} in all. Then tell me the {thing} with the largest sum of {qty} in their {events} {placed} {period}, and that sum.{zone}",
	}, "{n}", fmt.Sprint(least), "{period}", p.String())
}

// Those who had one kind of thing and never another.
func eitherNotBoth(d *draft) bool {
	i := d.Perm(len(d.w.categories))
	a, b := d.w.categories[i[0]], d.w.categories[i[1]]
	p := d.period(3, 18)
	had := map[string]map[int]bool{a: {}, b: {}}
	for _, l := range d.w.lines {
		e, isEvent := d.w.eventOf(l.event)
		t, isThing := d.w.thingOf(l.thing)
		if isEvent && isThing && had[t.category] != nil && p.holds(d.w.day(e)) {
			had[t.category][e.party] = true
		}
	}
	var list []party
	for _, o := range d.w.parties {
		if had[a][o.id] && !had[b][o.id] {
			list = append(list, o)
		}
	}
	if !d.latest(list) {
		return false
	}
	d.look("party", "event", "line", "thing")
	with := func(category string) string {
		return fmt.Sprintf("EXISTS (SELECT FROM [event] e JOIN [line] l ON [l.event] = [e.id] JOIN [thing] t ON [t.id] = [l.thing] WHERE [e.party] = [p.id] AND [t.category] = '%s' AND %s)", category, p.sql())
	}
	d.query(fmt.Sprintf("SELECT count(*) OVER (), [p.name] FROM [party] p WHERE %s AND NOT %s ORDER BY [p.since] DESC LIMIT 1", with(a), with(b)))
	return d.ask([]string{
		"In {events} {placed} {period} (all states): how many {parties} had {things} of the {category} {a} but none of the {category} {b}, and who of them {joined} last? Number, then name.{zone}",
		"Count the {parties} whose {events} {placed} {period}, whatever their state, contain a {thing} of the {category} {a} and no {thing} of the {category} {b}; name the one of them who {joined} most recently.{zone}",
	}, "{a}", a, "{b}", b, "{period}", p.String())
}

// A repair of what an aggregate points at.
func conditionalRepair(d *draft) bool {
	open, void := d.w.states[1], d.w.states[2]
	sums := d.w.amounts(func(e event) int { return e.party }, func(e event) bool { return e.state == open })
	limit := 100 * (5 + d.IntN(40))
	p := d.period(6, 23)
	p.from = firstDay
	t := d.w.table("event")
	var want [][]any
	n, sum := 0, 0
	for i, e := range d.w.events {
		_, ok := d.w.partyOf(e.party)
		if !ok || e.state != open || sums[e.party] <= 100*limit || d.w.day(e).After(p.to) {
			continue
		}
		n++
		sum += e.amount
		want = append(want, []any{e.id, void})
		d.change(t, t.rows[i], d.with(t, t.rows[i], "e.state", void))
	}
	others := 0
	for _, e := range d.w.events {
		if e.state == void {
			others++
		}
	}
	if n < 4 || 2*n > mostChanged {
		return false
	}
	which := fmt.Sprintf("[e.state] = '%s' AND [e.day] <= '%s' AND [e.party] IN (SELECT [p.id] FROM [party] p JOIN [event] d ON [d:e.party] = [p.id] WHERE [d:e.state] = '%s' GROUP BY [p.id] HAVING sum([d:e.amount]) > %d)",
		open, day(p.to), open, limit)
	d.look("event", "party")
	d.query("SELECT count(*), sum([e.amount]) FROM [event] e WHERE " + which)
	d.query(fmt.Sprintf("UPDATE [event] e SET [:e.state] = '%s' WHERE %s", void, which))
	d.number(n, "event")
	d.euros(sum, "event")
	d.assert(fmt.Sprintf("SELECT [e.id], [e.state] FROM [event] e WHERE [e.id] IN (%s) ORDER BY 1", idList(want)), want)
	d.assert(fmt.Sprintf("SELECT count(*), count(*) FILTER (WHERE [e.state] = '%s') FROM [event] e", void), [][]any{{len(d.w.events), others + n}})
	return d.ask([]string{
		"Some {parties} have {open} {events} whose {amount} comes to more than {limit} euros in all, whatever their dates. Of these {parties}, turn the {open} {events} {placed} on {day} or earlier into {void} ones. How many {events} did you change, and what is their {amount} in all, in euros?{zone}",
		"For each {party} of the table add up the {amount} of all {open} {events}. Where the sum is above {limit} euros, make every {open} {event} of that {party} {placed} up to and including {day} {void}; nothing else changes. Answer with the number of changed {events} and their summed {amount} in euros.{zone}",
	}, "{open}", open, "{void}", void, "{limit}", fmt.Sprint(limit), "{day}", p.to.Format("2006-01-02"))
}
