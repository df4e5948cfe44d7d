package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unavez/unavez/server"
)

func blockedCommand(r *reach) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use:   "blocked",
		Short: "List the ordering keys that wait",
		Long: `Blocked lists the entries that keep the later ones of their ordering key waiting,
with the state of what they wait for. unavez ops show OPERATION says more.`,
		Args: takes(),
		RunE: func(c *cobra.Command, _ []string) error {
			if limit < 1 {
				return errUsage{errors.New("--limit: want 1 or more")}
			}
			return r.with(c.Context(), func(o *server.Ops) error { return o.Blocked(c.Context(), os.Stdout, r.json, limit) })
		},
	}
	c.Flags().IntVar(&limit, "limit", 100, "how many at most")
	return c
}

func quarantineCommand(r *reach) *cobra.Command {
	c := &cobra.Command{
		Use:   "quarantine",
		Short: "Look at authentic deliveries that cannot be operations",
		Long: `An authentic delivery that cannot be an operation is kept: its type is not
accepted, it does not fit its schema, an expression failed on it. Mend the
configuration and readmit it, or discard it.`,
		Args: takes(),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	var source string
	var limit int
	list := &cobra.Command{
		Use:     "list",
		Short:   "List what is in quarantine",
		Example: "  unavez ops quarantine list --source shop",
		Args:    takes(),
		RunE: func(c *cobra.Command, _ []string) error {
			if limit < 1 {
				return errUsage{errors.New("--limit: want 1 or more")}
			}
			return r.with(c.Context(), func(o *server.Ops) error { return o.Quarantine(c.Context(), os.Stdout, r.json, source, limit) })
		},
	}
	list.Flags().StringVar(&source, "source", "", "of this source only")
	list.Flags().IntVar(&limit, "limit", 100, "how many at most")
	var payload bool
	show := &cobra.Command{
		Use:   "show KEY",
		Short: "Show one item",
		Args:  takes("KEY"),
		RunE: func(c *cobra.Command, args []string) error {
			return r.with(c.Context(), func(o *server.Ops) error { return o.Quarantined(c.Context(), os.Stdout, r.json, args[0], payload) })
		},
	}
	payloadFlag(show, &payload)
	c.AddCommand(list, show,
		sortCommand(r, "readmit", "Take an item as if it arrived now", "It goes by the sources and effects as they are configured now. With --store there are none: give --config.", "the type is accepted now"),
		sortCommand(r, "discard", "Remove an item", "This cannot be taken back.", "a test of the sender's"))
	return c
}

func payloadFlag(c *cobra.Command, payload *bool) {
	c.Flags().BoolVar(payload, "payload", false, "show the content too, as it is kept: masked; the server's log says that somebody looked")
}

func sortCommand(r *reach, action, short, long, reason string) *cobra.Command {
	var d server.Decision
	c := &cobra.Command{
		Use:     action + " KEY",
		Short:   short,
		Long:    short + ". " + long,
		Example: "  unavez ops quarantine " + action + " 5f0c… --reason \"" + reason + "\"",
		Args:    takes("KEY"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := decide(&d); err != nil {
				return err
			}
			return r.with(c.Context(), func(o *server.Ops) error {
				return o.Sort(c.Context(), os.Stdout, r.json, args[0], action, d.By, d.Reason)
			})
		},
	}
	c.Flags().StringVar(&d.By, "by", name(), "who decides")
	c.Flags().StringVar(&d.Reason, "reason", "", "why (required)")
	return c
}

func eraseCommand(r *reach) *cobra.Command {
	var e server.EraseOptions
	c := &cobra.Command{
		Use:   "erase",
		Short: "Remove the content that is kept of a person or of a whole account",
		Long: `Erase removes the content of all events and quarantined items of a person, and
keeps their identities: a repetition is still no second effect. An entry that is
not done yet stays, without content.

The person is named by the parts that the subject of the sources gives, in order.
Without --subject it is everything that belongs to --tenant; --source leaves of
that what one source has brought, and --account what it brought of the account or
store that its messages name (the store_id of Nuvemshop, the domain of Shopify).`,
		Example: `  unavez ops erase --tenant acme --subject 7 --subject customers --subject 42 --reason 'asked by letter of 30 November'
  unavez ops erase --source shop --account 7 --reason 'the store has left us'
  unavez ops erase --tenant acme --reason 'end of the contract'`,
		Args: takes(),
		RunE: func(c *cobra.Command, _ []string) error {
			d := server.Decision{By: e.By, Reason: e.Reason}
			if err := decide(&d); err != nil {
				return err
			}
			switch account := e.Source + e.Account; {
			case len(e.Subject) == 0 && e.Tenant+account == "":
				return errUsage{errors.New("--subject: missing; the parts that name the person, once for each, or else --tenant, --source or --account, of which everything is erased")}
			case len(e.Subject) > 0 && account != "":
				return errUsage{errors.New("--subject: names a person, --source and --account what is erased as a whole: give one or the other")}
			}
			return r.with(c.Context(), func(o *server.Ops) error { return o.Erase(c.Context(), os.Stdout, r.json, e) })
		},
	}
	c.Flags().StringVar(&e.Tenant, "tenant", "", "tenant of the person or the account; empty with one tenant")
	c.Flags().StringArrayVar(&e.Subject, "subject", nil, "a part of what names the person; once for each, in order")
	c.Flags().StringVar(&e.Source, "source", "", "all that this source has brought")
	c.Flags().StringVar(&e.Account, "account", "", "all of the account or store that the sender's messages name")
	c.Flags().StringVar(&e.By, "by", name(), "who decides")
	c.Flags().StringVar(&e.Reason, "reason", "", "why (required)")
	return c
}

// redriveCommand is one for a single operation or, with filters, for many.
func redriveCommand(r *reach) *cobra.Command {
	d := server.Decision{Action: "redrive"}
	var m server.RedriveOptions
	var since, until string
	c := &cobra.Command{
		Use:   "redrive [OPERATION]",
		Short: "Let dead operations run again",
		Long: `Redrive lets a dead operation run again, under the same identity: it becomes due at
once, and gets one more attempt.

Without OPERATION it does so for all that died by --until and fit the filters, the
oldest first, --rate of them a second. Interrupted, the same command goes on: what
was redriven is not dead any more, and what has died again did so after --until.`,
		Example: `  unavez ops redrive 5f0c… --reason 'the bank answers again'
  unavez ops redrive --until now --effect order.import.v1 --reason 'the application is mended'
  unavez ops redrive --until 2026-11-30T12:00:00Z --since 2026-11-30T09:00:00Z --source shop --contains 'answered 422' --rate 10 --reason 'bug 71'`,
		Args: takes("[OPERATION]"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := decide(&d); err != nil {
				return err
			}
			if len(args) == 1 {
				for _, name := range manyFlags() {
					if c.Flags().Changed(name) {
						return errUsage{fmt.Errorf("--%s: is for many; leave OPERATION out, or the flag", name)}
					}
				}
				return r.with(c.Context(), func(o *server.Ops) error { return o.Act(c.Context(), os.Stdout, r.json, args[0], d) })
			}
			var err error
			if until == "" {
				return errUsage{errors.New("--until: missing; name OPERATION, or the time by which those died that are meant (now)")}
			}
			if m.Until, err = instant("until", until); err != nil {
				return err
			}
			if since != "" {
				if m.Since, err = instant("since", since); err != nil {
					return err
				}
			}
			m.By, m.Reason = d.By, d.Reason
			m.Resume = resume(c, m.Until)
			return r.with(c.Context(), func(o *server.Ops) error { return o.RedriveMany(c.Context(), os.Stdout, r.json, m) })
		},
	}
	decisionFlags(c, &d)
	c.Flags().StringVar(&until, "until", "", "those that died by this time (2026-11-30T12:00:00Z, or now)")
	c.Flags().StringVar(&since, "since", "", "those that died since this time")
	c.Flags().StringVar(&m.Tenant, "tenant", "", "of this tenant only")
	c.Flags().StringVar(&m.Source, "source", "", "of this source only")
	c.Flags().StringVar(&m.Effect, "effect", "", "of this effect only")
	c.Flags().StringVar(&m.Owner, "owner", "", "of this owner only")
	c.Flags().StringVar(&m.Contains, "contains", "", "those the reason of whose death contains this text")
	c.Flags().Float64Var(&m.Rate, "rate", 50, "how many a second")
	return c
}

func manyFlags() []string {
	return []string{"until", "since", "tenant", "source", "effect", "owner", "contains", "rate"}
}

// instant reads a time of a flag.
func instant(flag, text string) (time.Time, error) {
	if text == "now" {
		return time.Now(), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, errUsage{fmt.Errorf("--%s: %q is not a time (write 2026-11-30T12:00:00Z, or now)", flag, text)}
	}
	return at, nil
}

// resume is the command that goes on with a redrive.
func resume(c *cobra.Command, until time.Time) string {
	text := "unavez ops redrive --until " + until.UTC().Format(time.RFC3339Nano)
	for _, name := range append(manyFlags()[1:], "reason", "by", "config", "store", "admin", "token-file") {
		if f := c.Flag(name); f != nil && f.Changed {
			text += " --" + name + " '" + strings.ReplaceAll(f.Value.String(), "'", `'\''`) + "'"
		}
	}
	return text
}
