package sqlite

import (
	"context"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

//go:embed migrations/*.sql
var migrations embed.FS

// protocol is the version of what workers on one file must agree on.
const protocol = "1"

// migration is one numbered step of the schema.
type migration struct {
	version int64
	name    string
	sql     string
}

// steps are the migrations in order; their numbers have no gaps.
func steps() ([]migration, error) {
	entries, err := fs.ReadDir(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	var out []migration
	for i, e := range entries {
		number, name, ok := strings.Cut(strings.TrimSuffix(e.Name(), ".sql"), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil || version != int64(i+1) {
			return nil, fmt.Errorf("sqlite store: migration %s: want number %04d", e.Name(), i+1)
		}
		sql, err := fs.ReadFile(migrations, "migrations/"+e.Name())
		if err != nil {
			return nil, err
		}
		out = append(out, migration{version, name, string(sql)})
	}
	return out, nil
}

// migrate brings the file to this program's schema, or only checks it. Each
// step is one transaction; workers that start together do it once.
func (c *connector) migrate(ctx context.Context, apply bool) error {
	all, err := steps()
	if err != nil {
		return err
	}
	// Migrations read before they write, so that a file that needs none, the
	// usual case, is not written to.
	var at int64
	if err := c.gates.read(ctx, func(r *raw) (err error) { at, err = version(r); return err }); err != nil {
		return err
	}
	newest := int64(len(all))
	for at <= newest {
		if at == newest {
			return c.gates.read(ctx, settings)
		}
		if !apply {
			return fmt.Errorf("sqlite store: schema is at version %d, this program wants %d: run unavez migrate", at, newest)
		}
		err := c.writer.apart(ctx, func(r *raw) error {
			found, err := version(r)
			if err != nil || found != at {
				at = found
				return err
			}
			m := all[at]
			if _, err := r.execArgs(context.Background(), m.sql, 2, nil); err != nil {
				return fmt.Errorf("sqlite store: migration %04d_%s: %w", m.version, m.name, err)
			}
			_, err = r.exec("INSERT INTO unavez_migration (version, name, at) VALUES (?1, ?2, "+now+")", m.version, m.name)
			at = m.version
			return err
		})
		if err != nil {
			return err
		}
		c.schema.Add(1)
	}
	return fmt.Errorf("sqlite store: schema is at version %d, newer than this program's %d: start a newer program, or restore the backup made before it was", at, newest)
}

// version is the number of the last migration, 0 for a file without any.
func version(r *raw) (int64, error) {
	n, err := r.number("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'unavez_migration'")
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, nil
	}
	return r.number("SELECT coalesce(max(version), 0) FROM unavez_migration")
}

// settings compares what all workers on the file must agree on.
func settings(r *raw) error {
	var found string
	_, err := r.row("SELECT value FROM unavez_setting WHERE name = 'protocol'", nil, func(v []driver.Value) error {
		found = word(v[0])
		return nil
	})
	if err == nil && found != protocol {
		err = errors.New("sqlite store: file follows protocol " + strconv.Quote(found) + ", this program " + protocol + ": they would not exclude each other's operations")
	}
	return err
}

// apart runs fn in a transaction of its own.
func (w *writer) apart(ctx context.Context, fn func(r *raw) error) error {
	u := w.unit(unitOwn)
	u.finish = fn
	return u.commit(ctx)
}
