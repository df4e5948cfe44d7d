package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/unavez/unavez/server"
)

// workerName is the command of a worker process of torture, for itself alone.
const workerName = "torture-worker"

func tortureCommand() *cobra.Command {
	var o server.TortureOptions
	c := &cobra.Command{
		Use:   "torture --dsn STORE",
		Short: "Try to break the promises on a database of yours",
		Long: `Torture tries to break what unavez promises, on your own database and Redis, and
counts afterwards: one effect of each operation, one answer for all its deliveries.

Connections are cut at messages of every protocol, answers of COMMIT among them;
then clients without patience send operations several times, by HTTP, to worker
processes of the library and of the binary, while these are killed and stopped for
longer than their leases, connections to the database are cut or fall silent, and
those to Redis are cut, refused and its keys removed. What is believed is a table
without any key, another system's own log, and what clients wrote down.

STORE is a URL of PostgreSQL or sqlite:FILE. In PostgreSQL it works in the schemas
unavez and unavez_torture, which it makes and removes, also when it is interrupted
(once: a second signal leaves them). A database that has one of them, and a file
that exists, are refused; nothing else there is touched. It needs the right to make
schemas (CREATE on the database), some thirty connections, and no superuser. In
Redis it uses and removes keys under a prefix of its own alone.

It says what it does as it goes, and ends with counts and a verdict. It exits with
0 when everything held, 1 when a promise was broken or a fault never met anybody, 2
when it was asked wrongly, 3 when it could not be carried out.`,
		Example: "  unavez torture --dsn postgres://shop@db/scratch\n  unavez torture --dsn postgres://shop@db/scratch --redis redis://cache:6379 --duration 10m\n  unavez torture --dsn sqlite:/var/lib/shop/torture.db --json",
		Args:    takes(),
	}
	c.Flags().StringVar(&o.Database, "dsn", "", "URL of PostgreSQL, or sqlite: and a file that does not exist")
	c.Flags().StringVar(&o.Redis, "redis", "", "URL of a Redis, redis://HOST:6379, to stand in front of PostgreSQL")
	c.Flags().IntVar(&o.Operations, "operations", 300, "how many operations are sent at least, to each kind of worker")
	c.Flags().DurationVar(&o.Duration, "duration", 20*time.Second, "how long there are faults at least, for each kind of worker")
	c.Flags().IntVar(&o.Cuts, "cuts", 60, "how many connections are cut at a message; -1 for every message, which takes an hour")
	c.Flags().Uint64Var(&o.Seed, "seed", 0, "seed of what is drawn; 0 draws one, which is printed")
	c.Flags().BoolVar(&o.JSON, "json", false, "write the report as JSON, and what goes on to standard error")
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case o.Database == "":
			return errUsage{errors.New("--dsn is missing: a URL of PostgreSQL, or sqlite: and a file that does not exist")}
		case o.Operations < 1:
			return errUsage{fmt.Errorf("--operations: %d, want 1 or more", o.Operations)}
		case o.Duration < 0:
			return errUsage{fmt.Errorf("--duration: %v, want 0s or more", o.Duration)}
		case o.Cuts < -1:
			return errUsage{fmt.Errorf("--cuts: %d, want -1 or more", o.Cuts)}
		}
		self, err := os.Executable()
		if err != nil {
			return errExit{exitBroken, err}
		}
		o.Out, o.Log = os.Stdout, os.Stderr
		o.Worker = func() *exec.Cmd { return exec.Command(self, workerName) }
		verdict, err := server.Torture(c.Context(), o)
		var asked server.UsageError
		if errors.As(err, &asked) {
			return err
		}
		return found(err, verdict != server.Held)
	}
	return c
}

// tortureWorkerCommand is what torture starts: it is told what to do on its
// standard input.
func tortureWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    workerName,
		Short:  "A worker process of torture",
		Hidden: true,
		Args:   takes(),
		RunE: func(c *cobra.Command, _ []string) error {
			return server.TortureWorker(c.Context(), os.Stdin, os.Stdout, os.Stderr)
		},
	}
}
