// Package postgres leases live Postgres databases.
//
// All leases of a process share one Server. A world that its agent may change is a database of its own, cloned from a
// template and owned by a role of its own, and is dropped afterwards. Worlds that their agents may only read share one
// database, under roles that can do nothing but read. Verifiers look through a login of their own: it reads everything but
// is no superuser, because a view that an agent has rigged runs with the rights of whoever looks.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

const (
	superuser = "postgres"
	owner     = "mcpgym_owner"    // owns the objects of templates; no login
	verifier  = "mcpgym_verifier" // reads everything
)

// Settings are the server settings that worlds rely on, each as name=value. A database lives for one episode, so nothing is
// kept safe from a crash. What leases would share and an agent could use up is turned off.
func Settings() []string {
	return []string{
		"fsync=off", "full_page_writes=off", "synchronous_commit=off", "wal_level=minimal", "max_wal_senders=0",
		"jit=off", "autovacuum=off", "max_prepared_transactions=0", "max_connections=200", "shared_buffers=64MB",
		"max_parallel_workers=0", "temp_file_limit=256MB", "dynamic_shared_memory_type=mmap", "timezone=UTC", "datestyle=ISO", "lc_messages=C",
	}
}

// Server is a running Postgres server that nobody else uses. Its methods may be called concurrently.
type Server struct {
	dir  string // folder of the socket
	stop func() error

	busy  chan struct{} // held by whoever uses admin
	admin *pgconn.PgConn

	mu        sync.Mutex
	count     int // leases ever made, for their names
	templates map[string]*template
	closed    bool
}

// Attach uses a server that was started elsewhere, through the Unix socket in dir. It has been made by initdb with the user
// postgres, trusts local connections and runs with Settings. Close calls stop.
func Attach(dir string, stop func() error) *Server {
	return &Server{dir: dir, stop: stop, busy: make(chan struct{}, 1), templates: map[string]*template{}}
}

// DSN returns the connection string of a database of the server, for its superuser.
func (s *Server) DSN(database string) string { return s.dsn(superuser, database) }

func (s *Server) dsn(user, database string) string {
	return fmt.Sprintf("host=%s port=5432 user=%s dbname=%s sslmode=disable", s.dir, user, database)
}

// Close stops the server. It may be called twice.
func (s *Server) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.busy <- struct{}{}
	defer func() { <-s.busy }()
	if s.admin != nil {
		hangUp(s.admin)
	}
	return s.stop()
}

// connect opens a session. When a call's context ends, its statement is cancelled and the session goes on.
func (s *Server) connect(ctx context.Context, user, database string) (*pgconn.PgConn, error) {
	cfg, err := pgconn.ParseConfig(s.dsn(user, database))
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams = map[string]string{"client_encoding": "UTF8"} // ParseConfig reads some from the environment
	cfg.Fallbacks = nil
	cfg.MaxProtocolMessageBodyLen = maxMessage
	cfg.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: time.Second}
	}
	c, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to database %s as %s: %w", database, user, err)
	}
	return c, nil
}

// hangUp closes a session without waiting for a server that does not answer.
func hangUp(c *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c.Close(ctx) // the error says that it was closed already
}

// control runs f on the superuser's session, which is opened if there is none, or none any more.
func (s *Server) control(ctx context.Context, f func(*pgconn.PgConn) error) error {
	select {
	case s.busy <- struct{}{}:
		defer func() { <-s.busy }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return errors.New("the Postgres server is closed")
	}
	if s.admin == nil || s.admin.IsClosed() {
		c, err := s.connect(ctx, superuser, "postgres")
		if err != nil {
			return err
		}
		s.admin = c
		if err := run(ctx, c, setUp); err != nil {
			return fmt.Errorf("set the server up: %w", err)
		}
	}
	return f(s.admin)
}

// setUp may run twice: the session may have been lost.
const setUp = `REVOKE CONNECT, TEMPORARY ON DATABASE postgres, template1 FROM PUBLIC;
DO $$ BEGIN
IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '` + owner + `') THEN
	CREATE ROLE ` + owner + ` NOLOGIN;
	CREATE ROLE ` + verifier + ` LOGIN BYPASSRLS IN ROLE pg_read_all_data, pg_read_all_stats;
	ALTER ROLE ` + verifier + ` SET default_transaction_read_only = on;
	ALTER ROLE ` + verifier + ` SET statement_timeout = '20s';
	ALTER ROLE ` + verifier + ` SET lock_timeout = '300ms';
	ALTER ROLE ` + verifier + ` SET search_path = public;
END IF; END $$`

// exec runs statements on the superuser's session: each of sql is sent by itself.
func (s *Server) exec(ctx context.Context, sql ...string) error {
	return s.control(ctx, func(c *pgconn.PgConn) error {
		for _, q := range sql {
			if err := run(ctx, c, q); err != nil {
				return err
			}
		}
		return nil
	})
}

// run runs statements, as one transaction where they are several.
func run(ctx context.Context, c *pgconn.PgConn, sql string) error {
	_, err := c.Exec(ctx, sql).ReadAll()
	return err
}

// query returns the rows of one statement as text, nil for NULL.
func query(ctx context.Context, c *pgconn.PgConn, sql string, args ...string) ([][][]byte, error) {
	params := make([][]byte, len(args))
	for i, a := range args {
		params[i] = []byte(a)
	}
	r := c.ExecParams(ctx, sql, params, nil, nil, nil).Read()
	return r.Rows, r.Err
}

// dropDatabase drops a database whose clients were told to go. A DROP that finds a session waits 100 ms and looks again, so
// it is sent when none is left; who stays is terminated.
func (s *Server) dropDatabase(ctx context.Context, name string) error {
	if err := s.deserted(ctx, name); err != nil {
		return err
	}
	if err := s.exec(ctx, "DROP DATABASE IF EXISTS "+name); err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// deserted waits until a database has no sessions.
func (s *Server) deserted(ctx context.Context, name string) error {
	const patience = 200 * time.Millisecond
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for start := time.Now(); ; {
		look := "SELECT pid FROM pg_stat_activity WHERE datname = $1"
		if time.Since(start) > patience {
			look = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
		}
		var left int
		err := s.control(ctx, func(c *pgconn.PgConn) error {
			rows, err := query(ctx, c, look, name)
			left = len(rows)
			return err
		})
		if err != nil {
			return fmt.Errorf("wait for the sessions of database %s: %w", name, err)
		}
		if left == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for %d sessions of database %s: %w", left, name, ctx.Err())
		}
	}
}
