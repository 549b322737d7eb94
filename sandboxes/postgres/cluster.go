package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

const (
	superuser = "postgres"
	owner     = "mcpgym_owner"    // owns the objects of templates; no login
	verifier  = "mcpgym_verifier" // reads everything
)

// silence is how long a server may take to answer what is asked of it for us, not for an agent. One that takes longer hangs.
const silence = 10 * time.Second

// cluster is one run of the server, with its databases. Once it has failed it is never used again.
type cluster struct {
	Instance
	failed atomic.Bool // it does not answer, takes no sessions, or has lost ours
	room   string      // where a database of a world is to be made, in SQL

	busy  chan struct{} // held by whoever uses admin
	admin *pgconn.PgConn

	scratching chan struct{} // held by whoever uses scratch
	scratch    *pgconn.PgConn

	mu        sync.Mutex
	count     int // leases ever made, for their names
	uses      int // of templates, ever
	templates map[string]*template
}

func newCluster(i Instance) *cluster {
	return &cluster{Instance: i, busy: make(chan struct{}, 1), scratching: make(chan struct{}, 1), templates: map[string]*template{}}
}

func (c *cluster) alive() bool {
	select {
	case <-c.Ended:
		return false
	default:
		return !c.failed.Load()
	}
}

var errFailed = errors.New("the Postgres server has died or does not answer")

// stop ends the server, and with it whatever waits for it, and then the sessions that belong to no lease.
func (c *cluster) stop() error {
	c.failed.Store(true)
	err := c.Stop()
	c.busy <- struct{}{}
	if c.admin != nil {
		hangUp(c.admin)
	}
	<-c.busy
	c.scratching <- struct{}{}
	if c.scratch != nil {
		hangUp(c.scratch)
	}
	<-c.scratching
	c.mu.Lock()
	templates := slices.Collect(maps.Values(c.templates))
	c.mu.Unlock()
	for _, t := range templates {
		t.busy <- struct{}{}
		for _, readOnly := range []bool{false, true} {
			for r := t.pop(readOnly); r != nil; r = t.pop(readOnly) {
				r.hangUp()
			}
		}
		t.unlock()
	}
	return err
}

// connect opens a session. When a call's context ends, its statement is cancelled and the session goes on.
func (c *cluster) connect(ctx context.Context, user, database string) (*pgconn.PgConn, error) {
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("host=%s port=5432 user=%s dbname=%s sslmode=disable", c.Dir, user, database))
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams = map[string]string{"client_encoding": "UTF8"} // ParseConfig reads some from the environment
	cfg.Fallbacks, cfg.ConnectTimeout = nil, 0
	cfg.MaxProtocolMessageBodyLen = maxMessage
	cfg.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: time.Second}
	}
	limited, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	conn, err := pgconn.ConnectConfig(limited, cfg)
	if err != nil {
		if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
			<-limited.Done() // a dialer is a moment ahead of its context
		}
		const cannotConnectNow = "57P03" // it shuts down, or has lost a process and recovers
		if says, ok := errors.AsType[*pgconn.PgError](err); ctx.Err() == nil && (!ok || says.Code == cannotConnectNow) {
			c.failed.Store(true)
		}
		return nil, fmt.Errorf("connect to database %s as %s: %w", database, user, err)
	}
	return conn, nil
}

// hangUp closes a session without waiting for a server that does not answer.
func hangUp(c *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c.Close(ctx) // the error says that it was closed already
}

// cut says whether the server has ended a session that nobody uses. Such a session hears nothing else but notifications.
func cut(c *pgconn.PgConn) bool {
	if c.IsClosed() {
		return true
	}
	raw, err := c.Conn().(syscall.Conn).SyscallConn()
	if err != nil {
		return true
	}
	const notification = 'A'
	var next [1]byte
	waits := false
	// Not raw.Read, which waits for whoever reads: on a busy machine that is a goroutine of pgconn, which then reads until the
	// server says something.
	err = raw.Control(func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), next[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		waits = errors.Is(err, syscall.EAGAIN) || next[0] == notification
	})
	return err != nil || !waits
}

// control runs f on the superuser's session, which is opened if there is none. f must not take long.
func (c *cluster) control(ctx context.Context, f func(context.Context, *pgconn.PgConn) error) error {
	select {
	case c.busy <- struct{}{}:
		defer func() { <-c.busy }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !c.alive() {
		return errFailed
	}
	if c.admin == nil || c.admin.IsClosed() { // closed where a caller went away and the server was slow to hear of it
		admin, err := c.connect(ctx, superuser, "postgres")
		if err != nil {
			return err
		}
		if err := c.answered(ctx, admin, func(ctx context.Context) error { return run(ctx, admin, setUp) }); err != nil {
			hangUp(admin)
			return fmt.Errorf("set the server up: %w", err)
		}
		c.admin = admin
	}
	err := c.answered(ctx, c.admin, func(ctx context.Context) error { return f(ctx, c.admin) })
	if c.admin.IsClosed() && ctx.Err() == nil {
		c.failed.Store(true)
	}
	return err
}

// answered runs f, which asks the server by conn for what takes it no time. The cluster has failed where it stays silent,
// even to a request to cancel.
func (c *cluster) answered(ctx context.Context, conn *pgconn.PgConn, f func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	err := f(limited)
	if limited.Err() != nil && ctx.Err() == nil && conn.IsClosed() {
		c.failed.Store(true)
	}
	return err
}

// renew makes a session as it was at its start, as far as a session can.
func (c *cluster) renew(ctx context.Context, conn *pgconn.PgConn) error {
	return c.answered(ctx, conn, func(ctx context.Context) error {
		if err := run(ctx, conn, "ROLLBACK"); err != nil {
			return err
		}
		return run(ctx, conn, "DISCARD ALL")
	})
}

// check finds out whether the cluster takes sessions and answers them. It has failed where it does not.
func (c *cluster) check(ctx context.Context) {
	err := c.as(ctx, superuser, "postgres", func(conn *pgconn.PgConn) error {
		return c.answered(ctx, conn, func(ctx context.Context) error { return run(ctx, conn, "SELECT 1") })
	})
	if err != nil && ctx.Err() == nil {
		c.failed.Store(true)
	}
}

// setUp may run twice: the session may have been lost.
var setUp = `REVOKE CONNECT, TEMPORARY ON DATABASE postgres, template1 FROM PUBLIC;
DO $$ BEGIN
IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '` + owner + `') THEN
	CREATE ROLE ` + owner + ` NOLOGIN;
	CREATE ROLE ` + verifier + ` LOGIN BYPASSRLS IN ROLE pg_read_all_data, pg_read_all_stats;
	ALTER ROLE ` + verifier + ` SET default_transaction_read_only = on;
	ALTER ROLE ` + verifier + ` SET statement_timeout = '` + glancing.String() + `';
	ALTER ROLE ` + verifier + ` SET lock_timeout = '300ms';
	ALTER ROLE ` + verifier + ` SET search_path = public;
END IF; END $$`

// prepare sets a new cluster up. It makes a tablespace for the databases of worlds where there is a folder for it.
func (c *cluster) prepare(ctx context.Context) error {
	return c.control(ctx, func(ctx context.Context, admin *pgconn.PgConn) error {
		rows, err := query(ctx, admin, "SELECT current_setting('data_directory') || '/worlds' WHERE (pg_stat_file('worlds', true)).isdir")
		if err != nil || len(rows) == 0 {
			return err
		}
		c.room = " TABLESPACE worlds"
		return run(ctx, admin, "CREATE TABLESPACE worlds LOCATION "+Literal(string(rows[0][0])))
	})
}

// usage is what a database takes of what all share: its bytes, and the locks of its sessions.
func (c *cluster) usage(ctx context.Context, database string) (size, locks int64, err error) {
	err = c.control(ctx, func(ctx context.Context, admin *pgconn.PgConn) error {
		rows, err := query(ctx, admin, `SELECT pg_database_size(oid), (SELECT count(*) FROM pg_locks WHERE database = d.oid) FROM pg_database d WHERE datname = $1`, database)
		if err == nil {
			size, err = strconv.ParseInt(string(rows[0][0]), 10, 64)
		}
		if err == nil {
			locks, err = strconv.ParseInt(string(rows[0][1]), 10, 64)
		}
		return err
	})
	return size, locks, err
}

// exec runs statements on the superuser's session: each of sql is sent by itself.
func (c *cluster) exec(ctx context.Context, sql ...string) error {
	return c.control(ctx, func(ctx context.Context, admin *pgconn.PgConn) error {
		for _, q := range sql {
			if err := run(ctx, admin, q); err != nil {
				return err
			}
		}
		return nil
	})
}

// as runs f on a session of its own.
func (c *cluster) as(ctx context.Context, user, database string, f func(*pgconn.PgConn) error) error {
	conn, err := c.connect(ctx, user, database)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	return f(conn)
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
func (c *cluster) dropDatabase(ctx context.Context, name string) error {
	if err := c.deserted(ctx, name); err != nil {
		return err
	}
	if err := c.exec(ctx, "DROP DATABASE IF EXISTS "+name); err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// deserted waits until a database has no sessions.
func (c *cluster) deserted(ctx context.Context, name string) error {
	const patience = 200 * time.Millisecond
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for start := time.Now(); ; {
		look := "SELECT pid FROM pg_stat_activity WHERE datname = $1"
		if time.Since(start) > patience {
			look = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
		}
		var left int
		err := c.control(ctx, func(ctx context.Context, admin *pgconn.PgConn) error {
			rows, err := query(ctx, admin, look, name)
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
