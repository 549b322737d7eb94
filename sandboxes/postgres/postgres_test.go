package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/sandboxtest"
)

const shop = `
CREATE TABLE customers (id serial PRIMARY KEY, name text NOT NULL, active boolean NOT NULL DEFAULT true);
CREATE TABLE items (id serial PRIMARY KEY, customer_id int NOT NULL REFERENCES customers, label text, price numeric(8,2) CHECK (price >= 0));
INSERT INTO customers (name, active) SELECT 'customer ' || i, i % 3 > 0 FROM generate_series(1, 20) i;
INSERT INTO items (customer_id, label, price) SELECT 1 + i % 20, 'item ' || i, i * 1.5 FROM generate_series(1, 100) i;
CREATE VIEW inactive AS SELECT id, name FROM customers WHERE NOT active;
COMMENT ON TABLE customers IS 'who buys';`

// shopOf makes worlds with one row more for every seed.
func shopOf(readOnly bool) Schema {
	return func(w sandboxes.World) (string, bool, error) {
		if len(w.Setup) > 0 {
			return "", false, errors.New("no such setup")
		}
		return fmt.Sprintf("%s\nINSERT INTO customers (name) SELECT 'more' FROM generate_series(1, %d);", shop, w.Seed), readOnly, nil
	}
}

func provider(t testing.TB, s *Server, readOnly bool, size int) *Provider {
	t.Helper()
	p, err := New(t.Context(), s, sandboxes.Identity{"schema": "shop"}, shopOf(readOnly), size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func leased(t testing.TB, p sandboxes.Provider, seed uint64) sandboxes.Sandbox {
	t.Helper()
	box, err := p.Lease(t.Context(), sandboxes.World{Seed: seed})
	require.NoError(t, err)
	t.Cleanup(func() { box.Close() })
	return box
}

func sqlArgs(sql string) json.RawMessage { return compact(map[string]string{"sql": sql}) }

// ask runs a statement as an agent does.
func ask(t testing.TB, box sandboxes.Sandbox, sql string) sandboxes.Result {
	t.Helper()
	r, err := box.Session().Call(t.Context(), "query_database", sqlArgs(sql))
	require.NoError(t, err, sql)
	return r
}

func stateOf(t testing.TB, box sandboxes.Sandbox) sandboxes.State {
	t.Helper()
	s, err := sandboxes.StateOf(t.Context(), box)
	require.NoError(t, err)
	return s
}

func probe(t testing.TB, box sandboxes.Sandbox, sql string) sandboxes.Answer {
	t.Helper()
	a, err := sandboxes.ProbeOf(t.Context(), box, []sandboxes.Question{{Kind: "sql", Text: sql}})
	require.NoError(t, err)
	require.Len(t, a, 1)
	return a[0]
}

// left names the databases and roles of leases that the server has.
func left(t testing.TB, s *Server) []string {
	t.Helper()
	var names []string
	require.NoError(t, current(t, s).as(t.Context(), superuser, "postgres", func(c *pgconn.PgConn) error {
		rows, err := query(t.Context(), c, `SELECT 'database ' || datname FROM pg_database WHERE datname ~ '^t[0-9a-f]+_[0-9]' UNION ALL
			SELECT 'role ' || rolname FROM pg_roles WHERE rolname !~ '^(pg_|postgres$|mcpgym_)' ORDER BY 1`)
		for _, r := range rows {
			names = append(names, string(r[0]))
		}
		return err
	}))
	return names
}

func TestContract(t *testing.T) {
	onDrivers(t, func(t *testing.T, s *Server) {
		for _, readOnly := range []bool{false, true} {
			t.Run(fmt.Sprintf("read only %v", readOnly), func(t *testing.T) {
				sandboxtest.Check(t, func(t *testing.T) sandboxes.Provider {
					p, err := New(t.Context(), s, nil, shopOf(readOnly), 2)
					require.NoError(t, err)
					return p
				}, sandboxes.World{Seed: 1}, sandboxes.World{Seed: 2})
			})
		}
	})
}

func TestQuery(t *testing.T) {
	onDrivers(t, func(t *testing.T, s *Server) {
		p := provider(t, s, false, 1)
		box := leased(t, p, 1)
		for _, c := range []struct {
			sql, want string
			volatile  bool
		}{
			{"SELECT id, name, active FROM customers WHERE id < 3 ORDER BY id", `{"columns":["id","name","active"],"rows":[[1,"customer 1",true],[2,"customer 2",true]],"row_count":2}`, false},
			{"SELECT id FROM customers WHERE id < 3", `{"columns":["id"],"rows":[[1],[2]],"row_count":2}`, true},
			{"SELECT id FROM customers WHERE false;", `{"columns":["id"],"rows":[],"row_count":0}`, false},
			{"SELECT 1 AS a, 2 AS a", `{"columns":["a","a"],"rows":[[1,2]],"row_count":1}`, false},
			{"SELECT '<b>&' AS t", `{"columns":["t"],"rows":[["<b>&"]],"row_count":1}`, false},
			{"SELECT now() < '2000-01-01' AS old", `{"columns":["old"],"rows":[[false]],"row_count":1}`, true},
			{"UPDATE items SET price = price + 1 WHERE id <= 10", `{"command":"UPDATE","rows_affected":10}`, false},
			{"INSERT INTO customers (name) VALUES ('x') RETURNING name", `{"columns":["name"],"rows":[["x"]],"row_count":1}`, false},
			{"CREATE TABLE more ()", `{"command":"CREATE TABLE","rows_affected":0}`, false},
			{"BEGIN", `{"command":"BEGIN","rows_affected":0,"transaction":"open"}`, false},
			{"SELECT 1 AS a", `{"columns":["a"],"rows":[[1]],"row_count":1,"transaction":"open"}`, false},
			{"ROLLBACK", `{"command":"ROLLBACK","rows_affected":0}`, false},
			{"SHOW server_encoding", `{"columns":["server_encoding"],"rows":[["UTF8"]],"row_count":1}`, false},
			{"SELECT 'a'::text AS x, ARRAY['p','q']::mood[] AS m", "", false},
		} {
			r := ask(t, box, c.sql)
			if c.want == "" {
				require.True(t, r.IsError, "%s: %s", c.sql, r.Text)
				continue
			}
			require.False(t, r.IsError, "%s: %s", c.sql, r.Text)
			require.Equal(t, c.want, r.Text, c.sql)
			require.Equal(t, c.volatile, r.Volatile, c.sql)
		}
		require.Regexp(t, `^\d+$`, p.Identity()["postgres major"])
		require.Equal(t, "shop", p.Identity()["schema"])
		require.True(t, ask(t, box, "SELECT current_user || '' AS u").Volatile)
		require.True(t, ask(t, box, "SELECT rolname FROM pg_authid ORDER BY 1").IsError)
		require.True(t, ask(t, box, "SELECT table_catalog FROM information_schema.tables ORDER BY 1 LIMIT 1").Volatile, "it names the lease")
	})
}

func TestQueryErrors(t *testing.T) {
	t.Parallel()
	onDrivers(t, func(t *testing.T, s *Server) {
		t.Parallel()
		p := provider(t, s, false, 1)
		for _, c := range []struct {
			sql  string
			want []string
		}{
			{"SELECT nam FROM customers", []string{"ERROR 42703", `column "nam" does not exist`, "Position: 8", "Hint: "}},
			{"INSERT INTO items (customer_id) VALUES (1000)", []string{"ERROR 23503", "Detail: "}},
			{"SELECT 1; SELECT 2", []string{"ERROR 42601", "multiple commands"}},
			{"COPY customers FROM STDIN", []string{"INSERT"}},
			{"/* */ COPY customers FROM STDIN", []string{"limit of 5s", "a new one is open"}},
			{"SELECT pg_sleep(9)", []string{"ERROR 57014", "statement timeout"}},
			{"SELECT $1", []string{"ERROR 08P01"}},
			{"SELECT pg_terminate_backend(pg_backend_pid())", []string{"ERROR 42501"}},
			{"COPY customers TO PROGRAM 'cat'", []string{"ERROR 42501"}},
		} {
			t.Run(c.sql, func(t *testing.T) {
				t.Parallel()
				box := leased(t, p, 1)
				r := ask(t, box, c.sql)
				require.True(t, r.IsError, r.Text)
				for _, w := range c.want {
					require.Contains(t, r.Text, w)
				}
				require.False(t, ask(t, box, "SELECT 1").IsError)
			})
		}
	})
}

// An agent may take the server's limit away, not ours.
func TestStatementLimitStands(t *testing.T) {
	t.Parallel()
	onDrivers(t, func(t *testing.T, s *Server) {
		t.Parallel()
		box := leased(t, provider(t, s, false, 1), 1)
		require.False(t, ask(t, box, "SET statement_timeout = 0").IsError)
		start := time.Now()
		r := ask(t, box, "SELECT pg_sleep(60)")
		require.True(t, r.IsError)
		require.Contains(t, r.Text, "limit of 5s")
		require.Less(t, time.Since(start), StatementLimit+2*time.Second)
	})
}

// A call whose context ends leaves the session as it was.
func TestCallCancelled(t *testing.T) {
	onDrivers(t, func(t *testing.T, s *Server) {
		box := leased(t, provider(t, s, false, 1), 1)
		require.False(t, ask(t, box, "SET application_name = 'still here'").IsError)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := box.Session().Call(ctx, "query_database", sqlArgs("SELECT pg_sleep(3)"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Contains(t, ask(t, box, "SHOW application_name").Text, "still here")
	})
}

func TestResultLimits(t *testing.T) {
	inTurn(t)
	onDrivers(t, func(t *testing.T, s *Server) {
		box := leased(t, provider(t, s, false, 1), 1)
		var out struct {
			Rows      []json.RawMessage
			RowCount  int `json:"row_count"`
			Truncated string
		}
		for _, c := range []struct {
			sql   string
			shown int
			total int
			mark  string
		}{
			{"SELECT i FROM generate_series(1, 200) i ORDER BY i", 200, 200, ""},
			{"SELECT i FROM generate_series(1, 201) i ORDER BY i", 200, 201, "the first 200 of 201 rows: the limit is 200 rows"},
			{"SELECT repeat('x', 10000) FROM generate_series(1, 5) i", 3, 5, "the first 3 of 5 rows: the limit is 32 KiB"},
			{"SELECT repeat('x', 100000)", 0, 1, "the first 0 of 1 rows: the limit is 32 KiB"},
		} {
			r := ask(t, box, c.sql)
			require.False(t, r.IsError, r.Text)
			out.Rows, out.Truncated = nil, ""
			require.NoError(t, json.Unmarshal([]byte(r.Text), &out))
			require.Len(t, out.Rows, c.shown, c.sql)
			require.Equal(t, c.total, out.RowCount, c.sql)
			require.Equal(t, c.mark, out.Truncated, c.sql)
		}
		r := ask(t, box, "SELECT repeat('x', 80 * 1024 * 1024)")
		require.True(t, r.IsError)
		require.Contains(t, r.Text, "64 MiB")
		require.False(t, ask(t, box, "SELECT 1").IsError)
	})
}

func TestOtherTools(t *testing.T) {
	onDrivers(t, func(t *testing.T, s *Server) {
		box := leased(t, provider(t, s, true, 1), 1)
		for _, c := range []struct {
			tool, args string
			want       []string
			isError    bool
		}{
			{"list_tables", `{}`, []string{`"name":"customers"`, `"kind":"view"`, `"comment":"who buys"`}, false},
			{"describe_table", `{"table":"items"}`, []string{`"name":"items"`, `"type":"numeric(8,2)"`, "FOREIGN KEY (customer_id) REFERENCES customers(id)", "CREATE UNIQUE INDEX items_pkey"}, false},
			{"describe_table", `{"table":"public.inactive"}`, []string{`"name":"name"`}, false},
			{"describe_table", `{"table":"nothing"}`, []string{"list_tables"}, true},
			{"describe_table", `{"table":"a.b.c.d"}`, []string{"ERROR"}, true},
			{"explain", `{"sql":"SELECT * FROM items WHERE id = 3"}`, []string{"items"}, false},
			{"explain", `{"sql":"ANALYZE SELECT 1"}`, []string{"ERROR 42601"}, true},
			{"explain", `{"sql":"SELECT 1; DROP TABLE items"}`, []string{"ERROR 42601"}, true},
		} {
			r, err := box.Session().Call(t.Context(), c.tool, json.RawMessage(c.args))
			require.NoError(t, err)
			require.Equal(t, c.isError, r.IsError, "%s %s: %s", c.tool, c.args, r.Text)
			for _, w := range c.want {
				require.Contains(t, r.Text, w, "%s %s", c.tool, c.args)
			}
			require.Equal(t, c.tool == "explain", r.Volatile)
		}
	})
}

func TestState(t *testing.T) {
	inTurn(t)
	onDrivers(t, func(t *testing.T, s *Server) {
		p := provider(t, s, false, 1)
		start := stateOf(t, leased(t, p, 1))
		require.Empty(t, start.Diff)
		require.NotEqual(t, start.Hash, stateOf(t, leased(t, p, 2)).Hash)
		for _, c := range []struct {
			name string
			sql  []string
			diff string // is part of a difference, empty where there is none
		}{
			{"read", []string{"SELECT * FROM items"}, ""},
			{"rolled back", []string{"BEGIN", "DELETE FROM items", "ROLLBACK"}, ""},
			{"not committed", []string{"BEGIN", "DROP TABLE items"}, ""},
			{"rows in another order", []string{"UPDATE items SET label = label"}, ""},
			{"temporary table", []string{"CREATE TEMP TABLE x (a int)"}, ""},
			{"row", []string{"UPDATE customers SET active = false WHERE id = 1"}, `+ row public.customers {"id":1,"name":"customer 1","active":false}`},
			{"sequence", []string{"SELECT nextval('items_id_seq')"}, "value of sequence public.items_id_seq"},
			{"table", []string{"CREATE TABLE x (a int)"}, "+ column public.x.1 a type integer"},
			{"column", []string{"ALTER TABLE items ADD note text"}, "column public.items.5 note"},
			{"default", []string{"ALTER TABLE customers ALTER active SET DEFAULT false"}, "default false"},
			{"constraint", []string{"ALTER TABLE items DROP CONSTRAINT items_price_check"}, "- constraint public.items_price_check"},
			{"index", []string{"CREATE INDEX ON items (label)"}, "+ index CREATE INDEX items_label_idx"},
			{"view", []string{"CREATE OR REPLACE VIEW inactive AS SELECT id, name FROM customers"}, "+ view public.inactive"},
			{"function", []string{"CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'"}, "+ routine public.f()"},
			{"trigger", []string{"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'", "CREATE TRIGGER t BEFORE INSERT ON items FOR EACH ROW EXECUTE FUNCTION f()"}, "+ trigger CREATE TRIGGER t"},
			{"rule", []string{"CREATE RULE r AS ON DELETE TO items DO INSTEAD NOTHING"}, "+ rule CREATE RULE r"},
			{"policy", []string{"CREATE POLICY p ON items USING (true)"}, "+ policy p"},
			{"grant", []string{"GRANT SELECT ON items TO PUBLIC"}, "relation public.items"},
			{"comment", []string{"COMMENT ON COLUMN items.label IS 'hi'"}, "+ comment on table column public.items.label: hi"},
			{"schema", []string{"CREATE SCHEMA mine"}, "+ schema mine"},
			{"type", []string{"CREATE TYPE mood AS ENUM ('sad', 'ok')"}, "labels 'sad','ok'"},
			{"domain", []string{"CREATE DOMAIN small AS int CHECK (VALUE < 9)"}, "+ type public.small"},
			{"cast", []string{"CREATE FUNCTION f(items) RETURNS text LANGUAGE sql AS 'SELECT 1'", "CREATE CAST (items AS text) WITH FUNCTION f(items) AS IMPLICIT"}, "+ cast"},
			{"large object", []string{"SELECT lo_create(77)"}, "+ large object 77"},
			{"setting", []string{"ALTER ROLE CURRENT_USER SET work_mem = '1MB'"}, "+ setting of the role: work_mem=1MB"},
			{"statistics object", []string{"CREATE STATISTICS st ON customer_id, label FROM items"}, "+ statistics object"},
			{"materialized view", []string{"CREATE MATERIALIZED VIEW m AS SELECT 7 AS n"}, `+ row public.m {"n":7}`},
		} {
			t.Run(c.name, func(t *testing.T) {
				box := leased(t, p, 1)
				for _, q := range c.sql {
					r := ask(t, box, q)
					require.False(t, r.IsError, "%s: %s", q, r.Text)
				}
				got := stateOf(t, box)
				require.NoError(t, box.Close())
				if c.diff == "" {
					require.Equal(t, start, got)
					return
				}
				require.NotEqual(t, start.Hash, got.Hash)
				require.Contains(t, strings.Join(got.Diff, "\n"), c.diff)
			})
		}
	})
}

func TestStateBound(t *testing.T) {
	onDrivers(t, func(t *testing.T, s *Server) {
		box := leased(t, provider(t, s, false, 1), 1)
		require.False(t, ask(t, box, "INSERT INTO customers (name) SELECT repeat('é', 1000) FROM generate_series(1, 70)").IsError)
		got := stateOf(t, box)
		require.Len(t, got.Diff, maxDiff)
		require.Equal(t, 72-maxDiff, got.More) // 70 rows, and the sequence before and after
	})
}

// Rows that are large when they are read, but not in the database, differ to their last byte.
func TestStateOfLongRows(t *testing.T) {
	inTurn(t)
	onDrivers(t, func(t *testing.T, s *Server) {
		p := provider(t, s, false, 1)
		var seen []string
		for _, end := range []string{"a", "b", "b"} {
			box := leased(t, p, 1)
			require.False(t, ask(t, box, "INSERT INTO customers (name) SELECT current_user || repeat('x', 2000000) || '"+end+"'").IsError)
			seen = append(seen, stateOf(t, box).Hash)
			require.NoError(t, box.Close())
		}
		require.NotEqual(t, seen[0], seen[1])
		require.Equal(t, seen[1], seen[2], "the name of the role is no part of a state")
	})
}

func TestProbe(t *testing.T) {
	onDrivers(t, func(t *testing.T, s *Server) {
		box := leased(t, provider(t, s, false, 1), 1)
		for _, c := range []struct{ sql, want, err string }{
			{"SELECT count(*) FROM customers WHERE NOT active", `6`, ""},
			{"SELECT name FROM customers WHERE false", `null`, ""},
			{"SELECT id, name FROM customers WHERE id < 3 ORDER BY id", `[[1,"customer 1"],[2,"customer 2"]]`, ""},
			{"SELECT id FROM customers WHERE id < 3 ORDER BY id", `[[1],[2]]`, ""},
			{"SELECT id, name FROM customers WHERE false", `[]`, ""},
			{"SELECT nothing", "", "42703"},
			{"DELETE FROM items", "", "25006"},
		} {
			a := probe(t, box, c.sql)
			require.Equal(t, c.want, string(a.Value), c.sql)
			require.Contains(t, a.Err, c.err, c.sql)
			require.Equal(t, c.err == "", a.Err == "", "%s: %s", c.sql, a.Err)
		}
		a, err := sandboxes.ProbeOf(t.Context(), box, []sandboxes.Question{{Kind: "file", Text: "x"}})
		require.NoError(t, err)
		require.Contains(t, a[0].Err, "sql")
	})
}

// What an agent has rigged runs with the verifier's rights, which are not enough for anything.
func TestProbeOfRiggedView(t *testing.T) {
	onDrivers(t, func(t *testing.T, s *Server) {
		box := leased(t, provider(t, s, false, 1), 1)
		for _, q := range []string{
			"ALTER TABLE customers RENAME TO real",
			`CREATE FUNCTION evil() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
			PERFORM set_config('search_path', 'trap, pg_catalog', false);
			EXECUTE 'RESET SESSION AUTHORIZATION';
			EXECUTE 'COPY (SELECT 1) TO PROGRAM ''cat''';
			RETURN 1; END $$`,
			"CREATE VIEW customers AS SELECT evil() AS id",
		} {
			r := ask(t, box, q)
			require.False(t, r.IsError, r.Text)
		}
		require.Contains(t, probe(t, box, "SELECT count(id) FROM customers").Err+probe(t, box, "SELECT id FROM customers").Err, "42501")
		require.Equal(t, `"public"`, string(probe(t, box, "SHOW search_path").Value))
	})
}
