package lint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mcpgym/mcpgym/sandboxes/postgres"
)

// schema is what the catalogs say of the ordinary tables in schema public. Names are in quotes where SQL needs them.
type schema []table

type table struct {
	object
	Parent      bool // may have children, which hold to less
	Columns     []column
	Constraints []constraint
	Indexes     []index
}

// object is what a file's statement has made.
type object struct {
	Name string
	OID  uint32
	Line int // of the file, from 1
}

type column struct {
	Name    string
	Type    string // with its collation, where that is not the type's
	NotNull bool
}

type constraint struct {
	object
	Kind       string // p, u, f or c, as in pg_constraint
	Def        string // without NOT VALID
	Valid      bool
	Columns    []string
	Expr       string // of a check
	Ref        string // the referenced table with its schema
	RefColumns []string
}

type index struct {
	object
	Def        string
	Constraint bool     // belongs to a constraint
	Columns    []string // an expression is empty
	Whole      bool     // finds equal values of its first columns among all rows
}

// def is the definition without the name.
func (x index) def() string { return strings.Replace(x.Def, " "+x.Name+" ON ", " ON ", 1) }

func (s schema) table(name string) *table {
	if i := slices.IndexFunc(s, func(t table) bool { return t.Name == name }); i >= 0 {
		return &s[i]
	}
	return nil
}

// reference is the table that a foreign key means.
func (s schema) reference(k constraint) *table {
	name, ok := strings.CutPrefix(k.Ref, "public.")
	if !ok {
		return nil
	}
	return s.table(name)
}

func (t *table) column(name string) *column {
	if i := slices.IndexFunc(t.Columns, func(c column) bool { return c.Name == name }); i >= 0 {
		return &t.Columns[i]
	}
	return nil
}

// has says whether a table has columns with the types that they have in another.
func (t *table) has(want *table, columns []string) bool {
	return !slices.ContainsFunc(columns, func(name string) bool {
		a, b := t.column(name), want.column(name)
		return a == nil || b == nil || a.Type != b.Type
	})
}

// indexed says whether an index begins with the columns, in any order.
func (t *table) indexed(columns []string) bool {
	return slices.ContainsFunc(t.Indexes, func(x index) bool {
		if !x.Whole || len(x.Columns) < len(columns) {
			return false
		}
		return !slices.ContainsFunc(columns, func(c string) bool { return !slices.Contains(x.Columns[:len(columns)], c) })
	})
}

// lockedSQL says whether another session keeps readers from a table.
const lockedSQL = `SELECT pg_catalog.count(*) > 0 FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_database d ON d.oid = l.database
	WHERE d.datname = pg_catalog.current_database() AND l.mode = 'AccessExclusiveLock' AND l.granted AND l.pid <> pg_catalog.pg_backend_pid()`

// schemaSQL reads a schema; the argument is a condition on a table's name in quotes. It runs where an agent may have defined
// functions of any name.
const schemaSQL = `SELECT COALESCE(pg_catalog.json_agg(pg_catalog.json_build_object('Name', c.name, 'OID', c.oid::pg_catalog.int8, 'Parent', c.relhassubclass,
	'Columns', (SELECT pg_catalog.json_agg(pg_catalog.json_build_object('Name', pg_catalog.quote_ident(a.attname), 'NotNull', a.attnotnull,
			'Type', pg_catalog.concat(pg_catalog.format_type(a.atttypid, a.atttypmod),
				CASE WHEN a.attcollation <> t.typcollation THEN pg_catalog.concat(' COLLATE ', a.attcollation::pg_catalog.regcollation) END)) ORDER BY a.attnum)
		FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
		WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
	'Constraints', (SELECT pg_catalog.json_agg(pg_catalog.json_build_object('OID', k.oid::pg_catalog.int8, 'Kind', k.contype, 'Valid', k.convalidated,
			'Def', pg_catalog.regexp_replace(pg_catalog.pg_get_constraintdef(k.oid), ' NOT VALID$', ''), 'Expr', pg_catalog.pg_get_expr(k.conbin, k.conrelid),
			'Columns', (SELECT pg_catalog.json_agg(pg_catalog.quote_ident(a.attname) ORDER BY u.i) FROM pg_catalog.unnest(k.conkey) WITH ORDINALITY u(n, i)
				JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.n),
			'Ref', (SELECT pg_catalog.concat(pg_catalog.quote_ident(rn.nspname), '.', pg_catalog.quote_ident(r.relname))
				FROM pg_catalog.pg_class r JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace WHERE r.oid = k.confrelid),
			'RefColumns', (SELECT pg_catalog.json_agg(pg_catalog.quote_ident(a.attname) ORDER BY u.i) FROM pg_catalog.unnest(k.confkey) WITH ORDINALITY u(n, i)
				JOIN pg_catalog.pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.n)) ORDER BY k.oid)
		FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid AND k.contype IN ('p', 'u', 'f', 'c')),
	'Indexes', (SELECT pg_catalog.json_agg(pg_catalog.json_build_object('Name', pg_catalog.quote_ident(x.relname), 'OID', x.oid::pg_catalog.int8,
			'Def', pg_catalog.pg_get_indexdef(i.indexrelid), 'Whole', i.indpred IS NULL AND m.amname IN ('btree', 'hash'),
			'Constraint', EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x')),
			'Columns', (SELECT pg_catalog.json_agg(COALESCE(pg_catalog.quote_ident(a.attname), '') ORDER BY u.i)
				FROM pg_catalog.unnest(i.indkey::pg_catalog.int2[]) WITH ORDINALITY u(n, i)
				LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = u.n WHERE u.i <= i.indnkeyatts)) ORDER BY x.oid)
		FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid JOIN pg_catalog.pg_am m ON m.oid = x.relam
		WHERE i.indrelid = c.oid AND i.indisvalid)) ORDER BY c.oid), '[]')
FROM (SELECT c.oid, c.relhassubclass, pg_catalog.quote_ident(c.relname) AS name FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'public' AND c.relkind = 'r') c WHERE %s`

// declarations are how statements begin that may be run.
var declarations = regexp.MustCompile(`^(CREATE TABLE|CREATE (UNIQUE )?INDEX|ALTER TABLE|COMMENT ON) `)

// declaration is what a file declares, and what is wrong with the file itself.
type declaration struct {
	schema   schema
	findings []Finding
}

// declare reads a file by running its statements where nothing lasts. What is wrong with a statement is a finding, and the
// rest is still read; an error is the server's.
func declare(ctx context.Context, s *postgres.Server, text string) (d declaration, err error) {
	add := func(rule string, line int, args ...any) {
		d.findings = append(d.findings, Finding{Rule: rule, Line: line, Message: fmt.Sprintf(rules[rule], args...)})
	}
	err = s.Scratch(ctx, func(c *pgconn.PgConn) error {
		var (
			lines  []int
			newest []uint32 // the newest object after the statement in a line
		)
		for _, st := range statements(text) {
			if !declarations.MatchString(st.words) {
				add("not-a-declaration", st.line, st.head())
				continue
			}
			if err := control(ctx, c, "SAVEPOINT statement"); err != nil {
				return err
			}
			_, err := c.ExecParams(ctx, st.sql, nil, nil, nil, nil).Close()
			if e, ok := errors.AsType[*pgconn.PgError](err); ok && !serverFailed.MatchString(e.Code) {
				line := st.line
				if e.Position > 0 {
					line += strings.Count(string([]rune(st.sql)[:e.Position-1]), "\n")
				}
				add("syntax", line, e.Code, e.Message)
				err = control(ctx, c, "ROLLBACK TO statement")
			}
			if err != nil {
				return err
			}
			var oid uint32
			if err := read(ctx, c, "SELECT GREATEST((SELECT max(oid) FROM pg_class), (SELECT max(oid) FROM pg_constraint))", &oid); err != nil {
				return err
			}
			lines, newest = append(lines, st.line), append(newest, oid)
		}
		if err := read(ctx, c, fmt.Sprintf(schemaSQL, "true"), &d.schema); err != nil {
			return err
		}
		locate := func(o *object) {
			i, _ := slices.BinarySearch(newest, o.OID) // the first statement after which it was there
			o.Line = lines[i]
		}
		for i := range d.schema {
			t := &d.schema[i]
			locate(&t.object)
			for i := range t.Constraints {
				locate(&t.Constraints[i].object)
			}
			for i := range t.Indexes {
				locate(&t.Indexes[i].object)
			}
		}
		return nil
	})
	return d, err
}

// serverFailed are the errors that say nothing about a statement: the connection, resources, an operator, the system.
var serverFailed = regexp.MustCompile(`^(08|53|55|57|58|XX)`)

func control(ctx context.Context, c *pgconn.PgConn, sql string) error {
	_, err := c.Exec(ctx, sql).ReadAll()
	return err
}

// read decodes the one value that a query gives.
func read(ctx context.Context, c *pgconn.PgConn, sql string, into any) error {
	r := c.ExecParams(ctx, sql, nil, nil, nil, nil).Read()
	if r.Err != nil {
		return r.Err
	}
	return json.Unmarshal(r.Rows[0][0], into)
}
