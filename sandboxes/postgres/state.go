package postgres

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/mcpgym/mcpgym/sandboxes"
)

// maxDiff bounds the differences that a state names, maxLine the bytes of each.
const (
	maxDiff = 50
	maxLine = 300
)

// looking is how long the verifier may look at a time, glancing how long a statement of its may take.
const (
	looking  = 20 * time.Second
	glancing = 10 * time.Second
)

// look runs f on the verifier's session, as if it were new. Where the agent has left a transaction open that locks what f
// reads, the transaction is rolled back: what was not committed is no state.
func (l *lease) look(ctx context.Context, f func(context.Context, *pgconn.PgConn) error) error {
	limited, cancel := context.WithTimeout(ctx, looking)
	defer cancel()
	err := l.lookWithin(limited, f)
	if limited.Err() != nil && ctx.Err() == nil {
		l.pg.check(ctx)
	}
	return err
}

func (l *lease) lookWithin(ctx context.Context, f func(context.Context, *pgconn.PgConn) error) error {
	if !l.pg.alive() {
		return errFailed
	}
	select {
	case l.looking <- struct{}{}:
		defer func() { <-l.looking }()
	case <-ctx.Done():
		return ctx.Err()
	case <-l.life.Done():
		return errClosed
	}
	reading := false
	try := func() error {
		reading = false
		if l.verifier == nil || l.verifier.IsClosed() {
			c, err := l.pg.connect(ctx, verifier, l.database)
			if err != nil {
				return err
			}
			l.verifier = c
		}
		if err := l.pg.renew(ctx, l.verifier); err != nil {
			return err
		}
		reading = true
		return f(ctx, l.verifier)
	}
	err := try()
	if l.ended(ctx, err) {
		if err = try(); reading && l.ended(ctx, err) {
			return fmt.Errorf("%w: %w", errEnded, err)
		}
	}
	locked := func(err error) bool {
		e, ok := errors.AsType[*pgconn.PgError](err)
		return ok && e.Code == "55P03" // lock_not_available
	}
	if !locked(err) {
		return cause(ctx, err)
	}
	select {
	case l.busy <- struct{}{}:
		err = run(ctx, l.agent, "ROLLBACK")
		<-l.busy
	case <-ctx.Done():
		return ctx.Err()
	}
	if err != nil && !l.agent.IsClosed() {
		return fmt.Errorf("roll the agent's transaction back: %w", err)
	}
	// A session of the agent's that was ended keeps its locks until it is gone, which takes a busy machine a while.
	for tries := 0; ; tries++ {
		if err = try(); !locked(err) || tries == leaving || ctx.Err() != nil {
			return cause(ctx, err)
		}
	}
}

// leaving is how often a lock of a session that is ending is waited for, each time for as long as a verifier waits for locks.
const leaving = 20

// unreadable says why a database cannot be read although its server is well: then its agent keeps the verifier out, by a
// function that runs whenever a table is read, say, or by a row that is too large to be sent. It is nil where err, of look,
// says nothing like that.
func (l *lease) unreadable(ctx context.Context, err error) error {
	if ctx.Err() != nil || !l.pg.alive() {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("it takes longer than %v", looking)
	}
	if _, ok := errors.AsType[*pgproto3.ExceededMaxBodyLenErr](err); ok {
		return errTooLarge
	}
	if errors.Is(err, errEnded) {
		return errEnded
	}
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || l.verifier == nil || l.verifier.IsClosed() {
		return nil
	}
	return sqlError(e)
}

// errEnded says that reading has ended two sessions, one after the other, of a server that is well. A function of an agent's
// can do that: it makes the session impatient, for one.
var errEnded = errors.New("reading it ends the session")

// ended says whether err has ended the verifier's session, and the server may be well.
func (l *lease) ended(ctx context.Context, err error) bool {
	_, large := errors.AsType[*pgproto3.ExceededMaxBodyLenErr](err)
	return err != nil && !large && ctx.Err() == nil && l.verifier != nil && l.verifier.IsClosed() && l.pg.alive()
}

var errTooLarge = fmt.Errorf("ERROR 54000: a row is larger than the limit of %d MiB", maxMessage>>20)

// Probe answers questions of kind sql: one statement, asked by a login that may read everything and write nothing. The
// answer is the value of a single column and row, null where a single column has no row, and else the list of rows. What
// cannot be read is an error of the answer; after one that takes too long no more is asked.
func (l *lease) Probe(ctx context.Context, ask []sandboxes.Question) ([]sandboxes.Answer, error) {
	answers := make([]sandboxes.Answer, len(ask))
	late := false
	for i, q := range ask {
		if late {
			answers[i].Err = "not asked: a question before took too long"
			continue
		}
		if q.Kind != "sql" {
			answers[i].Err = fmt.Sprintf("a Postgres world answers questions of kind sql, not %q", q.Kind)
			continue
		}
		start := time.Now()
		err := l.look(ctx, func(ctx context.Context, c *pgconn.PgConn) (err error) {
			answers[i].Value, err = answer(ctx, c, q.Text)
			return err
		})
		if err == nil {
			continue
		}
		if sandboxes.Interrupted(ctx, err) {
			return nil, err
		}
		why := l.unreadable(ctx, err)
		if why == nil {
			return nil, sandboxes.NewFault(sandboxes.FaultVerifier, "probe "+q.Text, err)
		}
		answers[i].Err = why.Error()
		late = time.Since(start) >= glancing
	}
	return answers, nil
}

func answer(ctx context.Context, c *pgconn.PgConn, sql string) (json.RawMessage, error) {
	r := c.ExecParams(ctx, sql, nil, nil, nil, nil)
	fields := r.FieldDescriptions()
	elements := make([]uint32, len(fields))
	for i, f := range fields {
		elements[i] = elementOf(f.DataTypeOID)
	}
	rows := []json.RawMessage{}
	for r.NextRow() {
		rows = append(rows, encodeRow(fields, elements, r.Values()))
	}
	if _, err := r.Close(); err != nil {
		return nil, err
	}
	switch {
	case len(elements) == 1 && len(rows) == 0:
		return json.RawMessage("null"), nil
	case len(elements) == 1 && len(rows) == 1:
		return rows[0][1 : len(rows[0])-1], nil
	}
	return compact(rows), nil
}

// State is over the rows and definitions of everything that is not Postgres' own, sequences, large objects, and the
// settings of the role and the database. What was not committed is no part of it, nor are statistics and planner estimates.
// Of a database that cannot be read, it tells only that.
func (l *lease) State(ctx context.Context) (sandboxes.State, error) {
	if l.asAtStart(ctx) {
		return sandboxes.State{Hash: l.start.hash}, nil
	}
	ran := l.ran.Load()
	now, err := l.picture(ctx)
	if err != nil {
		if sandboxes.Interrupted(ctx, err) {
			return sandboxes.State{}, err
		}
		why := l.unreadable(ctx, err)
		if why == nil {
			return sandboxes.State{}, sandboxes.NewFault(sandboxes.FaultVerifier, "read the state", err)
		}
		now = pictureOf([]string{"unreadable: " + l.names().Replace(why.Error())})
	}
	if now.hash == l.start.hash {
		l.asBegun.Store(ran)
	}
	diff := difference(l.start.lines, now.lines)
	s := sandboxes.State{Hash: now.hash, Diff: diff[:min(len(diff), maxDiff)], More: max(0, len(diff)-maxDiff)}
	for i, d := range s.Diff {
		if len(d) > maxLine {
			s.Diff[i] = strings.ToValidUTF8(d[:maxLine], "") + "..."
		}
	}
	slices.Sort(s.Diff)
	return s, nil
}

// difference names the lines that only one of two sorted lists has.
func difference(before, after []string) []string {
	var diff []string
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(after) == 0 || len(before) > 0 && before[0] < after[0]:
			diff = append(diff, "- "+before[0])
			before = before[1:]
		case len(before) == 0 || after[0] < before[0]:
			diff = append(diff, "+ "+after[0])
			after = after[1:]
		default:
			before, after = before[1:], after[1:]
		}
	}
	slices.Sort(diff)
	return diff
}

// asAtStart says whether nothing can have changed: the lease's agent may only read, as all others of its database, and has
// done no more than query.
func (l *lease) asAtStart(ctx context.Context) bool {
	if !l.readOnly {
		return false
	}
	select {
	case l.busy <- struct{}{}:
		defer func() { <-l.busy }()
		return !l.changed && l.pg.alive()
	case <-ctx.Done():
		return false
	case <-l.life.Done():
		return false
	}
}

// picture describes the whole database.
type picture struct {
	lines []string // sorted
	hash  string
	size  int64 // bytes of the database; only that of a start is looked at
}

func (l *lease) picture(ctx context.Context) (picture, error) {
	var lines []string
	names := l.names()
	err := l.look(ctx, func(ctx context.Context, c *pgconn.PgConn) error {
		lines = nil
		// No name may be found in a schema of the agent's.
		if err := run(ctx, c, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL search_path = pg_catalog"); err != nil {
			return err
		}
		there, err := query(ctx, c, whichRare)
		if err != nil {
			return err
		}
		defined := definitions
		for i, is := range there[0] {
			if string(is) == "t" {
				defined = append(slices.Clip(defined), rare[i].sql)
			}
		}
		for _, q := range defined {
			var args []string
			if strings.Contains(q, "$1") {
				args = []string{l.role}
			}
			rows, err := query(ctx, c, q, args...)
			if err != nil {
				return fmt.Errorf("%w in %s", err, q)
			}
			for _, row := range rows {
				lines = append(lines, names.Replace(string(row[0])))
			}
		}
		sources, err := query(ctx, c, contents)
		if err != nil {
			return err
		}
		for _, src := range sources {
			if lines, err = appendRows(ctx, c, lines, names, string(src[0]), string(src[1])); err != nil {
				return fmt.Errorf("read %s: %w", src[0], err)
			}
		}
		return run(ctx, c, "COMMIT")
	})
	if err != nil {
		return picture{}, err
	}
	return pictureOf(lines), nil
}

func pictureOf(lines []string) picture {
	slices.Sort(lines)
	h := sha256.New()
	for _, line := range lines {
		fmt.Fprintf(h, "%d %s\n", len(line), line)
	}
	return picture{lines: lines, hash: fmt.Sprintf("%x", h.Sum(nil))}
}

// names gives what is named after the lease the names that it has in every one.
func (l *lease) names() *strings.Replacer {
	return strings.NewReplacer(l.role, "agent", owner, "owner", verifier, "verifier", l.database, "database")
}

// maxKept bounds the bytes of a row that are kept: what takes little room in a database may be much larger when it is read.
const maxKept = 4 << 10

// appendRows adds a line for each row that a query gives. The end of a long one is told by its hash.
func appendRows(ctx context.Context, c *pgconn.PgConn, lines []string, names *strings.Replacer, what, sql string) ([]string, error) {
	r := c.ExecParams(ctx, sql, nil, nil, nil, nil)
	fields := r.FieldDescriptions()
	elements := make([]uint32, len(fields))
	columns := make([][]byte, len(fields))
	for i, f := range fields {
		elements[i] = elementOf(f.DataTypeOID)
		columns[i] = quote(f.Name)
	}
	var b bytes.Buffer
	for r.NextRow() {
		b.Reset()
		b.WriteString(what)
		for i, v := range r.Values() {
			b.WriteString([]string{" {", ","}[min(i, 1)])
			b.Write(columns[i])
			b.WriteByte(':')
			b.Write(encode(fields[i].DataTypeOID, elements[i], v))
		}
		b.WriteByte('}')
		line := names.Replace(b.String())
		if len(line) > maxKept {
			line = fmt.Sprintf("%s... %d bytes, sha256 %x", line[:maxKept], len(line), sha256.Sum256([]byte(line)))
		}
		lines = append(lines, line)
	}
	_, err := r.Close()
	return lines, err
}

// own selects the schemas that are not Postgres' own.
const own = `n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'`

// extension leaves out what belongs to an extension, which is a line of its own.
func extension(catalog, alias string) string {
	return fmt.Sprintf("NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = '%s'::regclass AND e.objid = %s.oid AND e.deptype = 'e')", catalog, alias)
}

// firstOwn is the first identifier of objects that are not Postgres' own.
const firstOwn = "16384"

// definitions are queries of one text column.
var definitions = []string{
	`SELECT format('schema %I owner %s grants %s', n.nspname, pg_get_userbyid(n.nspowner), n.nspacl) FROM pg_namespace n WHERE ` + own,
	`SELECT format('relation %I.%I kind %s owner %s persistence %s grants %s options %s row security %s %s identity %s bound %s parents %s', n.nspname, c.relname, c.relkind,
		pg_get_userbyid(c.relowner), c.relpersistence, c.relacl, c.reloptions, c.relrowsecurity, c.relforcerowsecurity, c.relreplident, pg_get_expr(c.relpartbound, c.oid),
		(SELECT string_agg(i.inhparent::regclass::text, ',' ORDER BY i.inhseqno) FROM pg_inherits i WHERE i.inhrelid = c.oid))
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r','p','v','m','f','c','S') AND ` + own + " AND " + extension("pg_class", "c"),
	`SELECT format('column %I.%I.%s %I type %s not null %s default %s identity %s generated %s collation %s grants %s', n.nspname, c.relname,
		row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum), a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
		pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated, a.attcollation::regcollation, a.attacl)
		FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r','p','v','m','f','c') AND ` + own + " AND " + extension("pg_class", "c"),
	`SELECT format('constraint %I.%I on %s%s: %s valid %s', n.nspname, k.conname, nullif(k.conrelid, 0)::regclass, nullif(k.contypid, 0)::regtype, pg_get_constraintdef(k.oid), k.convalidated)
		FROM pg_constraint k JOIN pg_namespace n ON n.oid = k.connamespace WHERE k.contype <> 'n' AND ` + own + " AND " + extension("pg_constraint", "k"),
	`SELECT format('index %s valid %s clustered %s', pg_get_indexdef(i.indexrelid), i.indisvalid, i.indisclustered)
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE ` + own,
	`SELECT format('sequence %I.%I type %s start %s from %s to %s by %s cache %s cycle %s', n.nspname, c.relname, format_type(s.seqtypid, NULL), s.seqstart, s.seqmin, s.seqmax, s.seqincrement, s.seqcache, s.seqcycle)
		FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE ` + own,
	`SELECT format('extension %I version %s', extname, extversion) FROM pg_extension`,
	`SELECT format('comment on %s %s: %s', i.type, i.identity, d.description) FROM pg_description d, pg_identify_object(d.classoid, d.objoid, d.objsubid) i
		WHERE d.objoid >= ` + firstOwn + ` OR d.classoid = 'pg_namespace'::regclass AND d.objoid = 'public'::regnamespace`,
	`SELECT format('role super %s create db %s create role %s replication %s login %s bypass %s limit %s until %s member of %s', r.rolsuper, r.rolcreatedb, r.rolcreaterole, r.rolreplication, r.rolcanlogin,
		r.rolbypassrls, r.rolconnlimit, r.rolvaliduntil, (SELECT string_agg(m.roleid::regrole::text, ',' ORDER BY m.roleid) FROM pg_auth_members m WHERE m.member = r.oid))
		FROM pg_roles r WHERE r.rolname = $1`,
	`SELECT format('setting of %s: %s', CASE WHEN s.setrole = 0 THEN 'the database' ELSE 'the role' END, unnest(s.setconfig)) FROM pg_db_role_setting s
		LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase
		WHERE (s.setrole = 0 OR r.rolname = $1) AND (s.setdatabase = 0 OR d.datname = current_database())`,
}

// rare are those of what most databases lack, each with a query that has rows where there is any: planning one takes longer.
var rare = []struct{ any, sql string }{
	{`SELECT FROM pg_class WHERE relkind IN ('v','m') AND oid >= ` + firstOwn,
		`SELECT format('view %I.%I: %s', n.nspname, c.relname, pg_get_viewdef(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('v','m') AND ` + own + " AND " + extension("pg_class", "c")},
	{`SELECT FROM pg_trigger WHERE NOT tgisinternal`,
		`SELECT format('trigger %s enabled %s', pg_get_triggerdef(t.oid), t.tgenabled) FROM pg_trigger t WHERE NOT t.tgisinternal`},
	{`SELECT FROM pg_rewrite WHERE rulename <> '_RETURN' AND oid >= ` + firstOwn,
		`SELECT format('rule %s enabled %s', pg_get_ruledef(r.oid), r.ev_enabled) FROM pg_rewrite r WHERE r.rulename <> '_RETURN' AND r.oid >= ` + firstOwn},
	{`SELECT FROM pg_policy`,
		`SELECT format('policy %I on %s command %s permissive %s roles %s using %s check %s', p.polname, p.polrelid::regclass, p.polcmd, p.polpermissive,
		p.polroles::regrole[], pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)) FROM pg_policy p`},
	{`SELECT FROM pg_proc WHERE oid >= ` + firstOwn,
		`SELECT format('routine %s owner %s grants %s: %s', p.oid::regprocedure, pg_get_userbyid(p.proowner), p.proacl, CASE WHEN p.prokind <> 'a' THEN pg_get_functiondef(p.oid) END)
		FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE ` + own + " AND " + extension("pg_proc", "p")},
	{`SELECT FROM pg_type WHERE typtype IN ('d','e','r','b') AND typcategory <> 'A' AND oid >= ` + firstOwn,
		`SELECT format('type %I.%I %s owner %s grants %s base %s not null %s default %s labels %s', n.nspname, t.typname, t.typtype, pg_get_userbyid(t.typowner), t.typacl,
		CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod) END, t.typnotnull, t.typdefault,
		(SELECT string_agg(quote_literal(e.enumlabel), ',' ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid))
		FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.typtype IN ('d','e','r','b') AND t.typcategory <> 'A' AND ` + own + " AND " + extension("pg_type", "t")},
	{`SELECT FROM pg_largeobject_metadata`,
		`SELECT format('large object %s owner %s grants %s', m.oid, pg_get_userbyid(m.lomowner), m.lomacl) FROM pg_largeobject_metadata m`},
	{`SELECT FROM (` + others + `) o WHERE o.oid >= ` + firstOwn,
		`SELECT format('%s %s', i.type, i.identity) FROM (` + others + `) o, pg_identify_object(o.tableoid, o.oid, 0) i WHERE o.oid >= ` + firstOwn},
}

// whichRare asks for each of rare whether there is any.
var whichRare = func() string {
	var all []string
	for _, r := range rare {
		all = append(all, "EXISTS ("+r.any+")")
	}
	return "SELECT " + strings.Join(all, ", ")
}()

// others are the catalogs of all else that a user may define.
const others = `SELECT tableoid, oid FROM pg_cast UNION ALL SELECT tableoid, oid FROM pg_operator UNION ALL SELECT tableoid, oid FROM pg_opclass UNION ALL
		SELECT tableoid, oid FROM pg_collation UNION ALL SELECT tableoid, oid FROM pg_conversion UNION ALL SELECT tableoid, oid FROM pg_language UNION ALL
		SELECT tableoid, oid FROM pg_ts_config UNION ALL SELECT tableoid, oid FROM pg_ts_dict UNION ALL SELECT tableoid, oid FROM pg_publication UNION ALL
		SELECT tableoid, oid FROM pg_statistic_ext UNION ALL SELECT tableoid, oid FROM pg_default_acl UNION ALL SELECT tableoid, oid FROM pg_foreign_server UNION ALL
		SELECT tableoid, oid FROM pg_event_trigger`

// contents gives the queries that read rows, by what they read. Rows are read as they are, never cast: a cast may be the
// agent's.
var contents = `SELECT format('row %I.%I', n.nspname, c.relname), format('SELECT * FROM ONLY %I.%I', n.nspname, c.relname)
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND ` + own + `
UNION ALL SELECT format('row %I.%I', n.nspname, c.relname), format('SELECT * FROM %I.%I', n.nspname, c.relname)
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'm' AND c.relispopulated AND ` + own + `
UNION ALL SELECT format('value of sequence %I.%I', n.nspname, c.relname), format('SELECT last_value, is_called FROM %I.%I', n.nspname, c.relname)
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'S' AND ` + own
