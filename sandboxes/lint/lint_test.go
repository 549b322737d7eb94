package lint

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/postgres"
	"github.com/mcpgym/mcpgym/sandboxes/postgres/postgrestest"
	"github.com/mcpgym/mcpgym/sandboxes/sandboxtest"
)

func TestMain(m *testing.M) { postgrestest.Main(m) }

// world is a file to lint and the SQL that makes the database.
type world struct{ File, Live string }

func (w world) world() sandboxes.World {
	setup, err := json.Marshal(w)
	if err != nil {
		panic(err)
	}
	return sandboxes.World{Setup: setup}
}

func decode(w sandboxes.World) (out world, err error) {
	err = json.Unmarshal(w.Setup, &out)
	return out, err
}

// open makes a provider whose worlds have a file, schema.sql.
func open(t testing.TB) sandboxes.Provider {
	t.Helper()
	s := postgrestest.Local(t)
	pg, err := postgres.New(t.Context(), s, sandboxes.Identity{"schema": "test"}, func(w sandboxes.World) (string, bool, error) {
		out, err := decode(w)
		return out.Live, false, err
	}, 1)
	require.NoError(t, err)
	p, err := SQL(pg, s, func(w sandboxes.World) (map[string]string, error) {
		out, err := decode(w)
		return map[string]string{"schema.sql": out.File, "other.sql": ""}, err
	})
	require.NoError(t, err)
	return p
}

func served(t testing.TB) sandboxes.Provider {
	p := open(t)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func lease(t testing.TB, p sandboxes.Provider, w world) sandboxes.Sandbox {
	t.Helper()
	box, err := p.Lease(t.Context(), w.world())
	require.NoError(t, err)
	t.Cleanup(func() { box.Close() })
	return box
}

func call(t testing.TB, box sandboxes.Sandbox, tool, name, arg string) sandboxes.Result {
	t.Helper()
	args, err := json.Marshal(map[string]string{name: arg})
	require.NoError(t, err)
	r, err := box.Session().Call(t.Context(), tool, args)
	require.NoError(t, err)
	return r
}

func run(t testing.TB, box sandboxes.Sandbox, sql ...string) {
	t.Helper()
	for _, q := range sql {
		r := call(t, box, "query_database", "sql", q)
		require.False(t, r.IsError, "%s: %s", q, r.Text)
	}
}

// lint runs the linter as the agent and as the verifier, who must read the same.
func lint(t testing.TB, box sandboxes.Sandbox, path string) string {
	t.Helper()
	r := call(t, box, "run_linter", "path", path)
	a, err := sandboxes.ProbeOf(t.Context(), box, []sandboxes.Question{{Kind: "lint/linter", Text: path}})
	require.NoError(t, err)
	require.Equal(t, r.Text, string(a[0].Value)+a[0].Err)
	require.Equal(t, r.IsError, a[0].Err != "")
	require.False(t, r.Volatile)
	return r.Text
}

// findings of schema.sql, each as rule, table, line and message with bars between.
func findings(t testing.TB, box sandboxes.Sandbox) []string {
	t.Helper()
	var out Result
	text := lint(t, box, "schema.sql")
	require.NoError(t, json.Unmarshal([]byte(text), &out), text)
	require.Equal(t, "schema.sql", out.Path)
	require.Equal(t, min(1, len(out.Findings)), out.ExitCode)
	all := []string{}
	for _, f := range out.Findings {
		all = append(all, fmt.Sprintf("%s|%s|%d|%s", f.Rule, f.Table, f.Line, f.Message))
	}
	return all
}

const live = `
CREATE TABLE customers (id int PRIMARY KEY, email text NOT NULL UNIQUE);
CREATE TABLE orders (id int PRIMARY KEY, customer_id int NOT NULL REFERENCES customers, total numeric(10,2) CHECK (total >= 0), note text);
CREATE INDEX ON orders (customer_id);
CREATE TABLE parts (a int, b varchar(9), owner int, PRIMARY KEY (a, b));
CREATE TABLE uses (a int, b varchar(9), FOREIGN KEY (a, b) REFERENCES parts);
CREATE INDEX ON uses (b, a);
INSERT INTO customers SELECT i, i || '@x' FROM generate_series(1, 20) i;
INSERT INTO orders SELECT i, i, i FROM generate_series(1, 20) i;
INSERT INTO parts VALUES (1, 'x', 7), (2, 'y', 8);
INSERT INTO uses VALUES (1, 'x'), (NULL, 'z');
`

// file declares it in other words.
const file = `/* The shop; by /* the */ book. */
CREATE TABLE public.customers (
	id int,
	email text NOT NULL CONSTRAINT e UNIQUE,
	CONSTRAINT p PRIMARY KEY (id)
);
CREATE TABLE orders (id integer PRIMARY KEY, customer_id int4 NOT NULL, total decimal(10,2), note text);
ALTER TABLE orders
	ADD CONSTRAINT t CHECK (total >= 0),
	ADD CONSTRAINT c FOREIGN KEY (customer_id) REFERENCES customers (id);
CREATE INDEX i ON orders (customer_id);
CREATE TABLE parts (a int, b varchar(9), owner int, PRIMARY KEY (a, b));
CREATE TABLE uses (a int, b varchar(9), FOREIGN KEY (a, b) REFERENCES parts);
COMMENT ON TABLE uses IS 'what; is used';
`

func TestFindings(t *testing.T) {
	for _, c := range []struct {
		name string
		file string // where it is not file
		do   []string
		want []string
	}{
		{"clean", "", nil, nil},
		{"other names", "", []string{"ALTER TABLE orders RENAME CONSTRAINT orders_customer_id_fkey TO other", "ALTER INDEX orders_customer_id_idx RENAME TO \"IN DEX ON\""}, nil},
		{"what is not declared", "", []string{"CREATE TABLE more (a int)", "ALTER TABLE orders ADD x int UNIQUE CHECK (x > 0) REFERENCES customers", "CREATE INDEX ON orders (note)"}, nil},
		{"nothing declared", " -- nothing", []string{"DROP TABLE customers CASCADE"}, nil},

		{"missing-table", "", []string{"DROP TABLE parts CASCADE"}, []string{
			"missing-table|parts|12|there is no table parts in schema public",
			"missing-key|uses|13|uses has no valid FOREIGN KEY (a, b) REFERENCES parts(a, b)"}},
		{"missing-column", "", []string{"ALTER TABLE orders DROP note, DROP total"}, []string{
			"missing-column|orders|7|orders has no column note",
			"missing-column|orders|7|orders has no column total"}},
		{"a key on a missing column", "", []string{"ALTER TABLE orders DROP customer_id"}, []string{
			"missing-column|orders|7|orders has no column customer_id",
			"missing-key|orders|8|orders has no valid FOREIGN KEY (customer_id) REFERENCES customers(id)",
			"missing-index|orders|11|orders has no index as in CREATE INDEX ON public.orders USING btree (customer_id)"}},
		{"column-differs", "", []string{"ALTER TABLE orders ALTER total TYPE numeric(12,2), ALTER customer_id DROP NOT NULL", "ALTER TABLE parts ALTER owner TYPE bigint, ALTER owner SET NOT NULL"}, []string{
			"column-differs|orders|7|orders.customer_id is integer, declared is integer NOT NULL",
			"column-differs|orders|7|orders.total is numeric(12,2), declared is numeric(10,2)",
			"column-differs|parts|12|parts.owner is bigint NOT NULL, declared is integer"}},
		{"collation differs", "", []string{`ALTER TABLE orders ALTER note TYPE text COLLATE "C"`}, []string{
			`column-differs|orders|7|orders.note is text COLLATE "C", declared is text`}},
		{"a check on a column that differs", "", []string{"ALTER TABLE orders ALTER total TYPE int"}, []string{
			"column-differs|orders|7|orders.total is integer, declared is numeric(10,2)"}},

		{"missing primary key", "", []string{"ALTER TABLE orders DROP CONSTRAINT orders_pkey", "ALTER TABLE orders ADD UNIQUE (id)"}, []string{
			"missing-key|orders|7|orders has no valid PRIMARY KEY (id)"}},
		{"missing unique", "", []string{"ALTER TABLE customers DROP CONSTRAINT customers_email_key", "CREATE UNIQUE INDEX ON customers (email)"}, []string{
			"missing-key|customers|2|customers has no valid UNIQUE (email)"}},
		{"missing foreign key", "", []string{"ALTER TABLE orders DROP CONSTRAINT orders_customer_id_fkey"}, []string{
			"missing-key|orders|8|orders has no valid FOREIGN KEY (customer_id) REFERENCES customers(id)"}},
		{"foreign key that cascades", "", []string{"ALTER TABLE orders DROP CONSTRAINT orders_customer_id_fkey", "ALTER TABLE orders ADD FOREIGN KEY (customer_id) REFERENCES customers ON DELETE CASCADE"}, []string{
			"missing-key|orders|8|orders has no valid FOREIGN KEY (customer_id) REFERENCES customers(id)"}},
		{"foreign key to another schema", "", []string{"ALTER TABLE orders DROP CONSTRAINT orders_customer_id_fkey", "CREATE SCHEMA s", "CREATE TABLE s.customers AS TABLE customers",
			"ALTER TABLE s.customers ADD PRIMARY KEY (id)", "ALTER TABLE orders ADD FOREIGN KEY (customer_id) REFERENCES s.customers"}, []string{
			"missing-key|orders|8|orders has no valid FOREIGN KEY (customer_id) REFERENCES customers(id)"}},
		{"foreign key NOT VALID", "", []string{"ALTER TABLE orders DROP CONSTRAINT orders_customer_id_fkey", "INSERT INTO orders VALUES (21, 99)", "ALTER TABLE orders ADD FOREIGN KEY (customer_id) REFERENCES customers NOT VALID"}, []string{
			"missing-key|orders|8|orders has no valid FOREIGN KEY (customer_id) REFERENCES customers(id)",
			"orphaned-rows|orders|8|1 row of orders has a customer_id that customers lacks: 99"}},

		{"orphaned-rows", "", []string{"ALTER TABLE orders DROP CONSTRAINT orders_customer_id_fkey", "INSERT INTO orders SELECT i, CASE WHEN i < 30 THEN 111 ELSE i END FROM generate_series(28, 32) i"}, []string{
			"missing-key|orders|8|orders has no valid FOREIGN KEY (customer_id) REFERENCES customers(id)",
			"orphaned-rows|orders|8|5 rows of orders have a customer_id that customers lacks: 30, 31, 32, 111"}},
		{"many orphans", "", []string{"ALTER TABLE uses DROP CONSTRAINT uses_a_b_fkey", "INSERT INTO uses SELECT i, 'p' FROM generate_series(11, 5, -1) i"}, []string{
			"missing-key|uses|13|uses has no valid FOREIGN KEY (a, b) REFERENCES parts(a, b)",
			"orphaned-rows|uses|13|7 rows of uses have a (a, b) that parts lacks: (5, p), (6, p), (7, p), (8, p), (9, p), ..."}},
		{"orphans of a key that exists", "", []string{"UPDATE parts SET owner = -owner", "ALTER TABLE parts ADD FOREIGN KEY (owner) REFERENCES customers NOT VALID"}, []string{
			"orphaned-rows|parts|12|2 rows of parts have a owner that customers lacks: -8, -7"}},
		{"orphans past a trigger", "", []string{"ALTER TABLE orders DROP CONSTRAINT orders_customer_id_fkey", "ALTER TABLE orders ADD FOREIGN KEY (customer_id) REFERENCES customers ON DELETE CASCADE",
			"CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'", "CREATE TRIGGER keep BEFORE DELETE ON orders FOR EACH ROW EXECUTE FUNCTION keep()",
			"DELETE FROM customers WHERE id = 3"}, []string{
			"missing-key|orders|8|orders has no valid FOREIGN KEY (customer_id) REFERENCES customers(id)",
			"orphaned-rows|orders|8|1 row of orders has a customer_id that customers lacks: 3"}},

		{"unindexed-foreign-key", "", []string{"DROP INDEX orders_customer_id_idx", "CREATE INDEX ON orders (note, customer_id)", "CREATE INDEX ON orders (customer_id) WHERE id > 0", "CREATE INDEX ON orders ((customer_id + 0))",
			"CREATE INDEX ON orders USING brin (customer_id)"}, []string{
			"unindexed-foreign-key|orders|8|no index of orders begins with customer_id, in any order",
			"missing-index|orders|11|orders has no index as in CREATE INDEX ON public.orders USING btree (customer_id)"}},
		{"indexed by others", "", []string{"DROP INDEX orders_customer_id_idx", "CREATE INDEX ON orders (customer_id, note)", "DROP INDEX uses_b_a_idx", "CREATE INDEX ON uses (a, b)"}, []string{
			"missing-index|orders|11|orders has no index as in CREATE INDEX ON public.orders USING btree (customer_id)"}},
		{"an index that includes", "", []string{"DROP INDEX uses_b_a_idx", "CREATE INDEX ON uses (a) INCLUDE (b)"}, []string{
			"unindexed-foreign-key|uses|13|no index of uses begins with (a, b), in any order"}},

		{"broken-check", "", []string{"ALTER TABLE orders DROP CONSTRAINT orders_total_check", "UPDATE orders SET total = -total WHERE id < 4", "UPDATE orders SET total = NULL WHERE id = 5"}, []string{
			"broken-check|orders|8|3 rows of orders have values that CHECK ((total >= (0)::numeric)) forbids",
			"broken-check|orders|8|orders has no valid CHECK ((total >= (0)::numeric))"}},
		{"another check", "", []string{"ALTER TABLE orders DROP CONSTRAINT orders_total_check", "ALTER TABLE orders ADD CHECK (total > -1)"}, []string{
			"broken-check|orders|8|orders has no valid CHECK ((total >= (0)::numeric))"}},
		{"check NOT VALID", "", []string{"ALTER TABLE orders DROP CONSTRAINT orders_total_check", "ALTER TABLE orders ADD CHECK (total >= 0) NOT VALID"}, []string{
			"broken-check|orders|8|orders has no valid CHECK ((total >= (0)::numeric))"}},
		{"check that fails", "CREATE TABLE orders (id int, total numeric(10,2), CHECK (1 / total > 0), CHECK (id <> 5), CHECK (id <> 6));", []string{"UPDATE orders SET total = 0"}, []string{
			"broken-check|orders|1|1 row of orders has values that CHECK ((id <> 5)) forbids",
			"broken-check|orders|1|1 row of orders has values that CHECK ((id <> 6)) forbids",
			"broken-check|orders|1|orders has no valid CHECK ((((1)::numeric / total) > (0)::numeric))",
			"broken-check|orders|1|orders has no valid CHECK ((id <> 5))",
			"broken-check|orders|1|orders has no valid CHECK ((id <> 6))",
			"broken-check|orders|1|the rows of orders cannot be checked: ERROR 22012: division by zero",
			"column-differs|orders|1|orders.id is integer NOT NULL, declared is integer"}},

		{"duplicate-keys", "", []string{"ALTER TABLE customers DROP CONSTRAINT customers_email_key", "UPDATE customers SET email = 'b' WHERE id < 4", "UPDATE customers SET email = 'a' WHERE id > 18"}, []string{
			"duplicate-keys|customers|2|5 rows of customers have the email of another row: a, b",
			"missing-key|customers|2|customers has no valid UNIQUE (email)"}},
		{"null-values", "", []string{"ALTER TABLE parts DROP CONSTRAINT parts_pkey CASCADE", "ALTER TABLE parts ALTER b DROP NOT NULL", "INSERT INTO parts VALUES (3, NULL), (3, NULL), (4, 'z'), (4, 'z')"}, []string{
			"column-differs|parts|12|parts.b is character varying(9), declared is character varying(9) NOT NULL",
			"duplicate-keys|parts|12|2 rows of parts have the (a, b) of another row: (4, z)",
			"missing-key|parts|12|parts has no valid PRIMARY KEY (a, b)",
			"null-values|parts|12|2 rows of parts have no b",
			"missing-key|uses|13|uses has no valid FOREIGN KEY (a, b) REFERENCES parts(a, b)"}},

		{"syntax", "CREATE TABLE customers (\n\tid int,\n\temail txt\n);\nCREATE TABEL x ();\nCREATE TABLE parts (a int, é text, c int c);\n\nCREATE TABLE uses (a bigint, b varchar(9));", nil, []string{
			`syntax||3|42704: type "txt" does not exist`,
			`not-a-declaration||5|only CREATE TABLE, CREATE INDEX, ALTER TABLE and COMMENT declare, not run: CREATE TABEL x ()`,
			`syntax||6|42601: syntax error at or near "c"`,
			"column-differs|uses|8|uses.a is integer, declared is bigint"}},
		{"names that need quotes", `CREATE TABLE "Or'der ""s" ("select" int PRIMARY KEY, "é;" text NOT NULL CHECK ("é;" <> ';'), FOREIGN KEY ("select") REFERENCES "Or'der ""s")`,
			[]string{`CREATE TABLE "Or'der ""s" ("select" int, "é;" text)`, `INSERT INTO "Or'der ""s" VALUES (1, ';'), (1, NULL)`}, []string{
				`broken-check|"Or'der ""s"|1|"Or'der ""s" has no valid CHECK (("é;" <> ';'::text))`,
				`broken-check|"Or'der ""s"|1|1 row of "Or'der ""s" has values that CHECK (("é;" <> ';'::text)) forbids`,
				`column-differs|"Or'der ""s"|1|"Or'der ""s"."select" is integer, declared is integer NOT NULL`,
				`column-differs|"Or'der ""s"|1|"Or'der ""s"."é;" is text, declared is text NOT NULL`,
				`duplicate-keys|"Or'der ""s"|1|2 rows of "Or'der ""s" have the "select" of another row: 1`,
				`missing-key|"Or'der ""s"|1|"Or'der ""s" has no valid FOREIGN KEY ("select") REFERENCES "Or'der ""s"("select")`,
				`missing-key|"Or'der ""s"|1|"Or'der ""s" has no valid PRIMARY KEY ("select")`,
				`null-values|"Or'der ""s"|1|1 row of "Or'der ""s" has no "é;"`,
				`unindexed-foreign-key|"Or'der ""s"|1|no index of "Or'der ""s" begins with "select", in any order`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.file == "" {
				c.file = file
			}
			box := lease(t, served(t), world{c.file, live})
			run(t, box, c.do...)
			got := findings(t, box)
			require.NoError(t, box.Close())
			require.Equal(t, append([]string{}, c.want...), got)
		})
	}
}

// What an agent may rig hides nothing.
func TestHostile(t *testing.T) {
	orphans := []string{"ALTER TABLE orders DROP CONSTRAINT orders_customer_id_fkey", "UPDATE orders SET customer_id = 99 WHERE id < 3", "UPDATE orders SET total = -1 WHERE id = 9"}
	found := []string{
		"missing-key|orders|8|orders has no valid FOREIGN KEY (customer_id) REFERENCES customers(id)",
		"orphaned-rows|orders|8|2 rows of orders have a customer_id that customers lacks: 99"}
	for _, c := range []struct {
		name string
		do   []string
		want []string
	}{
		{"view in place of a table", []string{"ALTER TABLE parts RENAME TO real", "CREATE VIEW parts AS SELECT * FROM real"}, []string{
			"missing-table|parts|12|there is no table parts in schema public",
			"missing-key|uses|13|uses has no valid FOREIGN KEY (a, b) REFERENCES parts(a, b)"}},
		{"table in another schema", []string{"CREATE SCHEMA s", "ALTER TABLE parts SET SCHEMA s"}, []string{
			"missing-table|parts|12|there is no table parts in schema public",
			"missing-key|uses|13|uses has no valid FOREIGN KEY (a, b) REFERENCES parts(a, b)"}},
		{"temporary table", []string{"DROP TABLE uses", "CREATE TEMP TABLE uses (a int, b text)"}, []string{
			"missing-table|uses|13|there is no table uses in schema public"}},
		{"partitioned table", []string{"DROP TABLE uses", "CREATE TABLE uses (a int, b text) PARTITION BY LIST (a)"}, []string{
			"missing-table|uses|13|there is no table uses in schema public"}},
		{"types", []string{`CREATE DOMAIN "integer" AS bigint`, `ALTER TABLE parts ALTER owner TYPE public."integer"`}, []string{
			`column-differs|parts|12|parts.owner is "integer", declared is integer`}},
		{"operators", []string{"CREATE FUNCTION lie(varchar, varchar) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true'", "CREATE OPERATOR = (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = lie)",
			"ALTER TABLE uses DROP CONSTRAINT uses_a_b_fkey", "INSERT INTO uses VALUES (1, 'lost')"}, []string{
			"missing-key|uses|13|uses has no valid FOREIGN KEY (a, b) REFERENCES parts(a, b)",
			"orphaned-rows|uses|13|1 row of uses has a (a, b) that parts lacks: (1, lost)"}},
		{"functions", append([]string{"CREATE FUNCTION count() RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'", "CREATE FUNCTION quote_ident(name) RETURNS text LANGUAGE sql AS 'SELECT NULL'",
			"CREATE FUNCTION sum(bigint) RETURNS numeric LANGUAGE sql AS 'SELECT 0.0'"}, orphans[:2]...), found},
		{"an operator in a check", []string{"CREATE OPERATOR public.>= (LEFTARG = numeric, RIGHTARG = numeric, FUNCTION = numeric_ne)", "ALTER TABLE orders DROP CONSTRAINT orders_total_check",
			"UPDATE orders SET total = -1 WHERE id = 9", "ALTER TABLE orders ADD CHECK (total OPERATOR(public.>=) 0)"}, []string{
			"broken-check|orders|8|1 row of orders has values that CHECK ((total >= (0)::numeric)) forbids",
			"broken-check|orders|8|orders has no valid CHECK ((total >= (0)::numeric))"}},
		{"row security", append([]string{"ALTER TABLE orders ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY"}, orphans[:1]...), found[:1]},
		{"row security hides rows", append(slices.Clone(orphans[:2]), "ALTER TABLE orders ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY", "REVOKE ALL ON SCHEMA public FROM PUBLIC", "REVOKE ALL ON orders FROM PUBLIC"), found},
		{"rules", append(slices.Clone(orphans[:2]), "CREATE RULE r AS ON UPDATE TO orders DO INSTEAD NOTHING"), found},
		{"rows moved to a child", append(slices.Clone(orphans[:2]), "CREATE TABLE child () INHERITS (orders)",
			"WITH gone AS (DELETE FROM ONLY orders WHERE customer_id = 99 RETURNING *) INSERT INTO child SELECT * FROM gone"), found},
		{"a child of looser rules", []string{"CREATE TABLE child () INHERITS (customers)", "ALTER TABLE child ALTER email DROP NOT NULL", "INSERT INTO child VALUES (1, NULL), (1, '2@x')"}, []string{
			"duplicate-keys|customers|2|2 rows of customers have the email of another row: 2@x",
			"duplicate-keys|customers|2|3 rows of customers have the id of another row: 1",
			"null-values|customers|2|1 row of customers has no email"}},
		{"an index that breaks planning", []string{"CREATE FUNCTION boom(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN IF current_user = 'mcpgym_verifier' THEN RAISE 'boom'; END IF; RETURN 1; END $$",
			"CREATE INDEX ON uses (boom(1))"}, []string{
			"orphaned-rows|uses|13|the rows of uses cannot be checked: ERROR P0001: boom"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			box := lease(t, served(t), world{file, live})
			run(t, box, c.do...)
			got := findings(t, box)
			require.NoError(t, box.Close())
			require.Equal(t, c.want, got)
		})
	}
}

// Statements that declare nothing are found and not run, wherever they hide.
func TestNotDeclarations(t *testing.T) {
	for _, sql := range []string{"COMMIT", "ROLLBACK", "END", "DO $$ BEGIN END $$", "COPY x FROM STDIN", "CREATE EXTENSION pg_trgm", "SET ROLE postgres", "RESET ALL", "SELECT pg_sleep(9)", "DROP TABLE x",
		"INSERT INTO x VALUES (1)", "CREATE TEMP TABLE y (a int)", "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS '1;2'", "create /* table */ role r", "CREATE", "(SELECT 1)", "PREPARE TRANSACTION 'x'"} {
		f, err := declare(t.Context(), postgrestest.Local(t), "CREATE TABLE x (a int);\n-- so;\n"+sql+"; create unique\nindex i on x (a)")
		require.NoError(t, err)
		require.Equal(t, []Finding{{Rule: "not-a-declaration", Line: 3, Message: fmt.Sprintf(rules["not-a-declaration"], sql)}}, f.findings)
		require.Len(t, f.schema, 1)
		require.Len(t, f.schema[0].Indexes, 1, sql)
		require.Equal(t, 3, f.schema[0].Indexes[0].Line)
	}
}

func TestStatements(t *testing.T) {
	for _, c := range []struct {
		text string
		want []statement
	}{
		{"", nil},
		{" ;; -- a;\n/* ; /* ; */ ; */ ;", nil},
		{"a b;c", []statement{{"a b", 1, "A B "}, {"c", 1, "C "}}},
		{"\n--x\nCREATE/*;*/TABLE t (a text DEFAULT ';');\n\nb", []statement{{"CREATE/*;*/TABLE t (a text DEFAULT ';')", 3, "CREATE TABLE T "}, {"b", 5, "B "}}},
		{`a 'it''s;'; b "x"";"; c E'\';'; d e'\\'; e '\'; f`, []statement{{`a 'it''s;'`, 1, "A "}, {`b "x"";"`, 1, "B "}, {`c E'\';'`, 1, "C "}, {`d e'\\'`, 1, "D "}, {`e '\'`, 1, "E "}, {"f", 1, "F "}}},
		{"a $$;$x$;$$; b $x$;$$;$x$; c $1; d$$; e", []statement{{"a $$;$x$;$$", 1, "A "}, {"b $x$;$$;$x$", 1, "B "}, {"c $1", 1, "C "}, {"d$$", 1, "D$$ "}, {"e", 1, "E "}}},
		{"a 'b;", []statement{{"a 'b;", 1, "A "}}},
		{"a /* b;", []statement{{"a /* b;", 1, "A "}}},
		{"a $b$ c;", []statement{{"a $b$ c;", 1, "A "}}},
		{"é \xff;b", []statement{{"é \xff", 1, "É "}, {"b", 1, "B "}}},
	} {
		require.Equal(t, c.want, statements(c.text), c.text)
	}
}

// The agent's own run touches no transaction; the verifier's sees what is committed.
func TestOpenTransaction(t *testing.T) {
	box := lease(t, served(t), world{file, live})
	run(t, box, "BEGIN", "UPDATE orders SET total = 2", "DELETE FROM uses")
	require.Empty(t, findings(t, box), "rows alone lock nothing")
	for _, lock := range []string{"ALTER TABLE parts DROP owner", "LOCK TABLE uses"} {
		run(t, box, "ROLLBACK", "BEGIN", "CREATE TABLE mine (a int)", lock)
		r := call(t, box, "run_linter", "path", "schema.sql")
		require.True(t, r.IsError, lock)
		require.Contains(t, r.Text, "commit or roll back")
		run(t, box, "INSERT INTO mine VALUES (1)") // it is still there
		a, err := sandboxes.ProbeOf(t.Context(), box, []sandboxes.Question{{Kind: "lint/linter", Text: "schema.sql"}})
		require.NoError(t, err)
		require.Equal(t, `{"path":"schema.sql","exit_code":0,"findings":[]}`, string(a[0].Value))
	}
}

func TestRefuses(t *testing.T) {
	box := lease(t, served(t), world{file, live})
	require.Equal(t, `there is no file "x.sql": there are other.sql, schema.sql`, lint(t, box, "x.sql"))
	require.Equal(t, `{"path":"other.sql","exit_code":0,"findings":[]}`, lint(t, box, "other.sql"))
	a, err := sandboxes.ProbeOf(t.Context(), box, []sandboxes.Question{{Kind: "lint/sql", Text: "SELECT 1"}, {Kind: "postgres/sql", Text: "SELECT count(*) FROM parts"}})
	require.NoError(t, err)
	require.Contains(t, a[0].Err, "linter")
	require.Equal(t, "2", string(a[1].Value))
	_, err = served(t).Lease(t.Context(), sandboxes.World{Setup: json.RawMessage("[]")})
	f, ok := errors.AsType[*sandboxes.Fault](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, sandboxes.FaultLease, f.Kind)
}

func TestBound(t *testing.T) {
	var b strings.Builder
	for i := range 70 {
		fmt.Fprintf(&b, "CREATE TABLE t%d (a int);\n", i)
	}
	box := lease(t, served(t), world{b.String(), live})
	require.Len(t, findings(t, box), MaxFindings)
	require.Regexp(t, `"line":50,"message":"there is no table t49 in schema public"}\],"more":20}$`, lint(t, box, "schema.sql"))
}

func TestContract(t *testing.T) {
	postgrestest.Local(t)
	sandboxtest.Check(t, func(t *testing.T) sandboxes.Provider { return open(t) }, world{file, live}.world(), world{shop, live}.world())
}

func TestIdentityAndState(t *testing.T) {
	p := served(t)
	require.Equal(t, "test", p.Identity()["schema"])
	require.Equal(t, Version, p.Identity()["linter"])
	box := lease(t, p, world{file, live})
	tools, err := box.Session().Tools(t.Context())
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(tools, func(o sandboxes.Tool) bool {
		return o.Name == "run_linter" && strings.Contains(string(o.InputSchema), `"x-entity":true`)
	}), "a path must have been read")
	start, err := sandboxes.StateOf(t.Context(), box)
	require.NoError(t, err)
	lint(t, box, "schema.sql")
	again, err := sandboxes.StateOf(t.Context(), box)
	require.NoError(t, err)
	require.Equal(t, start, again, "linting changes nothing")
	run(t, box, "DELETE FROM uses WHERE a = 1")
	again, err = sandboxes.StateOf(t.Context(), box)
	require.NoError(t, err)
	require.Equal(t, []string{`postgres: - row public.uses {"a":1,"b":"x"}`}, again.Diff)
}

// Leases that lint at once see their own databases.
func TestParallel(t *testing.T) {
	p := served(t)
	for i := range 6 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			box := lease(t, p, world{[]string{file, "CREATE TABLE nothing (a int)"}[i%2], live})
			run(t, box, fmt.Sprintf("ALTER TABLE orders ALTER note TYPE char(%d)", 10+i))
			want := []string{fmt.Sprintf("column-differs|orders|7|orders.note is character(%d), declared is text", 10+i)}
			if i%2 == 1 {
				want = []string{"missing-table|nothing|1|there is no table nothing in schema public"}
			}
			for range 5 {
				require.Equal(t, want, findings(t, box))
			}
		})
	}
}

// shop has six tables.
const shop = `-- what a shop needs
CREATE TABLE customers (
	id int PRIMARY KEY,
	email text NOT NULL UNIQUE
);
CREATE TABLE items (id int PRIMARY KEY, label text NOT NULL, price numeric(10,2) CHECK (price >= 0));
CREATE TABLE orders (
	id int PRIMARY KEY,
	customer_id int NOT NULL REFERENCES customers,
	placed date
);
CREATE INDEX ON orders (customer_id);
CREATE TABLE lines (
	order_id int REFERENCES orders, item_id int REFERENCES items, n int NOT NULL CHECK (n > 0),
	PRIMARY KEY (order_id, item_id)
);
CREATE INDEX ON lines (item_id);
CREATE TABLE stores (id int PRIMARY KEY, name text);
CREATE TABLE stock (store_id int REFERENCES stores, item_id int REFERENCES items, n int NOT NULL, PRIMARY KEY (store_id, item_id));
CREATE INDEX ON stock (item_id);
COMMENT ON TABLE stock IS 'what is where';
`

// BenchmarkRun lints a database of six tables.
func BenchmarkRun(b *testing.B) {
	box := lease(b, served(b), world{shop, shop})
	for b.Loop() {
		call(b, box, "run_linter", "path", "schema.sql")
	}
}

func BenchmarkDeclare(b *testing.B) {
	s := postgrestest.Local(b)
	for b.Loop() {
		if _, err := declare(b.Context(), s, shop); err != nil {
			b.Fatal(err)
		}
	}
}
