package postgres

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Numeric is a decimal in the form in which Postgres prints it: with its scale.
type Numeric string

// Insert returns the statement that inserts rows into a table, empty where there are none. Names are plain ones, which need
// no quotes. Values are nil, bool, int, string or Numeric; dates and times are strings.
func Insert(table string, columns []string, rows [][]any) string {
	if len(rows) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "INSERT INTO %s (%s) VALUES", table, strings.Join(columns, ", "))
	for i, row := range rows {
		b.WriteString([]string{"\n(", ",\n("}[min(i, 1)])
		for k, v := range row {
			if k > 0 {
				b.WriteString(", ")
			}
			b.WriteString(Literal(v))
		}
		b.WriteByte(')')
	}
	b.WriteString(";\n")
	return b.String()
}

// Literal writes a value, of the types that Insert takes, as SQL.
func Literal(v any) string {
	switch v := v.(type) {
	case nil:
		return "NULL"
	case string:
		return "'" + strings.ReplaceAll(v, "'", "''") + "'"
	case bool, int, Numeric:
		return fmt.Sprint(v)
	}
	panic(fmt.Sprintf("postgres: a literal of type %T", v))
}

// Cells gives a row, of the types that Insert takes, as query_database and probes show it.
func Cells(row []any) json.RawMessage { return compact(row) }

// RowLine returns the line by which a state's diff says that a row is there now ("+"), or no more ("-"). A table without a
// schema is in public; names in quotes are taken out of them.
func RowLine(sign, table string, columns []string, row []any) string {
	schema, name, ok := strings.Cut(table, ".")
	if !ok {
		schema, name = "public", table
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s row %s.%s ", sign, schema, name)
	for i, v := range row {
		b.WriteString([]string{"{", ","}[min(i, 1)])
		b.Write(quote(strings.Trim(columns[i], `"`)))
		b.WriteByte(':')
		b.Write(compact(v))
	}
	b.WriteByte('}')
	line := b.String()
	if len(line) > maxLine {
		line = strings.ToValidUTF8(line[:maxLine], "") + "..."
	}
	return line
}
