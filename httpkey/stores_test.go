package httpkey_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/unavez/unavez/store"
	"github.com/unavez/unavez/store/sqlite"
)

// stores are the stores that every case runs on.
func stores() map[string]func(*testing.T) *shop {
	return map[string]func(*testing.T) *shop{"memory": onMemory, "sqlite": onSQLite}
}

func onSQLite(t *testing.T) *shop {
	t.Helper()
	db, err := sqlite.OpenDB(&modernc.Driver{}, filepath.Join(t.TempDir(), "shop.db"), &sqlite.Options{HandlerLimit: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	exec := func(text string, args ...any) {
		if _, err := db.ExecContext(context.Background(), text, args...); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	ledger, err := sqlite.New(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	exec("CREATE TABLE business (row TEXT NOT NULL)")
	s := newShop(t, store.Ledger[*sql.Tx](ledger), func(ctx context.Context, tx *sql.Tx, row string) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO business (row) VALUES (?)", row)
		return err
	}, func() (n int) {
		if err := db.QueryRowContext(context.Background(), "SELECT count(*) FROM business").Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	})
	// The clock moved forward is every stored instant moved back.
	s.advance = func(d time.Duration) {
		exec("UPDATE unavez_outcome SET at = at - ?1, expires = expires - ?1, forgets = forgets - ?1", d.Milliseconds())
		exec("UPDATE unavez_tombstone SET forgets = forgets - ?1", d.Milliseconds())
	}
	return s
}
