package postgres

import (
	"bytes"
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/unavez/unavez/store"
)

// watch looks for a warning with a COMMIT's answer. Where a commit waits for
// standbys and the wait is cancelled, by a person or by a timeout, the server
// answers COMMIT all the same and only warns (01000) that no standby may have
// it: a failover then loses what the client was told is kept. The driver gives
// warnings to its configuration alone, which is the caller's, so they are taken
// from its trace. A watch is nil where no commit waits.
type watch struct {
	frontend *pgproto3.Frontend
	noticed  bool
}

func watching(conn *pgx.Conn) *watch {
	if !sessionOf(conn).replicated {
		return nil
	}
	w := &watch{frontend: conn.PgConn().Frontend()}
	w.frontend.Trace(w, pgproto3.TracerOptions{SuppressTimestamps: true})
	return w
}

// Write is called by the trace for each message.
func (w *watch) Write(p []byte) (int, error) {
	w.noticed = w.noticed || bytes.Contains(p, []byte("\tNoticeResponse\t"))
	return len(p), nil
}

// stop ends the watch. Any warning counts: what else a commit warns of is rare,
// and finding out costs only time.
func (w *watch) stop() error {
	if w == nil {
		return nil
	}
	w.frontend.Untrace()
	if w.noticed {
		return &fault{store.ErrCommitUnknown, "the server warned with its commit: the wait for a standby was cancelled", nil}
	}
	return nil
}

// durable waits until the standbys have all that was committed before, where
// commits wait for them: a commit that has to be kept comes behind those.
func (s *Store) durable(ctx context.Context, conn *pgx.Conn) error {
	w := watching(conn)
	if w == nil {
		return nil
	}
	_, err := conn.Exec(ctx, "SELECT pg_catalog.pg_logical_emit_message(true, 'unavez', '')")
	if noticed := w.stop(); err == nil {
		err = noticed
	}
	if err != nil {
		return &fault{store.ErrUnavailable, "the standbys do not have the commit yet", err}
	}
	return nil
}
