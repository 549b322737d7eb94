package postgres

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/envs"
	"github.com/mcpgym/mcpgym/sandboxes"
)

// whenRead makes a function that does something to whoever plans a query on items, in the episode's own database alone: in
// another one in which the same calls are made, nothing would be amiss.
func whenRead(does string) []string {
	return []string{"CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $f$ BEGIN IF current_user = 'mcpgym_verifier' AND current_database() = '$db' THEN " + does +
		" END IF; RETURN 1; END $f$", "CREATE INDEX ON items ((f(1)))"}
}

const deaf = "LOOP BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP;"

// However an agent keeps the verifier out, or harms the server, the episode is its failure and not void, and others go on.
func TestBlinded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		slow   time.Duration // that it takes at least
		sql    []string
		state  string // is in a line of the diff
		answer string // of the verifier's question: its error, or else its value
	}{
		{"an error", 0, whenRead("RAISE EXCEPTION 'no';"), "+ unreadable: ERROR P0001: no", "ERROR P0001: no"},
		{"an error like the server's", 0, whenRead("RAISE EXCEPTION 'no' USING ERRCODE = '53200';"), "+ unreadable: ERROR 53200: no", "ERROR 53200: no"},
		{"the session ended", 0, whenRead("PERFORM pg_terminate_backend(pg_backend_pid());"), "+ unreadable: ERROR 42501", "ERROR 42501"},
		{"all verifiers' sessions ended", 0, []string{"ALTER TABLE items RENAME TO old",
			"CREATE VIEW items AS SELECT id, pg_terminate_backend(pid) FROM old, pg_stat_activity WHERE usename = 'mcpgym_verifier'"}, "+ column public.old", "ERROR 42501"},
		{"an impatient session", 0, whenRead("PERFORM set_config('idle_in_transaction_session_timeout', '1', false), set_config('idle_session_timeout', '1', false);"), "+ ", ""},
		{"a sleep", 10 * time.Second, whenRead("PERFORM pg_sleep(60);"), "+ unreadable: ERROR 57014", "ERROR 57014"},
		{"a sleep that nothing ends", 40 * time.Second, whenRead(deaf), "+ unreadable: it takes longer than", "it takes longer than"},
		{"a row too large", 0, []string{"SET default_toast_compression = 'lz4'", "CREATE TABLE big AS SELECT repeat('x', 35000000) AS a, '' AS b WHERE current_database() = '$db'",
			"UPDATE big SET b = repeat('x', 35000000)"}, "+ unreadable: ERROR 54000", "100"},
		{"a lock that outlives its session", 6 * time.Second, []string{"DO $$ BEGIN LOCK TABLE items; " + deaf + " END $$"}, "", "100"},
		{"a lock in a transaction", 0, []string{"BEGIN", "DELETE FROM items", "LOCK TABLE items"}, "", "100"},
		{"advisory locks", 0, []string{"SELECT count(pg_advisory_lock(i)) FROM generate_series(1, 100000) i"}, "", "100"},
		{"no session any more", 0, []string{"ALTER ROLE CURRENT_USER SET local_preload_libraries = 'nothing'", "SET idle_session_timeout = 1", "SELECT 1", "SELECT 1"}, "+ setting of the role", "100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.slow > 20*time.Second && os.Getenv("MCPGYM_SOAK") == "" || c.slow > 0 && testing.Short() {
				t.Skipf("it takes %v", c.slow)
			}
			t.Parallel()
			onDrivers(t, func(t *testing.T, s *Server) {
				t.Parallel()
				p := provider(t, s, false, 1)
				other := leased(t, p, 1)
				start := stateOf(t, other)
				e := env(t, p, time.Minute)
				e.Trajectory().Task.Assertions = []envs.Assertion{{Ask: sandboxes.Question{Kind: "sql", Text: "SELECT count(*) FROM items"}, Want: json.RawMessage("100")}}
				var named struct{ Rows [][]string }
				require.NoError(t, json.Unmarshal([]byte(play(t, e, "SELECT current_database()").Text), &named))
				for _, q := range c.sql {
					play(t, e, strings.ReplaceAll(q, "$db", named.Rows[0][0]))
					time.Sleep(10 * time.Millisecond) // for what happens to an idle session
				}
				_, err := e.Step(t.Context(), envs.Action{Text: "done"})
				require.NoError(t, err)
				tr := e.Trajectory()
				require.Nil(t, tr.Void)
				require.Equal(t, envs.EndAnswer, tr.End)
				require.NotNil(t, tr.State)
				require.Contains(t, strings.Join(tr.State.Diff, "\n"), c.state)
				require.Equal(t, c.state == "", tr.State.Hash == start.Hash, "%q", tr.State.Diff)
				require.Contains(t, tr.Probes[0].Err+string(tr.Probes[0].Value), c.answer)
				require.Equal(t, start, stateOf(t, other))
				require.NoError(t, works(t.Context(), p, start))
			})
		})
	}
}

// The room for locks is everybody's.
func TestLocks(t *testing.T) {
	t.Parallel()
	onDrivers(t, func(t *testing.T, s *Server) {
		t.Parallel()
		box := leased(t, provider(t, s, false, 1), 1)
		require.False(t, ask(t, box, "SELECT count(lo_create(i)) FROM generate_series(1, 12000) i").IsError)
		ask(t, box, "BEGIN")
		r := ask(t, box, "SELECT count(lo_unlink(i)) FROM generate_series(1, 12000) i, pg_sleep(0.2)")
		require.Contains(t, r.Text, "ERROR 53200: canceling statement: it needs more than the limit of 4000 locks")
		require.Contains(t, ask(t, box, "ROLLBACK").Text, "ROLLBACK")
		require.Contains(t, ask(t, box, "SELECT count(*) < 100 FROM pg_locks JOIN pg_database d ON d.oid = database AND datname = current_database()").Text, "[[true]]")
	})
}
