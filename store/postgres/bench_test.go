package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The same business transaction, bare and with its operation.
func BenchmarkTransaction(b *testing.B) {
	for _, variant := range []string{"bare", "once"} {
		b.Run(variant, func(b *testing.B) {
			d := fresh(b, nil).worker(b, nil)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				switch variant {
				case "bare":
					if err := pgx.BeginFunc(b.Context(), d.pool, func(tx pgx.Tx) error { return write(b.Context(), tx, "row") }); err != nil {
						b.Fatal(err)
					}
				case "once":
					gate := gateOf("bench", fmt.Sprint(time.Now().UnixNano()), fmt.Sprint(n))
					txn, _, err := d.Begin(b.Context(), gate)
					if err != nil {
						b.Fatal(err)
					}
					if err := write(b.Context(), txn.Tx(), "row"); err != nil {
						b.Fatal(err)
					}
					if _, err := txn.Commit(b.Context(), completed("done")); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
