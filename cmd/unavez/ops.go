package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unavez/unavez/server"
)

// tokenVariable holds the admin token, so that it is on no command line.
const tokenVariable = "UNAVEZ_ADMIN_TOKEN"

// reach is how operations are reached, from the flags.
type reach struct {
	server.OpsOptions
	tokenFile string
	json      bool
}

func (r *reach) open(ctx context.Context) (*server.Ops, error) {
	r.Token = os.Getenv(tokenVariable)
	if r.tokenFile != "" {
		b, err := os.ReadFile(r.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		r.Token = strings.TrimSpace(string(b))
	}
	return server.OpenOps(ctx, r.OpsOptions)
}

// with runs a command on operations and closes them.
func (r *reach) with(ctx context.Context, do func(*server.Ops) error) error {
	ops, err := r.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(do(ops), ops.Close())
}

func opsCommand() *cobra.Command {
	r := &reach{}
	c := &cobra.Command{
		Use:   "ops",
		Short: "Look at operations and decide about those that need a person",
		Long: `Ops works on operations over the admin listener of a running server, or, with
--store or --config, in its store directly, whether the server runs or not.

An operation is unknown when the answer of the application was lost: it may have
taken effect or not. Find out, and then

  complete   it did: give the answer that every repeat gets from now on
  release    it did not: the next repeat of the request runs, an event at once
  discard    it is never to run: repeats are told so

An operation is dead when it failed for good, or too often: mend the cause, and then
redrive or discard it. What arrived and could not be an operation is in quarantine.

An operation is damaged when its stored answer does not match its checksum.
Complete and discard replace that answer; nothing lets the operation run again.

An admin listener with a token reads it from ` + tokenVariable + ` or --token-file.`,
		Args: takes(),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	storeFlags(c, &r.OpsOptions)
	c.PersistentFlags().StringVar(&r.Admin, "admin", server.DefaultAdmin, "URL of the admin listener")
	c.PersistentFlags().StringVar(&r.tokenFile, "token-file", "", "file that holds the admin token")
	c.PersistentFlags().BoolVar(&r.json, "json", false, "write JSON")
	c.AddCommand(
		listCommand(r), showCommand(r), completeCommand(r),
		actionCommand(r, "release", "Let an unknown or parked operation run again", "A request itself is not stored: the next repeat of it runs, under the same identity. An event that was received is, and runs again at once.", "the application has no such order"),
		redriveCommand(r),
		actionCommand(r, "discard", "End an operation without its effect", "Every repeat of its request is told so. This cannot be taken back.", "the customer withdrew it"),
		blockedCommand(r), quarantineCommand(r), eraseCommand(r), newIncarnationCommand(r),
	)
	return c
}

func newIncarnationCommand(r *reach) *cobra.Command {
	return &cobra.Command{
		Use:   "new-incarnation",
		Short: "Say that the database was restored",
		Long: `New-incarnation says that the history of a PostgreSQL database is another one
although nothing in it shows that: a backup or a volume was put back while no
worker ran. (A failover, and a restore under running workers, are noticed.)

Workers drop what they remember, and for a while (postgres.Settings.Doubt, 5
minutes) the first claim of an outside call becomes unknown instead of running:
the claim before it may have been lost, and its call made. It works on the store
directly: give --config or --store.`,
		Example: "  unavez ops new-incarnation --store postgres://…",
		Args:    takes(),
		RunE: func(c *cobra.Command, _ []string) error {
			return server.NewIncarnation(c.Context(), os.Stdout, r.json, r.OpsOptions)
		},
	}
}

func listCommand(r *reach) *cobra.Command {
	var l server.ListOptions
	c := &cobra.Command{
		Use:     "list",
		Short:   "List operations, those at rest longest first",
		Long:    "List shows the unfinished operations, or those in the states that are named.",
		Example: "  unavez ops list\n  unavez ops list --state unknown,dead --json",
		Args:    takes(),
		RunE: func(c *cobra.Command, _ []string) error {
			if l.Limit < 1 {
				return errUsage{errors.New("--limit: want 1 or more")}
			}
			return r.with(c.Context(), func(o *server.Ops) error { return o.List(c.Context(), os.Stdout, r.json, l) })
		},
	}
	c.Flags().StringSliceVar(&l.States, "state", nil, "processing, retryable, parked, unknown, dead, completed or discarded")
	c.Flags().StringVar(&l.Tenant, "tenant", "", "of this tenant only")
	c.Flags().StringVar(&l.Effect, "effect", "", "of this effect only (http for requests)")
	c.Flags().IntVar(&l.Limit, "limit", 100, "how many at most")
	return c
}

func showCommand(r *reach) *cobra.Command {
	var payload bool
	c := &cobra.Command{
		Use:   "show OPERATION",
		Short: "Show one operation with its history",
		Long: `Show names everything that is known of an operation, and of the queue entry of its
key with the deliveries that came again, but for what they carried.

OPERATION is its key or its name, as unavez ops list shows them. The name of a
request is tenant/http/principal/IDEMPOTENCY-KEY; with auth mode single_tenant,
tenant and principal are empty: /http//order-1.`,
		Example: "  unavez ops show 5f0c…\n  unavez ops show /http//order-1",
		Args:    takes("OPERATION"),
		RunE: func(c *cobra.Command, args []string) error {
			return r.with(c.Context(), func(o *server.Ops) error { return o.Show(c.Context(), os.Stdout, r.json, args[0], payload) })
		},
	}
	payloadFlag(c, &payload)
	return c
}

// decisionFlags are those of every decision.
func decisionFlags(c *cobra.Command, d *server.Decision) {
	c.Flags().StringVar(&d.By, "by", name(), "who decides")
	c.Flags().StringVar(&d.Reason, "reason", "", "why (required)")
	c.Flags().Int64Var(&d.Attempt, "attempt", 0, "refuse if there has been another attempt since this one")
}

func name() string {
	if n := os.Getenv("USER"); n != "" {
		return n
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

func decide(d *server.Decision) error {
	if strings.TrimSpace(d.Reason) == "" {
		return errUsage{errors.New("--reason: missing; say why, it is kept with the operation")}
	}
	if strings.TrimSpace(d.By) == "" {
		return errUsage{errors.New("--by: missing; say who decides")}
	}
	return nil
}

func actionCommand(r *reach, action, short, long, reason string) *cobra.Command {
	d := server.Decision{Action: action}
	c := &cobra.Command{
		Use:     action + " OPERATION",
		Short:   short,
		Long:    short + ". " + long,
		Example: "  unavez ops " + action + " /http//order-1 --reason '" + reason + "'",
		Args:    takes("OPERATION"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := decide(&d); err != nil {
				return err
			}
			return r.with(c.Context(), func(o *server.Ops) error { return o.Act(c.Context(), os.Stdout, r.json, args[0], d) })
		},
	}
	decisionFlags(c, &d)
	return c
}

func completeCommand(r *reach) *cobra.Command {
	d := server.Decision{Action: "complete"}
	var body string
	c := &cobra.Command{
		Use:   "complete OPERATION",
		Short: "End an operation that did take effect, with its answer",
		Long: `Complete ends an operation at rest as done. From now on every repeat of its
request gets the answer that is given here.`,
		Example: `  unavez ops complete /http//order-1 --reason 'order 17 exists' \
    --status 201 --header 'Location: /orders/17' --body @order-17.json`,
		Args: takes("OPERATION"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := decide(&d); err != nil {
				return err
			}
			if d.Status == 0 {
				return errUsage{errors.New("--status: missing; it is what every repeat gets, such as 201")}
			}
			var err error
			if d.Body, err = content(body); err != nil {
				return err
			}
			return r.with(c.Context(), func(o *server.Ops) error { return o.Act(c.Context(), os.Stdout, r.json, args[0], d) })
		},
	}
	decisionFlags(c, &d)
	c.Flags().IntVar(&d.Status, "status", 0, "status of the answer (required)")
	c.Flags().StringArrayVar(&d.Header, "header", nil, "a header line of the answer, Name: value; may be repeated")
	c.Flags().StringVar(&body, "body", "", "body of the answer; @FILE reads it from a file, @- from standard input")
	return c
}

// content is a body given on the command line or by the name of a file.
func content(text string) ([]byte, error) {
	path, ok := strings.CutPrefix(text, "@")
	switch {
	case !ok:
		return []byte(text), nil
	case path == "-":
		return io.ReadAll(os.Stdin)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--body: %w", err)
	}
	return b, nil
}
