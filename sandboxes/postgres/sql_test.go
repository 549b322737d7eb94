package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
)

func TestLiteral(t *testing.T) {
	for _, c := range []struct {
		value any
		want  string
	}{
		{nil, "NULL"},
		{true, "true"},
		{-7, "-7"},
		{"O'Neill; DROP", "'O''Neill; DROP'"},
		{Numeric("12.50"), "12.50"},
	} {
		require.Equal(t, c.want, Literal(c.value))
	}
	require.PanicsWithValue(t, "postgres: a literal of type float64", func() { Literal(1.5) })
}

// What Insert writes, queries give back as Cells says and states as RowLine says.
func TestRowsAsWritten(t *testing.T) {
	columns := []string{"id", `"group"`, "price", "ok", "day", "at", "note"}
	rows := [][]any{
		{1, "a", Numeric("12.50"), true, "2024-02-29", "2024-02-29T23:30:00Z", "it's <new>"},
		{2, "b", Numeric("-3.00"), false, nil, nil, nil},
		{3, "long", nil, nil, nil, nil, strings.Repeat("x", maxLine)},
	}
	require.Empty(t, Insert("things", columns, nil))
	for _, table := range []string{"things", "store.things"} {
		setup := func(rows [][]any) string {
			return fmt.Sprintf(`CREATE SCHEMA store; CREATE TABLE %s (id int PRIMARY KEY, "group" text, price numeric(8,2), ok boolean, day date, at timestamptz, note text);`, table) +
				Insert(table, columns, rows)
		}
		p, err := New(t.Context(), local(t), nil, func(w sandboxes.World) (string, bool, error) {
			return setup(rows[:w.Seed]), false, nil
		}, 1)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })

		box := leased(t, p, 2)
		r := ask(t, box, "SELECT * FROM "+table+" ORDER BY id")
		require.Contains(t, r.Text, fmt.Sprintf(`"rows":[%s,%s]`, Cells(rows[0]), Cells(rows[1])))
		for _, q := range []string{"DELETE FROM " + table, Insert(table, columns, rows[1:])} {
			r := ask(t, box, q)
			require.False(t, r.IsError, r.Text)
		}
		require.ElementsMatch(t, []string{RowLine("-", table, columns, rows[0]), RowLine("+", table, columns, rows[2])}, stateOf(t, box).Diff)
	}
}
