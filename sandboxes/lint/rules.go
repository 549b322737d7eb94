package lint

import (
	"fmt"
	"slices"
	"strings"
)

// rules are what the linter finds in the file and in the schema, each with its message.
var rules = map[string]string{
	"syntax":                "%s: %s", // of a statement that Postgres refuses: its SQLSTATE and message
	"not-a-declaration":     "only CREATE TABLE, CREATE INDEX, ALTER TABLE and COMMENT declare, not run: %s",
	"missing-table":         "there is no table %s in schema public",
	"missing-column":        "%s has no column %s",
	"column-differs":        "%s.%s is %s, declared is %s", // type or nullability
	"missing-key":           "%s has no valid %s",          // primary key, unique constraint or foreign key
	"missing-index":         "%s has no index as in %s",
	"unindexed-foreign-key": "no index of %s begins with %s, in any order", // a declared one
	"broken-check":          "%s has no valid %s",
}

// rowRules are what the linter finds in rows. The message begins like "3 rows of orders have", and may end with keys.
var rowRules = map[string]string{
	"orphaned-rows":  "a %s that %s lacks", // by a foreign key that is declared or exists
	"duplicate-keys": "the %s of another row",
	"null-values":    "no %s",
	"broken-check":   "values that %s forbids",
}

// Finding is one thing that is wrong: in a database with its table, in code with its file, column and severity. Line is where
// the statement begins that declares it, or where its syntax or the code is wrong.
type Finding struct {
	File     string `json:"file,omitempty"`
	Severity string `json:"severity,omitempty"`
	Rule     string `json:"rule"`
	Table    string `json:"table,omitempty"`
	Line     int    `json:"line"`
	Column   int    `json:"column,omitempty"` // in characters, from 1
	Message  string `json:"message"`
}

// count is a query for the rows that a finding is about: their number as n, and some of their keys as keys.
type count struct {
	Finding // without the beginning of its message
	sql     string
}

// compare says where the live schema is not as declared, and which rows are to be counted: those that no constraint of the
// live schema vouches for. A foreign key vouches for nothing, since a trigger can undo what it does to the rows that refer.
func compare(declared, live schema) (findings []Finding, counts []count) {
	for _, want := range declared {
		add := func(rule string, line int, args ...any) {
			findings = append(findings, Finding{Rule: rule, Table: want.Name, Line: line, Message: fmt.Sprintf(rules[rule], args...)})
		}
		ask := func(sql, rule string, line int, args ...any) {
			if !slices.ContainsFunc(counts, func(c count) bool { return c.sql == sql }) {
				counts = append(counts, count{Finding{Rule: rule, Table: want.Name, Line: line, Message: fmt.Sprintf(rowRules[rule], args...)}, sql})
			}
		}
		orphans := func(k constraint, line int) {
			ask(countOrphans(want.Name, k), "orphaned-rows", line, list(k.Columns), strings.TrimPrefix(k.Ref, "public."))
		}
		have := live.table(want.Name)
		if have == nil {
			add("missing-table", want.Line, want.Name)
			continue
		}
		for _, c := range want.Columns {
			is := have.column(c.Name)
			if is == nil {
				add("missing-column", want.Line, want.Name, c.Name)
				continue
			}
			if *is != c {
				add("column-differs", want.Line, want.Name, c.Name, is, c)
			}
			if c.NotNull && (!is.NotNull || have.Parent) {
				ask(countWhere(want.Name, c.Name+" IS NULL"), "null-values", want.Line, c.Name)
			}
		}
		for _, k := range want.Constraints {
			here := have.has(&want, k.Columns)
			valid := slices.ContainsFunc(have.Constraints, func(is constraint) bool { return is.Def == k.Def && is.Valid })
			switch {
			case !valid && k.Kind != "c":
				add("missing-key", k.Line, want.Name, k.Def)
			case !valid && here: // how Postgres prints a check depends on the types of its columns
				add("broken-check", k.Line, want.Name, k.Def)
			}
			if !here {
				continue
			}
			vouched := valid && !have.Parent
			switch {
			case k.Kind == "c" && !vouched:
				ask(countWhere(want.Name, "("+k.Expr+") IS FALSE"), "broken-check", k.Line, k.Def)
			case k.Kind == "f":
				if !have.indexed(k.Columns) {
					add("unindexed-foreign-key", k.Line, want.Name, list(k.Columns))
				}
				to, is := declared.reference(k), live.reference(k)
				if to != nil && is != nil && is.has(to, k.RefColumns) {
					orphans(k, k.Line)
				}
			case !vouched:
				ask(countKeys(want.Name, k.Columns, 1, ""), "duplicate-keys", k.Line, list(k.Columns))
			}
		}
		for _, k := range have.Constraints {
			if k.Kind == "f" {
				orphans(k, want.Line)
			}
		}
		for _, x := range want.Indexes {
			if !x.Constraint && !slices.ContainsFunc(have.Indexes, func(is index) bool { return is.def() == x.def() }) {
				add("missing-index", x.Line, want.Name, x.def())
			}
		}
	}
	return findings, counts
}

func (c column) String() string {
	if c.NotNull {
		return c.Type + " NOT NULL"
	}
	return c.Type
}

// list shows columns as a key.
func list(columns []string) string {
	if len(columns) == 1 {
		return columns[0]
	}
	return "(" + strings.Join(columns, ", ") + ")"
}

// The queries below run in a database whose owner may have defined functions and operators of any name. A name that the
// owner could take is written with its schema; names of columns, tables and types come from the catalogs, in quotes where
// they need them.

// countAll puts queries together: it gives a list of those that have found rows, each with its place.
func countAll(counts []count) string {
	each := []string{"SELECT 0 AS i, 0 AS n, NULL::pg_catalog.text AS keys"}
	for i, c := range counts {
		each = append(each, fmt.Sprintf("SELECT %d, q.n, q.keys FROM (%s) AS q", i, c.sql))
	}
	return "SELECT pg_catalog.json_agg(pg_catalog.json_build_object('I', a.i, 'N', a.n, 'Keys', a.keys)) FROM (" +
		strings.Join(each, "\nUNION ALL ") + ") AS a WHERE a.n OPERATOR(pg_catalog.>) 0"
}

func countWhere(table, condition string) string {
	return fmt.Sprintf("SELECT pg_catalog.count(*) AS n, NULL::pg_catalog.text AS keys FROM public.%s WHERE %s", table, condition)
}

// countKeys counts the rows whose key is held by more than so many rows and meets a condition on t. NULL is no key.
func countKeys(table string, columns []string, more int, and string) string {
	var key, where []string
	for _, c := range columns {
		key = append(key, "t."+c)
		where = append(where, "t."+c+" IS NOT NULL")
	}
	by := strings.Join(key, ", ")
	shown := "pg_catalog.left(pg_catalog.concat_ws(', ', " + by + "), 60)"
	if len(key) > 1 {
		shown = "pg_catalog.concat('(', " + shown + ", ')')"
	}
	return fmt.Sprintf(`SELECT COALESCE(pg_catalog.sum(g.n), 0)::pg_catalog.int8 AS n,
		pg_catalog.concat(pg_catalog.string_agg(g.k, ', ' ORDER BY g.i) FILTER (WHERE g.i OPERATOR(pg_catalog.<=) 5),
			CASE WHEN pg_catalog.max(g.i) OPERATOR(pg_catalog.>) 5 THEN ', ...' END) AS keys
		FROM (SELECT %s AS k, pg_catalog.count(*) AS n, pg_catalog.row_number() OVER (ORDER BY %s) AS i
			FROM public.%s AS t WHERE %s%s GROUP BY %s HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) %d) AS g`,
		shown, by, table, strings.Join(where, " AND "), and, by, more)
}

func countOrphans(table string, k constraint) string {
	var on []string
	for i, c := range k.Columns {
		on = append(on, fmt.Sprintf("r.%s OPERATOR(pg_catalog.=) t.%s", k.RefColumns[i], c))
	}
	return countKeys(table, k.Columns, 0, fmt.Sprintf(" AND NOT EXISTS (SELECT FROM %s AS r WHERE %s)", k.Ref, strings.Join(on, " AND ")))
}
