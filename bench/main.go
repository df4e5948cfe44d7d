// Command bench measures unavez beside the same work without it, as ratios
// within one run: the variants take turns, so that all meet the same noise.
//
//	go run . sqlite     group commit against a transaction per caller, and fdatasync
//	go run . queue      the queue in SQLite: appends and effects, and fdatasync
//	go run . http       replay and new keys against the bare server, CPU of the server process
//	go run . waiters    memory of waiting duplicates
//	go run . -postgres URL -redis URL lease
//	                    lease mode with a claim and with Redis in its place, against the bare transaction
//	go run . -postgres URL storm
//	                    what a storm of duplicates leaves to unrelated operations
//	go run . -postgres URL replay
//	                    replays that no cache answers, against first runs
//	go run . statechart a step and a load of statecharts, and two libraries beside them
//	go run . inbox      the inbox on SQLite: effects and deliveries, beside what the disk gives
//	go run . all        the first three
//
// and, on a server named by -postgres that does nothing else:
//
//	go run . -postgres URL pages     full-page images after a checkpoint
//	go run . -postgres URL purge     a slot as a whole, against DELETE
//	go run . -postgres URL layout    plain tables, against partitions by time
//	go run . -postgres URL transaction
//	                                 the business transaction bare, eager, lazy, joined, by hand
//	go run . -postgres URL ingest    deliveries made durable together, against one by one, and COPY
//	go run . -postgres URL poison    a key that fails for ever, beside 10,000 others
//	go run . -postgres URL growth    the inbox with more and more identities, and beside an open writer
//
// Absolute rates belong to the machine; quote the ratios, with machine and
// versions, which the first lines print.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// settings are the flags that every measurement shares.
type settings struct {
	dir    string
	rounds int
	sample time.Duration
	// URLs of servers that may be filled; only some measurements need them.
	postgres, redis string
	rows            int // that are there already
}

func main() {
	var s settings
	flag.StringVar(&s.dir, "dir", os.TempDir(), "folder for databases, on the disk that is to be measured")
	flag.IntVar(&s.rounds, "rounds", 7, "samples of each variant")
	flag.DurationVar(&s.sample, "sample", 700*time.Millisecond, "length of a sample")
	flag.StringVar(&s.postgres, "postgres", "", "URL of a PostgreSQL that may be filled")
	flag.StringVar(&s.redis, "redis", "", "URL of a Redis that may be filled")
	flag.IntVar(&s.rows, "rows", 10_000_000, "outcomes that are there already, for pages and layout")
	serve := flag.String("serve", "", "run as one of the measured servers (used by the http measurement itself)")
	flag.Parse()
	if *serve != "" {
		must(0, serveVariant(*serve, s.dir))
		return
	}
	describeMachine()
	what := flag.Arg(0)
	run := map[string]func(settings) error{
		"sqlite": measureSQLite, "queue": measureQueue, "http": measureHTTP, "waiters": measureWaiters, "lease": measureLease, "storm": measureStorm, "replay": measureReplay,
		"pages": measurePages, "purge": measurePurge, "layout": measureLayout, "transaction": measureTransaction, "statechart": measureStatechart,
		"inbox": measureInbox, "ingest": measureIngest, "poison": measurePoison, "growth": measureGrowth,
	}
	switch {
	case what == "all":
		for _, name := range []string{"sqlite", "http", "waiters"} {
			must(0, run[name](s))
		}
	case run[what] != nil:
		must(0, run[what](s))
	default:
		flag.Usage()
		os.Exit(2)
	}
}

// describeMachine prints what a reader needs to place the figures.
func describeMachine() {
	model := "unknown processor"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	fmt.Printf("%s, %d CPUs, %s %s/%s\n", model, runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "modernc.org/sqlite" || m.Path == "github.com/jackc/pgx/v5" || m.Path == "github.com/redis/go-redis/v9" {
				fmt.Println(m.Path, m.Version)
			}
		}
	}
	fmt.Println()
}

// must ends the program on an error; a measurement has nothing to go on with.
func must[T any](v T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	return v
}
