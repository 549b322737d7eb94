package dba

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// plans are the faults of the databases of train and test, by turns.
var plans = []faults{
	{Sales: "clean", Billing: "check", Support: "customers"},
	{Sales: "keys", Billing: "duplicates", Support: "agents"},
	{Sales: "orphans", Billing: "clean", Support: "nulls"},
	{Sales: "orphans", Billing: "check", Support: "customers"},
	{Sales: "orphans", Billing: "duplicates", Support: "clean"},
	{Sales: "keys", Billing: "clean", Support: "customers"},
	{Sales: "orphans", Billing: "check", Support: "nulls"},
	{Sales: "clean", Billing: "duplicates", Support: "customers"},
}

var families = []family{
	{"founding", true, func(f faults) bool { return f.Sales != "keys" }, founding}, // some databases are clean already
	{"report", false, func(f faults) bool { return true }, report},
	{"foreign-key", true, func(f faults) bool { return f.Sales == "keys" }, foreignKey},
	{"still-ordered", false, func(f faults) bool { return true }, stillOrdered},
	{"reassign", true, func(f faults) bool { return f.Support == "customers" }, reassign},
	{"of-nobody", false, func(f faults) bool { return f.Support == "customers" }, ofNobody},
	{"validate-check", true, func(f faults) bool { return f.Billing == "check" }, validateCheck},
	{"unpaid", false, func(f faults) bool { return f.Billing != "check" }, unpaid}, // whose states are well spelled
	{"merge-duplicates", true, func(f faults) bool { return f.Billing == "duplicates" }, mergeDuplicates},
	{"stale-job", false, func(f faults) bool { return true }, staleJob},
	{"broken-job", false, func(f faults) bool { return true }, brokenJob},
}

// oodPlans are the faults of the databases of ood, by turns.
var oodPlans = []faults{
	{Sales: "keys", Billing: "check", Support: "agents"},
	{Sales: "orphans", Billing: "clean", Support: "nulls"},
	{Sales: "orphans", Billing: "check", Support: "agents"},
	{Sales: "clean", Billing: "duplicates", Support: "nulls"},
}

// oodFamilies mend what families only report, and two files at once.
var oodFamilies = []family{
	{"two-files", true, func(f faults) bool { return f.Support == "agents" }, twoFiles},
	{"report-both", false, func(f faults) bool { return f.Support != "clean" }, reportBoth},
	{"fill-nulls", true, func(f faults) bool { return f.Support == "nulls" }, fillNulls},
	{"repaired-job", true, func(f faults) bool { return f.Support == "nulls" }, repairedJob},
}

const foundingSQL = "SELECT COUNT(*) FROM customers WHERE status = 'inactive'"

// The task that this environment began with. The database may also turn out to need no repair.
func founding(d *draft) bool {
	d.look(salesFile)
	n := d.deleteOrphans()
	d.turn()
	d.clean(salesFile)
	since := d.c.date(d.IntN(900))
	all, late := 0, 0
	for _, row := range d.c.table("customers").rows {
		if row[4] == "inactive" {
			all++
			if row[5].(string) >= since {
				late++
			}
		}
	}
	d.query(foundingSQL, []string{"customers"}, fmt.Sprint(all))
	d.asserts = append(d.asserts, envs.Assertion{Ask: sandboxes.Question{Kind: "postgres/sql", Text: foundingSQL}, Want: []byte(fmt.Sprint(all))})
	if n > 0 {
		d.repaired(n, "orphaned-rows", "orders", d.c.items)
	} else {
		d.answer = append(d.answer, rewards.Value{Kind: "number", Value: "0"})
		d.evidence = append(d.evidence, []rewards.Fact{{Tool: "run_linter", Has: map[string]any{"path": salesFile, "exit_code": 0}}})
	}
	d.query("SELECT count(*) FROM customers WHERE status = 'inactive' AND "+d.c.joined+" >= '"+since+"'", []string{"customers"}, fmt.Sprint(late))
	return late > 1 && d.ask([]string{
		"Find all inactive customer records in postgres and verify schema integrity: run the linter on schema.sql and mend the database until it finds nothing. Orphaned rows are deleted, and so are rows that would be orphaned by that; all other rows stay as they are. Answer with the number of inactive customers, the number of rows that you deleted from all tables together, and how many of the inactive customers joined on or after {since}.",
		"How many customers are inactive? Before you answer, bring the database in line with schema.sql, as run_linter judges it: restore what is missing, delete rows that refer to nothing together with the rows that hang on them, and leave every other row alone. Three values: inactive customers, rows deleted in all, inactive customers who joined on {since} or later.",
		"schema.sql must pass the linter. Delete orphans (and what a deletion orphans), add what the declaration has and the database lacks, touch nothing else. Report the count of inactive customers, the total number of rows deleted (0 if there was nothing to delete), and the count of inactive customers that joined on {since} or later.",
	}, "{since}", since)
}

// deleteOrphans brings the sales tables in line with their declaration, in a turn of its own if there is anything to do, and
// gives the number of rows deleted.
func (d *draft) deleteOrphans() int {
	if d.c.Sales == "clean" {
		return 0
	}
	orders, items := d.after.table("orders"), d.after.table(d.c.items)
	byCustomer := orders.remove(d.after.broken(orders, orders.rule(foreign, "customer_id")))
	n := items.remove(d.after.broken(items, items.rule(foreign, "order_id"))) + items.remove(d.after.broken(items, items.rule(foreign, "product_id")))
	d.turn()
	if n > 0 {
		d.sql(d.c.fill("DELETE FROM {items} i WHERE NOT EXISTS (SELECT FROM orders o JOIN customers c ON c.id = o.customer_id WHERE o.id = i.order_id) OR NOT EXISTS (SELECT FROM {products} p WHERE p.id = i.product_id)"))
	}
	if byCustomer > 0 {
		d.sql("DELETE FROM orders o WHERE NOT EXISTS (SELECT FROM customers c WHERE c.id = o.customer_id)")
	}
	d.restore(salesFile)
	return n + byCustomer
}

// fill puts names of tables and columns, and what pairs say beside them, into a text.
func (c *company) fill(text string, pairs ...string) string {
	return strings.NewReplacer(append(pairs, "{items}", c.items, "{products}", c.products, "{invoices}", c.invoices, "{payments}", c.payments,
		"{tickets}", c.tickets, "{agents}", c.agents, "{phase}", c.phase, "{gone}", c.discontinued, "{joined}", c.joined)...).Replace(text)
}

// cents reads an amount.
func cents(v any) int {
	n, err := strconv.Atoi(strings.Replace(string(v.(postgres.Numeric)), ".", "", 1))
	if err != nil {
		panic(err) // money has written it
	}
	return n
}

// extra asks for a number that has to do with a file's tables, as they are in the end, and says in words which.
func (d *draft) extra(file string) string {
	since := d.c.date(d.IntN(700))
	switch file {
	case salesFile:
		state := pick(d, orderStates)
		sum := 0
		for _, row := range d.after.table(d.c.items).rows {
			if o := d.after.table("orders").find(row[1].(int)); o != nil && o[3] == state && o[2].(string) >= since {
				sum += row[3].(int) * cents(row[4])
			}
		}
		d.query(d.c.fill("SELECT sum(i.quantity * i.price) FROM {items} i JOIN orders o ON o.id = i.order_id WHERE o.state = '"+state+"' AND o.ordered >= '"+since+"'"),
			[]string{d.c.items, "orders"}, string(money(sum)))
		d.spoilt = d.spoilt || sum == 0
		return d.c.fill("the total of quantity times price over the {items} of orders in state " + state + " that were ordered on or after " + since)
	case billingFile:
		method := pick(d, methods)
		sum, n := 0, 0
		for _, row := range d.after.table(d.c.payments).rows {
			if row[4] == method && row[2].(string) >= since {
				sum += cents(row[3])
				n++
			}
		}
		d.query(d.c.fill("SELECT sum(amount) FROM {payments} WHERE method = '"+method+"' AND paid >= '"+since+"'"), []string{d.c.payments}, string(money(sum)))
		d.spoilt = d.spoilt || n == 0
		return d.c.fill("the sum of the amounts in {payments} with method " + method + " that were paid on or after " + since)
	}
	state := pick(d, ticketStates)
	n := 0
	for _, row := range d.after.table(d.c.tickets).rows {
		if row[6] == state && row[3].(string) >= since {
			n++
		}
	}
	d.query(d.c.fill("SELECT count(*) FROM {tickets} WHERE state = '"+state+"' AND opened >= '"+since+"'"), []string{d.c.tickets}, fmt.Sprint(n))
	d.spoilt = d.spoilt || n < 2
	return d.c.fill("the number of {tickets} in state " + state + " that were opened on or after " + since)
}

// Read only: what the linter says of one file.
func report(d *draft) bool {
	file := pick(d, []string{salesFile, billingFile, supportFile})
	found := d.c.findings(file)
	if len(found) < 2 {
		return false
	}
	d.look(file)
	var rules []string
	for _, f := range found {
		rules = append(rules, f.rule)
		d.evidence = append(d.evidence, []rewards.Fact{{Tool: "run_linter", Has: map[string]any{"rule": f.rule, "table": f.table}}})
	}
	slices.Sort(rules)
	names := rewards.Value{Kind: "list"}
	for _, r := range slices.Compact(rules) {
		names.Items = append(names.Items, rewards.Value{Kind: "text", Value: r})
	}
	d.answer = append(d.answer, names, rewards.Value{Kind: "number", Value: fmt.Sprint(len(found))})
	d.turn()
	what := d.extra(file)
	return d.ask([]string{
		"What does the linter find in {file}? Change nothing. Give the names of the rules it reports, each once, in alphabetical order and separated by commas; then the number of findings; then {what}, from the rows as they are.",
		"Report on {file} without mending anything: the rules with findings (alphabetical, each once, commas between them), how many findings there are, and {what}, with the data as they stand.",
		"I only want to know, so leave the database as it is. Three values: the rules that the linter reports for {file}, sorted by name, without repetition, joined by commas; the count of its findings; {what}, whatever is wrong with the rows.",
	}, "{file}", file, "{what}", what)
}

// Keys and indexes are missing, and no row is in their way.
func foreignKey(d *draft) bool {
	d.look(salesFile)
	d.turn()
	d.restore(salesFile)
	d.turn()
	d.clean(salesFile)
	what := d.extra(salesFile)
	city := pick(d, cities)
	n := 0
	for _, row := range d.c.table("orders").rows {
		if d.c.table("customers").find(row[1].(int))[3] == city {
			n++
		}
	}
	d.query("SELECT count(*) FROM orders o JOIN customers c ON c.id = o.customer_id WHERE c.city = '"+city+"'", []string{"orders", "customers"}, fmt.Sprint(n))
	return n > 1 && d.ask([]string{
		"The database lacks keys or indexes that schema.sql demands. Add them until the linter has no finding for schema.sql; no row needs to change. Answer with {what}, and the number of orders of customers in {city}.",
		"Somebody dropped constraints of the sales tables. Compare with schema.sql, put every missing key and index back, and leave the rows alone. Then tell me {what}; and how many orders customers in {city} have placed.",
		"Make run_linter return exit code 0 for schema.sql by adding what is missing. All rows are right as they are. Two values: {what}; the count of orders by customers who live in {city}.",
	}, "{what}", what, "{city}", city)
}

// Read only: what is not sold any more and is in orders all the same.
func stillOrdered(d *draft) bool {
	state, since := pick(d, orderStates), d.c.date(d.IntN(700))
	n, quantity := 0, 0
	for _, row := range d.c.table(d.c.items).rows {
		o, p := d.c.table("orders").find(row[1].(int)), d.c.table(d.c.products).find(row[2].(int))
		if o != nil && p != nil && o[3] == state && o[2].(string) >= since && strings.EqualFold(strings.TrimSpace(p[3].(string)), d.c.discontinued) {
			n++
			quantity += row[3].(int)
		}
	}
	if n < 2 {
		return false
	}
	d.look()
	d.turn()
	d.query(d.c.fill("SELECT count(*), sum(i.quantity) FROM {items} i JOIN orders o ON o.id = i.order_id JOIN {products} p ON p.id = i.product_id WHERE lower(trim(p.{phase})) = '{gone}' AND o.state = '{state}' AND o.ordered >= '{since}'",
		"{state}", state, "{since}", since), []string{d.c.items, "orders", d.c.products}, fmt.Sprint(n), fmt.Sprint(quantity))
	return d.ask([]string{
		"Which {gone} {products} are still ordered? Look at the rows of {items} in orders of state {state} ordered on or after {since}: how many of them are for {gone} {products}, and what is their total quantity? Change nothing.",
		"Count the {items} for {gone} {products} in {state} orders with an order date of {since} or later, and add up their quantities. Give count and sum; the database stays as it is.",
		"For orders in state {state} from {since} on (that day included): number of {items} whose entry in {products} is {gone}, then the sum of their quantity. Read only.",
	}, "{state}", state, "{since}", since)
}

// Orphans that get a new owner.
func reassign(d *draft) bool {
	customer := pick(d, d.c.table("customers").rows)
	name := customer[1].(string)
	d.look(supportFile)
	tickets := d.after.table(d.c.tickets)
	orphans := d.after.broken(tickets, tickets.rule(foreign, "customer_id"))
	for _, row := range orphans {
		row[1] = customer[0]
	}
	d.turn()
	d.sql(d.c.fill("UPDATE {tickets} t SET customer_id = (SELECT c.id FROM customers c WHERE c.name = {name}) WHERE NOT EXISTS (SELECT FROM customers c WHERE c.id = t.customer_id)", "{name}", postgres.Literal(name)))
	d.restore(supportFile)
	d.turn()
	d.clean(supportFile)
	d.repaired(len(orphans), "orphaned-rows", d.c.tickets)
	n := 0
	for _, row := range tickets.rows {
		if row[1] == customer[0] {
			n++
		}
	}
	d.query(d.c.fill("SELECT count(*) FROM {tickets} t JOIN customers c ON c.id = t.customer_id WHERE c.name = {name}", "{name}", postgres.Literal(name)), []string{d.c.tickets, "customers"}, fmt.Sprint(n))
	what := d.extra(supportFile)
	return d.ask([]string{
		"Some {tickets} belong to customers who do not exist. Give them to the customer {name}; none may be deleted. Then restore what support.sql declares, so that the linter finds nothing there. Answer with the number of rows you re-assigned, how many {tickets} {name} has afterwards, and {what}.",
		"Mend the database until support.sql passes the linter. {tickets} without an existing customer are to be re-assigned to {name}, all else in the rows stays. Three values: how many were re-assigned; how many {tickets} {name} then has; {what}.",
		"support.sql does not pass the linter: there are {tickets} of nobody. Their new owner is {name}. Put them right and add what is declared and missing. I need the count of rows moved, the count of {tickets} of {name} after that, and {what}.",
	}, "{name}", name, "{what}", what)
}

// Read only: rows that belong to nobody.
func ofNobody(d *draft) bool {
	state, since, urgent := pick(d, ticketStates), d.c.date(d.IntN(800)), 1+d.IntN(4)
	var (
		says, where string
		ok          func(row []any) bool
	)
	switch d.IntN(3) {
	case 0:
		says, where, ok = "in state "+state, "t.state = '"+state+"'", func(row []any) bool { return row[6] == state }
	case 1:
		says, where, ok = "opened on or after "+since, "t.opened >= '"+since+"'", func(row []any) bool { return row[3].(string) >= since }
	default:
		says, where, ok = fmt.Sprintf("with a priority number of %d or lower", urgent), fmt.Sprintf("t.priority <= %d", urgent), func(row []any) bool { return row[5].(int) <= urgent }
	}
	tickets := d.c.table(d.c.tickets)
	n, sum := 0, 0
	for _, row := range d.c.broken(tickets, tickets.rule(foreign, "customer_id")) {
		if ok(row) {
			n++
			sum += row[0].(int)
		}
	}
	d.look()
	d.turn()
	d.query(d.c.fill("SELECT count(*), sum(t.id) FROM {tickets} t LEFT JOIN customers c ON c.id = t.customer_id WHERE c.id IS NULL AND "+where), []string{d.c.tickets, "customers"}, fmt.Sprint(n), fmt.Sprint(sum))
	return n > 1 && d.ask([]string{
		"Find the {tickets} of nobody: those whose customer does not exist. How many of them are there {says}, and what is the sum of their ids? Do not change anything.",
		"Among {tickets} {says}, how many refer to a customer that is not in customers? Give their number and the sum of their ids, and leave them as they are.",
		"I need two values about {tickets} {says} with a customer_id that customers lacks: the count, and the ids added up. Read only.",
	}, "{says}", says)
}

// A check that holds for new rows only, since old ones break it.
func validateCheck(d *draft) bool {
	d.look(billingFile)
	d.turn()
	payments, invoices := d.after.table(d.c.payments), d.after.table(d.c.invoices)
	n, how, broken := d.correct(payments, invoices)
	d.restore(billingFile)
	d.turn()
	d.clean(billingFile)
	d.repaired(n, "broken-check", broken)
	state := pick(d, billStates)
	count := 0
	for _, row := range invoices.rows {
		if row[5] == state {
			count++
		}
	}
	d.query(d.c.fill("SELECT count(*) FROM {invoices} WHERE state = '"+state+"'"), []string{d.c.invoices}, fmt.Sprint(count))
	what := d.extra(billingFile)
	return d.ask([]string{
		"A check of the billing tables was never validated. {how} Then make the check valid, until the linter has no finding for billing.sql. Answer with the number of rows corrected, the number of {invoices} in state {state} after that, and {what}, also after that.",
		"billing.sql fails the linter. {how} Correct nothing else, and validate the check. Three values, all as things are afterwards: how many rows you corrected; how many {invoices} are in state {state}; {what}.",
		"Make billing.sql pass run_linter. {how} No row may be deleted. Tell me how many rows that concerned, the count of {invoices} in state {state} when you have finished, and {what} when you have finished.",
	}, "{how}", how, "{state}", state, "{what}", what)
}

// correct mends the rows that break a check of the billing tables; how says in words what to do with them.
func (d *draft) correct(payments, invoices *table) (n int, how, broken string) {
	if bad := d.after.broken(payments, payments.rule(check, "amount")); len(bad) > 0 {
		for _, row := range bad {
			row[3] = money(-cents(row[3]))
		}
		d.sql(d.c.fill("UPDATE {payments} SET amount = -amount WHERE amount < 0"))
		return len(bad), d.c.fill("Amounts below zero in {payments} were typed with a wrong sign: the same amount above zero is right."), payments.name
	}
	bad := d.after.broken(invoices, invoices.rule(check, "state"))
	for _, row := range bad {
		row[5] = strings.ToLower(strings.TrimSpace(row[5].(string)))
	}
	d.sql(d.c.fill("UPDATE {invoices} SET state = lower(trim(state)) WHERE state <> lower(trim(state))"))
	return len(bad), d.c.fill("Where the state of {invoices} is not spelled as declared, only capitals and blanks are wrong: write it in lower case, without blanks around it."), invoices.name
}

// Read only: what inactive customers owe.
func unpaid(d *draft) bool {
	since := d.c.date(d.IntN(600))
	says, where := "in state open", "i.state = 'open'"
	paid := d.IntN(2) == 0
	if paid {
		says, where = d.c.fill("without any row in {payments}, whatever their state,"), d.c.fill("NOT EXISTS (SELECT FROM {payments} p WHERE p.invoice_id = i.id)")
	}
	n, sum := 0, 0
	for _, row := range d.c.table(d.c.invoices).rows {
		customer := d.c.table("customers").find(row[1].(int))
		has := slices.ContainsFunc(d.c.table(d.c.payments).rows, func(p []any) bool { return p[1] == row[0] })
		if customer[4] == "inactive" && row[3].(string) >= since && (paid && !has || !paid && row[5] == "open") {
			n++
			sum += cents(row[4])
		}
	}
	d.look()
	d.turn()
	from := []string{d.c.invoices, "customers"}
	d.query(d.c.fill("SELECT count(*), sum(i.amount) FROM {invoices} i JOIN customers c ON c.id = i.customer_id WHERE c.status = 'inactive' AND i.issued >= '"+since+"' AND "+where), from, fmt.Sprint(n), string(money(sum)))
	return n > 1 && d.ask([]string{
		"What do inactive customers owe? Count their rows in {invoices} {says} issued on or after {since}, and add up the amounts. Give count and sum; change nothing.",
		"Number and total amount of the rows in {invoices} {says} that were issued to inactive customers on {since} or later? Take all rows as they are. This is a question only.",
		"Inactive customers, rows in {invoices} {says} with a date of issue from {since} on: how many are there, and what do their amounts come to? Read only.",
	}, "{says}", says, "{since}", since)
}

// A key that two rows share, which are one.
func mergeDuplicates(d *draft) bool {
	d.look(billingFile)
	invoices, payments := d.after.table(d.c.invoices), d.after.table(d.c.payments)
	lowest := map[any]any{}
	for _, row := range invoices.rows { // ids ascend
		if lowest[row[2]] == nil {
			lowest[row[2]] = row[0]
		}
	}
	moved := 0
	for _, row := range payments.rows {
		if keep := lowest[invoices.find(row[1].(int))[2]]; keep != row[1] {
			row[1] = keep
			moved++
		}
	}
	var twins [][]any
	for _, row := range invoices.rows {
		if lowest[row[2]] != row[0] {
			twins = append(twins, row)
		}
	}
	n := invoices.remove(twins)
	d.turn()
	d.sql(d.c.fill("UPDATE {payments} p SET invoice_id = (SELECT min(k.id) FROM {invoices} k JOIN {invoices} i ON i.number = k.number WHERE i.id = p.invoice_id) WHERE p.invoice_id NOT IN (SELECT min(k.id) FROM {invoices} k GROUP BY k.number)"))
	d.sql(d.c.fill("DELETE FROM {invoices} i WHERE EXISTS (SELECT FROM {invoices} k WHERE k.number = i.number AND k.id < i.id)"))
	d.restore(billingFile)
	d.turn()
	d.clean(billingFile)
	d.repaired(n, "duplicate-keys", invoices.name)
	d.repaired(moved, "duplicate-keys", payments.name, invoices.name)
	state := pick(d, billStates)
	sum := 0
	for _, row := range invoices.rows {
		if row[5] == state {
			sum += cents(row[4])
		}
	}
	d.query(d.c.fill("SELECT sum(amount) FROM {invoices} WHERE state = '"+state+"'"), []string{invoices.name}, string(money(sum)))
	what := d.extra(billingFile)
	return moved > 0 && d.ask([]string{
		"Some {invoices} were imported twice, under the same number. Keep the row with the lowest id of each number, move the {payments} of the others to it, delete the others, and restore the key that billing.sql declares, until the linter is content with billing.sql. Answer with the number of {invoices} deleted, the number of {payments} moved, the sum of the amounts of the {invoices} in state {state} afterwards, and {what}.",
		"billing.sql does not pass the linter because a number occurs more than once in {invoices}. Rows with one number are one: the lowest id stays and takes over the {payments} of the rest, which are deleted. Add the missing key. Four values: {invoices} deleted; {payments} moved; total amount of the {invoices} left in state {state}; {what}.",
		"Merge {invoices} that share a number into the one with the lowest id ({payments} go there, the rest is deleted) and make run_linter return 0 for billing.sql. Tell me how many {invoices} are gone, how many {payments} changed hands, what the {invoices} in state {state} now add up to, and {what}.",
	}, "{state}", state, "{what}", what)
}

// Two files: orphans that lose their reference, and a check.
func twoFiles(d *draft) bool {
	if d.c.Billing != "check" {
		return false
	}
	d.look(supportFile, billingFile)
	tickets := d.after.table(d.c.tickets)
	orphans := d.after.broken(tickets, tickets.rule(foreign, "agent_id"))
	for _, row := range orphans {
		row[2] = nil
	}
	d.turn()
	d.sql(d.c.fill("UPDATE {tickets} t SET agent_id = NULL WHERE NOT EXISTS (SELECT FROM {agents} a WHERE a.id = t.agent_id)"))
	n, how, broken := d.correct(d.after.table(d.c.payments), d.after.table(d.c.invoices))
	d.restore(supportFile)
	d.restore(billingFile)
	d.turn()
	d.clean(supportFile)
	d.clean(billingFile)
	d.repaired(len(orphans), "orphaned-rows", d.c.tickets)
	d.repaired(n, "broken-check", broken)
	what, other := d.extra(billingFile), d.extra(supportFile)
	return d.ask([]string{
		"Both support.sql and billing.sql must pass the linter. {tickets} with an agent who does not exist go back to nobody: their agent_id becomes NULL. {how} Answer with the number of {tickets} changed, the number of rows corrected in billing, {what} after the correction, and {other}.",
		"Mend two parts of the database, support.sql and billing.sql, until run_linter finds nothing in either. Where {tickets} name an agent that {agents} lacks, set agent_id to NULL. {how} Four values: {tickets} set to NULL; billing rows corrected; {what}, corrected; {other}.",
	}, "{how}", how, "{what}", what, "{other}", other)
}

// Read only: what the linter says of two files.
func reportBoth(d *draft) bool {
	other := pick(d, []string{salesFile, billingFile})
	a, b := d.c.findings(supportFile), d.c.findings(other)
	d.look(supportFile, other)
	for i, found := range [][]finding{a, b} {
		d.answer = append(d.answer, rewards.Value{Kind: "number", Value: fmt.Sprint(len(found))})
		if len(found) == 0 {
			d.evidence = append(d.evidence, []rewards.Fact{{Tool: "run_linter", Has: map[string]any{"path": []string{supportFile, other}[i], "exit_code": 0}}})
		}
		for _, f := range found {
			d.evidence = append(d.evidence, []rewards.Fact{{Tool: "run_linter", Has: map[string]any{"rule": f.rule, "table": f.table}}})
		}
	}
	d.turn()
	what, more := d.extra(other), d.extra(supportFile)
	return d.ask([]string{
		"How many findings does the linter have for support.sql, and how many for {file}? Give both numbers in this order, then {what}, then {more}. The rows count as they are; nothing is to be changed.",
		"Without changing anything: findings in support.sql, findings in {file}, {what}, and {more}. Use the data as they stand.",
	}, "{file}", other, "{what}", what, "{more}", more)
}

// fillNulls gives the tickets that have none a priority, by their state, in a turn of its own; n is the number of rows.
func (d *draft) fillNulls() (state string, high, low, n int) {
	state, high, low = pick(d, ticketStates), 1+d.IntN(2), 4+d.IntN(2)
	tickets := d.after.table(d.c.tickets)
	missing := d.after.broken(tickets, tickets.rule(notNull, "priority"))
	for _, row := range missing {
		row[5] = low
		if row[6] == state {
			row[5] = high
		}
	}
	d.turn()
	d.sql(d.c.fill(fmt.Sprintf("UPDATE {tickets} SET priority = CASE WHEN state = '%s' THEN %d ELSE %d END WHERE priority IS NULL", state, high, low)))
	d.restore(supportFile)
	return state, high, low, len(missing)
}

// Values that are missing, by a rule.
func fillNulls(d *draft) bool {
	d.look(supportFile)
	state, high, low, n := d.fillNulls()
	tickets := d.after.table(d.c.tickets)
	d.turn()
	d.clean(supportFile)
	d.repaired(n, "null-values", tickets.name)
	sum := 0
	for _, row := range tickets.rows {
		if row[5] == low {
			sum += row[0].(int)
		}
	}
	d.query(d.c.fill(fmt.Sprintf("SELECT sum(id) FROM {tickets} WHERE priority = %d", low)), []string{tickets.name}, fmt.Sprint(sum))
	what := d.extra(supportFile)
	return d.ask([]string{
		"Some {tickets} have no priority although support.sql demands one. Give {high} to those in state {state} and {low} to the others, and bring the table in line with the declaration, so that the linter finds nothing in support.sql. Answer with the number of rows filled in, the sum of the ids of all {tickets} with priority {low} afterwards, and {what}.",
		"Make support.sql pass run_linter. A missing priority becomes {high} where the state is {state}, else {low}. Three values: how many priorities you set; the ids of all {tickets} that have priority {low} in the end, added up; {what}.",
	}, "{high}", fmt.Sprint(high), "{low}", fmt.Sprint(low), "{state}", state, "{what}", what)
}
