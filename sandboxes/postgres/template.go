package postgres

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// maxDatabases is how many databases a cluster keeps that no lease uses; each has about 8 MB.
const maxDatabases = 64

// template is a database that is cloned, and what is known of its clones.
type template struct {
	name string

	// The cluster's mu guards these, and databases, which changes only under both locks.
	users int // leases, and those who make or drop one
	used  int // when it was last asked for, counted in such times

	databases int // that exist and are whole: 0 none, 1 the one to be cloned, 2 also the one that readers share
	clones    int // whose clients are idle

	busy  chan struct{}      // held by whoever changes the fields below
	start map[bool]picture   // state at the start, by readOnly
	idle  map[bool][]*client // that were used and are as new, by readOnly
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

func templateName(setup string) string { return fmt.Sprintf("t%.6x", sha256.Sum256([]byte(setup))) }

// template returns the template of a setup for one more user, who releases it. It is built when it is first asked for; a
// build that failed is done anew.
func (c *cluster) template(ctx context.Context, setup string) (*template, error) {
	name := templateName(setup)
	c.mu.Lock()
	t := c.templates[name]
	if t == nil {
		t = &template{name: name, busy: make(chan struct{}, 1), idle: map[bool][]*client{}}
		c.templates[name] = t
	}
	c.uses++
	t.used = c.uses
	t.users++
	c.mu.Unlock()
	if err := c.complete(ctx, t, setup); err != nil {
		c.release(t)
		return nil, err
	}
	return t, nil
}

// complete builds a template's database if there is none.
func (c *cluster) complete(ctx context.Context, t *template, setup string) error {
	if err := t.lock(ctx); err != nil {
		return err
	}
	defer t.unlock()
	if t.databases > 0 {
		return nil
	}
	if err := c.build(ctx, t.name, setup); err != nil {
		return fmt.Errorf("build template %s: %w", t.name, err)
	}
	t.start = map[bool]picture{}
	c.holds(t, 1)
	return nil
}

// holds notes how many databases a template has. The caller has locked it.
func (c *cluster) holds(t *template, databases int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.databases = databases
}

// release takes a user from a template.
func (c *cluster) release(t *template) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.users--
	if t.users == 0 && t.databases == 0 {
		delete(c.templates, t.name)
	}
}

// evict drops databases until no more than keep are there that no lease uses: first clones, then templates that nobody uses,
// of those that were asked for longest ago.
func (c *cluster) evict(ctx context.Context, keep int) error {
	for {
		c.mu.Lock()
		n := 0
		var cloned, unused *template
		for _, t := range c.templates {
			n += t.databases + t.clones
			if t.clones > 0 && (cloned == nil || t.used < cloned.used) {
				cloned = t
			}
			if t.users == 0 && (unused == nil || t.used < unused.used) {
				unused = t
			}
		}
		oldest, drop := unused, c.dropTemplate
		if cloned != nil {
			oldest, drop = cloned, c.dropClones
		}
		if n <= keep || oldest == nil {
			c.mu.Unlock()
			return nil
		}
		oldest.users++
		c.mu.Unlock()
		err := drop(ctx, oldest)
		c.release(oldest)
		if err != nil {
			return fmt.Errorf("drop what is not used of template %s: %w", oldest.name, err)
		}
	}
}

// dropClones drops the clones that are idle.
func (c *cluster) dropClones(ctx context.Context, t *template) error {
	if err := t.lock(ctx); err != nil {
		return err
	}
	defer t.unlock()
	return t.dropIdle(false)
}

func (c *cluster) dropTemplate(ctx context.Context, t *template) error {
	if err := t.lock(ctx); err != nil {
		return err
	}
	defer t.unlock()
	for _, readOnly := range []bool{false, true} {
		if err := t.dropIdle(readOnly); err != nil {
			return err
		}
	}
	for ; t.databases > 0; c.holds(t, t.databases-1) {
		if err := c.dropDatabase(ctx, []string{t.name, t.readersName()}[t.databases-1]); err != nil {
			return err
		}
	}
	return nil
}

// dropIdle drops idle clients. The caller has locked the template.
func (t *template) dropIdle(readOnly bool) error {
	for {
		r := t.pop(readOnly)
		if r == nil {
			return nil
		}
		if err := r.drop(); err != nil {
			return err
		}
	}
}

// pop takes the client that became idle last, and push gives one back; of a kind. The caller has locked the template.
func (t *template) pop(readOnly bool) *client {
	n := len(t.idle[readOnly])
	if n == 0 {
		return nil
	}
	r := t.idle[readOnly][n-1]
	t.idle[readOnly] = t.idle[readOnly][:n-1]
	r.pg.mu.Lock()
	defer r.pg.mu.Unlock()
	t.clones = len(t.idle[false])
	return r
}

func (t *template) push(r *client) {
	t.idle[r.readOnly] = append(t.idle[r.readOnly], r)
	r.pg.mu.Lock()
	defer r.pg.mu.Unlock()
	t.clones = len(t.idle[false])
}

func (c *cluster) build(ctx context.Context, name, setup string) error {
	if err := c.dropDatabase(ctx, name); err != nil {
		return err
	}
	if err := c.exec(ctx, "CREATE DATABASE "+name+" TEMPLATE template0 STRATEGY FILE_COPY"+c.room,
		"REVOKE CONNECT, TEMPORARY ON DATABASE "+name+" FROM PUBLIC; GRANT CREATE, TEMPORARY ON DATABASE "+name+" TO "+owner); err != nil {
		return err
	}
	err := c.as(ctx, superuser, name, func(su *pgconn.PgConn) error {
		if err := run(ctx, su, "ALTER SCHEMA public OWNER TO "+owner+"; "+refusing(sharing)+"; SET SESSION AUTHORIZATION "+owner); err != nil {
			return err
		}
		if err := run(ctx, su, setup); err != nil {
			return fmt.Errorf("setup: %w", err)
		}
		for _, q := range []string{"DISCARD ALL", "ANALYZE"} {
			if err := run(ctx, su, q); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.deserted(ctx, name); err != nil {
		return err
	}
	return c.exec(ctx, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false") // a session on a template makes cloning it fail
}

// clone makes a database from a template; nobody may connect to it yet.
func (c *cluster) clone(ctx context.Context, name string, t *template, grants string) error {
	err := c.exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+t.name+" STRATEGY FILE_COPY",
		"REVOKE CONNECT, TEMPORARY ON DATABASE "+name+" FROM PUBLIC; GRANT CONNECT ON DATABASE "+name+" TO "+verifier+grants)
	if err != nil {
		return fmt.Errorf("clone %s as %s: %w", t.name, name, err)
	}
	return nil
}

// sharing finds functions that reach what databases share, whoever calls them: the room for locks, and sessions, among them
// those of verifiers, whose rights a function of an agent's has while they read its table.
const sharing = `proname ~ '^pg_((try_)?advisory_|terminate_backend|cancel_backend)'`

// refusing is a statement that lets nobody but superusers call the functions that meet a condition on pg_proc.
func refusing(condition string) string {
	return `DO $$
DECLARE x text;
BEGIN
FOR x IN SELECT oid::regprocedure FROM pg_proc WHERE ` + condition + ` LOOP
	EXECUTE 'REVOKE EXECUTE ON ROUTINE ' || x || ' FROM PUBLIC';
END LOOP;
END $$`
}

// readersSQL lets everybody who may connect read, and takes from them what the setup or Postgres itself lets everybody do
// that another reader could notice. Definitions cannot be changed at all: ALTER DEFAULT PRIVILEGES, for one, needs no right.
var readersSQL = `DO $$
DECLARE x text;
BEGIN
FOR x IN SELECT quote_ident(nspname) FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
	EXECUTE 'REVOKE ALL ON SCHEMA ' || x || ' FROM PUBLIC; GRANT USAGE ON SCHEMA ' || x || ' TO PUBLIC';
	EXECUTE 'REVOKE ALL ON ALL TABLES IN SCHEMA ' || x || ' FROM PUBLIC; GRANT SELECT ON ALL TABLES IN SCHEMA ' || x || ' TO PUBLIC';
	EXECUTE 'REVOKE ALL ON ALL SEQUENCES IN SCHEMA ' || x || ' FROM PUBLIC; GRANT SELECT ON ALL SEQUENCES IN SCHEMA ' || x || ' TO PUBLIC';
END LOOP;
END $$;
` + refusing(`prosecdef OR proname ~ '^(lo_|lowrite|loread|pg_notify|pg_export_snapshot)'`) + `;
CREATE SCHEMA mcpgym;
CREATE FUNCTION mcpgym.refuse() RETURNS event_trigger LANGUAGE plpgsql AS
	$$ BEGIN RAISE insufficient_privilege USING MESSAGE = 'permission denied: this database is read-only'; END $$;
CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION mcpgym.refuse()`
