package server

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/server/internal/admin"
	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/server/internal/observe"
	"github.com/unavez/unavez/store"
)

// DefaultAdmin is where a server on this host listens for operators.
const DefaultAdmin = "http://" + config.DefaultAdminListen

// OpsOptions say how operations are reached: over a server's admin listener, or
// in its store directly, whether it runs or not.
type OpsOptions struct {
	// Admin is the URL of the admin listener; empty means DefaultAdmin.
	Admin string
	// Token for it; empty where it needs none.
	Token string
	// Config, when not empty, names a configuration whose store is opened.
	Config string
	// Store, when not empty, is the store that is opened: a file of SQLite, or
	// the URL of a PostgreSQL database.
	Store string
}

// place gives the store that is to be opened directly, none for the admin
// listener, and the configuration that names it, if one does.
func (o *OpsOptions) place() (config.Place, *config.Config, error) {
	switch {
	case o.Store != "" && o.Config != "":
		return config.Place{}, nil, UsageError{errors.New("--store and a configuration name two stores: give one")}
	case o.Config != "":
		l, err := read(o.Config, &Options{})
		if err != nil {
			return config.Place{}, nil, err
		}
		return l.config.Place, l.config, nil
	case strings.HasPrefix(o.Store, "postgres:"), strings.HasPrefix(o.Store, "postgresql:"):
		at, err := config.ParsePlace(o.Store)
		if err != nil {
			return at, nil, UsageError{fmt.Errorf("--store: %w", err)}
		}
		return at, nil, nil
	}
	return config.Place{Path: strings.TrimPrefix(o.Store, "sqlite:")}, nil, nil
}

// Ops is an operator's hand on operations. Close it when done.
type Ops struct {
	client *http.Client
	base   string
	token  string
	close  func() error
}

// OpenOps makes ready to work on operations.
func OpenOps(ctx context.Context, o OpsOptions) (*Ops, error) {
	retention, tombstone := unavez.DefaultRetention, unavez.DefaultTombstone
	at, c, err := o.place()
	if err != nil {
		return nil, err
	}
	if c != nil {
		retention, tombstone = longestKept(c)
	}
	if at == (config.Place{}) {
		base := o.Admin
		if base == "" {
			base = DefaultAdmin
		}
		u, err := url.Parse(base)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("--admin: %q is not an http:// or https:// URL", base)
		}
		// An operator's own machine and network: no policy, but no redirect
		// either, which could carry the token elsewhere.
		client := &http.Client{
			Timeout:       time.Minute,
			Transport:     &http.Transport{Proxy: nil, DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
		return &Ops{client: client, base: strings.TrimSuffix(base, "/"), token: o.Token, close: func() error { return nil }}, nil
	}
	if at.Path != "" {
		if _, err := os.Stat(at.Path); err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
	}
	s, err := openStorage(ctx, at)
	if err != nil {
		return nil, err
	}
	d := &direct{storage: s}
	if c != nil {
		if err := d.open(c); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	handler := admin.New(admin.Options{
		Operations: s.store, Queue: s.received(), Inbox: d.inbox, Owner: d.owner,
		Keep: func() (time.Duration, time.Duration) { return retention, tombstone },
	})
	return &Ops{client: &http.Client{Transport: inProcess{handler}}, base: "http://localhost", close: d.close}, nil
}

// direct is a store that is worked on without a server: with the sources and
// effects of a configuration, which receive and run nothing.
type direct struct {
	storage *storage
	engine  engine
	intake  *intake
	config  *config.Config
}

// open makes the inbox of a configuration ready, unstarted.
func (d *direct) open(c *config.Config) (err error) {
	d.config = c
	if len(c.Sources) == 0 || d.storage.queue() == nil {
		return nil
	}
	if d.engine, err = d.storage.engine(&unavez.Options{SingleTenant: true}); err != nil {
		return err
	}
	p := &parts{
		engine: d.engine, operations: d.storage.store, log: slog.New(slog.DiscardHandler), suspects: newSuspects(),
		metrics: observe.NewMetrics(observe.Gauges{
			Counts: d.storage.store.Counts, Refused: func() float64 { return 0 }, Open: func() float64 { return 0 },
		}),
	}
	quiet := *c
	quiet.Alerts = nil // of people's decisions nobody is alerted
	d.intake, err = newIntake(&quiet, p, d.storage.queue())
	return err
}

func (d *direct) inbox() admin.Inbox {
	if d.intake == nil {
		return nil
	}
	return d.intake
}

func (d *direct) owner(effect string) string {
	if d.config == nil {
		return ""
	}
	return ownerOf(d.config, effect)
}

func (d *direct) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	err := d.intake.end(ctx)
	if d.engine != nil {
		err = errors.Join(err, d.engine.Close(ctx))
	}
	return errors.Join(err, d.storage.close())
}

// Close gives the store back.
func (o *Ops) Close() error { return o.close() }

// inProcess answers requests by a handler, without a network: a store that is
// opened directly is worked on by the same API.
type inProcess struct{ handler http.Handler }

func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := &written{header: http.Header{}, status: http.StatusOK}
	r = r.Clone(r.Context())
	r.Host = r.URL.Host
	t.handler.ServeHTTP(w, r)
	return &http.Response{StatusCode: w.status, Header: w.header, Body: io.NopCloser(&w.body), Request: r}, nil
}

type written struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *written) Header() http.Header         { return w.header }
func (w *written) WriteHeader(status int)      { w.status = status }
func (w *written) Write(p []byte) (int, error) { return w.body.Write(p) }

// call sends one request to the API.
func (o *Ops) call(ctx context.Context, method, path string, in, out any) error {
	resp, err := o.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 32<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusOK {
		return json.Unmarshal(answer, out)
	}
	return problemOf(resp.StatusCode, answer)
}

// send sends one request; the answer is the caller's to read and to close.
func (o *Ops) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		encoded, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, o.base+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if o.token != "" {
		req.Header.Set("Authorization", "Bearer "+o.token)
	}
	resp, err := o.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w\nis the server running? --config FILE or --store STORE opens its store directly", err)
	}
	return resp, nil
}

// refusal is a problem that the API answered.
type refusal struct {
	status int
	detail string
}

func (r *refusal) Error() string { return r.detail }

func isStatus(err error, status int) bool {
	var r *refusal
	return errors.As(err, &r) && r.status == status
}

func problemOf(status int, answer []byte) error {
	var problem struct{ Detail string }
	if json.Unmarshal(answer, &problem) != nil || problem.Detail == "" {
		problem.Detail = http.StatusText(status)
	}
	if status == http.StatusUnauthorized {
		problem.Detail += " (set UNAVEZ_ADMIN_TOKEN, or give --token-file)"
	}
	return &refusal{status, printable(problem.Detail)}
}

// ListOptions select operations.
type ListOptions struct {
	// States wanted; none means the unfinished ones.
	States []string
	// Tenant and Effect, when not empty, select by those.
	Tenant, Effect string
	// Limit is how many are listed at most.
	Limit int
}

// List writes operations, those at rest longest first.
func (o *Ops) List(ctx context.Context, w io.Writer, asJSON bool, l ListOptions) error {
	query := url.Values{}
	if len(l.States) > 0 {
		query.Set("state", strings.Join(l.States, ","))
	}
	if l.Tenant != "" {
		query.Set("tenant", l.Tenant)
	}
	if l.Effect != "" {
		query.Set("effect", l.Effect)
	}
	all := admin.Page{Operations: []admin.Operation{}}
	for len(all.Operations) < l.Limit {
		query.Set("limit", fmt.Sprint(min(l.Limit-len(all.Operations), 1000)))
		var page admin.Page
		if err := o.call(ctx, http.MethodGet, "/api/operations?"+query.Encode(), nil, &page); err != nil {
			return err
		}
		all.Operations = append(all.Operations, page.Operations...)
		all.Next = page.Next
		if page.Next == "" {
			break
		}
		query.Set("after", page.Next)
	}
	if asJSON {
		return writeJSON(w, all)
	}
	return writeTable(w, all, len(l.States) == 0)
}

// Show writes one operation with its history, and the queue entry of its key
// with its further deliveries. It is named by its key or by its name, as a list
// shows them. With payload the content of the entry is written too, as it is
// kept; the server's log says that somebody looked.
func (o *Ops) Show(ctx context.Context, w io.Writer, asJSON bool, name string, payload bool) error {
	path, err := operationPath(name)
	if err != nil {
		return err
	}
	var op admin.Operation
	missing := o.call(ctx, http.MethodGet, path, nil, &op)
	if missing != nil && !isStatus(missing, http.StatusNotFound) {
		return missing
	}
	query := ""
	if payload {
		query = "?payload=true"
	}
	var entry *admin.Entry
	switch err := o.call(ctx, http.MethodGet, strings.Replace(path, "/operations/", "/entries/", 1)+query, nil, &entry); {
	case isStatus(err, http.StatusNotFound):
		entry = nil
	case err != nil:
		return err
	}
	switch {
	case missing != nil && entry == nil:
		return missing
	case asJSON && entry == nil:
		return writeJSON(w, op)
	case asJSON && missing != nil:
		return writeJSON(w, map[string]any{"entry": entry})
	case asJSON:
		return writeJSON(w, struct {
			admin.Operation
			Entry *admin.Entry `json:"entry"`
		}{op, entry})
	}
	if missing == nil {
		if err := writeOperation(w, false, op); err != nil {
			return err
		}
	}
	if entry == nil {
		return nil
	}
	return writeEntry(w, *entry)
}

// Decision is what an operator decides about an operation at rest.
type Decision struct {
	// Action is release, redrive, complete or discard.
	Action string
	// By is who decides, Reason why.
	By, Reason string
	// Attempt, when not 0, is the one that was looked at: the decision is
	// refused when there has been another since.
	Attempt int64
	// Status, Header ("Name: value") and Body are the answer, for complete.
	Status int
	// Header lines of the answer.
	Header []string
	// Body of the answer.
	Body []byte
}

// Act carries a decision out and writes what became of the operation.
func (o *Ops) Act(ctx context.Context, w io.Writer, asJSON bool, name string, d Decision) error {
	path, err := operationPath(name)
	if err != nil {
		return err
	}
	in := admin.Decision{By: d.By, Reason: d.Reason, Attempt: d.Attempt}
	if d.Action == "complete" {
		in.Result = &admin.Result{Status: d.Status, Body: d.Body}
		typed := false
		for _, line := range d.Header {
			field, value, ok := strings.Cut(line, ":")
			if !ok {
				return fmt.Errorf("--header: %q is not Name: value", line)
			}
			typed = typed || strings.EqualFold(field, "Content-Type")
			in.Result.Header = append(in.Result.Header, [2]string{field, strings.TrimSpace(value)})
		}
		if !typed && len(d.Body) > 0 {
			kind := "text/plain; charset=utf-8"
			if json.Valid(d.Body) {
				kind = "application/json"
			}
			in.Result.Header = append(in.Result.Header, [2]string{"Content-Type", kind})
		}
	}
	var op admin.Operation
	if err := o.call(ctx, http.MethodPost, path+"/"+d.Action, in, &op); err != nil {
		return err
	}
	return writeOperation(w, asJSON, op)
}

// NewIncarnation says that the history of a store's database is another one, as
// after restoring a volume or a backup, and writes for how long first claims of
// outside calls are unknown now. It opens the store directly.
func NewIncarnation(ctx context.Context, w io.Writer, asJSON bool, o OpsOptions) error {
	at, _, err := o.place()
	if err != nil {
		return err
	}
	if at.URL.Empty() {
		return UsageError{errors.New("new-incarnation: want a PostgreSQL store (give --config FILE or --store postgres://…); a worker on a restored SQLite file is a new process, which remembers nothing else")}
	}
	s, err := openStorage(ctx, at)
	if err != nil {
		return err
	}
	now, err := newIncarnation(ctx, s.store)
	if err = errors.Join(err, s.close()); err != nil {
		return err
	}
	if asJSON {
		return writeJSON(w, map[string]any{"incarnation": now.Number, "doubtSeconds": int(now.DoubtLeft.Seconds())})
	}
	_, err = fmt.Fprintf(w, "Incarnation %d. Each worker drops what it remembers with its next statement.\nUntil %s the first claim of an outside call becomes unknown: unavez ops list shows it.\n",
		now.Number, time.Now().Add(now.DoubtLeft).Format(time.DateTime))
	return err
}

func newIncarnation(ctx context.Context, s any) (store.Incarnation, error) {
	incarnations, ok := s.(store.Incarnations)
	if !ok {
		return store.Incarnation{}, errors.New("new-incarnation: this store has no history to change")
	}
	return incarnations.NewIncarnation(ctx)
}

// operationPath finds the key of an operation that is named either way.
func operationPath(name string) (string, error) {
	key, err := store.ParseKey(name)
	if err != nil {
		id, err := store.ParseText(name)
		if err != nil {
			return "", fmt.Errorf("%q is neither a key (32 hexadecimal digits) nor a name (tenant/http/principal/key), as unavez ops list shows them", name)
		}
		key = id.Key()
	}
	return "/api/operations/" + key.String(), nil
}

// Migration is what became of a store.
type Migration struct {
	// Store is what may be shown of where it is.
	Store string
	// Made says that the file was not there before.
	Made bool
	// From and To are the versions of the schema, 0 for none. Equal ones mean
	// that nothing was to do.
	From, To int
}

// String is one line for people.
func (m Migration) String() string {
	where := m.Store
	if m.Made {
		where += " was made"
	}
	if m.From == m.To {
		return fmt.Sprintf("%s: nothing to do, the schema is at version %d", where, m.To)
	}
	return fmt.Sprintf("%s: schema version %d → %d", where, m.From, m.To)
}

// Migrate opens a store and brings its tables to this version. Without a store
// and a configuration it takes ./unavez.yaml.
func Migrate(ctx context.Context, o OpsOptions) (Migration, error) {
	if o.Store == "" && o.Config == "" {
		o.Config = DefaultFile
		if _, err := os.Stat(DefaultFile); errors.Is(err, fs.ErrNotExist) {
			return Migration{}, UsageError{errors.New("no store named: there is no ./" + DefaultFile + " (give FILE or --store STORE)")}
		}
	}
	at, _, err := o.place()
	if err != nil {
		return Migration{}, err
	}
	if at.Path == "" {
		return migratePostgres(ctx, at.URL)
	}
	m := Migration{Store: at.Path}
	_, missing := os.Stat(at.Path)
	m.Made = errors.Is(missing, fs.ErrNotExist)
	s, err := openSQLiteAfter(at.Path, nil, func(db *sql.DB) (err error) {
		m.From, err = versionOf(ctx, db)
		return err
	})
	if err != nil {
		return Migration{}, err
	}
	m.To, err = versionOf(ctx, s.db)
	return m, errors.Join(err, s.close())
}

// versionOf is the version of a file's schema, 0 for none.
func versionOf(ctx context.Context, db *sql.DB) (at int, err error) {
	var n int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'unavez_migration'").Scan(&n); err != nil || n == 0 {
		return 0, err
	}
	err = db.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM unavez_migration").Scan(&at)
	return at, err
}
