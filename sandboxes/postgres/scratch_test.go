package postgres

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// one is the one value that a query gives in a scratch transaction.
func one(t *testing.T, c *pgconn.PgConn, sql string) string {
	t.Helper()
	rows, err := query(t.Context(), c, sql)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	return string(rows[0][0])
}

const objects = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"

// empty says whether the next call of Scratch finds nothing of those before.
func empty(t *testing.T, s *Server) {
	t.Helper()
	require.NoError(t, s.Scratch(t.Context(), func(c *pgconn.PgConn) error {
		require.Equal(t, "0", one(t, c, objects))
		require.Equal(t, "5s public", one(t, c, "SELECT current_setting('statement_timeout') || ' ' || current_setting('search_path')"))
		require.Equal(t, "0", one(t, c, "SELECT count(*) FROM pg_prepared_statements"))
		return nil
	}))
}

func TestScratch(t *testing.T) {
	onDrivers(t, func(t *testing.T, s *Server) {
		box := leased(t, provider(t, s, false, 1), 1)
		failed := errors.New("failed")
		require.NoError(t, s.Scratch(t.Context(), func(c *pgconn.PgConn) error {
			for _, q := range []string{"CREATE TABLE a (b int PRIMARY KEY)", "PREPARE p AS SELECT 1", "SET statement_timeout = 0"} {
				require.NoError(t, run(t.Context(), c, q))
			}
			require.Equal(t, "2", one(t, c, objects))
			require.Equal(t, "0", one(t, c, "SELECT count(*) FROM pg_database WHERE datname <> current_database() AND has_database_privilege(oid, 'CONNECT') AND datallowconn"))
			require.Equal(t, "f", one(t, c, "SELECT rolsuper OR rolcreatedb OR rolcreaterole OR rolbypassrls OR rolreplication FROM pg_roles WHERE rolname = current_user"))
			return nil
		}))
		empty(t, s)
		require.ErrorIs(t, s.Scratch(t.Context(), func(c *pgconn.PgConn) error {
			require.NoError(t, run(t.Context(), c, "CREATE TABLE a ()"))
			require.Error(t, run(t.Context(), c, "SELECT 1/0"))
			return failed
		}), failed)
		empty(t, s)
		require.ErrorContains(t, s.Scratch(t.Context(), func(c *pgconn.PgConn) error {
			return run(t.Context(), c, "CREATE TABLE a (); COMMIT")
		}), "ended the scratch transaction")
		empty(t, s)
		require.Error(t, s.Scratch(t.Context(), func(c *pgconn.PgConn) error {
			return run(t.Context(), c, "SELECT pg_terminate_backend(pg_backend_pid())")
		}))
		empty(t, s)
		require.False(t, ask(t, box, "SELECT 1").IsError)
	})
}

// Calls take turns, and one that waits for its turn ends with its context.
func TestScratchTurns(t *testing.T) {
	s := local(t)
	require.NoError(t, s.Scratch(t.Context(), func(*pgconn.PgConn) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, s.Scratch(ctx, func(*pgconn.PgConn) error { return nil }), context.DeadlineExceeded)
		return nil
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Scratch(ctx, func(c *pgconn.PgConn) error { return run(ctx, c, "CREATE TABLE a (); SELECT pg_sleep(4)") }), context.DeadlineExceeded)
	empty(t, s)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				if err := s.Scratch(t.Context(), func(c *pgconn.PgConn) error { return run(t.Context(), c, "CREATE TABLE a ()") }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// A server that has died is started again.
func TestScratchAfterDeath(t *testing.T) {
	local(t) // skips
	s, err := Local(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	empty(t, s)
	ended := current(t, s).Ended
	require.NoError(t, syscall.Kill(postmaster(t, s), syscall.SIGKILL))
	<-ended // sessions live on for a moment
	empty(t, s)
}
