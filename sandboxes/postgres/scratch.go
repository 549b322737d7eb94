package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// scratcher is the role of Scratch and the name of its database, which it owns: it may do nothing in any other.
const scratcher = "mcpgym_scratch"

// Scratch runs f on a session in an empty database, inside a transaction that is rolled back afterwards, whatever f returns.
// The session belongs to an ordinary role, without rights in the databases of leases; a statement may take StatementLimit.
// Calls take turns. It is an error if f ends the transaction itself. The session must not be used after f has returned.
func (s *Server) Scratch(ctx context.Context, f func(*pgconn.PgConn) error) error {
	for again := false; ; again = true {
		c, err := s.live(ctx)
		if err != nil {
			return err
		}
		begun, err := c.scratchpad(ctx, f)
		if begun || again || c.alive() || ctx.Err() != nil {
			return cause(ctx, err)
		}
	}
}

// scratchpad is Scratch on one cluster. Where it did not come to run f, it says that it has not begun.
func (c *cluster) scratchpad(ctx context.Context, f func(*pgconn.PgConn) error) (begun bool, err error) {
	select {
	case c.scratching <- struct{}{}:
		defer func() { <-c.scratching }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if err := c.beginScratch(ctx); err != nil {
		return false, fmt.Errorf("begin a scratch transaction: %w", err)
	}
	defer func() {
		ended := c.scratch.TxStatus() == 'I'
		if !ended && c.renew(context.WithoutCancel(ctx), c.scratch) == nil {
			return
		}
		hangUp(c.scratch) // the next call makes the database anew
		if ended && err == nil {
			err = errors.New("a statement has ended the scratch transaction")
		}
	}()
	return true, f(c.scratch)
}

// beginScratch begins a transaction. Where the session was lost, the database is made anew: only a session that was there all
// the time knows that it is empty.
func (c *cluster) beginScratch(ctx context.Context) error {
	begin := func(ctx context.Context) error { return run(ctx, c.scratch, "BEGIN") }
	if c.scratch != nil {
		if !c.scratch.IsClosed() && c.answered(ctx, c.scratch, begin) == nil {
			return nil
		}
		hangUp(c.scratch)
	}
	if err := c.dropDatabase(ctx, scratcher); err != nil {
		return err
	}
	if err := c.exec(ctx, "DROP ROLE IF EXISTS "+scratcher,
		"CREATE ROLE "+scratcher+" LOGIN; ALTER ROLE "+scratcher+" SET search_path = public;"+
			fmt.Sprintf("ALTER ROLE %s SET statement_timeout = %d", scratcher, StatementLimit.Milliseconds()),
		"CREATE DATABASE "+scratcher+" OWNER "+scratcher+" TEMPLATE template0 STRATEGY FILE_COPY",
		"REVOKE ALL ON DATABASE "+scratcher+" FROM PUBLIC"); err != nil {
		return fmt.Errorf("make database %s: %w", scratcher, err)
	}
	conn, err := c.connect(ctx, scratcher, scratcher)
	if err != nil {
		return err
	}
	c.scratch = conn
	return c.answered(ctx, conn, begin)
}
