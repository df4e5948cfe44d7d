package postgres

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/unavez/unavez/store"
)

// DoctorOptions of a look at a database. The zero value of every field means
// its default.
type DoctorOptions struct {
	// Start leaves out what takes long or needs a second connection: what is
	// left is what a worker should look at before it serves.
	Start bool
	// Retention is the longest that the workers are configured for; 0 means
	// that it is not known.
	Retention time.Duration
	// Limit is the longest limit of their transactions; default 10 s.
	Limit time.Duration
	// Batch is the most operations that one transaction has; default 1. Each
	// holds a lock to its end.
	Batch int
}

// The names of the checks.
const (
	checkReachable   = "postgres.reachable"
	checkVersion     = "postgres.version"
	checkPrimary     = "postgres.primary"
	checkFsync       = "postgres.fsync"
	checkPages       = "postgres.full_page_writes"
	checkCommit      = "postgres.synchronous_commit"
	checkStandbys    = "postgres.standbys"
	checkChecksums   = "postgres.checksums"
	checkEncoding    = "postgres.encoding"
	checkSchema      = "postgres.schema"
	checkGrants      = "postgres.grants"
	checkRole        = "postgres.role"
	checkClock       = "postgres.clock"
	checkTLS         = "postgres.tls"
	checkPooler      = "postgres.pooler"
	checkIsolation   = "postgres.isolation"
	checkTimeouts    = "postgres.timeouts"
	checkSearchPath  = "postgres.search_path"
	checkLocks       = "postgres.locks"
	checkConnections = "postgres.connections"
	checkVacuum      = "postgres.autovacuum"
	checkHorizon     = "postgres.horizon"
	checkHistory     = "postgres.incarnation"
	checkSettings    = "postgres.settings"
)

// Checks are all that Doctor looks at, each with the worst level it may have.
func Checks() []store.Check {
	const refused, warning = store.Refused, store.Warning
	return []store.Check{
		{Name: checkReachable, Level: refused, Why: "without the database nothing is decided: every keyed request gets 503", Way: "see the error; is the server running, and are host, port, user and database right?"},
		{Name: checkVersion, Level: refused, Why: "the schema uses what PostgreSQL has since 14", Way: "upgrade the server"},
		{Name: checkPrimary, Level: refused, Why: "a standby or a read-only database takes no outcome, and what is read there may be old", Way: "connect to the primary (target_session_attrs=read-write in the URL), and leave default_transaction_read_only off"},
		{Name: checkFsync, Level: refused, Why: "what was acknowledged may be gone after a crash of the host: the operation takes effect again, or the database is damaged", Way: "set fsync = on and restart the server"},
		{Name: checkPages, Level: refused, Why: "a page torn by a crash cannot be repaired", Way: "set full_page_writes = on and reload the server"},
		{Name: checkCommit, Level: refused, Why: "a commit is acknowledged before it is on the disk: after a crash an answered operation takes effect again", Way: "set it to on where the value comes from (ALTER ROLE … RESET synchronous_commit, ALTER DATABASE … RESET synchronous_commit, or postgresql.conf)"},
		{Name: checkStandbys, Level: warning, Why: "a failover to a standby that has not received everything loses acknowledged outcomes, and with them the memory of outside calls", Way: "name the standbys in synchronous_standby_names with synchronous_commit = on, or fail over only to one that has everything, and run unavez ops new-incarnation afterwards if the timeline stayed"},
		{Name: checkChecksums, Level: warning, Why: "a page that the disk changed is not noticed; stored results have a checksum of their own, locks and keys have not", Way: "enable them with pg_checksums while the server is down; leave ignore_checksum_failure and zero_damaged_pages off"},
		{Name: checkEncoding, Level: refused, Why: "keys are hashed over UTF-8: another encoding gives other keys", Way: "make the database with ENCODING 'UTF8'"},
		{Name: checkSchema, Level: refused, Why: "a program and a schema of different versions do not exclude each other's operations", Way: "run unavez migrate before a new version serves; for a newer schema start a newer program"},
		{Name: checkGrants, Level: refused, Why: "without a right some operations fail in the middle of their work", Way: "GRANT unavez_app to the role, or run the statements that are named, as the schema's owner; where unavez_app itself lacks them, run unavez migrate"},
		{Name: checkRole, Level: warning, Why: "who owns the schema or is a superuser can change what is stored past the protocol, and so can whoever gets hold of its password", Way: "serve as a member of unavez_app: unavez migrate --roles"},
		{Name: checkClock, Level: warning, Why: "every decision goes by the database's clock, so nothing breaks; but logs and times that people compare do not fit", Way: "let NTP set the clocks of both hosts"},
		{Name: checkTLS, Level: warning, Why: "passwords, payloads and answers cross the network in the clear", Way: "sslmode=verify-full in the URL"},
		{Name: checkPooler, Level: refused, Why: "a pooler that moves a connection between servers loses prepared statements, and then operations fail", Way: "default_query_exec_mode=exec in the URL, or max_prepared_statements in PgBouncer 1.21 and newer"},
		{Name: checkIsolation, Level: warning, Why: "transactions of the ring need READ COMMITTED: a program that opens its own with the default is refused with UV007", Way: "ALTER ROLE … RESET default_transaction_isolation, or begin with ISOLATION LEVEL READ COMMITTED, or migrate with NoRing"},
		{Name: checkTimeouts, Level: warning, Why: "every transaction of an operation sets its own limits; those of the role end purges, and connections of the pool, in the middle", Way: "ALTER ROLE … RESET the setting, or raise it above the limit of a transaction"},
		{Name: checkSearchPath, Level: warning, Why: "functions and tables of the same name as the server's or the ledger's may be found first by the application's statements", Way: "leave pg_catalog out of search_path, or first, and unavez out of it"},
		{Name: checkLocks, Level: warning, Why: "each operation in flight holds locks; when the table is full, transactions of the whole server fail", Way: "raise max_locks_per_transaction and restart, or lower pool_max_conns"},
		{Name: checkConnections, Level: warning, Why: "a worker that gets no connection answers 503", Way: "lower pool_max_conns in the URL, end sessions, or raise max_connections"},
		{Name: checkVacuum, Level: warning, Why: "tables that only grow still need a vacuum: without it look-ups visit the table for every row, and one day transaction numbers run out", Way: "set autovacuum = on and track_counts = on, RESET (autovacuum_enabled) of the tables named, and leave autovacuum_vacuum_insert_threshold above -1"},
		{Name: checkHorizon, Level: warning, Why: "an old transaction or an idle slot keeps what is deleted from being cleaned up, and slots from being emptied; a slot may fill the disk", Way: "end the transactions named, drop slots that nobody reads (pg_drop_replication_slot), finish or roll back prepared transactions"},
		{Name: checkHistory, Level: warning, Why: "after a failover or a restore outside calls of the time before may have been forgotten: first claims are unknown for a while", Way: "wait until it is over; after restoring a backup or a volume run unavez ops new-incarnation (in SQL: SELECT unavez.new_incarnation(true))"},
		{Name: checkSettings, Level: warning, Why: "results kept for longer than the ring takes go to one table that is purged row by row, at more cost", Way: "postgres.Migrate with Settings.Ring at the longest retention, or a shorter retention"},
	}
}

// Doctor looks at the live settings that the promises rest on, as the role of
// the pool, and changes nothing. A database that cannot be reached is a check
// that was refused; the error is for one that breaks off in the middle.
func Doctor(ctx context.Context, pool *pgxpool.Pool, opts *DoctorOptions) ([]store.Check, error) {
	d := &doctor{Checkup: store.NewCheckup(Checks())}
	if opts != nil {
		d.o = *opts
	}
	if d.o.Limit == 0 {
		d.o.Limit = 10 * time.Second
	}
	// On connections of its own, without prepared statements: a pooler may have
	// lost those, which is one of the things to find out.
	config := pool.Config()
	d.mode, d.most, d.mine = config.ConnConfig.DefaultQueryExecMode, int64(config.MaxConns), int64(pool.Stat().TotalConns())
	d.idle = config.MaxConnIdleTime
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.MaxConns, config.MinConns, config.MinIdleConns = 2, 0, 0
	own, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("postgres store: doctor: %w", err)
	}
	defer own.Close()
	conn, err := own.Acquire(ctx)
	if err != nil {
		d.See(checkReachable, store.Refused, true, "%s", strings.Join(strings.Fields(classify(err).Error()), " "))
		return d.All(), nil
	}
	defer conn.Release()
	d.pool, d.conn = own, conn.Conn()
	d.See(checkReachable, store.Refused, false, "yes")
	parts := []func(context.Context) error{d.server, d.durable, d.schema}
	if !d.o.Start {
		parts = append(parts, d.session, d.capacity, d.vacuum, d.pooler)
	}
	for _, part := range parts {
		if err := part(ctx); err != nil {
			return d.All(), fmt.Errorf("postgres store: doctor: %w", classify(err))
		}
	}
	return d.All(), nil
}

// doctor is one look.
type doctor struct {
	*store.Checkup
	o        DoctorOptions
	pool     *pgxpool.Pool // its own
	conn     *pgx.Conn
	mode     pgx.QueryExecMode // of the worker's pool
	most     int64             // connections of that
	mine     int64             // that are open
	idle     time.Duration     // and how long one may be idle
	settings map[string]setting
	standby  bool
	usable   bool // the schema is there in this version, and may be read
}

// setting is a setting of this session.
type setting struct{ value, source string }

func (d *doctor) is(name string) string { return d.settings[name].value }

func (d *doctor) number(name string) int64 {
	n, _ := strconv.ParseInt(d.is(name), 10, 64) // the server's own numbers
	return n
}

// from tells where a setting was made.
func (d *doctor) from(name string) string {
	s := d.settings[name]
	switch s.source {
	case "default", "":
		return s.value
	case "user":
		return s.value + " (by ALTER ROLE)"
	case "database":
		return s.value + " (by ALTER DATABASE)"
	case "database user":
		return s.value + " (by ALTER ROLE … IN DATABASE)"
	case "client":
		return s.value + " (by the URL)"
	}
	return s.value + " (" + s.source + ")"
}

// server reads the settings, and what the server is.
func (d *doctor) server(ctx context.Context) error {
	d.settings = map[string]setting{}
	rows, err := d.conn.Query(ctx, "SELECT name, setting, source FROM pg_catalog.pg_settings")
	if err != nil {
		return err
	}
	var name string
	var s setting
	if _, err := pgx.ForEachRow(rows, []any{&name, &s.value, &s.source}, func() error { d.settings[name] = s; return nil }); err != nil {
		return err
	}
	if err := d.conn.QueryRow(ctx, "SELECT pg_catalog.pg_is_in_recovery()").Scan(&d.standby); err != nil {
		return err
	}
	version := d.number("server_version_num")
	d.See(checkVersion, store.Refused, version < 140000, "%s", d.is("server_version"))
	switch {
	case d.standby:
		d.See(checkPrimary, store.Refused, true, "a standby")
	case d.is("default_transaction_read_only") == "on":
		d.See(checkPrimary, store.Refused, true, "read only: default_transaction_read_only is %s", d.from("default_transaction_read_only"))
	default:
		d.See(checkPrimary, store.Refused, false, "yes")
	}
	d.See(checkEncoding, store.Refused, d.is("server_encoding") != "UTF8", "%s", d.is("server_encoding"))
	return nil
}

// durable looks at whether the database keeps what it acknowledges.
func (d *doctor) durable(ctx context.Context) error {
	d.See(checkFsync, store.Refused, d.is("fsync") != "on", "%s", d.from("fsync"))
	d.See(checkPages, store.Refused, d.is("full_page_writes") != "on", "%s", d.from("full_page_writes"))
	checksums := "data_checksums " + d.is("data_checksums")
	wrong := d.is("data_checksums") != "on"
	for _, name := range []string{"ignore_checksum_failure", "zero_damaged_pages"} {
		if d.is(name) == "on" {
			checksums, wrong = checksums+", "+name+" on", true
		}
	}
	d.See(checkChecksums, store.Warning, wrong, "%s", checksums)

	// Programs that join by SQL connect as roles of their own.
	const others = "SELECT CASE WHEN s.setrole = 0 THEN 'database ' || d.datname ELSE 'role ' || s.setrole::pg_catalog.regrole::text END, pg_catalog.split_part(c, '=', 2)" +
		" FROM pg_catalog.pg_db_role_setting s LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase, pg_catalog.unnest(s.setconfig) c" +
		" WHERE (s.setdatabase = 0 OR d.datname = pg_catalog.current_database()) AND c LIKE 'synchronous_commit=%' ORDER BY 1"
	rows, err := d.conn.Query(ctx, others)
	if err != nil {
		return err
	}
	var who, level string
	var lax []string
	if _, err := pgx.ForEachRow(rows, []any{&who, &level}, func() error {
		if off(level) {
			lax = append(lax, who+" has "+level)
		}
		return nil
	}); err != nil {
		return err
	}
	value := d.from("synchronous_commit")
	if len(lax) > 0 {
		value += "; " + strings.Join(lax, ", ")
	}
	bad := store.Warning
	if off(d.is("synchronous_commit")) {
		bad = store.Refused
	}
	d.See(checkCommit, bad, bad == store.Refused || len(lax) > 0, "%s", value)
	return d.standbys(ctx)
}

// off tells whether a commit at this level is acknowledged before it is on the disk.
func off(level string) bool {
	return slices.Contains([]string{"off", "false", "no", "0"}, strings.ToLower(level))
}

// standbys looks at who else has what was acknowledged.
func (d *doctor) standbys(ctx context.Context) error {
	var all, inStep int64
	const text = "SELECT count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) FROM pg_catalog.pg_stat_replication"
	if err := d.conn.QueryRow(ctx, text).Scan(&all, &inStep); err != nil {
		return err
	}
	names, level := d.is("synchronous_standby_names"), d.is("synchronous_commit")
	switch {
	case names != "" && (level == "local" || level == "remote_write"):
		d.See(checkStandbys, store.Warning, true, "%d, and a commit waits for less than their disk: synchronous_commit is %s", all, d.from("synchronous_commit"))
	case names != "" && inStep == 0:
		d.See(checkStandbys, store.Warning, true, "none of %s is connected: commits wait for one", names)
	case names == "" && all > 0:
		d.See(checkStandbys, store.Warning, true, "%d, none of them synchronous", all)
	case names == "":
		d.See(checkStandbys, store.Warning, false, "none")
	default:
		d.See(checkStandbys, store.Warning, false, "%d, of them synchronous: %d", all, inStep)
	}
	return nil
}

// schema looks at the schema, and at what this role may do there.
func (d *doctor) schema(ctx context.Context) error {
	all, err := steps()
	if err != nil {
		return err
	}
	const text = "SELECT n.oid IS NOT NULL, coalesce(pg_catalog.has_schema_privilege(n.oid, 'USAGE'), false), coalesce(pg_catalog.pg_has_role(n.nspowner, 'USAGE'), false)," +
		" r.rolsuper, r.rolname FROM pg_catalog.pg_roles r LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'unavez' WHERE r.rolname = current_user"
	var there, usable, owner, super bool
	var me string
	if err := d.conn.QueryRow(ctx, text).Scan(&there, &usable, &owner, &super, &me); err != nil {
		return err
	}
	d.See(checkRole, store.Warning, super || owner, "%s", map[bool]string{true: me + ", who owns the schema or is a superuser", false: me}[super || owner])
	if !there {
		d.See(checkSchema, store.Refused, true, "none")
		return nil
	}
	missing, err := d.missing(ctx, me)
	if err != nil {
		return err
	}
	if len(missing) == 0 {
		d.See(checkGrants, store.Refused, false, "all there")
	} else {
		d.See(checkGrants, store.Refused, true, "%s", strings.Join(missing, "; "))
	}
	if !usable || slices.Contains(missing, grant{"SELECT", "", "table", "unavez.migration"}.text(pgx.Identifier{me}.Sanitize())) {
		d.See(checkSchema, store.Refused, true, "not to be read")
		return nil
	}
	at, err := version(ctx, d.conn)
	if err != nil {
		return err
	}
	d.usable = at == len(all) && len(missing) == 0
	d.See(checkSchema, store.Refused, at != len(all), "version %d, this program's is %d", at, len(all))
	if d.usable && !d.standby {
		return d.ledger(ctx)
	}
	return nil
}

// missing are the statements that give a role what it lacks.
func (d *doctor) missing(ctx context.Context, role string) (statements []string, err error) {
	needed, err := grantsOf(grants)
	if err != nil {
		return nil, err
	}
	role = pgx.Identifier{role}.Sanitize()
	// By number, since a name is looked up only where the schema may be used.
	const text = "SELECT CASE WHEN $1 = 'schema' THEN (SELECT pg_catalog.has_schema_privilege(n.oid, $2) FROM pg_catalog.pg_namespace n WHERE n.nspname = 'unavez')" +
		" WHEN $1 = 'function' THEN (SELECT pg_catalog.bool_and(pg_catalog.has_function_privilege(p.oid, $2)) FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'unavez')" +
		" WHEN $1 = 'sequence' THEN (SELECT pg_catalog.has_sequence_privilege(c.oid, $2) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname || '.' || c.relname = $3)" +
		" WHEN $4 <> '' THEN (SELECT pg_catalog.has_column_privilege(c.oid, $4, $2) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname || '.' || c.relname = $3)" +
		" ELSE (SELECT pg_catalog.has_table_privilege(c.oid, $2) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname || '.' || c.relname = $3) END"
	b := &pgx.Batch{}
	for _, g := range needed {
		b.Queue(strings.NewReplacer("$1", "$1::pg_catalog.text", "$2", "$2::pg_catalog.text", "$3", "$3::pg_catalog.text", "$4", "$4::pg_catalog.text").Replace(text), g.kind, g.right, g.object, g.column)
	}
	results := d.conn.SendBatch(ctx, b)
	for _, g := range needed {
		var has *bool // null where the table itself is missing
		if err := results.QueryRow().Scan(&has); err != nil {
			_ = results.Close() // the first error says more
			return nil, err
		}
		if has == nil || !*has {
			statements = append(statements, g.text(role))
		}
	}
	return statements, results.Close()
}

// ledger looks at what the database's workers agree on.
func (d *doctor) ledger(ctx context.Context) error {
	var same, doubted bool
	var left, ring, doubt time.Duration
	var slot int
	const text = "SELECT l.timeline = pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8) AND l.system = (SELECT c.system_identifier FROM pg_catalog.pg_control_system() c)," +
		" l.doubted > pg_catalog.clock_timestamp(), CASE WHEN l.doubted > pg_catalog.clock_timestamp() THEN l.doubted - pg_catalog.clock_timestamp() ELSE interval '0' END," +
		" l.slot, l.ring * interval '1 microsecond', l.doubt * interval '1 microsecond' FROM unavez.ledger l"
	if err := d.conn.QueryRow(ctx, text).Scan(&same, &doubted, &left, &slot, &ring, &doubt); err != nil {
		return err
	}
	switch {
	case !same:
		d.See(checkHistory, store.Warning, true, "the database is not the one that was last written to; the next claim notes it")
	case doubted:
		d.See(checkHistory, store.Warning, true, "changed: first claims are unknown for another %v", left.Round(time.Second))
	default:
		d.See(checkHistory, store.Warning, false, "the same")
	}
	kept := fmt.Sprintf("a ring for retentions up to %v", ring)
	if slot < 0 {
		kept = "one table"
	}
	long := slot >= 0 && d.o.Retention > ring
	if long {
		kept += fmt.Sprintf(", and a configured one of %v", d.o.Retention)
	}
	d.See(checkSettings, store.Warning, long, "%s; %v of doubt after a change of history", kept, doubt)
	return nil
}

// session looks at what a connection of this role is given.
func (d *doctor) session(ctx context.Context) error {
	level := d.is("default_transaction_isolation")
	d.See(checkIsolation, store.Warning, level != "read committed", "%s", d.from("default_transaction_isolation"))

	var low []string
	for _, name := range []string{"statement_timeout", "transaction_timeout", "lock_timeout"} {
		if n := d.number(name); n > 0 && n < d.o.Limit.Milliseconds() {
			low = append(low, name+" "+(time.Duration(n)*time.Millisecond).String())
		}
	}
	if n := d.number("idle_session_timeout"); n > 0 && n < d.idle.Milliseconds() {
		low = append(low, "idle_session_timeout "+(time.Duration(n)*time.Millisecond).String())
	}
	if low == nil {
		d.See(checkTimeouts, store.Warning, false, "none below %v", d.o.Limit)
	} else {
		d.See(checkTimeouts, store.Warning, true, "%s", strings.Join(low, ", "))
	}

	var path []string
	for name := range strings.SplitSeq(d.is("search_path"), ",") {
		path = append(path, strings.Trim(strings.TrimSpace(name), `"`))
	}
	wrong := slices.Index(path, "pg_catalog") > 0 || slices.Contains(path, "unavez")
	d.See(checkSearchPath, store.Warning, wrong, "%s", d.from("search_path"))

	before := time.Now()
	var there time.Time
	if err := d.conn.QueryRow(ctx, "SELECT pg_catalog.clock_timestamp()").Scan(&there); err != nil {
		return err
	}
	took := time.Since(before)
	apart := there.Sub(before.Add(took / 2))
	d.See(checkClock, store.Warning, apart.Abs() > time.Second+took, "%v apart, as near as %v tells", apart.Round(time.Millisecond), took.Round(10*time.Microsecond))

	host := d.conn.Config().Host
	_, encrypted := d.conn.PgConn().Conn().(*tls.Conn)
	near := strings.HasPrefix(host, "/") || host == "localhost" || net.ParseIP(host).IsLoopback()
	d.See(checkTLS, store.Warning, !encrypted && !near, "%s", map[bool]string{true: "encrypted", false: "not encrypted"}[encrypted]+map[bool]string{true: ", on this host", false: ""}[near])
	return nil
}

// locksEach is what an operation's transaction holds, about: its own lock, and
// those of the tables and indexes that a gate and a finish read.
const locksEach = 24

// capacity looks at what many operations at a time need.
func (d *doctor) capacity(ctx context.Context) error {
	var locks, clients int64
	const text = "SELECT (SELECT count(*) FROM pg_catalog.pg_locks WHERE NOT fastpath), (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend')"
	if err := d.conn.QueryRow(ctx, text).Scan(&locks, &clients); err != nil {
		return err
	}
	room := d.number("max_locks_per_transaction") * (d.number("max_connections") + d.number("max_prepared_transactions"))
	may := d.most * (locksEach + int64(max(d.o.Batch, 1)) - 1)
	d.See(checkLocks, store.Warning, locks > room/4 || may > room/4, "%d of %d in use; this worker's %d connections may hold about %d", locks, room, d.most, may)
	free := d.number("max_connections") - d.number("superuser_reserved_connections") - d.number("reserved_connections") - clients + 1 // but for this one
	d.See(checkConnections, store.Warning, free < d.most-d.mine, "%d of %d are free, this worker may open %d more", max(free, 0), d.number("max_connections"), d.most-d.mine)
	return nil
}

// longOpen is what nobody's transaction should be open for.
const longOpen = time.Hour

// keptLog is how much of its log a server may keep for an idle slot.
const keptLog = 1 << 30

// vacuum looks at what keeps a database tidy.
func (d *doctor) vacuum(ctx context.Context) error {
	var wrong []string
	for _, name := range []string{"autovacuum", "track_counts"} {
		if d.is(name) != "on" {
			wrong = append(wrong, name+" "+d.is(name))
		}
	}
	if d.number("autovacuum_vacuum_insert_threshold") < 0 {
		wrong = append(wrong, "autovacuum_vacuum_insert_threshold "+d.is("autovacuum_vacuum_insert_threshold"))
	}
	const without = "SELECT coalesce(pg_catalog.string_agg(c.relname, ', ' ORDER BY c.relname), '') FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace" +
		" WHERE n.nspname = 'unavez' AND pg_catalog.lower(c.reloptions::pg_catalog.text) ~ 'autovacuum_enabled=(off|false|no|0)'"
	var tables string
	if err := d.conn.QueryRow(ctx, without).Scan(&tables); err != nil {
		return err
	}
	if tables != "" {
		wrong = append(wrong, "not for "+tables)
	}
	if wrong == nil {
		d.See(checkVacuum, store.Warning, false, "on")
	} else {
		d.See(checkVacuum, store.Warning, true, "%s", strings.Join(wrong, "; "))
	}
	return d.horizon(ctx)
}

// horizon looks at what keeps old rows and old log.
func (d *doctor) horizon(ctx context.Context) error {
	const text = `SELECT * FROM (
SELECT pg_catalog.format('transaction of process %s open for %s', pid, pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - xact_start)) AS what
    FROM pg_catalog.pg_stat_activity WHERE xact_start < pg_catalog.clock_timestamp() - $1::pg_catalog.int8 * interval '1 second' AND backend_type = 'client backend'
UNION ALL
SELECT pg_catalog.format('prepared transaction %s since %s', gid, pg_catalog.date_trunc('second', prepared))
    FROM pg_catalog.pg_prepared_xacts WHERE prepared < pg_catalog.clock_timestamp() - $1::pg_catalog.int8 * interval '1 second'
UNION ALL
SELECT pg_catalog.format('%s replication slot %s is idle and keeps %s of log', slot_type, slot_name, pg_catalog.pg_size_pretty(pg_catalog.pg_wal_lsn_diff(
        CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END, restart_lsn)))
    FROM pg_catalog.pg_replication_slots WHERE NOT active AND (slot_type = 'logical' OR xmin IS NOT NULL OR pg_catalog.pg_wal_lsn_diff(
        CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END, restart_lsn) > $2::pg_catalog.int8)
UNION ALL
SELECT pg_catalog.format('database %s has transactions of age %s', datname, pg_catalog.age(datfrozenxid))
    FROM pg_catalog.pg_database WHERE datallowconn AND pg_catalog.age(datfrozenxid) > 1000000000
) w LIMIT 10`
	rows, err := d.conn.Query(ctx, text, int64(longOpen.Seconds()), int64(keptLog))
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if len(all) == 0 {
		d.See(checkHorizon, store.Warning, false, "nothing is old")
	} else {
		d.See(checkHorizon, store.Warning, true, "%s", strings.Join(all, "; "))
	}
	return nil
}

// pooler looks at whether something stands between the worker and the server,
// which its process number tells, and whether that moves connections.
func (d *doctor) pooler(ctx context.Context) error {
	const me = "SELECT pg_catalog.pg_backend_pid()"
	ask := func(conn *pgx.Conn) (pid uint32, err error) {
		err = conn.QueryRow(ctx, me, pgx.QueryExecModeSimpleProtocol).Scan(&pid)
		return pid, err
	}
	first, err := ask(d.conn)
	if err != nil {
		return err
	}
	if first == d.conn.PgConn().PID() {
		d.See(checkPooler, store.Refused, false, "none")
		return nil
	}
	unnamed := d.mode == pgx.QueryExecModeExec || d.mode == pgx.QueryExecModeSimpleProtocol
	name := "unavez_doctor_" + strings.ToLower(rand.Text())
	if _, err := d.conn.Prepare(ctx, name, me); err != nil {
		return err
	}
	other, err := d.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer other.Release()
	// The server that this connection had is taken: it gets another one, or
	// keeps its own.
	tx, err := other.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // it has only read
	if _, err := ask(other.Conn()); err != nil {
		return err
	}
	second, err := ask(d.conn)
	if err != nil {
		return err
	}
	if second == first {
		_ = d.conn.Deallocate(ctx, name) // it goes with the connection at the latest
		d.See(checkPooler, store.Refused, false, "one that keeps a session's server (session pooling)")
		return nil
	}
	var pid uint32
	lost := d.conn.QueryRow(ctx, name).Scan(&pid)
	if lost == nil {
		_ = d.conn.Deallocate(ctx, name) // as above
	} else if _, err := tx.Exec(ctx, "DEALLOCATE "+name); err != nil {
		return err // this one should have that server
	}
	switch {
	case unnamed:
		d.See(checkPooler, store.Refused, false, "transaction pooling, without prepared statements")
	case lost != nil:
		d.See(checkPooler, store.Refused, true, "transaction pooling that loses prepared statements")
	default:
		d.See(checkPooler, store.Refused, false, "transaction pooling that keeps prepared statements")
	}
	return nil
}
