package dba

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/rewards"
	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/files"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// job is a program of the company's repository. It has a list written into it that has fallen behind the database, and one
// thing that the linter finds.
type job struct {
	path string
	list string // the name of its list
	text string // of the file, with @ where the list's values are, mended
	rule string // of the finding
	bad  string // the piece of the text with the finding
	good string // the piece mended

	values []string // that the list could have, in its order
	has    []string // that it has
	right  func(c *company) []string
	sql    string // shows what is right, in one row
	// count is what the job does with the values of its list, as a number: in words, by SQL, and as it comes out.
	says  string
	query func(values []string) string
	from  []string
	count func(c *company, values []string) int
}

func (j *job) isPython() bool { return strings.HasSuffix(j.path, ".py") }

// line is the line of the list.
func (j *job) line(values []string) string {
	if !j.isPython() {
		separator := map[string]string{"tables": " ", "columns": ","}[j.list]
		return j.list + `="` + strings.Join(values, separator) + `"`
	}
	return j.list + " = [" + strings.Join(literals(values, strconv.Quote), ", ") + "]"
}

// literals writes numbers as they are, and texts in quotes.
func literals(values []string, quote func(string) string) []string {
	all := slices.Clone(values)
	for i, v := range all {
		if _, err := strconv.Atoi(v); err != nil {
			all[i] = quote(v)
		}
	}
	return all
}

// mended is the file's text with these values and without the finding.
func (j *job) mended(values []string) string { return strings.Replace(j.text, "@", j.line(values), 1) }

// now is the file's text.
func (j *job) now() string { return strings.Replace(j.mended(j.has), j.good, j.bad, 1) }

// fall makes a job's list fall behind: a value is missing and another one is too many, where there are such.
func (j *job) fall(r *rand.Rand, c *company) {
	right := j.right(c)
	var others []string
	for _, v := range j.values {
		if !slices.Contains(right, v) {
			others = append(others, v)
		}
	}
	missing, odd := "", ""
	if len(right) > 0 {
		missing = pick(r, right)
	}
	if len(others) > 0 {
		odd = pick(r, others)
	}
	for _, v := range j.values {
		if v == odd || v != missing && slices.Contains(right, v) {
			j.has = append(j.has, v)
		}
	}
}

// The jobs of a repository, by their place.
const (
	goneJob = iota
	teamJob
	cityJob
	urgentJob
	dumpScript
	importScript
)

// repository is the company's code. It is drawn from the seed alone, by numbers that nothing else draws.
func (c *company) repository() []*job {
	r := rand.New(rand.NewPCG(c.seed, 0x4a6f6273))
	team, state, priority := pick(r, c.table(c.agents).rows)[2].(string), pick(r, ticketStates), pick(r, []int{1, 2, 4, 5})
	ids := func(name string, ok func(row []any) bool) func(*company) []string {
		return func(c *company) (all []string) {
			for _, row := range c.table(name).rows {
				if ok(row) {
					all = append(all, fmt.Sprint(row[0]))
				}
			}
			return all
		}
	}
	all := func([]any) bool { return true }
	// counting gives the number of rows of a table with one of the values in a column.
	counting := func(name string, column int) func(*company, []string) int {
		return func(c *company, values []string) (n int) {
			for _, row := range c.table(name).rows {
				if slices.Contains(values, fmt.Sprint(row[column])) {
					n++
				}
			}
			return n
		}
	}
	const list = "SELECT string_agg(id::text, ', ' ORDER BY id) FROM "
	jobs := []*job{
		(&job{path: "/jobs/" + c.items + "_export.py", list: "PRODUCT_IDS", from: []string{c.items}, count: counting(c.items, 2),
			right:  ids(c.products, func(row []any) bool { return row[3] == c.discontinued }),
			values: ids(c.products, all)(c), sql: list + c.fill("{products} WHERE {phase} = '{gone}'"),
		}).python(c.fill("{items} of the {products}"), c.fill(`ids of the {products} whose {phase} is exactly "{gone}", in ascending order`), "", c.fill("{items} WHERE product_id")),
		(&job{path: "/jobs/" + c.tickets + "_digest.py", list: "AGENT_IDS", from: []string{c.tickets}, count: counting(c.tickets, 2),
			right:  ids(c.agents, func(row []any) bool { return row[2] == team }),
			values: ids(c.agents, all)(c), sql: list + c.agents + " WHERE team = '" + team + "'",
		}).python(c.fill("{tickets} of the {agents}"), c.fill(`ids of the {agents} in team "`)+team+`", in ascending order`, "", c.fill("{tickets} WHERE agent_id")),
		(&job{path: "/jobs/" + c.invoices + "_watch.py", list: "CITIES", from: []string{c.invoices, "customers"}, count: inCities,
			right: suspendedIn, values: cities, sql: "SELECT string_agg(DISTINCT city, ', ' ORDER BY city) FROM customers WHERE status = 'suspended'",
		}).python(c.fill("{invoices} of customers in the cities"), `cities of the customers whose status is exactly "suspended", each once, in alphabetical order`, "i.",
			c.fill("{invoices} i JOIN customers c ON c.id = i.customer_id WHERE c.city")),
		(&job{path: "/jobs/" + c.tickets + "_recall.py", list: "TICKET_IDS", from: []string{c.tickets}, count: counting(c.tickets, 0),
			right:  ids(c.tickets, func(row []any) bool { return row[5] == priority && row[6] == state }),
			values: ids(c.tickets, all)(c), sql: list + fmt.Sprintf("%s WHERE priority = %d AND state = '%s'", c.tickets, priority, state),
		}).python(c.fill("{tickets}"), fmt.Sprintf(`ids of the %s with priority %d in state "%s", in ascending order`, c.tickets, priority, state), "", c.fill("{tickets} WHERE id")),
		c.dump(), c.imports(),
	}
	faults := []func(*job){unusedImport, misspelt, comparedWithNone, unusedName}
	for i, at := range r.Perm(len(faults)) {
		faults[at](jobs[i])
	}
	for _, j := range jobs {
		j.fall(r, c)
	}
	return jobs
}

// suspendedIn gives the cities of suspended customers.
func suspendedIn(c *company) (all []string) {
	for _, row := range c.table("customers").rows {
		if row[4] == "suspended" {
			all = append(all, row[3].(string))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// inCities counts the invoices of customers in cities.
func inCities(c *company, cities []string) (n int) {
	for _, row := range c.table(c.invoices).rows {
		if slices.Contains(cities, c.table("customers").find(row[1].(int))[3].(string)) {
			n++
		}
	}
	return n
}

// python makes a job in Python that selects rows by the values of its list. It is told in words what these rows are and what the
// list is, and in SQL how the columns are called and where they come from, up to the one that the list is about.
func (j *job) python(rows, means, prefix, from string) *job {
	j.says = "the number of rows that the job selects"
	j.query = func(values []string) string {
		return "SELECT count(*) FROM " + from + " IN (" + strings.Join(literals(values, func(v string) string { return postgres.Literal(v) }), ", ") + ")"
	}
	j.text = `"""Export the ` + rows + ` that ` + j.list + ` names.

` + j.list + ` are the ` + means + `.
"""

import csv

@


def select(connection, limit=None):
    """Return the rows, no more than limit if there is one."""
    marks = ", ".join("%s" for _ in ` + j.list + `)
    rows = connection.execute("SELECT ` + prefix + `* FROM ` + from + ` IN (" + marks + ") ORDER BY ` + prefix + `id", ` + j.list + `).fetchall()
    if limit is not None:
        rows = rows[:limit]
    return rows


def export(connection, path):
    """Write the rows to a file and return their number."""
    rows = select(connection)
    with open(path, "w", newline="") as out:
        csv.writer(out).writerows(rows)
    return len(rows)
`
	return j
}

// Faults of a job in Python. What is mended is the one way to mend it.

func unusedImport(j *job) {
	j.rule, j.bad, j.good = "F401", "import csv\nimport json\n", "import csv\n"
}
func misspelt(j *job) { j.rule, j.bad, j.good = "F821", "return len(rwos)", "return len(rows)" }
func comparedWithNone(j *job) {
	j.rule, j.bad, j.good = "E711", "if limit != None:", "if limit is not None:"
}
func unusedName(j *job) {
	j.rule, j.bad, j.good = "F841", "    rows = select(connection)\n    size = len(rows)\n", "    rows = select(connection)\n"
}

// dump is the script that has the names of all tables.
func (c *company) dump() *job {
	tables := func(c *company) (all []string) {
		for _, t := range c.tables {
			all = append(all, t.name)
		}
		slices.Sort(all)
		return all
	}
	all := append(tables(c), "newsletters")
	slices.Sort(all)
	return &job{path: "/scripts/nightly_dump.sh", list: "tables", rule: "SC2086", bad: "mkdir -p $folder", good: `mkdir -p "$folder"`,
		right: tables, values: all, from: tables(c), says: "the number of rows in all tables of the list together",
		sql: "SELECT string_agg(table_name, ' ' ORDER BY table_name) FROM information_schema.tables WHERE table_schema = 'public'",
		query: func(values []string) string {
			return "SELECT (SELECT count(*) FROM " + strings.Join(values, ") + (SELECT count(*) FROM ") + ")"
		},
		count: func(c *company, values []string) (n int) {
			for _, name := range values {
				n += len(c.table(name).rows)
			}
			return n
		},
		text: `#!/bin/sh
# Dump every table of schema public to a file of its own in the folder $1.
# tables are the names of all of them, in alphabetical order.
@
folder=$1
mkdir -p "$folder"
for table in $tables; do
	pg_dump --data-only --table="public.$table" --file="$folder/$table.sql"
done
`}
}

// imports is the script that has the columns of customers.
func (c *company) imports() *job {
	columns := func(c *company) []string { return c.table("customers").names() }
	return &job{path: "/scripts/import_customers.sh", list: "columns", rule: "SC2162", bad: "while read line", good: "while read -r line",
		right: columns, values: append(columns(c), "phone"), from: []string{"customers"}, says: "the number of rows in customers",
		sql:   "SELECT string_agg(column_name, ',' ORDER BY ordinal_position) FROM information_schema.columns WHERE table_schema = 'public' AND table_name = 'customers'",
		query: func([]string) string { return "SELECT count(*) FROM customers" },
		count: func(c *company, _ []string) int { return len(c.table("customers").rows) },
		text: `#!/bin/sh
# Read customers from the standard input, one a line, and add them to the table customers.
# columns are all columns of the table, in its order, with commas between.
@
while read -r line; do
	printf '%s\n' "$line" | psql --quiet --command="COPY customers ($columns) FROM STDIN (FORMAT csv)"
done
`}
}

// tree is the repository as files.
func (c *company) tree() files.Setup {
	s := files.Setup{Limits: files.Limits{Bytes: 1 << 20, Entries: 200, Result: 7000}, Files: map[string]files.File{
		"/README.md": {Text: "# Programs around the database\n\nJobs in Python are in /jobs, shell scripts in /scripts.\n"}}}
	for _, j := range c.repository() {
		s.Files[j.path] = files.File{Text: j.now()}
	}
	return s
}

// Gold calls for a job.

func (d *draft) read(path string) { d.call("read_text_file", map[string]string{"path": path}) }

// mend makes the list of a job hold these values, and mends the finding.
func (d *draft) mend(j *job, values []string) {
	edit := func(old, by string) map[string]string { return map[string]string{"oldText": old, "newText": by} }
	d.call("edit_file", map[string]any{"path": j.path, "edits": []map[string]string{edit(j.line(j.has)+"\n", j.line(values)+"\n"), edit(j.bad, j.good)}})
	d.allow = append(d.allow, regexp.QuoteMeta("files: changed "+j.path+" (file 0644, ")+`\d+ bytes, sha256 [0-9a-f]+\)`)
}

// mended asserts that the linter finds nothing in a job, which is what it was but for what was to be mended.
func (d *draft) mended(j *job, values []string) {
	d.clean(j.path)
	program := sameLines
	if j.isPython() {
		program = samePython
	}
	d.asserts = append(d.asserts, envs.Assertion{
		Ask:  sandboxes.Question{Kind: "lint/tests", Text: fmt.Sprintf(program, strconv.QuoteToASCII("/work"+j.path), strconv.QuoteToASCII(j.mended(values)))},
		Want: json.RawMessage(`{"exit":0,"stdout":"True\n"}`)})
}

// Programs that say whether a file is the same as a text: two modules but for comments and layout, two scripts but for blank
// lines, layout and other ways to write the same.
const (
	samePython = `import ast
have, want = open(%s).read(), %s
print(ast.dump(ast.parse(have)) == ast.dump(ast.parse(want)))
`
	sameLines = `import re
have, want = open(%s).read(), %s
def lines(text):
    text = re.sub(r"\$\{(\w+)\}", r"$\1", text).replace("IFS= ", "")
    return [line.strip() for line in text.splitlines() if line.strip()]
print(lines(have) == lines(want))
`
)

// ruled asks for the rule of what the linter finds in a job.
func (d *draft) ruled(j *job) {
	d.answer = append(d.answer, rewards.Value{Kind: "text", Value: j.rule})
	d.evidence = append(d.evidence, []rewards.Fact{{Tool: "run_linter", Has: map[string]any{"file": j.path, "rule": j.rule}}})
}

// counted asks for what a job does with the values of its list.
func (d *draft) counted(j *job, c *company, values []string) int {
	n := j.count(c, values)
	d.query(j.query(values), j.from, fmt.Sprint(n))
	return n
}

// A job whose list has fallen behind, and what the linter finds in it.
func staleJob(d *draft) bool {
	j := d.c.repository()[pick(d, []int{goneJob, teamJob, cityJob, dumpScript, importScript})]
	right := j.right(d.c)
	if len(right) < 2 {
		return false
	}
	d.look(j.path)
	d.read(j.path)
	d.ruled(j)
	d.turn()
	d.sql(j.sql)
	d.turn()
	d.mend(j, right)
	d.turn()
	d.mended(j, right)
	n := d.counted(j, d.c, right)
	return n > 1 && d.ask([]string{
		"{path} is out of date: what it has written down as {list} is no longer what the text at its head says of it. Look that up in the database and correct the list, and mend what the linter finds in the file; leave all else as it is, the database too. Answer with the rule of the linter's finding, and {says} after that.",
		"Bring {list} in {path} in line with the database, as the text at the head of the file describes it, and make the file pass the linter. Touch nothing else. Two values: the rule that the linter reported for the file; {says}, once the list is right.",
		"Somebody has to mend {path}. Its {list} does not agree with the database any more (the text at its head says what belongs there), and the linter has a finding in it. Correct both and nothing else, then tell me the rule of the finding and {says} with the corrected list.",
	}, "{path}", j.path, "{list}", j.list, "{says}", j.says)
}

// Read only: in which job the linter finds something, and what that job does.
func brokenJob(d *draft) bool {
	j := d.c.repository()[pick(d, []int{goneJob, teamJob, cityJob})]
	d.turn()
	d.call("run_linter", map[string]string{})
	d.turn()
	d.read(j.path)
	d.answer = append(d.answer, rewards.Value{Kind: "text", Value: j.path, Accept: []string{strings.TrimPrefix(j.path, "/")}})
	d.evidence = append(d.evidence, []rewards.Fact{{Tool: "run_linter", Has: map[string]any{"file": j.path, "rule": j.rule}}})
	d.turn()
	n := d.counted(j, d.c, j.has)
	what := d.extra(map[string]string{d.c.items: salesFile, d.c.tickets: supportFile, d.c.invoices: billingFile}[j.from[0]])
	return n > 1 && d.ask([]string{
		"The linter finds something of rule {rule} in one job of the repository. Which file is it, and how many rows does the job select with its list as it stands there, whether that is right or not? Then give {what}. Nothing is to be changed.",
		"Change nothing, neither in the repository nor in the database. Three values: the path of the file in which the linter reports {rule}; the number of rows that this job selects now, by the list that is written into it; {what}, from the rows as they are.",
	}, "{rule}", j.rule, "{what}", what)
}

// Values that are missing, and a job whose list depends on them.
func repairedJob(d *draft) bool {
	j := d.c.repository()[urgentJob]
	d.look(supportFile, j.path)
	d.read(j.path)
	state, high, low, n := d.fillNulls()
	right := j.right(d.after)
	if len(right) < 2 || slices.Equal(right, j.right(d.c)) {
		return false
	}
	d.repaired(n, "null-values", d.c.tickets)
	d.ruled(j)
	d.turn()
	d.sql(j.sql)
	d.turn()
	d.mend(j, right)
	d.turn()
	d.mended(j, right)
	d.clean(supportFile)
	d.counted(j, d.after, right)
	what := d.extra(supportFile)
	return d.ask([]string{
		"Two things hang together. Some {tickets} have no priority although support.sql demands one: give {high} to those in state {state} and {low} to the others, and restore what support.sql declares, until it passes the linter. Then {path} must follow: correct its {list} as the text at its head says, by the database as it is now, and mend what the linter finds in it. Answer with the number of rows filled in, the rule of the finding in {path}, {says} with the corrected list, and {what}.",
		"First make support.sql pass the linter: a missing priority becomes {high} where the state is {state}, else {low}. Then mend {path}, whose {list} must agree with the mended rows and in which the linter finds something. Nothing else may change. Four values: how many priorities you set; the rule that the linter reported for {path}; {says} after that; {what}.",
	}, "{high}", fmt.Sprint(high), "{low}", fmt.Sprint(low), "{state}", state, "{path}", j.path, "{list}", j.list, "{says}", j.says, "{what}", what)
}
