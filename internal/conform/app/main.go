// Command app is the conformance app: one worker of a service whose handlers do
// what a plan says, over a real store. Two of them on one store are what the
// suite of package conform is run against. It is for tests on loopback: its
// control endpoints ask nobody who is calling.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/unavez/unavez"
)

// drain bounds a graceful stop.
const drain = 10 * time.Second

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "conformance app:", err)
		os.Exit(1)
	}
}

// settings are the flags.
type settings struct {
	addr, store, db, runs string
	untilEOF              bool
}

func run(args []string, stdout, stderr io.Writer) error {
	var s settings
	flags := flag.NewFlagSet("app", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.addr, "addr", "127.0.0.1:0", "`address` to listen on")
	flags.StringVar(&s.store, "store", "sqlite", "kind of store: sqlite")
	flags.StringVar(&s.db, "db", "", "database `file`, shared by the workers")
	flags.StringVar(&s.runs, "runs", "", "`folder` for plans and counts, shared by the workers")
	flags.BoolVar(&s.untilEOF, "until-eof", false, "stop when standard input ends, as it does when the parent dies")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if s.db == "" || s.runs == "" {
		return errors.New("-db and -runs: both are needed")
	}
	j, err := openJournal(s.runs)
	if err != nil {
		return err
	}
	defer j.close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if s.untilEOF {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // however it ends, nobody is there any more
			stop()
		}()
	}
	logger := slog.New(slog.NewJSONHandler(stderr, nil))
	switch s.store {
	case "sqlite":
		b, err := openSQLite(ctx, s.db)
		if err != nil {
			return err
		}
		return errors.Join(serve(ctx, s, b, j, logger, stdout), b.close())
	}
	return fmt.Errorf("-store %s: want sqlite", s.store)
}

// serve runs one worker until ctx ends.
func serve[Tx any](ctx context.Context, s settings, b *backend[Tx], j *journal, logger *slog.Logger, stdout io.Writer) error {
	exits := &exits{journal: j}
	engine, err := unavez.New(&exiting[Tx]{unit: b.unit, exits: exits}, &unavez.Options{
		Retention: longRetention, Tombstone: longRetention, Limit: limit, Lease: lease,
		Observe: func(o unavez.Observation) {
			j.observe(principalOf(o.Operation), o.What)
			if o.What == unavez.SawUnknown || o.What == unavez.SawLeaseLost {
				logger.Warn("attempt", "ended", o.What, "attempt", o.Attempt, "error", o.Err)
			}
			if o.What == unavez.SawCompleted {
				exits.stored(o.Operation.Key())
			}
		},
	})
	if err != nil {
		return err
	}
	behind, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	a := &app[Tx]{backend: b, journal: j, exits: exits, engine: engine, logger: logger}
	routes, closeRoutes, err := a.routes("http://" + behind.Addr().String())
	if err != nil {
		return err
	}
	front, err := net.Listen("tcp", s.addr)
	if err != nil {
		return err
	}
	silent := log.New(io.Discard, "", 0)
	servers := []*http.Server{
		{Handler: a.handler(routes), ReadHeaderTimeout: 10 * time.Second, ErrorLog: silent},
		{Handler: http.HandlerFunc(a.upstream), ReadHeaderTimeout: 10 * time.Second, ErrorLog: silent},
	}
	ended := make(chan error, len(servers))
	for i, l := range []net.Listener{front, behind} {
		go func() { ended <- servers[i].Serve(l) }()
	}
	maintained := make(chan struct{})
	go func() {
		defer close(maintained)
		a.maintain(ctx)
	}()
	fmt.Fprintf(stdout, "listening on %s\n", front.Addr())
	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	for _, server := range servers {
		err = errors.Join(err, server.Shutdown(last))
	}
	err = errors.Join(err, engine.Close(last))
	closeRoutes()
	if ctx.Err() != nil {
		<-maintained
	}
	return err
}

// maintain purges and expires as the binary does.
func (a *app[Tx]) maintain(ctx context.Context) {
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		purged, err := a.upkeep.Purge(ctx, 100)
		if err == nil && purged > 0 {
			a.journal.observe("", "purged")
		}
		if _, expireErr := a.upkeep.Expire(ctx, 100); err == nil {
			err = expireErr
		}
		if err != nil && ctx.Err() == nil {
			a.logger.Warn("upkeep", "error", err)
		}
	}
}
