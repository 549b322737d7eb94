package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/mcpgym/mcpgym/sandboxes"
	"github.com/mcpgym/mcpgym/sandboxes/mcpmem"
)

// MaxRows and MaxBytes bound what a result shows.
const (
	MaxRows  = 200
	MaxBytes = 32 << 10
)

// MaxGrowth bounds how much larger than at its start an agent may make its database, in bytes.
const MaxGrowth = 128 << 20

// maxLocks bounds the locks that an agent may hold: the server has room for some 13,000, for all.
const maxLocks = 4000

// maxMessage bounds one row on its way here.
const maxMessage = 64 << 20

// newServer serves the named tools, all where none is named.
func newServer(names []string) (*server.MCPServer, error) {
	readOnly := mcp.WithReadOnlyHintAnnotation(true)
	sql := func(what string) mcp.ToolOption {
		return mcp.WithString("sql", mcp.Required(), mcp.MinLength(1), mcp.Description(what))
	}
	all := []server.ServerTool{
		mcpmem.Tool("query_database", fmt.Sprintf("Run one SQL statement in the Postgres database. A query returns columns, rows and row_count; at most %d rows or %d KiB are shown, then truncated says so. Another statement returns its command and rows_affected. The session stays open between calls, so a transaction goes on until COMMIT. A statement may take %d seconds.", MaxRows, MaxBytes>>10, int(StatementLimit.Seconds())),
			queryDatabase, sql("One SQL statement of PostgreSQL, without parameters")),
		mcpmem.Tool("list_tables", "List the tables and views of the database with their schema, kind, number of columns and comment.",
			listTables, readOnly),
		mcpmem.Tool("describe_table", "Describe a table or view: columns with type, nullability and default, constraints such as keys, and indexes.",
			describeTable, readOnly,
			mcp.WithString("table", mcp.Required(), mcp.MinLength(1), mcpmem.Entity, mcp.Description("Name as in SQL, with its schema where that is not public, for example customers or sales.orders"))),
		mcpmem.Tool("explain", "Show how Postgres would run a statement, with estimated costs. The statement is not run.",
			explain, readOnly, sql("One SQL statement to explain")),
	}
	s := server.NewMCPServer("postgres", Version)
	if len(names) == 0 {
		s.AddTools(all...)
		return s, nil
	}
	for _, name := range names {
		i := slices.IndexFunc(all, func(t server.ServerTool) bool { return t.Tool.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("serve tool %q: there is none of that name", name)
		}
		s.AddTools(all[i])
	}
	return s, nil
}

// table is what a statement has returned.
type table struct {
	columns []string
	rows    []json.RawMessage // those that are shown
	total   int
	size    int // of the rows shown
	query   bool
	tag     pgconn.CommandTag
	open    string // the state of the transaction, empty outside of one
}

// statement runs one statement of the agent. Its error is the agent's to read, or ctx's, or a *sandboxes.Fault.
func (l *lease) statement(ctx context.Context, sql string, args ...string) (t *table, err error) {
	wait := time.NewTimer(StatementLimit / 2)
	defer wait.Stop()
	select {
	case l.busy <- struct{}{}:
		defer func() { <-l.busy }()
	case <-wait.C:
		return nil, errors.New("the session is busy with another call (1 of 1 in use): try again when it has ended")
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.life.Done():
		return nil, errClosed
	}
	if !l.pg.alive() {
		return nil, &sandboxes.Fault{Kind: sandboxes.FaultDied, Op: "run a statement", Msg: errFailed.Error()}
	}
	if cut(l.agent) { // by a call that its caller has left, or by a limit that the agent has set
		if err := l.revive(ctx); err != nil {
			return nil, err
		}
		return nil, errors.New("the statement was not run, because the session had ended while it waited" + revived)
	}
	// The server's own limit is a setting, which the agent may change.
	limited, cancel := context.WithTimeout(ctx, StatementLimit+StatementLimit/10)
	defer cancel()
	defer context.AfterFunc(l.life, cancel)()
	full := l.watch(limited, cancel)
	start := time.Now()
	t, err = l.send(limited, sql, args)
	l.unmeasured = (l.unmeasured + time.Since(start)) % measuring
	if err == nil || ctx.Err() != nil {
		return t, err
	}
	if l.life.Err() != nil {
		return nil, errClosed
	}
	over := limited.Err() != nil
	var says error
	pgErr, isPg := errors.AsType[*pgconn.PgError](err)
	_, big := errors.AsType[*pgproto3.ExceededMaxBodyLenErr](err)
	switch {
	case full.Load() != nil:
		says = *full.Load()
	case over:
		says = fmt.Errorf("ERROR 57014: canceling statement: it took longer than the limit of %v", StatementLimit)
	case isPg:
		says = sqlError(pgErr)
	case big:
		says = errTooLarge
	}
	if !l.agent.IsClosed() {
		if says == nil { // refused before it was sent
			says = err
		}
		return nil, says
	}
	if says == nil { // nobody has said why the session ended
		kind := sandboxes.FaultLost
		if l.pg.check(ctx); !l.pg.alive() {
			kind = sandboxes.FaultDied
		}
		return nil, sandboxes.NewFault(kind, "run a statement", err)
	}
	if err := l.revive(ctx); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w%s", says, revived)
}

// revived is added to what the agent reads.
const revived = "\nThe session has ended and a new one is open: settings, temporary tables and an open transaction are gone"

// measuring is how long statements may run, taken together, before the size of their database is looked at.
const measuring = 50 * time.Millisecond

// watch calls cancel when the database has become too large or its agent holds too many locks, and notes which. Postgres
// itself has no such limits, and one agent would use up the room of all. It ends with ctx.
func (l *lease) watch(ctx context.Context, cancel context.CancelFunc) *atomic.Pointer[error] {
	full := new(atomic.Pointer[error])
	if l.readOnly {
		return full
	}
	wait := measuring - l.unmeasured
	go func() {
		for {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
			// A question that is cancelled costs the server more than one that is answered.
			size, locks, err := l.pg.usage(context.WithoutCancel(ctx), l.database)
			var says error
			switch {
			case err != nil:
			case size > l.start.size+MaxGrowth:
				says = fmt.Errorf("ERROR 53100: canceling statement: the database has grown by more than the limit of %d MiB", MaxGrowth>>20)
			case locks > maxLocks:
				says = fmt.Errorf("ERROR 53200: canceling statement: it needs more than the limit of %d locks", maxLocks)
			}
			if says != nil {
				full.Store(&says)
				cancel()
				return
			}
			wait = measuring
		}
	}()
	return full
}

var errClosed = &sandboxes.Fault{Kind: sandboxes.FaultClosed, Op: "run a statement", Msg: "the sandbox is closed"}

// revive opens a new session for the agent where its own has ended. If that fails the server is gone, unless it says that it
// is for the role's own settings.
func (l *lease) revive(ctx context.Context) error {
	l.changed = true
	hangUp(l.agent)
	// What does not listen to us, such as a function that catches every cancellation, goes on and keeps its locks.
	limited, cancel := context.WithTimeout(ctx, StatementLimit/2)
	_ = l.pg.exec(limited, "SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity WHERE usename = "+Literal(l.role)) // waits for its end; connect will say
	cancel()
	limited, cancel = context.WithTimeout(ctx, StatementLimit/2)
	defer cancel()
	agent, err := l.pg.connect(limited, l.role, l.database)
	e, says := errors.AsType[*pgconn.PgError](err)
	switch {
	case says && l.pg.alive() && !strings.HasPrefix(e.Code, "53") && !strings.HasPrefix(e.Code, "57"): // no lack of room, no end
		return fmt.Errorf("the session has ended, and no new one can be opened: %w", sqlError(e))
	case err == nil:
		l.agent = agent
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case limited.Err() != nil:
		l.pg.failed.Store(true)
		return sandboxes.NewFault(sandboxes.FaultHung, "open a new session", err)
	}
	return sandboxes.NewFault(sandboxes.FaultDied, "open a new session", err)
}

// send runs a statement by the extended protocol, which takes no more than one.
func (l *lease) send(ctx context.Context, sql string, args []string) (*table, error) {
	params := make([][]byte, len(args))
	for i, a := range args {
		params[i] = []byte(a)
	}
	t := &table{rows: []json.RawMessage{}}
	l.ran.Add(1)
	r := l.agent.ExecParams(ctx, sql, params, nil, nil, nil)
	fields := r.FieldDescriptions()
	elements := make([]uint32, len(fields))
	for i, f := range fields {
		t.columns = append(t.columns, f.Name)
		elements[i] = elementOf(f.DataTypeOID)
	}
	for r.NextRow() {
		t.total++
		if t.total != len(t.rows)+1 || len(t.rows) == MaxRows {
			continue // the rest is only counted
		}
		row := encodeRow(fields, elements, r.Values())
		if t.size+len(row) <= MaxBytes {
			t.rows = append(t.rows, row)
			t.size += len(row)
		}
	}
	tag, err := r.Close()
	if err != nil {
		if !querying.MatchString(sql) || writing.MatchString(sql) { // what it did before it failed may stay
			l.changed = true
		}
		return nil, err
	}
	t.tag, t.query = tag, fields != nil || tag.Select()
	switch l.agent.TxStatus() {
	case 'T':
		t.open = "open"
	case 'E':
		t.open = "failed, only ROLLBACK is possible"
	}
	if name := tagName(tag); t.open != "" || name != "SELECT" && name != "EXPLAIN" && name != "SHOW" || lasting.MatchString(sql) || !l.readOnly && writing.MatchString(sql) {
		l.changed = true
	}
	return t, nil
}

// querying finds statements that do all or nothing.
var querying = regexp.MustCompile(`(?i)^\s*(select|with|table|values|show|explain)\b`)

// lasting finds what may change a session although it is a query (set_config, setseed), or may hide such a thing. Too much is
// no harm: the session is not used again, that is all.
var lasting = regexp.MustCompile(`(?i)set|xml|u&`)

// writing finds what may change the database although it is a query, as lasting does for the session.
var writing = regexp.MustCompile(`(?i)insert|update|delete|merge|into|nextval|lo_|lowrite|analyze`)

func encodeRow(fields []pgconn.FieldDescription, elements []uint32, values [][]byte) json.RawMessage {
	row := []byte{'['}
	for i, v := range values {
		if i > 0 {
			row = append(row, ',')
		}
		row = append(row, encode(fields[i].DataTypeOID, elements[i], v)...)
	}
	return append(row, ']')
}

// tagName is a command's tag without its counts.
func tagName(tag pgconn.CommandTag) string {
	return strings.TrimRight(tag.String(), "0123456789 ")
}

// sqlError is what the agent reads of a server's error.
func sqlError(e *pgconn.PgError) error {
	s := fmt.Sprintf("%s %s: %s", e.Severity, e.Code, e.Message)
	if e.Position > 0 {
		s += fmt.Sprintf("\nPosition: %d", e.Position)
	}
	for _, part := range []struct{ name, text string }{{"Detail", e.Detail}, {"Hint", e.Hint}, {"Context", e.Where}} {
		if part.text != "" {
			s += "\n" + part.name + ": " + part.text
		}
	}
	return errors.New(s)
}

// unsteady finds in a statement what gives other results another time.
var unsteady = regexp.MustCompile(`(?i)\b(now|random\w*|setseed|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday|age|uuid\w*|gen_random_\w+|` +
	`current_(date|time|timestamp|user|role|catalog|database|setting)|local(time|timestamp)|session_user|user|pg_stat\w*|pg_statistic\w*|pg_backend_pid|pg_locks|` +
	`pg_database\w*|pg_roles|pg_authid|pg_user\w*|pg_shadow|pg_group|pg_auth_members|pg_shdepend|pg_settings|pg_(current_)?(wal|xact|snapshot)\w*|txid\w*|` +
	`pg_(postmaster|conf)\w*|pg_\w*_size|ctid|xmin|xmax|cmin|cmax|tableoid|oid|explain|tablesample)\b|'(now|today|tomorrow|yesterday)'`)

var (
	ordered = regexp.MustCompile(`(?i)\border\s+by\b`)
	copying = regexp.MustCompile(`(?is)^\s*copy\b.*\b(stdin|stdout)\b`)
)

// result makes a tool's result. It is volatile where that was said, or where it names the lease, which no other one does.
func (l *lease) result(text string, err error, volatile bool) (any, error) {
	if _, ok := errors.AsType[*sandboxes.Fault](err); ok {
		return nil, err
	}
	r := mcp.NewToolResultText(text)
	if err != nil {
		r = mcp.NewToolResultError(err.Error())
		text = err.Error()
	}
	if volatile || strings.Contains(text, l.role) || strings.Contains(text, l.database) {
		r.Meta = mcp.NewMetaFromMap(map[string]any{sandboxes.VolatileMeta: true})
	}
	return r, nil
}

func queryDatabase(ctx context.Context, l *lease, in struct{ SQL string }) (any, error) {
	if copying.MatchString(in.SQL) {
		return nil, errors.New("COPY from or to a stream is not possible here: use INSERT or SELECT")
	}
	t, err := l.statement(ctx, in.SQL)
	volatile := unsteady.MatchString(in.SQL)
	if err != nil {
		return l.result("", err, volatile)
	}
	if t.total > 1 && !ordered.MatchString(in.SQL) && tagName(t.tag) != "SHOW" {
		volatile = true
	}
	var out any
	if t.query {
		out = struct {
			Columns     []string          `json:"columns"`
			Rows        []json.RawMessage `json:"rows"`
			RowCount    int               `json:"row_count"`
			Truncated   string            `json:"truncated,omitempty"`
			Transaction string            `json:"transaction,omitempty"`
		}{append([]string{}, t.columns...), t.rows, t.total, t.cut(), t.open}
	} else {
		out = struct {
			Command     string `json:"command"`
			Affected    int64  `json:"rows_affected"`
			Transaction string `json:"transaction,omitempty"`
		}{tagName(t.tag), t.tag.RowsAffected(), t.open}
	}
	return l.result(string(compact(out)), nil, volatile)
}

func (t *table) cut() string {
	if len(t.rows) == t.total {
		return ""
	}
	why := strconv.Itoa(MaxRows) + " rows"
	if len(t.rows) < MaxRows {
		why = strconv.Itoa(MaxBytes>>10) + " KiB"
	}
	return fmt.Sprintf("the first %d of %d rows: the limit is %s", len(t.rows), t.total, why)
}

const listTablesSQL = `SELECT pg_catalog.json_build_object('schema', n.nspname, 'name', c.relname,
	'kind', CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'f' THEN 'foreign table' ELSE 'table' END,
	'columns', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
	'comment', pg_catalog.obj_description(c.oid, 'pg_class'))
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
ORDER BY n.nspname, c.relname`

// list runs a query of one JSON column.
func (l *lease) list(ctx context.Context, sql string, args ...string) ([]json.RawMessage, error) {
	t, err := l.statement(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	all := []json.RawMessage{}
	for _, row := range t.rows {
		all = append(all, row[1:len(row)-1])
	}
	return all, nil
}

func listTables(ctx context.Context, l *lease, _ struct{}) (any, error) {
	tables, err := l.list(ctx, listTablesSQL)
	return l.result(string(compact(map[string]any{"tables": tables})), err, false)
}

func describeTable(ctx context.Context, l *lease, in struct{ Table string }) (any, error) {
	found, err := l.list(ctx, `SELECT pg_catalog.json_build_object('oid', c.oid::pg_catalog.int8, 'schema', n.nspname, 'name', c.relname, 'comment', pg_catalog.obj_description(c.oid, 'pg_class'))
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.oid = pg_catalog.to_regclass($1) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')`, in.Table)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("there is no table or view %q: list_tables names them", in.Table)
	}
	if err != nil {
		return l.result("", err, false)
	}
	var head struct {
		OID          uint32
		Schema, Name string
		Comment      *string
	}
	if err := json.Unmarshal(found[0], &head); err != nil {
		return nil, fmt.Errorf("read the description of %q: %w", in.Table, err)
	}
	out := struct {
		Schema      string            `json:"schema"`
		Name        string            `json:"name"`
		Comment     *string           `json:"comment,omitempty"`
		Columns     []json.RawMessage `json:"columns"`
		Constraints []json.RawMessage `json:"constraints"`
		Indexes     []json.RawMessage `json:"indexes"`
	}{Schema: head.Schema, Name: head.Name, Comment: head.Comment}
	for _, part := range []struct {
		into *[]json.RawMessage
		sql  string
	}{
		{&out.Columns, `SELECT pg_catalog.json_build_object('name', a.attname, 'type', pg_catalog.format_type(a.atttypid, a.atttypmod), 'nullable', NOT a.attnotnull,
			'default', pg_catalog.pg_get_expr(d.adbin, d.adrelid), 'comment', pg_catalog.col_description(a.attrelid, a.attnum))
			FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
			WHERE a.attrelid = $1::pg_catalog.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`},
		{&out.Constraints, `SELECT pg_catalog.json_build_object('name', conname, 'definition', pg_catalog.pg_get_constraintdef(oid))
			FROM pg_catalog.pg_constraint WHERE conrelid = $1::pg_catalog.oid ORDER BY conname`},
		{&out.Indexes, `SELECT pg_catalog.json_build_object('name', c.relname, 'definition', pg_catalog.pg_get_indexdef(i.indexrelid))
			FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = $1::pg_catalog.oid ORDER BY c.relname`},
	} {
		if *part.into, err = l.list(ctx, part.sql, strconv.FormatUint(uint64(head.OID), 10)); err != nil {
			return l.result("", err, false)
		}
	}
	return l.result(string(compact(out)), nil, false)
}

func explain(ctx context.Context, l *lease, in struct{ SQL string }) (any, error) {
	const before = "EXPLAIN (FORMAT TEXT) "
	t, err := l.statement(ctx, before+in.SQL)
	if err != nil {
		return l.result("", err, true)
	}
	var lines []string
	for _, row := range t.rows {
		var line [1]string
		if err := json.Unmarshal(row, &line); err != nil {
			return nil, fmt.Errorf("read the plan: %w", err)
		}
		lines = append(lines, line[0])
	}
	return l.result(strings.Join(lines, "\n"), nil, true)
}
