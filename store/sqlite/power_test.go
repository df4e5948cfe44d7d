package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ncruces "github.com/ncruces/go-sqlite3/driver"
	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/internal/evidence"
	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// said is what somebody outside was told, and how far the disk had come then: a
// power cut from there on must leave it true.
type said struct {
	at     int
	name   string // of the operation
	answer string
}

// history is what was said outside while the disk wrote.
type history struct {
	disk *lossyDisk

	mu       sync.Mutex
	answered []said // an operation's client has its answer
	called   []said // the outside was called for an operation
	plain    []said // the application's own row was acknowledged
}

func (h *history) tell(what *[]said, name, answer string) {
	at := h.disk.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	*what = append(*what, said{at, name, answer})
}

// until are those that were said before a power cut.
func until(all []said, at int) (out []said) {
	for _, s := range all {
		if s.at <= at {
			out = append(out, s)
		}
	}
	return out
}

// powerOperation is an operation of the load.
func powerOperation(name string) unavez.Operation {
	kind, _, _ := strings.Cut(name, " ")
	op := unavez.Operation{Effect: kind, Key: []string{name}, Payload: []byte(name), Lease: time.Minute, Limit: time.Minute}
	if kind != "held" {
		op.Unknown = unavez.Retry
	}
	return op
}

// powerEngine is an engine without a cache.
func powerEngine(s *sqlite.Store) (*unavez.Engine[*sql.Tx], error) {
	return unavez.New(s, &unavez.Options{SingleTenant: true, CacheSize: -1})
}

// deliver runs an operation of the load. Its answer tells which run made it.
func deliver(ctx context.Context, engine *unavez.Engine[*sql.Tx], name, run string, called func()) (string, error) {
	op := powerOperation(name)
	answer := name + " by run " + run
	row := func(ctx context.Context, tx *sql.Tx) error { return write(ctx, tx, name) }
	var out unavez.Outcome
	var err error
	if op.Effect == "done" {
		out, err = engine.Do(ctx, op, func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
			return unavez.Result{Code: 201, Body: []byte(answer)}, row(ctx, tx)
		})
	} else {
		out, err = engine.Lease(ctx, op, func(ctx context.Context, a *unavez.Attempt) (unavez.Result, error) {
			receipt, err := unavez.Step(ctx, a, "call", func(context.Context, string) (string, error) {
				called()
				return answer, nil
			}, nil)
			if op.Effect == "held" {
				err = errors.Join(err, errors.New("no answer"))
			}
			return unavez.Result{Code: 201, Body: []byte(receipt)}, err
		}, func(ctx context.Context, tx *sql.Tx, _ *unavez.Result) error { return row(ctx, tx) })
	}
	return string(out.Result.Body), err
}

// load works on a lossy disk: operations in transactions and under leases, some
// that stay unknown, rows of the application's own, results that are purged,
// checkpoints, and an orderly end with a new beginning in the middle.
func load(t *testing.T, drv driver.Driver, name string, o *sqlite.Options) *history {
	t.Helper()
	dir, err := filepath.EvalSymlinks(memoryFolder(t))
	if err != nil {
		t.Fatal(err)
	}
	h := &history{}
	if nameOf(drv) == "modernc" {
		h.disk = newShippedDisk(t, name, dir)
	} else {
		h.disk = newLossyDisk(t, name, dir)
	}
	o.Parameters = "vfs=" + name
	path := filepath.Join(dir, "x.db")
	for half := range 2 {
		func() {
			db, err := sqlite.OpenDB(drv, path, o)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := db.Close(); err != nil {
					t.Error(err)
				}
			}()
			s, err := sqlite.New(db, nil)
			if err != nil {
				t.Fatal(err)
			}
			w := &worker{db: db, store: s, path: path}
			w.exec(t, "CREATE TABLE IF NOT EXISTS business (row TEXT NOT NULL, once TEXT)")
			engine, err := powerEngine(s)
			if err != nil {
				t.Fatal(err)
			}
			var clients sync.WaitGroup
			for client := range 4 {
				clients.Go(func() {
					for i := range 4 {
						suffix := fmt.Sprintf(" %d-%d-%d", half, client, i)
						for _, kind := range []string{"done", "leased", "held", "plain"} {
							name := kind + suffix
							if kind == "plain" {
								if _, err := db.ExecContext(t.Context(), "INSERT INTO business (row) VALUES (?)", name); err != nil {
									t.Error(err)
								}
								h.tell(&h.plain, name, "")
								continue
							}
							answer, err := deliver(t.Context(), engine, name, "one", func() { h.tell(&h.called, name, "") })
							switch {
							case kind == "held" && unavez.CodeOf(err) == unavez.CodeUnknown:
							case err != nil:
								t.Errorf("%s: %v", name, err)
							default:
								h.tell(&h.answered, name, answer)
							}
						}
						if client == 0 && i%2 == 1 {
							w.exec(t, "PRAGMA wal_checkpoint(TRUNCATE)")
						}
					}
				})
			}
			clients.Wait()
			// Some of the results are over.
			w.exec(t, "UPDATE unavez_outcome SET at = at - 259200000, expires = expires - 259200000 WHERE id % 5 = 0")
			for {
				n, err := s.Purge(t.Context(), 4)
				if err != nil {
					t.Error(err)
				}
				if n < 4 {
					break
				}
			}
			w.exec(t, "PRAGMA wal_checkpoint(PASSIVE)")
		}()
	}
	return h
}

// openImage opens what a power cut has left, and says what does not hold. lost
// counts what was said before and is gone.
func openImage(ctx context.Context, drv driver.Driver, dir string, h *history, at int) (broken []string, lost int) {
	note := func(format string, arguments ...any) { broken = append(broken, fmt.Sprintf(format, arguments...)) }
	path := filepath.Join(dir, "x.db")
	// What is looked at here needs no disk.
	db, err := sqlite.OpenDB(drv, path, &sqlite.Options{HandlerLimit: time.Minute, Synchronous: sqlite.Normal})
	if err != nil {
		return []string{"open: " + err.Error()}, 0
	}
	defer func() {
		if err := db.Close(); err != nil {
			note("close: %v", err)
		}
	}()
	s, err := sqlite.New(db, nil)
	if err != nil {
		return []string{"store: " + err.Error()}, 0
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS business (row TEXT NOT NULL, once TEXT)"); err != nil {
		return []string{"table: " + err.Error()}, 0
	}
	var sound string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check").Scan(&sound); err != nil || sound != "ok" {
		note("integrity: %s, %v", sound, err)
	}
	count := func() map[string]int {
		all, err := readRows(ctx, db)
		if err != nil {
			note("rows: %v", err)
		}
		rows := map[string]int{}
		for _, row := range all {
			rows[row]++
		}
		return rows
	}
	rows := count()
	states, err := rememberedBy(ctx, db)
	if err != nil {
		note("states: %v", err)
	}
	state := func(name string) store.State { return states[powerOperation(name).Identity().Key()] }
	remembered := func(name string) bool { st := state(name); return st.Final() || st == store.Expired }
	for row, n := range rows {
		switch plain := strings.HasPrefix(row, "plain "); {
		case n != 1:
			note("%d effects of %s", n, row)
		case !plain && !remembered(row):
			note("effect of %s without its outcome: it is %v", row, state(row))
		}
	}
	answers := map[string]string{}
	for _, s := range until(h.answered, at) {
		answers[s.name] = s.answer
		switch {
		case !remembered(s.name) && rows[s.name] == 0:
			lost++
		case rows[s.name] != 1:
			note("%s was answered and has %d effects", s.name, rows[s.name])
		}
	}
	for _, s := range until(h.plain, at) {
		if rows[s.name] == 0 {
			lost++
		}
	}
	for _, s := range until(h.called, at) { // a claim is durable before its call
		if state(s.name) == store.Free {
			lost++
		}
	}
	// Everything arrives again, and ends with one effect.
	all := map[string]bool{}
	for _, s := range slices.Concat(h.answered, h.called) {
		all[s.name] = true
	}
	engine, err := powerEngine(s)
	if err != nil {
		return []string{"engine: " + err.Error()}, lost
	}
	var mu sync.Mutex
	var clients sync.WaitGroup
	seen := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		before := state(name)
		if before == store.Processing { // its worker is gone; the lease would run out
			continue
		}
		if remembered(name) {
			if seen++; seen > 8 { // what a few get all get
				continue
			}
		}
		clients.Go(func() {
			answer, err := deliver(ctx, engine, name, "two", func() {})
			code := unavez.CodeOf(err)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case strings.HasPrefix(name, "held ") && code == unavez.CodeUnknown, before == store.Expired && code == unavez.CodeExpired:
			case err != nil:
				note("%s, which was %v, arrives again: %v", name, before, err)
			case before.Final() && !strings.HasSuffix(answer, " by run one"), answers[name] != "" && before.Final() && answer != answers[name]:
				note("%s has the answer %q", name, answer)
			}
		})
	}
	clients.Wait()
	again := count()
	for name := range all {
		want := 1
		if strings.HasPrefix(name, "held ") || state(name) == store.Processing {
			want = 0
		}
		if again[name] != want {
			note("%s has %d effects in the end", name, again[name])
		}
	}
	proofs, err := sqlite.Audit(ctx, drv, path, &store.AuditOptions{All: true, Grace: 100 * 365 * 24 * time.Hour})
	if err != nil {
		note("audit: %v", err)
	}
	for _, p := range proofs {
		if p.Broken > 0 {
			note("audit: %s: %d, %q", p.Code, p.Broken, p.First)
		}
	}
	return broken, lost
}

// rememberedBy reads what a file remembers of each operation; the rest is free.
func rememberedBy(ctx context.Context, db *sql.DB) (map[store.Key]store.State, error) {
	rows, err := db.QueryContext(ctx, "SELECT key, CASE WHEN expires <= unixepoch() * 1000 THEN ?1 ELSE state END FROM unavez_outcome"+
		" UNION ALL SELECT key, ?1 FROM unavez_tombstone UNION ALL SELECT key, state FROM unavez_attempt", int64(store.Expired))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	states := map[store.Key]store.State{}
	for rows.Next() {
		var key []byte
		var state int64
		if err := rows.Scan(&key, &state); err != nil {
			return nil, err
		}
		if len(key) != len(store.Key{}) { // of a disk that lies
			return nil, fmt.Errorf("a key of %d bytes", len(key))
		}
		states[store.Key(key)] = store.State(state)
	}
	return states, rows.Err()
}

// memoryFolder is one on no disk, where there is such a thing.
func memoryFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "unavez-power-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// A disk keeps what was synced, and of the rest anything. Each image is one that
// a power cut could have left.
func TestPowerCutLosesNothingThatWasSaid(t *testing.T) {
	t.Parallel()
	for _, c := range []powerCut{
		{name: "full", images: 20, long: 3000},
		{name: "normal", o: sqlite.Options{Synchronous: sqlite.Normal}, loses: true, images: 8, long: 1000},
		{name: "full-on-a-disk-that-lies", lies: true, loses: true, images: 8, long: 1000},
	} {
		for name, drv := range drivers() {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				c.run(t, drv)
			})
		}
	}
}

// powerCut is one way to write, and how many images of it are looked at.
type powerCut struct {
	name         string
	o            sqlite.Options
	lies         bool // the disk has synced nothing
	loses        bool // and so must what was said be lost, sometimes
	images, long int
}

func (c powerCut) run(t *testing.T, drv driver.Driver) {
	name := c.name + "-" + nameOf(drv)
	c.o.HandlerLimit, c.o.TransactionLimit, c.o.BusyTimeout = time.Minute, time.Minute, time.Minute
	h := load(t, drv, "lossy-"+name, &c.o)
	if t.Failed() {
		return
	}
	count := c.images
	if evidence.Long() {
		count = c.long
	}
	run := evidence.Run{Name: "power-cuts-" + name, Long: evidence.Long(), Seed: uint64(time.Now().UnixNano()), Steps: len(h.disk.changes), Operations: len(h.answered)}
	t.Logf("seed %d; %d changes, %d answers, %d calls, %d plain rows", run.Seed, len(h.disk.changes), len(h.answered), len(h.called), len(h.plain))
	random := rand.New(rand.NewPCG(run.Seed, 0))
	var lost, broken atomic.Int64
	slots := make(chan struct{}, 2)
	var looking sync.WaitGroup
	readers := []driver.Driver{&modernc.Driver{}, &ncruces.SQLite{}}
	p, folder := newPlatter(c.lies), memoryFolder(t)
	for at := 0; at <= len(h.disk.changes); at++ {
		if at > 0 {
			p.apply(h.disk.changes[at-1])
		}
		// So many of the images that are wanted are of this change.
		share := count*(at+1)/(len(h.disk.changes)+1) - count*at/(len(h.disk.changes)+1)
		for range share {
			run.Images++
			k := keeping(random.IntN(int(keepings)))
			run.Sees("kept "+k.String(), 1)
			dir, err := os.MkdirTemp(folder, "")
			if err == nil {
				err = p.image(dir, k, random)
			}
			if err != nil {
				t.Fatal(err)
			}
			reader := readers[run.Images%2]
			slots <- struct{}{}
			looking.Go(func() {
				defer func() { <-slots }()
				found, gone := openImage(t.Context(), reader, dir, h, at)
				if gone > 0 {
					lost.Add(1)
				}
				if len(found) > 0 && !c.lies || gone > 0 && !c.loses {
					broken.Add(1)
					t.Errorf("power cut at change %d of %d, kept %v, opened by %s: %d lost; %s", at, len(h.disk.changes), k, nameOf(reader), gone, strings.Join(found, "; "))
				}
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
		}
	}
	looking.Wait()
	run.Violations = int(broken.Load())
	if c.loses {
		run.Sees("something that was said was lost", int(lost.Load()))
	}
	t.Logf("%d images, %d of them lost something; %v", run.Images, lost.Load(), run.Sometimes)
	for _, what := range run.Never() {
		t.Errorf("never: %s", what)
	}
	if err := run.Write(); err != nil {
		t.Error(err)
	}
}

func TestDoctorRefusesWhatLosesAtAPowerCut(t *testing.T) {
	each(t, func(t *testing.T, drv driver.Driver) {
		w := fresh(t, drv, patient())
		for synchronous, want := range map[sqlite.Synchronous]store.Level{sqlite.Full: store.Sound, sqlite.Normal: store.Refused} {
			checks, err := sqlite.Doctor(t.Context(), drv, w.path, &sqlite.DoctorOptions{Synchronous: synchronous})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(checks, func(c store.Check) bool { return c.Name == "sqlite.synchronous" })
			if i < 0 || checks[i].Level != want {
				t.Errorf("synchronous %v: %+v, want %v", synchronous, checks, want)
			}
		}
	})
}
