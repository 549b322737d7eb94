package postgres

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// attacks are what an agent may try to leave behind, reach or break. Those that Postgres must refuse are marked by a !.
var attacks = [][]string{
	{"!CREATE ROLE r", "!CREATE ROLE r SUPERUSER", "!ALTER ROLE postgres SET work_mem = '1MB'", "!ALTER ROLE CURRENT_USER SUPERUSER", "!ALTER ROLE CURRENT_USER CREATEDB"},
	{"!ALTER SYSTEM SET work_mem = '1MB'", "!SELECT pg_reload_conf()", "!ALTER DATABASE postgres SET work_mem = '1MB'", "!SET session_preload_libraries = 'x'"},
	{"!SELECT pg_advisory_lock(1)", "!SELECT pg_try_advisory_xact_lock_shared(1, 2)", "!SELECT pg_cancel_backend(pg_backend_pid())"},
	{"SELECT nextval('items_id_seq')", "SELECT setval('customers_id_seq', 1000)", "ALTER SEQUENCE items_id_seq INCREMENT 7"},
	{"BEGIN", "!PREPARE TRANSACTION 'x'"},
	{"CREATE TEMP TABLE t (a int)", "CREATE TEMP VIEW v AS SELECT * FROM t", "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'"},
	{"!CREATE EXTENSION file_fdw", "!CREATE EXTENSION dblink", "?CREATE EXTENSION pg_trgm", "!CREATE LANGUAGE plpython3u"},
	{"SELECT lo_create(4711)", "SELECT lo_from_bytea(4712, 'abc')", "!SELECT lo_import('/etc/passwd')", "!SELECT lo_export(4711, '/tmp/x')"},
	{"!COMMIT; DROP TABLE items", "!SELECT 1; COMMIT; DROP TABLE items", "COMMIT", "BEGIN", "DROP TABLE items", "COMMIT"},
	{"LISTEN a", "NOTIFY a, 'x'", "SELECT pg_notify('a', 'y')"},
	{"!SELECT pg_terminate_backend(pg_backend_pid())", "!SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'postgres'", "SELECT 1"},
	{"!SELECT pg_read_file('PG_VERSION')", "!SELECT pg_ls_dir('.')", "!SELECT pg_stat_file('PG_VERSION')", "!COPY items TO '/tmp/x'", "!COPY items FROM '/etc/passwd'"},
	{"!COPY items TO PROGRAM 'cat'", "!COPY items FROM PROGRAM 'id'", "!DO $$ BEGIN EXECUTE 'COPY items TO PROGRAM ''cat'''; END $$"},
	{"ALTER ROLE CURRENT_USER SET work_mem = '1MB'", "ALTER ROLE CURRENT_USER PASSWORD 'x'", "SET work_mem = '2MB'"},
	{"DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "CREATE TABLE customers (id int)"},
	{"CREATE SCHEMA trap", "CREATE FUNCTION trap.count(anyelement) RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'", "SET search_path = trap, pg_catalog, public"},
	{"CREATE VIEW big AS SELECT i FROM generate_series(1, 100000) i", "CREATE TABLE copy AS SELECT * FROM big", "CREATE PUBLICATION pub FOR TABLE copy"},
	{"!CREATE DATABASE mine", "!DROP DATABASE postgres", "!CREATE TABLESPACE x LOCATION '/tmp'", "!SELECT pg_create_logical_replication_slot('x', 'pgoutput')"},
	{"!SET ROLE postgres", "!SET ROLE mcpgym_owner", "!SET SESSION AUTHORIZATION postgres", "!SET ROLE mcpgym_verifier"},
	{"BEGIN", "LOCK TABLE items", "DROP TABLE items CASCADE"},
	{"ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC", "GRANT ALL ON items TO PUBLIC", "GRANT ALL ON SCHEMA public TO mcpgym_verifier", "REASSIGN OWNED BY CURRENT_USER TO CURRENT_USER"},
	{"!VACUUM pg_authid, nothing", "!UPDATE pg_database SET datname = 'x'", "!DELETE FROM pg_authid", "!SELECT pg_switch_wal()"},
}

// attack runs one list of statements as an agent, and tells what it shows.
func attack(t testing.TB, box sandboxes.Sandbox, list []string, readOnly bool) (shown []string) {
	t.Helper()
	for _, q := range list {
		must, sql := q[0] == '!', strings.TrimLeft(q, "!?")
		r := ask(t, box, sql)
		if r.Volatile {
			r.Text = "volatile"
		}
		shown = append(shown, fmt.Sprintf("%s: %v %s", q, r.IsError, r.Text))
		if must {
			require.True(t, r.IsError, "%s: %s", sql, r.Text)
		} else if q[0] != '?' && !readOnly {
			require.False(t, r.IsError, "%s: %s", sql, r.Text)
		}
	}
	return shown
}

func episodes() int {
	if os.Getenv("MCPGYM_SOAK") != "" {
		return 1000
	}
	if testing.Short() {
		return 5
	}
	return len(attacks) + 1 // and as many of the other kind
}

// What an agent leaves, no other finds. What it sees, and what it leaves, is the same whatever the server runs in.
func TestHostileEpisodes(t *testing.T) {
	seen := map[bool][]string{} // on the first driver, by read only
	onDrivers(t, func(t *testing.T, s *Server) {
		for _, readOnly := range []bool{false, true} {
			t.Run(fmt.Sprintf("read only %v", readOnly), func(t *testing.T) {
				p := provider(t, s, readOnly, 2)
				start := stateOf(t, leased(t, p, 1))
				shown := []string{p.Identity()["postgres major"]}
				for i := range episodes() {
					p.Prefetch(sandboxes.World{Seed: 1})
					box := leased(t, p, 1)
					if got := stateOf(t, box); got.Hash != start.Hash {
						t.Fatalf("after %q the state differs: %q", attacks[(i+len(attacks)-1)%len(attacks)], got.Diff)
					}
					list := attacks[i%len(attacks)]
					if readOnly { // what a reader may switch off is no protection
						list = slices.Concat([]string{"SET default_transaction_read_only = off"}, list)
					}
					shown = append(shown, attack(t, box, list, readOnly)...)
					got := stateOf(t, box)
					shown = append(shown, got.Hash, strings.Join(got.Diff, "\n"))
					if readOnly {
						got.Diff = slices.DeleteFunc(got.Diff, func(d string) bool { return strings.HasPrefix(d, "+ setting of the role") })
						require.Empty(t, got.Diff, "%q", list)
					}
					require.NoError(t, box.Close())
				}
				require.NoError(t, p.Close())
				require.Empty(t, withoutIdle(current(t, s), left(t, s)))
				if seen[readOnly] == nil {
					seen[readOnly] = shown
				}
				require.Equal(t, seen[readOnly], shown)
			})
		}
		var settings int
		require.NoError(t, current(t, s).as(t.Context(), superuser, "postgres", func(c *pgconn.PgConn) error {
			rows, err := query(t.Context(), c, "SELECT FROM pg_file_settings WHERE sourcefile LIKE '%auto.conf' UNION ALL SELECT FROM pg_prepared_xacts")
			settings = len(rows)
			return err
		}))
		require.Zero(t, settings)
	})
}

// withoutIdle takes away the roles and databases that wait to be used again.
func withoutIdle(c *cluster, names []string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, tm := range c.templates {
		for _, r := range slices.Concat(tm.idle[true], tm.idle[false]) {
			names = slices.DeleteFunc(names, func(n string) bool { return n == "role "+r.role || n == "database "+r.role })
		}
	}
	return names
}

// A reader's session that is used again shows nothing of who used it before.
func TestReadersLeaveNothing(t *testing.T) {
	inTurn(t)
	onDrivers(t, func(t *testing.T, s *Server) {
		p := provider(t, s, true, 1)
		for _, c := range []struct{ leave, look, want string }{
			{"SET my.mark = 'x'", "SELECT coalesce(current_setting('my.mark', true), 'none')", `[["none"]]`},
			{"SELECT set_config('my.mark', 'x', false)", "SELECT coalesce(current_setting('my.mark', true), 'none')", `[["none"]]`},
			{"SELECT set_config('work_mem', '1MB', false)", "SHOW work_mem", `[["4MB"]]`},
			{"PREPARE p AS SELECT 1", "SELECT count(*) FROM pg_prepared_statements", `[[0]]`},
			{"ALTER ROLE CURRENT_USER SET work_mem = '1MB'", "SELECT count(*) FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole WHERE rolname = current_user AND setconfig::text LIKE '%work_mem%'", `[[0]]`},
			{"LISTEN mark", "SELECT count(*) FROM pg_listening_channels()", `[[0]]`},
			{"BEGIN", "SELECT 1 AS a", `[[1]],"row_count":1}`},
			{"CREATE TEMP TABLE t (a int)", "SELECT count(*) FROM pg_class WHERE relname = 't'", `[[0]]`},
			{"SELECT lo_create(5)", "SELECT count(*) FROM pg_largeobject_metadata", `[[0]]`},
		} {
			box := leased(t, p, 1)
			ask(t, box, "SET default_transaction_read_only = off")
			ask(t, box, c.leave)
			require.NoError(t, box.Close())
			box = leased(t, p, 1)
			require.Contains(t, ask(t, box, c.look).Text, c.want, c.leave)
			require.Contains(t, ask(t, box, "SHOW default_transaction_read_only").Text, "on")
			require.NoError(t, box.Close())
		}
	})
}

func TestReadersAreReused(t *testing.T) {
	onDrivers(t, func(t *testing.T, s *Server) {
		p := provider(t, s, true, 1)
		pid := func() string {
			box := leased(t, p, 3)
			defer box.Close()
			return ask(t, box, "SELECT pg_backend_pid()").Text
		}
		require.Equal(t, pid(), pid())
	})
}

// A database that its agent could have changed is used again only where it cannot have done so, and its state says that it
// has not.
func TestWritersAreReused(t *testing.T) {
	inTurn(t)
	onDrivers(t, func(t *testing.T, s *Server) {
		for _, c := range []struct {
			sql    []string
			state  bool // is read at the end
			reused bool
		}{
			{nil, false, true},
			{[]string{"SELECT count(*) FROM items", "EXPLAIN SELECT 1", "SELECT nothing"}, true, true},
			{[]string{"SELECT count(*) FROM items"}, false, false},
			{[]string{"UPDATE items SET price = price"}, true, false},
			{[]string{"BEGIN", "DELETE FROM items", "ROLLBACK"}, true, false},
			{[]string{"WITH d AS (DELETE FROM items WHERE false RETURNING id) SELECT count(*) FROM d"}, true, false},
			{[]string{"EXPLAIN ANALYZE SELECT 1"}, true, false},
			{[]string{"SELECT nextval('items_id_seq') / 0"}, true, false},
			{[]string{"SELECT setval('items_id_seq', 100)"}, true, false},
			{[]string{"SELECT 1 AS a INTO b", "DROP TABLE b"}, true, false},
			{[]string{"CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'", "SELECT f()", "DROP FUNCTION f()"}, true, false},
			{[]string{"SELECT lo_create(5), lo_unlink(5)"}, true, false},
			{[]string{"SET idle_session_timeout = 1", "SELECT pg_sleep(0.01)"}, true, false},
			{[]string{"SELECT pg_terminate_backend(pg_backend_pid())"}, true, true},
			{[]string{"LISTEN mark"}, true, false},
		} {
			l, err := s.open(t.Context(), shop, false)
			require.NoError(t, err)
			for _, q := range c.sql {
				_, _ = l.statement(t.Context(), q) // refused or not
			}
			if c.state {
				leaseState(t, l)
			}
			require.NoError(t, l.Close())
			next, err := s.open(t.Context(), shop, false)
			require.NoError(t, err)
			require.Equal(t, c.reused, next.client == l.client, "%q", c.sql)
			require.Empty(t, leaseState(t, next).Diff)
			_, err = next.statement(t.Context(), "COMMIT") // is kept no longer
			require.NoError(t, err)
			require.NoError(t, next.Close())
		}
	})
}

// Leases that run at once see their own marks and nobody else's.
func TestMarksNeverCross(t *testing.T) {
	onDrivers(t, func(t *testing.T, s *Server) {
		p := provider(t, s, false, 2)
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for i := range 3 {
					mark := fmt.Sprintf("mark %d %d", g, i)
					if err := markAndLook(t.Context(), p, mark); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	})
}

func markAndLook(ctx context.Context, p *Provider, mark string) error {
	p.Prefetch(sandboxes.World{Seed: 1})
	box, err := p.Lease(ctx, sandboxes.World{Seed: 1})
	if err != nil {
		return err
	}
	defer box.Close()
	for _, q := range []string{"INSERT INTO customers (name) VALUES ('" + mark + "')", "SELECT pg_sleep(0.01)", "SELECT string_agg(name, ';') FROM customers WHERE name LIKE 'mark%'"} {
		r, err := box.Session().Call(ctx, "query_database", sqlArgs(q))
		if err != nil || r.IsError {
			return fmt.Errorf("%s: %v %s", q, err, r.Text)
		}
		if strings.HasPrefix(q, "SELECT string_agg") && !strings.Contains(r.Text, `[["`+mark+`"]]`) {
			return fmt.Errorf("%s sees %s", mark, r.Text)
		}
	}
	return box.Close()
}

// postmaster gives the process id of a local server.
func postmaster(t testing.TB, s *Server) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(current(t, s).Dir, "data", "postmaster.pid"))
	require.NoError(t, err)
	line, _, _ := strings.Cut(string(data), "\n")
	pid, err := strconv.Atoi(line)
	require.NoError(t, err)
	return pid
}

func TestSweep(t *testing.T) {
	parent := t.TempDir()
	gone, mine, other := filepath.Join(parent, prefix+"4194305-1"), filepath.Join(parent, prefix+strconv.Itoa(os.Getpid())+"-1"), filepath.Join(parent, prefix+"x")
	for _, d := range []string{gone, mine, other} {
		require.NoError(t, os.Mkdir(d, 0o700))
	}
	sweep(parent)
	require.NoDirExists(t, gone)
	require.DirExists(t, mine)
	require.DirExists(t, other)
}
