package postgres

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// families are those of train and test; about a quarter of the tasks change data.
var families = []family{
	{"count", false, count},
	{"join-sum", false, joinSum},
	{"top", false, top},
	{"reconcile", true, reconcile},
	{"window", false, either(runningTotal, rankInGroup)},
	{"dates", false, either(gap, longest)},
	{"none-of", false, noneOf},
	{"repair-orphans", true, repairOrphans},
	{"orphans", false, orphans},
	{"duplicates", false, duplicates},
	{"average", false, average},
	{"merge", true, merge},
	{"lookup", false, lookup},
	{"nulls", false, nulls},
	{"schema", true, either(migrate, index)},
}

// either makes tasks of two kinds by turns, of both in every domain.
func either(a, b func(*draft) bool) func(*draft) bool {
	return func(d *draft) bool {
		if (d.turn+d.turn/len(domains))%2 == 0 {
			return a(d)
		}
		return b(d)
	}
}

// Events under three conditions.
func count(d *draft) bool {
	p, st := d.period(6, 24), d.state()
	sql := fmt.Sprintf("SELECT count(*) FROM [event] e WHERE [e.state] = '%s' AND %s", st, p.sql())
	tables := []string{"event"}
	var extra string
	var also func(event) bool
	switch d.IntN(4) {
	case 0:
		limit := 50 * (2 + d.IntN(6))
		extra = fmt.Sprintf(" with {an-amount} of at least %d euros", limit)
		sql += fmt.Sprintf(" AND [e.amount] >= %d", limit)
		also = func(e event) bool { return e.amount >= 100*limit }
	case 1:
		extra = " of {live}"
		tables = append(tables, "party")
		sql += " AND EXISTS (SELECT FROM [party] p WHERE [p.id] = [e.party] AND [p.live])"
		also = func(e event) bool { o, ok := d.w.partyOf(e.party); return ok && !o.gone }
	case 2:
		city := pick(d.Rand, cities)
		extra = " of {parties} whose {city} is " + city
		tables = append(tables, "party")
		sql += fmt.Sprintf(" AND EXISTS (SELECT FROM [party] p WHERE [p.id] = [e.party] AND [p.city] = '%s')", city)
		also = func(e event) bool { o, ok := d.w.partyOf(e.party); return ok && o.city == city }
	case 3:
		team := pick(d.Rand, d.w.teams)
		extra = fmt.Sprintf(" handled by {staffs} of the {team} %q", team)
		tables = append(tables, "staff")
		sql += fmt.Sprintf(" AND EXISTS (SELECT FROM [staff] s WHERE [s.id] = [e.staff] AND [s.team] = '%s')", team)
		also = func(e event) bool {
			return slices.ContainsFunc(d.w.staff, func(s person) bool { return s.id == e.staff && s.team == team })
		}
	}
	n := 0
	for _, e := range d.w.events {
		if e.state == st && p.holds(d.w.day(e)) && also(e) {
			n++
		}
	}
	if n < 4 {
		return false
	}
	d.look(tables...)
	d.query(sql)
	d.number(n, "event")
	return d.ask([]string{
		"How many {st} {events}{extra} were {placed} {period}?{zone}",
		"Count the {st} {events}{extra} that were {placed} {period}.{zone}",
		"I need one number: the {st} {events}{extra}, {placed} {period}.{zone}",
	}, "{extra}", d.words(extra), "{st}", st, "{period}", p.String())
}

// The value of lines, over three tables.
func joinSum(d *draft) bool {
	p, st, category := d.period(3, 12), d.state(), pick(d.Rand, d.w.categories)
	n, sum := 0, 0
	for _, l := range d.w.lines {
		e, isEvent := d.w.eventOf(l.event)
		t, isThing := d.w.thingOf(l.thing)
		if isEvent && isThing && e.state == st && p.holds(d.w.day(e)) && t.category == category {
			n++
			sum += l.qty * l.price
		}
	}
	if n < 4 {
		return false
	}
	d.look("line", "event", "thing")
	d.query(fmt.Sprintf("SELECT count(*), sum([l.qty] * [l.price]) FROM [line] l JOIN [event] e ON [e.id] = [l.event] JOIN [thing] t ON [t.id] = [l.thing]"+
		" WHERE [e.state] = '%s' AND [t.category] = '%s' AND %s", st, category, p.sql()))
	d.number(n, "line")
	d.euros(sum, "line")
	return d.ask([]string{
		"Look at the {lines} for {things} of the {category} {c} that belong to {st} {events} {placed} {period}. How many are they, and what are they worth together ({qty} times price, in euros)?{zone}",
		"In {st} {events} {placed} {period}: how many {lines} concern {things} of the {category} {c}, and what is the sum in euros of {qty} times price over them?{zone}",
		"Give the number of {lines} for {things} of the {category} {c}, and their worth in euros ({qty} times price), counting only {st} {events} {placed} {period}.{zone}",
	}, "{c}", category, "{st}", st, "{period}", p.String())
}

// amounts adds up amounts by a key; 0 is no key.
func (w *world) amounts(key func(event) int, ok func(event) bool) map[int]int {
	sums := map[int]int{}
	for _, e := range w.events {
		if k := key(e); k != 0 && ok(e) {
			sums[k] += e.amount
		}
	}
	return sums
}

// The n-th largest sum.
func top(d *draft) bool {
	p, st, n := d.period(6, 18), d.state(), d.IntN(3)
	sums := d.w.amounts(func(e event) int { return e.party }, func(e event) bool { return e.state == st && p.holds(d.w.day(e)) })
	var list []party
	for i := range n + 1 { // no ties above either: what is third does not depend on how places are counted
		var ok bool
		if list, ok = ranked(d.w.parties, i, func(p party) int { return sums[p.id] }); !ok {
			return false
		}
	}
	if sums[list[n].id] == 0 || !d.w.named(list[n]) {
		return false
	}
	d.look("event", "party")
	d.query(fmt.Sprintf("SELECT [p.name], sum([e.amount]) FROM [event] e JOIN [party] p ON [p.id] = [e.party] WHERE [e.state] = '%s' AND %s"+
		" GROUP BY [p.id], [p.name] ORDER BY 2 DESC, 1 LIMIT 1 OFFSET %d", st, p.sql(), n))
	d.text(list[n].name, "party")
	d.euros(sums[list[n].id], "event")
	nth := []string{"largest", "second largest", "third largest"}[n]
	return d.ask([]string{
		"Add up the {amount} of the {st} {events} {placed} {period} for each {party}. Who has the {nth} sum, and how much is it in euros? Name, then sum.{zone}",
		"Which {party} is the one with the {nth} sum of {amount} over {st} {events} {placed} {period}? Give the name and the sum in euros.{zone}",
		"{st} {events} {placed} {period}: name the {party} with the {nth} {amount} in all, and that amount in euros.{zone}",
	}, "{nth}", nth, "{st}", st, "{period}", p.String())
}

// A rank within a group.
func rankInGroup(d *draft) bool {
	p, st, team, n := d.period(6, 18), d.state(), pick(d.Rand, d.w.teams), 1+d.IntN(2)
	sums := d.w.amounts(func(e event) int { return e.staff }, func(e event) bool { return e.state == st && p.holds(d.w.day(e)) })
	var members []person
	for _, s := range d.w.staff {
		if s.team == team && sums[s.id] > 0 {
			members = append(members, s)
		}
	}
	for i := range n + 1 { // no ties above either: rank() and row_number() agree
		if _, ok := ranked(members, i, func(s person) int { return sums[s.id] }); !ok {
			return false
		}
	}
	list, _ := ranked(members, n, func(s person) int { return sums[s.id] })
	d.look("event", "staff")
	d.query(fmt.Sprintf("WITH q AS (SELECT [s.name] AS a, sum([e.amount]) AS n, rank() OVER (PARTITION BY [s.team] ORDER BY sum([e.amount]) DESC) AS k, [s.team] AS g"+
		" FROM [event] e JOIN [staff] s ON [s.id] = [e.staff] WHERE [e.state] = '%s' AND %s GROUP BY [s.id], [s.name], [s.team])"+
		" SELECT a, n FROM q WHERE g = '%s' AND k = %d ORDER BY a", st, p.sql(), team, n+1))
	d.text(list[n].name, "staff")
	d.euros(sums[list[n].id], "event")
	return d.ask([]string{
		"Within each {team}, rank the {staffs} by the summed {amount} of the {st} {events} {placed} {period} that they handled, largest first. Who is {nth} in the {team} {g}, and with how many euros?{zone}",
		"In the {team} {g}, which {staff} comes {nth} by the sum of {amount} over {st} {events} {placed} {period} that were handled? Name and sum in euros.{zone}",
		"Ranking of the {staffs} of the {team} {g}, by {amount} of {st} {events} {placed} {period} in all, from the largest down: give the name and the sum in euros of the {nth} one.{zone}",
	}, "{nth}", []string{"", "second", "third"}[n], "{g}", team, "{st}", st, "{period}", p.String())
}

// The day on which a running total passes a limit.
func runningTotal(d *draft) bool {
	var list []payment
	p, ok := d.party(func(p party) bool {
		list = nil
		for _, y := range d.w.payments {
			if y.party == p.id {
				list = append(list, y)
			}
		}
		return len(list) >= 4
	})
	if !ok {
		return false
	}
	slices.SortFunc(list, func(a, b payment) int { return a.day.Compare(b.day) })
	at, sum, before := 1+d.IntN(len(list)-1), 0, 0
	for _, y := range list[:at+1] {
		before, sum = sum, sum+y.amount
	}
	limit := before/1000*10 + 10 // euros
	if limit*100 >= sum {
		return false
	}
	d.look("payment", "party")
	d.query(fmt.Sprintf("SELECT a, n FROM (SELECT [y.day] AS a, sum([y.amount]) OVER (ORDER BY [y.day]) AS n FROM [payment] y JOIN [party] p ON [p.id] = [y.party]"+
		" WHERE [p.name] = %s) q WHERE n >= %d ORDER BY a LIMIT 1", postgres.Literal(p.name), limit))
	d.date(list[at].day, "payment")
	d.euros(sum, "payment")
	return d.ask([]string{
		"Add up the {payments} of the {party} {name} day by day, oldest first. On which day does the running total first reach {limit} euros, and how many euros is it then?",
		"When did the {payments} of {name} (a {party}) first come to {limit} euros or more in all, counted from the very first? Give the day, and the total on that day in euros.",
		"{party} {name}: first day on which the sum of all {payments} up to and including that day is at least {limit} euros, and that sum?",
	}, "{name}", p.name, "{limit}", fmt.Sprint(limit))
}

// The longest time between two events that follow each other.
func gap(d *draft) bool {
	var days []time.Time
	p, ok := d.party(func(p party) bool {
		days = nil
		for _, e := range d.w.events {
			if e.party == p.id {
				days = append(days, d.w.day(e))
			}
		}
		return len(days) >= 4
	})
	if !ok {
		return false
	}
	slices.SortFunc(days, time.Time.Compare)
	gaps := make([]int, len(days)-1)
	order := make([]int, len(gaps))
	for i := range gaps {
		gaps[i], order[i] = int(days[i+1].Sub(days[i])/(24*time.Hour)), i
	}
	order, ok = ranked(order, 0, func(i int) int { return gaps[i] })
	if !ok {
		return false
	}
	d.look("event", "party")
	d.query(fmt.Sprintf("SELECT n, a FROM (SELECT [e.day] AS a, [e.day] - lag([e.day]) OVER (ORDER BY [e.day]) AS n FROM [event] e JOIN [party] p ON [p.id] = [e.party]"+
		" WHERE [p.name] = %s) q WHERE n IS NOT NULL ORDER BY n DESC LIMIT 1", postgres.Literal(p.name)))
	d.number(gaps[order[0]], "event")
	d.date(days[order[0]+1], "event")
	return d.ask([]string{
		"Take all {events} of the {party} {name}, in whatever state, by the day on which they were {placed}. What is the longest gap in days between two that follow each other, and on which day did it end?{zone}",
		"How many days is the longest pause between two consecutive {events} of {name} (a {party}), all states counted, and what is the date of the one after the pause?{zone}",
		"{party} {name}: largest number of days from one of the {events} to the next by the day they were {placed}, whatever their state, and the date of that next one?{zone}",
	}, "{name}", p.name)
}

// Who has none.
func noneOf(d *draft) bool {
	p, st := d.period(3, 12), d.state()
	var list []party
	for _, o := range d.w.parties {
		if !o.gone && !slices.ContainsFunc(d.w.events, func(e event) bool { return e.party == o.id && e.state == st && p.holds(d.w.day(e)) }) {
			list = append(list, o)
		}
	}
	if !d.latest(list) {
		return false
	}
	d.look("party", "event")
	d.query(fmt.Sprintf("SELECT count(*) OVER (), [p.name] FROM [party] p WHERE [p.live] AND NOT EXISTS (SELECT FROM [event] e WHERE [e.party] = [p.id] AND [e.state] = '%s' AND %s)"+
		" ORDER BY [p.since] DESC LIMIT 1", st, p.sql()))
	return d.ask([]string{
		"How many {live} have no {st} {event} {placed} {period}, and who of them {joined} last? Number, then name.{zone}",
		"Among the {live}, count those without any {st} {event} {placed} {period}; then name the one of those who {joined} most recently.{zone}",
		"{live}: how many had none of the {st} {events} {placed} {period}, and what is the name of the one of those who {joined} last?{zone}",
	}, "{st}", st, "{period}", p.String())
}

// latest answers with the number of parties and the name of the one that joined last.
func (d *draft) latest(list []party) bool {
	sorted, ok := ranked(list, 0, func(p party) int { return int(p.since.Unix()) })
	if !ok || len(list) < 4 || !d.w.named(sorted[0]) {
		return false
	}
	d.number(len(list), "party")
	d.text(sorted[0].name, "party")
	return true
}

// References to rows that do not exist.
func orphans(d *draft) bool {
	if d.IntN(2) == 0 {
		p := d.period(9, 24)
		list := d.w.orphanEvents(p)
		if len(list) < 4 {
			return false
		}
		sum := 0
		for _, e := range list {
			sum += e.amount
		}
		d.look("event", "party")
		d.query("SELECT count(*), sum([e.amount]) FROM " + orphanEvents(p))
		d.number(len(list), "event")
		d.euros(sum, "event")
		return d.ask([]string{
			"How many {events} {placed} {period} name a {party} that does not exist, and what is their {amount} in all, in euros?{zone}",
			"Some {events} refer to a {party} that the table of {parties} does not have. Of those {placed} {period}: number and summed {amount} in euros?{zone}",
			"Count the {events} {placed} {period} whose {party} is missing among the {parties} (not those without any), and add up their {amount} in euros.{zone}",
		}, "{period}", p.String())
	}
	limit := 20 * (3 + d.IntN(30))
	list := d.w.orphanLines(limit)
	if len(list) < 4 {
		return false
	}
	sum := 0
	for _, l := range list {
		sum += l.qty * l.price
	}
	d.look("line", "event")
	d.query("SELECT count(*), sum([l.qty] * [l.price]) FROM " + orphanLines(limit))
	d.number(len(list), "line")
	d.euros(sum, "line")
	return d.ask([]string{
		"How many {lines} worth less than {limit} euros each ({qty} times price) name {an-event} that does not exist, and what are they worth together in euros?",
		"Some {lines} refer to {an-event} that the table of {events} does not have. Of those with {qty} times price below {limit} euros: how many are there, and what is the sum of {qty} times price in euros?",
		"Count the {lines} whose {event} is missing among the {events} (not those without any) and whose {qty} times price is under {limit} euros; add up {qty} times price in euros.",
	}, "{limit}", fmt.Sprint(limit))
}

func (w *world) orphanEvents(p period) (list []event) {
	for _, e := range w.events {
		if _, ok := w.partyOf(e.party); e.party != 0 && !ok && p.holds(w.day(e)) {
			list = append(list, e)
		}
	}
	return list
}

func orphanEvents(p period) string {
	return "[event] e WHERE [e.party] IS NOT NULL AND NOT EXISTS (SELECT FROM [party] p WHERE [p.id] = [e.party]) AND " + p.sql()
}

// orphanLines are those worth less than so many euros.
func (w *world) orphanLines(limit int) (list []line) {
	for _, l := range w.lines {
		if _, ok := w.eventOf(l.event); l.event != 0 && !ok && l.qty*l.price < 100*limit {
			list = append(list, l)
		}
	}
	return list
}

func orphanLines(limit int) string {
	return fmt.Sprintf("[line] l WHERE [l.event] IS NOT NULL AND NOT EXISTS (SELECT FROM [event] e WHERE [e.id] = [l.event]) AND [l.qty] * [l.price] < %d", limit)
}

// Duplicates up to case and spaces.
func duplicates(d *draft) bool {
	before := firstDay.AddDate(0, -d.IntN(60), 0)
	shared, count := 0, map[string]int{}
	for _, p := range d.w.parties {
		if p.email != "" && p.since.Before(before) {
			count[key(p.email)]++
		}
	}
	for _, n := range count {
		if n > 1 {
			shared += n
		}
	}
	if shared < 4 {
		return false
	}
	d.look("party")
	d.query(fmt.Sprintf("SELECT count(*) FILTER (WHERE n > 1), count(DISTINCT k) FROM (SELECT lower(trim([p.email])) AS k, count(*) OVER (PARTITION BY lower(trim([p.email]))) AS n"+
		" FROM [party] p WHERE [p.email] IS NOT NULL AND [p.since] < '%s') q", before.Format(time.DateOnly)))
	d.number(shared, "party")
	d.number(len(count), "party")
	return d.ask([]string{
		"Among the {parties} who {joined} before {day}, compare e-mail addresses without regard to upper and lower case and to spaces at either end. How many of these {parties} share their address with another of them, and how many different addresses are there?",
		"E-mail addresses count as equal if they differ only in case or in spaces around them. Of the {parties} who {joined} before {day}: how many have an address that at least one other of them has too, and how many different addresses do they have in all?",
		"Only {parties} who {joined} before {day}: how many of them have an e-mail address in common with another one (ignoring case and spaces at the ends), and how many distinct addresses remain? Two numbers.",
	}, "{day}", before.Format(time.DateOnly))
}

// A column that is not the one that its name suggests.
func average(d *draft) bool {
	p, st := d.period(1, 6), d.state()
	n, sum := 0, 0
	for _, e := range d.w.events {
		if e.state == st && p.holds(d.w.day(e)) {
			n++
			sum += e.amount
		}
	}
	if n < 4 || 2*(sum%n) == n { // a tie would be rounded by taste
		return false
	}
	d.look("event")
	d.query(fmt.Sprintf("SELECT round(avg([e.amount]), 2) FROM [event] e WHERE [e.state] = '%s' AND %s", st, p.sql()))
	d.need(rewards.Value{Kind: "number", Value: euros((2*sum + n) / (2 * n)), Tol: "0.005", Unit: "EUR"}, "event")
	return d.ask([]string{
		"What is the average {amount} of the {st} {events} {placed} {period}, in euros rounded to two decimals?{zone}",
		"Average {amount} in euros, to two decimals, of {events} that are {st} and were {placed} {period}?{zone}",
		"Compute the mean {amount} (euros, two decimals) over all {st} {events} {placed} {period}.{zone}",
	}, "{st}", st, "{period}", p.String())
}

// A fact about one party, where there may be none: its column, its row or its value can be missing.
func lookup(d *draft) bool {
	facts := []struct {
		word, column string
		get          func(party) string
	}{
		{"phone number", "[p.phone]", func(p party) string { return p.phone }},
		{"e-mail address", "[p.email]", func(p party) string { return strings.TrimSpace(p.email) }},
		{"{city}", "[p.city]", func(p party) string { return p.city }},
	}
	f := facts[d.IntN(len(facts))]
	if d.IntN(4) == 0 {
		f = facts[2]
	}
	var p party
	ok := true
	word, column := f.word, f.column
	abstain := d.turn%7 == 1
	how := d.IntN(3)
	switch {
	case !abstain:
		p, ok = d.party(func(p party) bool { return f.get(p) != "" })
	case how == 0:
		p, ok = d.party(func(p party) bool { return f.get(p) == "" })
	case how == 1:
		p, ok = d.party(func(party) bool { return true })
		word, column = pick(d.Rand, []string{"date of birth", "shoe size", "bank account", "native language"}), ""
	default:
		p.name = pick(d.Rand, firstNames) + " " + pick(d.Rand, lastNames)
		ok = !slices.ContainsFunc(d.w.parties, func(o party) bool { return key(o.name) == key(p.name) })
	}
	if !ok {
		return false
	}
	d.look("party")
	if column != "" {
		d.query(fmt.Sprintf("SELECT %s FROM [party] p WHERE [p.name] = %s AND %s IS NOT NULL ORDER BY 1", column, postgres.Literal(p.name), column))
	}
	switch {
	case column == "":
		d.noData(rewards.Fact{Tool: "describe_table", Has: map[string]any{"schema": "public", "name": d.w.columns["party"]}})
	case abstain:
		d.noData(rewards.Fact{Tool: "query_database", Cell: &rewards.Value{Kind: "none"}, From: d.from("party")})
	default:
		d.text(f.get(p), "party")
	}
	return d.ask([]string{
		"What is the {what} of the {party} {name}?",
		"Give me the {what} of {name}, one of our {parties}.",
		"{party} {name}: {what}?",
		"I need the {what} that we have for the {party} {name}.",
	}, "{what}", d.words(word), "{name}", p.name)
}

// What is unknown is not equal to anything, and NOT IN finds nothing beside a NULL.
func nulls(d *draft) bool {
	if d.IntN(2) == 0 {
		city, before := pick(d.Rand, cities), firstDay.AddDate(0, -d.IntN(48), 0)
		var list []party
		for _, p := range d.w.parties {
			if !p.gone && p.city != city && p.since.Before(before) {
				list = append(list, p)
			}
		}
		if !d.latest(list) {
			return false
		}
		d.look("party")
		d.query(fmt.Sprintf("SELECT count(*) OVER (), [p.name] FROM [party] p WHERE [p.live] AND [p.city] IS DISTINCT FROM '%s' AND [p.since] < '%s' ORDER BY [p.since] DESC LIMIT 1",
			city, before.Format(time.DateOnly)))
		return d.ask([]string{
			"Leave out everybody whose {city} is {c}; where the {city} is unknown, they stay in. How many {live} remain of those who {joined} before {day}, and who of them {joined} last?",
			"Of the {live}, how many {joined} before {day} and do not have the {city} {c} (an unknown one is not {c}), and what is the name of the one of them who {joined} last?",
			"Among the {live}, count those who {joined} before {day} and whose {city} is anything but {c}, unknown included; then name the last of them to have {joined}.",
		}, "{c}", city, "{day}", before.Format(time.DateOnly))
	}
	p := d.period(4, 18)
	used := map[int]bool{}
	for _, l := range d.w.lines {
		if e, ok := d.w.eventOf(l.event); ok && p.holds(d.w.day(e)) {
			used[l.thing] = true
		}
	}
	var list []thing
	for _, t := range d.w.things {
		if !used[t.id] {
			list = append(list, t)
		}
	}
	sorted, ok := ranked(list, 0, func(t thing) int { return t.price })
	if !ok || len(list) < 4 {
		return false
	}
	d.look("thing", "line", "event")
	d.query("SELECT count(*) OVER (), [t.name] FROM [thing] t WHERE NOT EXISTS (SELECT FROM [line] l JOIN [event] e ON [e.id] = [l.event] WHERE [l.thing] = [t.id] AND " + p.sql() +
		") ORDER BY [t.price] DESC LIMIT 1")
	d.number(len(list), "thing")
	d.text(sorted[0].name, "thing")
	return d.ask([]string{
		"How many {things} are in no {event} {placed} {period}, in whatever state it is, and which of them has the highest list price? Number, then name.{zone}",
		"Which {things} never occur in {events} {placed} {period} (all states)? Give their number and the name of the one with the highest list price.{zone}",
		"Count the {things} without a single {line} in {events} {placed} {period}, whatever their state; name the dearest of them by list price.{zone}",
	}, "{period}", p.String())
}

// The difference of two dates.
func longest(d *draft) bool {
	p := d.period(2, 9)
	var list []event
	for _, e := range d.w.events {
		if e.days >= 0 && p.holds(d.w.day(e)) {
			list = append(list, e)
		}
	}
	sorted, ok := ranked(list, 0, func(e event) int { return e.days })
	if !ok {
		return false
	}
	d.look("event")
	d.query(fmt.Sprintf("SELECT [e.id], [e.end] - [e.day] AS n FROM [event] e WHERE [e.end] IS NOT NULL AND %s ORDER BY n DESC LIMIT 1", p.sql()))
	d.number(sorted[0].id, "event")
	d.number(sorted[0].days, "event")
	return d.ask([]string{
		"Of the {events} {placed} {period} that have been {ended}: which took longest from the day on which it was {placed} to the day on which it was {ended}? Give its id and the number of days.{zone}",
		"Find the {event} {placed} {period} with the most days between being {placed} and being {ended}. Id, then days.{zone}",
		"Which {event}, {placed} {period}, needed the most days until it was {ended}, and how many were they? Answer with the id and the days.{zone}",
	}, "{period}", p.String())
}

// words writes a text with the domain's words.
func (d *draft) words(s string) string {
	for k, v := range d.w.domain.words {
		s = strings.ReplaceAll(s, "{"+k+"}", v)
	}
	return s
}
