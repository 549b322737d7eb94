package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// A server that has died is started anew by whoever needs it first, once, and by everybody who needs it while that fails.
func TestServerStartsAnew(t *testing.T) {
	local(t) // skips
	var boots atomic.Int32
	var full atomic.Bool
	errFull := errors.New("no room")
	s, err := Start(t.Context(), func(ctx context.Context) (Instance, error) {
		boots.Add(1)
		if full.Load() {
			return Instance{}, errFull
		}
		return bootLocal(ctx)
	})
	require.NoError(t, err)
	p := provider(t, s, false, 1)
	old := leased(t, p, 1)
	p.Prefetch(sandboxes.World{Seed: 1})
	require.Eventually(t, func() bool { return p.Ready() == 1 }, 10*time.Second, time.Millisecond)
	require.NoError(t, current(t, s).Stop())

	full.Store(true)
	for range 3 {
		_, err := p.Lease(t.Context(), sandboxes.World{Seed: 1})
		f, ok := errors.AsType[*sandboxes.Fault](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, sandboxes.FaultLease, f.Kind)
		require.ErrorIs(t, err, errFull)
	}
	require.EqualValues(t, 4, boots.Load())
	full.Store(false)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = p.Lease(ended, sandboxes.World{Seed: 1})
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 4, boots.Load(), "nobody waits for it")

	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			box, err := p.Lease(t.Context(), sandboxes.World{Seed: 1})
			if err == nil {
				err = box.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 5, boots.Load())
	require.NoError(t, old.Close())
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = p.Lease(t.Context(), sandboxes.World{Seed: 1})
	require.ErrorContains(t, err, "closed")
	require.EqualValues(t, 5, boots.Load())

	full.Store(true)
	_, err = Start(t.Context(), func(context.Context) (Instance, error) { return Instance{}, errFull })
	require.ErrorIs(t, err, errFull)
}

// What an earlier server could not free is said by Close.
func TestServerReportsWhatIsLeft(t *testing.T) {
	local(t) // skips
	errLeft := errors.New("the folder is busy")
	s, err := Start(t.Context(), func(ctx context.Context) (Instance, error) {
		i, err := bootLocal(ctx)
		stop := i.Stop
		i.Stop = func() error { return errors.Join(errLeft, stop()) }
		return i, err
	})
	require.NoError(t, err)
	first := current(t, s)
	first.failed.Store(true)
	require.NotSame(t, first, current(t, s))
	err = s.Close()
	require.ErrorIs(t, err, errLeft)
	require.Len(t, err.(interface{ Unwrap() []error }).Unwrap(), 2, "of both")
	require.NoError(t, s.Close())
}

func TestTools(t *testing.T) {
	s := local(t)
	for _, c := range []struct{ named, served []string }{
		{nil, []string{"describe_table", "explain", "list_tables", "query_database"}},
		{[]string{"query_database", "list_tables"}, []string{"list_tables", "query_database"}},
	} {
		p, err := New(t.Context(), s, nil, shopOf(true), 1, c.named...)
		require.NoError(t, err)
		tools, err := leased(t, p, 1).Session().Tools(t.Context())
		require.NoError(t, err)
		var served []string
		for _, tool := range tools {
			served = append(served, tool.Name)
			require.Equal(t, tool.Name == "describe_table", strings.Contains(string(tool.InputSchema), `"x-entity":true`), "%s names what must have been read", tool.Name)
		}
		slices.Sort(served)
		require.Equal(t, c.served, served)
		require.NoError(t, p.Close())
	}
	_, err := New(t.Context(), s, nil, shopOf(true), 1, "query_database", "drop_database")
	require.ErrorContains(t, err, `"drop_database"`)
}

// Templates that nobody uses make room for others, and are built again where somebody wants them.
func TestTemplatesAreEvicted(t *testing.T) {
	inTurn(t)
	onDrivers(t, func(t *testing.T, s *Server) {
		c := current(t, s)
		setup := func(i int) string {
			return fmt.Sprintf("CREATE TABLE evicted (a int); INSERT INTO evicted VALUES (%d)", i)
		}
		there := func() (found []string) {
			for i := range 4 {
				for _, suffix := range []string{"", "_ro"} {
					name := templateName(setup(i)) + suffix
					require.NoError(t, c.control(t.Context(), func(ctx context.Context, su *pgconn.PgConn) error {
						rows, err := query(ctx, su, "SELECT FROM pg_database WHERE datname = $1", name)
						if len(rows) > 0 {
							found = append(found, fmt.Sprint(i, suffix))
						}
						return err
					}))
				}
			}
			return found
		}
		require.NoError(t, c.evict(t.Context(), 0)) // those of other tests
		var states []sandboxes.State
		for i := range 4 {
			l, err := s.open(t.Context(), setup(i), i%2 == 0)
			require.NoError(t, err)
			states = append(states, leaseState(t, l))
			require.NoError(t, l.Close())
		}
		require.Equal(t, []string{"0", "0_ro", "1", "2", "2_ro", "3"}, there())
		require.Len(t, left(t, s), 6, "four roles, two of them with clones")
		require.NoError(t, c.evict(t.Context(), 6))
		require.Equal(t, []string{"0", "0_ro", "1", "2", "2_ro", "3"}, there(), "clones go first")
		require.Len(t, left(t, s), 2)
		held, err := s.open(t.Context(), setup(0), true)
		require.NoError(t, err)
		require.NoError(t, c.evict(t.Context(), 5))
		require.Equal(t, []string{"0", "0_ro", "2", "2_ro", "3"}, there(), "number 1 was used longest ago")
		require.NoError(t, c.evict(t.Context(), 0))
		require.Equal(t, []string{"0", "0_ro"}, there(), "number 0 is in use")
		require.NoError(t, held.Close())
		for i := range 4 {
			l, err := s.open(t.Context(), setup(i), i%2 == 0)
			require.NoError(t, err)
			require.Equal(t, states[i], leaseState(t, l))
			require.NoError(t, l.Close())
		}
		c.mu.Lock()
		for i := range maxDatabases { // of databases that exist no more
			name := fmt.Sprintf("t0_%d", i)
			c.templates[name] = &template{name: name, databases: 1, busy: make(chan struct{}, 1)}
		}
		c.mu.Unlock()
		l, err := s.open(t.Context(), setup(0), true)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		n := 0
		c.mu.Lock()
		for _, tm := range c.templates {
			n += tm.databases
		}
		c.mu.Unlock()
		require.Equal(t, maxDatabases, n)
		require.NoError(t, c.evict(t.Context(), 0))
	})
}

// The state of a reader that has only queried is not read again, any other is.
func TestReadersState(t *testing.T) {
	inTurn(t)
	onDrivers(t, func(t *testing.T, s *Server) {
		first, err := s.open(t.Context(), shop, true)
		require.NoError(t, err)
		defer first.Close()
		for _, c := range []struct {
			sql    string
			failed bool
			read   bool
			diff   []string
		}{
			{"SELECT count(*) FROM items", false, false, nil},
			{"SELECT nothing", true, false, nil},
			{"  with x as (select 1) select * from x", false, false, nil},
			{"UPDATE items SET price = 0", true, true, nil},
			{"SELECT set_config('work_mem', '1MB', false)", false, true, nil},
			{"DO $$ BEGIN PERFORM set_config('default_transaction_read_only', 'off', false); COMMIT; " +
				"ALTER ROLE CURRENT_USER SET work_mem = '1MB'; COMMIT; PERFORM 1 / 0; END $$", true, true, []string{"+ setting of the role: work_mem=1MB"}},
		} {
			l, err := s.open(t.Context(), shop, true)
			require.NoError(t, err)
			require.NotSame(t, first.client, l.client)
			if l.verifier != nil {
				hangUp(l.verifier)
			}
			l.verifier = nil
			_, err = l.statement(t.Context(), c.sql)
			require.Equal(t, c.failed, err != nil, "%s: %v", c.sql, err)
			got := leaseState(t, l)
			require.Equal(t, c.diff, got.Diff, c.sql)
			require.Equal(t, c.diff == nil, got.Hash == first.start.hash, c.sql)
			require.Equal(t, c.read, l.verifier != nil, c.sql)
			require.NoError(t, l.Close())
		}
	})
}

// An agent may have its session ended while it thinks. It is told, and nothing runs outside of the transaction it was in.
func TestSessionEndsWhileItWaits(t *testing.T) {
	onDrivers(t, func(t *testing.T, s *Server) {
		box := leased(t, provider(t, s, false, 1), 1)
		for _, q := range []string{"SET idle_in_transaction_session_timeout = 30", "BEGIN", "DELETE FROM items WHERE id = 1"} {
			require.False(t, ask(t, box, q).IsError)
		}
		time.Sleep(300 * time.Millisecond)
		r := ask(t, box, "DELETE FROM items WHERE id = 2")
		require.True(t, r.IsError, r.Text)
		require.Contains(t, r.Text, "was not run")
		require.Contains(t, ask(t, box, "SELECT count(*) FROM items").Text, "[[100]]")
		require.True(t, current(t, s).alive())
	})
}

func leaseState(t *testing.T, l *lease) sandboxes.State {
	t.Helper()
	s, err := l.State(t.Context())
	require.NoError(t, err)
	return s
}

// An agent that fills its database is told where the end is. Others and those that come go on meanwhile.
func TestGrowthIsLimited(t *testing.T) {
	inTurn(t)
	onDrivers(t, func(t *testing.T, s *Server) {
		p := provider(t, s, false, 1)
		hog, sibling := leased(t, p, 1), leased(t, p, 1)
		require.False(t, ask(t, hog, "CREATE TABLE fill (t text)").IsError)
		require.False(t, ask(t, hog, "ALTER TABLE fill ALTER t SET STORAGE EXTERNAL").IsError)
		fill := func(rows int) sandboxes.Result {
			return ask(t, hog, fmt.Sprintf("INSERT INTO fill SELECT repeat('x', 100000) FROM generate_series(1, %d)", rows))
		}
		r := fill(100_000)
		require.True(t, r.IsError, r.Text)
		require.Contains(t, r.Text, "ERROR 53100", "in one statement")
		require.False(t, ask(t, hog, "TRUNCATE fill").IsError)
		n := 0
		for r = fill(50); !r.IsError; r = fill(50) {
			n++
			require.Less(t, n, 100)
		}
		require.Contains(t, r.Text, "ERROR 53100", "in many statements")
		require.Greater(t, n, 10)
		require.False(t, ask(t, sibling, "INSERT INTO customers (name) SELECT repeat('y', 1000) FROM generate_series(1, 1000)").IsError)
		require.NoError(t, works(t.Context(), p, stateOf(t, leased(t, p, 1))))
		require.False(t, ask(t, hog, "DROP TABLE fill").IsError)
		require.False(t, ask(t, hog, "SELECT pg_sleep(0.1)").IsError)
	})
}
