package postgres

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/casetest"
)

// A value goes through a real server and the tool. Where there is none its text is encoded all the same.
func TestCasesSQLValue(t *testing.T) {
	type value struct {
		Type string
		Text *string
	}
	t.Run("encode", func(t *testing.T) {
		casetest.Run(t, "sql-value", func(t *testing.T, c casetest.Case) {
			var in value
			c.In(t, &in)
			name := in.Type
			if e, ok := strings.CutSuffix(name, "[]"); ok {
				name = "_" + e
			}
			typ, ok := builtins.TypeForName(name)
			require.True(t, ok, "type %s", in.Type)
			var text []byte
			if in.Text != nil {
				text = []byte(*in.Text)
			}
			c.Check(t, encode(typ.OID, elementOf(typ.OID), text))
		})
	})
	onDrivers(t, func(t *testing.T, s *Server) {
		box := leased(t, provider(t, s, true, 1), 0)
		casetest.Run(t, "sql-value", func(t *testing.T, c casetest.Case) {
			var in value
			c.In(t, &in)
			literal := "NULL"
			if in.Text != nil {
				literal = "'" + strings.ReplaceAll(*in.Text, "'", "''") + "'"
			}
			r := ask(t, box, "SELECT "+literal+"::"+in.Type)
			require.False(t, r.IsError, r.Text)
			var out struct{ Rows [][]json.RawMessage }
			require.NoError(t, json.Unmarshal([]byte(r.Text), &out))
			c.Check(t, out.Rows[0][0])
		})
	})
}

func TestEncode(t *testing.T) {
	for _, c := range []struct{ typ, text, want string }{
		{"bool", "t", `true`},
		{"int4", "-7", `-7`},
		{"int8", "-9007199254740991", `-9007199254740991`},
		{"int8", "-9007199254740992", `"-9007199254740992"`},
		{"float8", "1e+20", `1e+20`},
		{"float4", "1.5", `1.5`},
		{"float8", "Infinity", `"Infinity"`},
		{"numeric", "NaN", `"NaN"`},
		{"timestamptz", "2026-01-15 23:30:15+05:30", `"2026-01-15T18:00:15Z"`},
		{"timestamptz", "1880-01-01 00:00:00+00:53:28", `"1879-12-31T23:06:32Z"`},
		{"timestamptz", "infinity", `"infinity"`},
		{"timestamptz", "0044-03-15 12:00:00+00 BC", `"0044-03-15 12:00:00+00 BC"`},
		{"timestamp", "2026-01-15 23:30:15.25", `"2026-01-15T23:30:15.25"`},
		{"date", "2026-01-15", `"2026-01-15"`},
		{"json", `{"a": 1.0, "a": 2}`, `{"a": 1.0, "a": 2}`},
		{"text", "<a>\u2028\"", "\"<a>\\u2028\\\"\""},
		{"_int4", "{}", `[]`},
		{"_int4", "{{1,2},{3,NULL}}", `[[1,2],[3,null]]`},
		{"_int4", "[0:1]={1,2}", `[1,2]`},
		{"_text", `{"a\"b","c\\d",e f,""}`, `["a\"b","c\\d","e f",""]`},
		{"_bool", "{t,f}", `[true,false]`},
		{"_box", "{(1,1),(0,0);(2,2),(1,1)}", `["(1,1),(0,0)","(2,2),(1,1)"]`},
		{"_jsonb", `{"{\"a\": [1]}"}`, `[{"a": [1]}]`},
		{"_int4", "{1,2", `"{1,2"`},
		{"_int4", "{1}x", `"{1}x"`},
		{"_int4", "{1,}", `"{1,}"`},
	} {
		typ, ok := builtins.TypeForName(c.typ)
		require.True(t, ok, c.typ)
		require.Equal(t, c.want, string(encode(typ.OID, elementOf(typ.OID), []byte(c.text))), "%s %s", c.typ, c.text)
	}
}

func FuzzEncodeArray(f *testing.F) {
	for _, s := range []string{"{}", "{1,2}", `{"a\"b",NULL}`, "{{1},{2}}", "[0:1]={1,2}", "{"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, ok := encodeArray(25, s); ok && !json.Valid(v) {
			t.Errorf("%q gives %s", s, v)
		}
	})
}

const guarded = `CREATE TABLE items (id serial PRIMARY KEY, label text); INSERT INTO items (label) VALUES ('a'), ('b'), ('c')`

func TestCasesSQLGuard(t *testing.T) {
	inTurn(t)
	onDrivers(t, func(t *testing.T, s *Server) {
		p, err := New(t.Context(), s, nil, func(sandboxes.World) (string, bool, error) { return guarded, true, nil }, 1)
		require.NoError(t, err)
		defer p.Close()
		casetest.Run(t, "sql-guard", func(t *testing.T, c casetest.Case) {
			var in struct {
				SQL  json.RawMessage
				Role string
			}
			c.In(t, &in)
			require.Equal(t, "read-only", in.Role)
			var list []string
			if json.Unmarshal(in.SQL, &list) != nil {
				list = make([]string, 1)
				require.NoError(t, json.Unmarshal(in.SQL, &list[0]))
			}
			box := leased(t, p, 0)
			before := stateOf(t, box)
			refused := false
			for _, q := range list {
				refused = ask(t, box, q).IsError || refused
			}
			after := stateOf(t, box)
			require.NoError(t, box.Close())
			next := leased(t, p, 0)
			c.Check(t, map[string]any{"refused": refused, "state_changed": before.Hash != after.Hash || before.Hash != stateOf(t, next).Hash})
		})
	})
}

func TestCasesSandboxPostgres(t *testing.T) {
	onDrivers(t, func(t *testing.T, s *Server) {
		p := provider(t, s, false, 2)
		start := stateOf(t, leased(t, p, 1))

		// What the server lets a role do outlives no episode.
		t.Run("C106", func(t *testing.T) {
			box := leased(t, p, 1)
			for _, q := range []string{"CREATE ROLE r", "ALTER SYSTEM SET work_mem = '1MB'", "CREATE EXTENSION file_fdw", "ALTER DATABASE postgres SET work_mem = '1MB'", "SELECT pg_advisory_lock(7)"} {
				require.True(t, ask(t, box, q).IsError, q)
			}
			require.False(t, ask(t, box, "SET work_mem = '1MB'").IsError)
			require.NoError(t, box.Close())
			next := leased(t, p, 1)
			require.Equal(t, start, stateOf(t, next))
			require.Contains(t, ask(t, next, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").Text, "[[0]]")
			require.Contains(t, ask(t, next, "SHOW work_mem").Text, "4MB")
		})
		t.Run("C107", func(t *testing.T) {
			box := leased(t, p, 1)
			for range 5 {
				require.False(t, ask(t, box, "SELECT nextval('customers_id_seq')").IsError)
			}
			require.NoError(t, box.Close())
			require.Contains(t, ask(t, leased(t, p, 1), "INSERT INTO customers (name) VALUES ('x') RETURNING id").Text, "[[22]]")
		})
		t.Run("C108", func(t *testing.T) {
			box := leased(t, p, 1)
			ask(t, box, "COMMIT")
			require.False(t, ask(t, box, "INSERT INTO customers (name) VALUES ('x')").IsError)
			require.NotEqual(t, start.Hash, stateOf(t, box).Hash)
			require.NoError(t, box.Close())
			require.Equal(t, start, stateOf(t, leased(t, p, 1)))
		})
		// Nobody can stay on a template, and so no clone can fail.
		t.Run("C109", func(t *testing.T) {
			var name string
			for name = range current(t, s).templates {
				break
			}
			c, err := current(t, s).connect(t.Context(), superuser, name)
			if c != nil {
				hangUp(c)
			}
			require.ErrorContains(t, err, "not currently accepting connections")
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					box, err := p.Lease(t.Context(), sandboxes.World{Seed: 1})
					if err != nil {
						t.Error(err)
						return
					}
					if err := box.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		})
		// A database that cannot be dropped does not keep the rest, and is reported.
		t.Run("C110", func(t *testing.T) {
			l, err := s.open(t.Context(), shop, false)
			require.NoError(t, err)
			l.changed = true
			require.NoError(t, current(t, s).exec(t.Context(), "ALTER DATABASE "+l.database+" IS_TEMPLATE true"))
			err = l.Close()
			require.ErrorContains(t, err, "drop database "+l.database)
			require.ErrorContains(t, err, "drop role "+l.role)
			require.True(t, l.agent.IsClosed())
			require.Equal(t, err, l.Close())
			require.NoError(t, current(t, s).exec(t.Context(), "ALTER DATABASE "+l.database+" IS_TEMPLATE false", "DROP DATABASE "+l.database, "DROP ROLE "+l.role))
		})
		t.Run("C112", func(t *testing.T) {
			box := leased(t, p, 1)
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if err := box.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			require.NoError(t, box.Close())
		})
		t.Run("C113", func(t *testing.T) {
			_, err := p.Lease(t.Context(), sandboxes.World{Seed: 1, Setup: json.RawMessage(`"missing"`)})
			f, ok := errors.AsType[*sandboxes.Fault](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, sandboxes.FaultLease, f.Kind)
			_, err = s.open(t.Context(), "CREATE TABLE x (", false)
			_, ok = errors.AsType[*pgconn.PgError](err)
			require.True(t, ok, "%v", err)
		})
		t.Run("C115", func(t *testing.T) {
			var first string
			for i := range 8 {
				box := leased(t, p, 7)
				seen := stateOf(t, box).Hash + ask(t, box, "SELECT * FROM items ORDER BY id").Text
				if i == 0 {
					first = seen
				}
				require.Equal(t, first, seen)
				require.NoError(t, box.Close())
			}
		})
	})
}

func TestCasesBusy(t *testing.T) {
	t.Parallel()
	onDrivers(t, func(t *testing.T, s *Server) {
		t.Parallel()
		p := provider(t, s, false, 1)
		t.Run("C116", func(t *testing.T) {
			box := leased(t, p, 1)
			// Longer than the limit, because the server's own limit is off.
			require.False(t, ask(t, box, "SET statement_timeout = 0").IsError)
			long := make(chan sandboxes.Result, 1)
			go func() {
				r, _ := box.Session().Call(t.Context(), "query_database", sqlArgs("SELECT pg_sleep(60)"))
				long <- r
			}()
			var waited sandboxes.Result
			for end := time.Now().Add(StatementLimit); !waited.IsError && time.Now().Before(end); {
				var err error
				waited, err = box.Session().Call(t.Context(), "explain", sqlArgs("SELECT 1"))
				require.NoError(t, err)
			}
			require.Contains(t, waited.Text, "busy with another call (1 of 1")
			require.Contains(t, (<-long).Text, "57014")
		})
	})
}
