package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	driver "modernc.org/sqlite"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store/sqlite"
)

const schema = `create table if not exists orders(id integer primary key, customer text, amount int, note text)`

// note is a row's ballast, answer a frozen response of 200 bytes.
var (
	note   = string(make([]byte, 100))
	answer = make([]byte, 200)
)

// measureSQLite compares group commit with one transaction per caller, and one
// caller with what the disk gives.
func measureSQLite(s settings) error {
	if _, err := driver.Fdatasync(true); err != nil { // for both variants; the driver's default is fsync
		return err
	}
	dir, err := os.MkdirTemp(s.dir, "unavez-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	single, err := singleTransactions(filepath.Join(dir, "single.db"))
	if err != nil {
		return err
	}
	grouped, err := groupCommit(filepath.Join(dir, "group.db"))
	if err != nil {
		return err
	}
	disk, err := fdatasync(filepath.Join(dir, "raw"))
	if err != nil {
		return err
	}
	// Until its log has come round once, a file grows with every commit, and the
	// file system writes a journal of that: a start, not how it goes on.
	for _, v := range []variant{single, grouped} {
		for range 1500 {
			if err := v.op(context.Background()); err != nil {
				return err
			}
		}
	}
	fmt.Println("SQLite, synchronous=FULL: claim, order and outcome per operation")
	for _, callers := range []int{1, 8, 64} {
		variants := []variant{single, grouped}
		if callers == 1 {
			variants = append(variants, disk)
		}
		found := compare(s, load{callers: callers}, variants)
		fmt.Printf("%d callers\n", callers)
		row(single.name, found[single.name], found[single.name])
		row(grouped.name, found[grouped.name], found[single.name])
		if callers == 1 {
			row(disk.name, found[disk.name], found[single.name])
			fmt.Printf("  one caller against fdatasync: %.2f\n", ratio(found[grouped.name].rate, found[disk.name].rate))
		}
	}
	fmt.Println()
	return nil
}

// singleTransactions is the protocol as it is written by hand: one transaction
// per caller on the driver's own connections, one writer at a time.
func singleTransactions(path string) (variant, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(wal)&_pragma=synchronous(full)&_pragma=busy_timeout(10000)&_txlock=immediate")
	if err != nil {
		return variant{}, err
	}
	db.SetMaxOpenConns(1)
	for _, q := range []string{schema, `create table claims(id text primary key, fp blob, response blob) without rowid`} {
		if _, err := db.Exec(q); err != nil {
			return variant{}, err
		}
	}
	var statements []*sql.Stmt
	for _, q := range []string{`select response from claims where id = ?`, `insert into orders(customer, amount, note) values (?, 42, ?)`, `insert into claims(id, fp, response) values (?, ?, ?)`} {
		stmt, err := db.Prepare(q)
		if err != nil {
			return variant{}, err
		}
		statements = append(statements, stmt)
	}
	var n atomic.Int64
	return variant{name: "a transaction per caller", cpu: ownCPU, op: func(ctx context.Context) error {
		key := strconv.FormatInt(n.Add(1), 10)
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		var stored []byte
		if err := tx.StmtContext(ctx, statements[0]).QueryRowContext(ctx, key).Scan(&stored); err != sql.ErrNoRows {
			return fmt.Errorf("key %s: %v", key, err)
		}
		if _, err := tx.StmtContext(ctx, statements[1]).ExecContext(ctx, key, note); err != nil {
			return err
		}
		if _, err := tx.StmtContext(ctx, statements[2]).ExecContext(ctx, key, answer[:16], answer); err != nil {
			return err
		}
		return tx.Commit()
	}}, nil
}

// groupCommit is the engine on store/sqlite.
func groupCommit(path string) (variant, error) {
	engine, db, err := openEngine(path)
	if err != nil {
		return variant{}, err
	}
	if _, err := db.Exec(schema); err != nil {
		return variant{}, err
	}
	var n atomic.Int64
	return variant{name: "unavez, group commit", cpu: ownCPU, op: func(ctx context.Context) error {
		key := strconv.FormatInt(n.Add(1), 10)
		op := unavez.Operation{Tenant: "bench", Effect: "order", Key: []string{key}}
		_, err := engine.Do(ctx, op, func(ctx context.Context, tx *sql.Tx) (unavez.Result, error) {
			_, err := tx.ExecContext(ctx, `insert into orders(customer, amount, note) values (?, 42, ?)`, key, note)
			return unavez.Result{Code: 201, Body: answer}, err
		})
		return err
	}}, nil
}

// openEngine opens an engine over a new SQLite file.
func openEngine(path string) (*unavez.Engine[*sql.Tx], *sql.DB, error) {
	db, err := sqlite.OpenDB(&driver.Driver{}, path, nil)
	if err != nil {
		return nil, nil, err
	}
	store, err := sqlite.New(db, nil)
	if err != nil {
		return nil, nil, err
	}
	engine, err := unavez.New(store, nil)
	return engine, db, err
}

// fdatasync is what the disk gives: a page written over a file of settled size,
// and made durable.
func fdatasync(path string) (variant, error) {
	f, err := os.Create(path)
	if err != nil {
		return variant{}, err
	}
	page := make([]byte, 4096)
	const pages = 1024
	for i := range pages {
		if _, err := f.WriteAt(page, int64(i)*4096); err != nil {
			return variant{}, err
		}
	}
	var mu sync.Mutex
	var at int64
	return variant{name: "write 4 KiB and fdatasync", cpu: ownCPU, op: func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		at = (at + 1) % pages
		if _, err := f.WriteAt(page, at*4096); err != nil {
			return err
		}
		return syscall.Fdatasync(int(f.Fd()))
	}}, nil
}

// settle gives background work a moment before memory is read.
func settle() { <-time.After(200 * time.Millisecond) }
