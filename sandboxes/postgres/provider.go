package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

// Version changes whenever the tools, their results or the reading of states do.
const Version = "2"

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
// with a session that is already warm. It serves the named tools, all where none is named. The major version of Postgres is
// added to id. The server stays the caller's.
func New(ctx context.Context, s *Server, id sandboxes.Identity, schema Schema, size int, tools ...string) (*Provider, error) {
	version, err := s.version(ctx)
	if err != nil {
		return nil, sandboxes.NewFault(sandboxes.FaultLease, "reach the Postgres server", err)
	}
	mcp, err := newServer(tools)
	if err != nil {
		return nil, err
	}
	all := maps.Clone(id)
	if all == nil {
		all = sandboxes.Identity{}
	}
	all["postgres major"], _, _ = strings.Cut(version, ".")
	all["postgres tools"] = Version
	served, err := mcpmem.New(mcp, all, func(sandboxes.World) (*lease, error) {
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
		return served.Serve(l), nil
	})
	return &Provider{pool, served}, nil
}

// version is that of the Postgres that runs.
func (s *Server) version(ctx context.Context) (version string, err error) {
	c, err := s.live(ctx)
	if err != nil {
		return "", err
	}
	err = c.control(ctx, func(_ context.Context, admin *pgconn.PgConn) error {
		version = admin.ParameterStatus("server_version")
		return nil
	})
	return version, err
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

// open makes a lease.
func (c *cluster) open(ctx context.Context, setup string, readOnly bool) (*lease, error) {
	t, err := c.template(ctx, setup)
	if err != nil {
		return nil, err
	}
	agent, err := c.client(ctx, t, readOnly)
	if err != nil {
		c.release(t)
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	l := &lease{client: agent, life: life, end: end, busy: make(chan struct{}, 1), looking: make(chan struct{}, 1)}
	if err := errors.Join(l.begin(ctx), c.evict(ctx, maxDatabases)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// client is a role with what it may use: the lease's part that lives in the server.
type client struct {
	pg       *cluster
	t        *template
	role     string
	database string // the role's own has its name
	readOnly bool
	agent    *pgconn.PgConn
	verifier *pgconn.PgConn // nil until it is needed
	version  string         // of the role's catalog row, where it is used again
}

// client makes a role, for writers with a database of its own, and opens its session.
func (c *cluster) client(ctx context.Context, t *template, readOnly bool) (*client, error) {
	if r, err := c.reuse(ctx, t, readOnly); r != nil || err != nil {
		return r, err
	}
	c.mu.Lock()
	c.count++
	name := fmt.Sprintf("%s_%d", t.name, c.count)
	c.mu.Unlock()
	made := &client{pg: c, t: t, role: name, database: name, readOnly: readOnly}
	if readOnly {
		made.database = t.readersName()
	}
	if err := made.make(ctx); err != nil {
		return nil, errors.Join(err, made.drop())
	}
	return made, nil
}

func (c *client) make(ctx context.Context) error {
	role := "CREATE ROLE " + c.role + " LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS;" +
		fmt.Sprintf("ALTER ROLE %s SET statement_timeout = %d;", c.role, StatementLimit.Milliseconds())
	if c.readOnly {
		role += "ALTER ROLE " + c.role + " SET default_transaction_read_only = on; GRANT CONNECT ON DATABASE " + c.database + " TO " + c.role
	}
	if err := c.pg.exec(ctx, role); err != nil {
		return fmt.Errorf("create role %s: %w", c.role, err)
	}
	if !c.readOnly {
		if err := c.pg.clone(ctx, c.database, c.t, "; GRANT CONNECT, CREATE, TEMPORARY ON DATABASE "+c.database+" TO "+c.role); err != nil {
			return err
		}
		err := c.pg.as(ctx, superuser, c.database, func(su *pgconn.PgConn) error {
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
	agent, err := c.pg.connect(ctx, c.role, c.database)
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

func (c *client) hangUp() {
	for _, conn := range []*pgconn.PgConn{c.agent, c.verifier} {
		if conn != nil {
			hangUp(conn)
		}
	}
}

// drop frees the client. Every step is tried, whatever became of those before. What a cluster that has failed still holds,
// goes with it.
func (c *client) drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), releasing)
	defer cancel()
	c.hangUp()
	if !c.pg.alive() {
		return nil
	}
	var errs []error
	forget := "DROP ROLE IF EXISTS " + c.role
	if c.readOnly {
		forget = "DO $$ BEGIN IF EXISTS (SELECT FROM pg_roles WHERE rolname = '" + c.role + "') THEN REVOKE ALL ON DATABASE " +
			c.database + " FROM " + c.role + "; DROP ROLE " + c.role + "; END IF; END $$"
	} else {
		errs = append(errs, c.pg.dropDatabase(ctx, c.database))
	}
	if err := c.pg.exec(ctx, forget); err != nil {
		errs = append(errs, fmt.Errorf("drop role %s: %w", c.role, err))
	}
	if !c.pg.alive() {
		return nil
	}
	return errors.Join(errs...)
}

// maxIdle bounds the clients that a template keeps, by readOnly.
var maxIdle = map[bool]int{true: 16, false: 1}

// reuse takes a client that was used and is as new. There may be none; then it makes sure that there is the database for a
// new reader.
func (c *cluster) reuse(ctx context.Context, t *template, readOnly bool) (*client, error) {
	if err := t.lock(ctx); err != nil {
		return nil, err
	}
	defer t.unlock()
	for {
		r := t.pop(readOnly)
		if r == nil {
			break
		}
		if !cut(r.agent) {
			return r, nil
		}
		if err := r.drop(); err != nil {
			return nil, err
		}
	}
	if !readOnly || t.databases == 2 {
		return nil, nil
	}
	name := t.readersName()
	if err := c.dropDatabase(ctx, name); err != nil {
		return nil, err
	}
	if err := c.clone(ctx, name, t, ""); err != nil {
		return nil, err
	}
	if err := c.as(ctx, superuser, name, func(su *pgconn.PgConn) error { return run(ctx, su, readersSQL) }); err != nil {
		return nil, fmt.Errorf("make database %s fit for readers: %w", name, err)
	}
	c.holds(t, 2)
	return nil, nil
}

// keep puts a client back whose database is as new, if the rest is, too: its session is reset and its role unchanged.
func (c *client) keep(ctx context.Context) bool {
	if c.agent.IsClosed() || c.pg.renew(ctx, c.agent) != nil {
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
	if len(c.t.idle[c.readOnly]) >= maxIdle[c.readOnly] || !c.pg.alive() {
		return false
	}
	c.t.push(c)
	return true
}

// roleVersion changes when anything about the role does: a role may change its own settings and password.
func (c *client) roleVersion(ctx context.Context) (v string, err error) {
	err = c.pg.control(ctx, func(ctx context.Context, su *pgconn.PgConn) error {
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
	life       context.Context
	end        context.CancelFunc
	busy       chan struct{} // held by whoever uses the agent's session
	looking    chan struct{} // held by whoever uses the verifier's session
	start      picture       // state at the start
	unmeasured time.Duration // of statements, since the size was last looked at
	changed    bool          // the agent ran more than plain queries
	ran        atomic.Int64  // statements of the agent
	asBegun    atomic.Int64  // how many it had run when the state was last found to be that of the start
	once       sync.Once
	closed     error
}

// begin notes what the lease is like before anybody has used it.
func (l *lease) begin(ctx context.Context) error {
	if l.version == "" {
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
		if start, err = l.picture(ctx); err != nil {
			return fmt.Errorf("read the state at the start: %w", err)
		}
		if start.size, _, err = l.pg.usage(ctx, l.database); err != nil {
			return fmt.Errorf("read the size at the start: %w", err)
		}
		l.t.start[l.readOnly] = start
	}
	l.start = start
	return nil
}

// Alive says whether the agent's session still works. It may be asked of leases that nobody uses yet.
func (l *lease) Alive() bool { return l.pg.alive() && !cut(l.agent) }

// Close ends a statement that runs, and drops the lease's database and role; where nothing can have changed they are kept for
// another lease.
func (l *lease) Close() error {
	l.once.Do(func() {
		l.end()
		l.busy <- struct{}{} // for good
		l.looking <- struct{}{}
		defer l.pg.release(l.t)
		ctx, cancel := context.WithTimeout(context.Background(), releasing)
		defer cancel()
		if asNew := l.readOnly || l.asBegun.Load() == l.ran.Load(); asNew && !l.changed && l.keep(ctx) {
			return
		}
		l.closed = l.drop()
	})
	return l.closed
}
