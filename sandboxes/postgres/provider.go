package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

// Version changes whenever the tools, their results or the reading of states do.
const Version = "1"

// StatementLimit is how long a statement of an agent may take.
const StatementLimit = 5 * time.Second

// releasing bounds what is done for a lease that is over.
const releasing = 20 * time.Second

// Schema gives the SQL that sets a world up, and says whether its agent may only read. The SQL runs as an ordinary role in
// an empty database; it may be several statements. Equal worlds must give equal SQL, so it must not ask for the time.
type Schema func(sandboxes.World) (setup string, readOnly bool, err error)

// Provider leases databases of one Server. It is a sandboxes.Provider.
type Provider struct {
	*sandboxes.Pool
	tools *mcpmem.Provider[*lease]
}

// New returns a provider of the worlds that schema describes. It keeps up to size of those that were announced ready, each
// with a session that is already warm. The major version of Postgres is added to id. The server stays the caller's.
func New(ctx context.Context, s *Server, id sandboxes.Identity, schema Schema, size int) (*Provider, error) {
	var version string
	err := s.control(ctx, func(c *pgconn.PgConn) error {
		version = c.ParameterStatus("server_version")
		return nil
	})
	if err != nil {
		return nil, sandboxes.NewFault(sandboxes.FaultLease, "reach the Postgres server", err)
	}
	all := maps.Clone(id)
	if all == nil {
		all = sandboxes.Identity{}
	}
	all["postgres"], _, _ = strings.Cut(version, ".")
	all["postgres tools"] = Version
	tools, err := mcpmem.New(newServer(), all, func(sandboxes.World) (*lease, error) {
		return nil, errors.New("databases are served, not opened")
	})
	if err != nil {
		return nil, err
	}
	pool := sandboxes.NewPool(all, size, func(ctx context.Context, w sandboxes.World) (sandboxes.Sandbox, error) {
		setup, readOnly, err := schema(w)
		if err != nil {
			return nil, fmt.Errorf("schema of world %d: %w", w.Seed, err)
		}
		l, err := s.open(ctx, setup, readOnly)
		if err != nil {
			return nil, cause(ctx, err)
		}
		return tools.Serve(l), nil
	})
	return &Provider{pool, tools}, nil
}

// cause adds the end of the context to what the server says of a statement that was cancelled for it.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// Close drops every database and role that was leased.
func (p *Provider) Close() error { return errors.Join(p.Pool.Close(), p.tools.Close()) }

// template is a database that is cloned, and what is known of its clones.
type template struct {
	name string
	busy chan struct{} // held by whoever changes the fields below

	complete bool              // the database exists and is whole
	readers  bool              // the database that readers share exists and is whole
	start    map[bool][]string // state at the start, by readOnly
	idle     []*client         // readers that were used and are as new
}

func (t *template) lock(ctx context.Context) error {
	select {
	case t.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *template) unlock() { <-t.busy }

func (t *template) readersName() string { return t.name + "_ro" }

// template returns the template of a setup, built when it is first asked for. A build that failed is done anew.
func (s *Server) template(ctx context.Context, setup string) (*template, error) {
	name := fmt.Sprintf("t%.6x", sha256.Sum256([]byte(setup)))
	s.mu.Lock()
	t := s.templates[name]
	if t == nil {
		t = &template{name: name, busy: make(chan struct{}, 1), start: map[bool][]string{}}
		s.templates[name] = t
	}
	s.mu.Unlock()
	if err := t.lock(ctx); err != nil {
		return nil, err
	}
	defer t.unlock()
	if t.complete {
		return t, nil
	}
	if err := s.build(ctx, name, setup); err != nil {
		return nil, fmt.Errorf("build template %s: %w", name, err)
	}
	t.complete = true
	return t, nil
}

func (s *Server) build(ctx context.Context, name, setup string) error {
	if err := s.dropDatabase(ctx, name); err != nil {
		return err
	}
	if err := s.exec(ctx, "CREATE DATABASE "+name+" TEMPLATE template0 STRATEGY FILE_COPY",
		"REVOKE CONNECT, TEMPORARY ON DATABASE "+name+" FROM PUBLIC; GRANT CREATE, TEMPORARY ON DATABASE "+name+" TO "+owner); err != nil {
		return err
	}
	err := s.as(ctx, superuser, name, func(c *pgconn.PgConn) error {
		if err := run(ctx, c, "ALTER SCHEMA public OWNER TO "+owner+"; SET SESSION AUTHORIZATION "+owner); err != nil {
			return err
		}
		if err := run(ctx, c, setup); err != nil {
			return fmt.Errorf("setup: %w", err)
		}
		for _, q := range []string{"DISCARD ALL", "ANALYZE"} {
			if err := run(ctx, c, q); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.deserted(ctx, name); err != nil {
		return err
	}
	return s.exec(ctx, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false") // a session on a template makes cloning it fail
}

// as runs f on a session of its own.
func (s *Server) as(ctx context.Context, user, database string, f func(*pgconn.PgConn) error) error {
	c, err := s.connect(ctx, user, database)
	if err != nil {
		return err
	}
	defer hangUp(c)
	return f(c)
}

// clone makes a database from a template; nobody may connect to it yet.
func (s *Server) clone(ctx context.Context, name string, t *template, grants string) error {
	err := s.exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+t.name+" STRATEGY FILE_COPY",
		"REVOKE CONNECT, TEMPORARY ON DATABASE "+name+" FROM PUBLIC; GRANT CONNECT ON DATABASE "+name+" TO "+verifier+grants)
	if err != nil {
		return fmt.Errorf("clone %s as %s: %w", t.name, name, err)
	}
	return nil
}

// open makes a lease.
func (s *Server) open(ctx context.Context, setup string, readOnly bool) (*lease, error) {
	t, err := s.template(ctx, setup)
	if err != nil {
		return nil, err
	}
	c, err := s.client(ctx, t, readOnly)
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	l := &lease{client: c, life: life, end: end, busy: make(chan struct{}, 1), looking: make(chan struct{}, 1)}
	if err := l.begin(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// client is a role with what it may use: the lease's part that lives in the server.
type client struct {
	s        *Server
	t        *template
	role     string
	database string // the role's own has its name
	readOnly bool
	agent    *pgconn.PgConn
	verifier *pgconn.PgConn // nil until it is needed
	version  string         // of the role's catalog row, where it is used again
}

// client makes a role, for writers with a database of its own, and opens its session.
func (s *Server) client(ctx context.Context, t *template, readOnly bool) (*client, error) {
	if readOnly {
		if c, err := s.reuse(ctx, t); c != nil || err != nil {
			return c, err
		}
	}
	s.mu.Lock()
	s.count++
	name := fmt.Sprintf("%s_%d", t.name, s.count)
	s.mu.Unlock()
	c := &client{s: s, t: t, role: name, database: name, readOnly: readOnly}
	if readOnly {
		c.database = t.readersName()
	}
	if err := c.make(ctx); err != nil {
		return nil, errors.Join(err, c.drop())
	}
	return c, nil
}

func (c *client) make(ctx context.Context) error {
	role := "CREATE ROLE " + c.role + " LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS;" +
		fmt.Sprintf("ALTER ROLE %s SET statement_timeout = %d;", c.role, StatementLimit.Milliseconds())
	if c.readOnly {
		role += "ALTER ROLE " + c.role + " SET default_transaction_read_only = on; GRANT CONNECT ON DATABASE " + c.database + " TO " + c.role
	}
	if err := c.s.exec(ctx, role); err != nil {
		return fmt.Errorf("create role %s: %w", c.role, err)
	}
	if !c.readOnly {
		if err := c.s.clone(ctx, c.database, c.t, "; GRANT CONNECT, CREATE, TEMPORARY ON DATABASE "+c.database+" TO "+c.role); err != nil {
			return err
		}
		err := c.s.as(ctx, superuser, c.database, func(su *pgconn.PgConn) error {
			return run(ctx, su, "REASSIGN OWNED BY "+owner+" TO "+c.role)
		})
		if err != nil {
			return fmt.Errorf("give database %s to its role: %w", c.database, err)
		}
	}
	return c.connect(ctx)
}

// connect opens the agent's session and warms it: a session's first look at the catalogs is slow.
func (c *client) connect(ctx context.Context) error {
	agent, err := c.s.connect(ctx, c.role, c.database)
	if err != nil {
		return err
	}
	c.agent = agent
	for _, q := range []string{listTablesSQL, "SELECT count(*) FROM (SELECT 1 AS a UNION SELECT 2 ORDER BY a) AS t WHERE a > 1"} {
		if _, err := query(ctx, agent, q); err != nil {
			return fmt.Errorf("warm the session: %w", err)
		}
	}
	return nil
}

// drop frees the client. Every step is tried, whatever became of those before.
func (c *client) drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), releasing)
	defer cancel()
	for _, conn := range []*pgconn.PgConn{c.agent, c.verifier} {
		if conn != nil {
			hangUp(conn)
		}
	}
	var errs []error
	forget := "DROP ROLE IF EXISTS " + c.role
	if c.readOnly {
		forget = "DO $$ BEGIN IF EXISTS (SELECT FROM pg_roles WHERE rolname = '" + c.role + "') THEN REVOKE ALL ON DATABASE " +
			c.database + " FROM " + c.role + "; DROP ROLE " + c.role + "; END IF; END $$"
	} else {
		errs = append(errs, c.s.dropDatabase(ctx, c.database))
	}
	if err := c.s.exec(ctx, forget); err != nil {
		errs = append(errs, fmt.Errorf("drop role %s: %w", c.role, err))
	}
	return errors.Join(errs...)
}

// maxIdle bounds the readers that a template keeps.
const maxIdle = 16

// reuse takes a reader that was used, or makes sure that there is the database for a new one.
func (s *Server) reuse(ctx context.Context, t *template) (*client, error) {
	if err := t.lock(ctx); err != nil {
		return nil, err
	}
	defer t.unlock()
	for n := len(t.idle); n > 0; n = len(t.idle) {
		c := t.idle[n-1]
		t.idle = t.idle[:n-1]
		if !c.agent.IsClosed() {
			return c, nil
		}
		if err := c.drop(); err != nil {
			return nil, err
		}
	}
	if t.readers {
		return nil, nil
	}
	name := t.readersName()
	if err := s.dropDatabase(ctx, name); err != nil {
		return nil, err
	}
	if err := s.clone(ctx, name, t, ""); err != nil {
		return nil, err
	}
	if err := s.as(ctx, superuser, name, func(c *pgconn.PgConn) error { return run(ctx, c, readersSQL) }); err != nil {
		return nil, fmt.Errorf("make database %s fit for readers: %w", name, err)
	}
	t.readers = true
	return nil, nil
}

// readersSQL lets everybody who may connect read, and takes from them what the setup or Postgres itself lets everybody do
// that another reader could notice. Definitions cannot be changed at all: ALTER DEFAULT PRIVILEGES, for one, needs no right.
const readersSQL = `DO $$
DECLARE x text;
BEGIN
FOR x IN SELECT quote_ident(nspname) FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
	EXECUTE 'REVOKE ALL ON SCHEMA ' || x || ' FROM PUBLIC; GRANT USAGE ON SCHEMA ' || x || ' TO PUBLIC';
	EXECUTE 'REVOKE ALL ON ALL TABLES IN SCHEMA ' || x || ' FROM PUBLIC; GRANT SELECT ON ALL TABLES IN SCHEMA ' || x || ' TO PUBLIC';
	EXECUTE 'REVOKE ALL ON ALL SEQUENCES IN SCHEMA ' || x || ' FROM PUBLIC; GRANT SELECT ON ALL SEQUENCES IN SCHEMA ' || x || ' TO PUBLIC';
END LOOP;
FOR x IN SELECT oid::regprocedure FROM pg_proc WHERE prosecdef
	OR proname ~ '^(lo_|lowrite|loread|pg_(try_)?advisory_|pg_notify|pg_export_snapshot)' LOOP
	EXECUTE 'REVOKE EXECUTE ON ROUTINE ' || x || ' FROM PUBLIC';
END LOOP;
END $$;
CREATE SCHEMA mcpgym;
CREATE FUNCTION mcpgym.refuse() RETURNS event_trigger LANGUAGE plpgsql AS
	$$ BEGIN RAISE insufficient_privilege USING MESSAGE = 'permission denied: this database is read-only'; END $$;
CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION mcpgym.refuse()`

// keep puts a reader back if it is as new: its session is reset and its role unchanged.
func (c *client) keep(ctx context.Context) bool {
	if c.agent.IsClosed() || run(ctx, c.agent, "ROLLBACK") != nil || run(ctx, c.agent, "DISCARD ALL") != nil {
		return false
	}
	version, err := c.roleVersion(ctx)
	if err != nil || version != c.version {
		return false
	}
	if c.t.lock(ctx) != nil {
		return false
	}
	defer c.t.unlock()
	if len(c.t.idle) >= maxIdle {
		return false
	}
	c.t.idle = append(c.t.idle, c)
	return true
}

// roleVersion changes when anything about the role does: a role may change its own settings and password.
func (c *client) roleVersion(ctx context.Context) (v string, err error) {
	err = c.s.control(ctx, func(su *pgconn.PgConn) error {
		rows, err := query(ctx, su, `SELECT r.xmin || ' ' || (SELECT string_agg(s.xmin || ' ' || s.setconfig::text, ' ') FROM pg_db_role_setting s WHERE setrole = r.oid)
			|| ' ' || (SELECT count(*) FROM pg_shdepend WHERE refobjid = r.oid) || ' ' || (SELECT count(*) FROM pg_auth_members WHERE roleid = r.oid OR member = r.oid)
			FROM pg_authid r WHERE rolname = $1`, c.role)
		if err == nil && len(rows) == 1 {
			v = string(rows[0][0])
		}
		return err
	})
	return v, err
}

// lease is the world of one sandbox. Statements of the agent run one after the other.
type lease struct {
	*client
	life    context.Context
	end     context.CancelFunc
	busy    chan struct{} // held by whoever uses the agent's session
	looking chan struct{} // held by whoever uses the verifier's session
	start   []string      // state at the start
	changed bool          // the agent ran more than plain queries
	once    sync.Once
	closed  error
}

// begin notes what the lease is like before anybody has used it.
func (l *lease) begin(ctx context.Context) error {
	if l.readOnly && l.version == "" {
		var err error
		if l.version, err = l.roleVersion(ctx); err != nil {
			return fmt.Errorf("read role %s: %w", l.role, err)
		}
	}
	if err := l.t.lock(ctx); err != nil {
		return err
	}
	defer l.t.unlock()
	start, ok := l.t.start[l.readOnly]
	if !ok {
		var err error
		if start, err = l.lines(ctx); err != nil {
			return fmt.Errorf("read the state at the start: %w", err)
		}
		l.t.start[l.readOnly] = start
	}
	l.start = start
	return nil
}

// Close ends a statement that runs, and drops the lease's database and role.
func (l *lease) Close() error {
	l.once.Do(func() {
		l.end()
		l.busy <- struct{}{} // for good
		l.looking <- struct{}{}
		ctx, cancel := context.WithTimeout(context.Background(), releasing)
		defer cancel()
		if l.readOnly && !l.changed && l.keep(ctx) {
			return
		}
		l.closed = l.drop()
	})
	return l.closed
}
