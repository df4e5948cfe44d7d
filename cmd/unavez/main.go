// Command unavez makes every operation take effect once: an Idempotency-Key
// layer in front of an HTTP application in any language.
//
//	unavez serve            the built-in orders example, or ./unavez.yaml
//	unavez serve FILE       the configuration FILE
//	unavez check FILE       every fault of a configuration at once
//	unavez doctor FILE      the live settings that the promises rest on
//	unavez audit FILE       the invariants, proved over what is stored
//	unavez analyze CHART    what a duplicate of an event can do to a statechart
//	unavez ops list         operations that need a person
//	unavez torture          tries to break the promises on a database of yours
//	unavez migrate FILE     a store's schema, brought to this version
//
// It exits with 0 when all went well, 1 when something is wrong with what it
// was asked to do, 2 when it was asked wrongly (a configuration that cannot be
// read is that, too), 3 when doctor, audit or torture could not look, and 130 after a
// second signal.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/unavez/unavez/server"
)

func main() { os.Exit(run()) }

// Exit codes.
const (
	exitFault  = 1
	exitUsage  = 2
	exitSignal = 130 // a second signal: what was under way is left as it is
)

// errUsage marks a command that was given wrongly.
type errUsage struct{ error }

func run() int {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	// The first signal asks for a graceful stop; a second one ends it at once.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		<-signals
		os.Exit(exitSignal)
	}()
	root := command()
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	code := exitFault
	var exit errExit
	if errors.As(err, &exit) {
		if exit.err == nil {
			return exit.code
		}
		code = exit.code
	}
	var faulty *server.ConfigError
	if errors.As(err, &faulty) {
		fmt.Fprintln(os.Stderr, err)
		return code
	}
	fmt.Fprintln(os.Stderr, "unavez:", err)
	var usage errUsage
	var named server.UsageError
	if errors.As(err, &usage) || errors.As(err, &named) {
		fmt.Fprintln(os.Stderr, "see unavez --help")
		return exitUsage
	}
	return code
}

// version is that of the module, or of the commit it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}

// command makes the tree of commands.
func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "unavez",
		Short: "Make every operation take effect once",
		Long: `unavez stands in front of an HTTP application. A request that carries an
Idempotency-Key takes effect once, however often it arrives: every repeat gets
the first answer again, byte for byte.

Without a configuration "unavez serve" runs a small example; its output says
what to try.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          takes(),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return errUsage{err} })
	root.AddCommand(serveCommand(), checkCommand(), doctorCommand(), auditCommand(), analyzeCommand(), opsCommand(), tortureCommand(), tortureWorkerCommand(), migrateCommand(), versionCommand())
	return root
}

func serveCommand() *cobra.Command {
	var o server.Options
	c := &cobra.Command{
		Use:   "serve [FILE]",
		Short: "Serve requests",
		Long: `Serve reads FILE, or ./unavez.yaml when no FILE is named. When there is neither,
it runs the built-in orders example on 127.0.0.1:8080 and says what to try; the
example keeps its data in ./unavez-example.db.

Operators have a listener of their own, 127.0.0.1:8081: a JSON API, /metrics,
/healthz and /readyz.

A changed FILE is taken over while running, also on SIGHUP; one with a fault is
refused and the old configuration goes on. SIGTERM and SIGINT stop gracefully, a
second signal at once.

A FILE to start from:

` + indented(server.Sample()),
		Example: "  unavez serve\n  unavez serve unavez.yaml",
		Args:    takes("[FILE]"),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.File = args[0]
			}
			hangups := make(chan os.Signal, 1)
			signal.Notify(hangups, syscall.SIGHUP)
			defer signal.Stop(hangups)
			reload := make(chan struct{}, 1)
			o.Reload = reload
			go func() {
				for {
					select {
					case <-c.Context().Done():
						return
					case <-hangups:
						select {
						case reload <- struct{}{}:
						default: // one is waiting already
						}
					}
				}
			}()
			o.Out, o.Log, o.Version = os.Stdout, os.Stderr, version()
			return server.Serve(c.Context(), o)
		},
	}
	c.Flags().StringVar(&o.Listen, "listen", "", "address for requests, in the place of the configured one")
	c.Flags().StringVar(&o.AdminListen, "admin-listen", "", "address for operators, in the place of the configured one")
	return c
}

func indented(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}

func checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Report every fault of a configuration",
		Long: `Check reads FILE and reports every fault of it at once, each with its line, its
field and the way out, and what is accepted but probably not meant as a warning.
Nothing is opened or called.

It exits with 0 when there is no fault, 1 when there is one, 2 when FILE cannot be
read.`,
		Args: takes("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			warnings, err := server.Check(args[0])
			if err != nil {
				return err
			}
			for _, w := range warnings {
				fmt.Println(w)
			}
			fmt.Println(args[0] + ": ok")
			return nil
		},
	}
}

func migrateCommand() *cobra.Command {
	var o server.OpsOptions
	var roles bool
	c := &cobra.Command{
		Use:   "migrate [FILE]",
		Short: "Bring a store to this version",
		Long: `Migrate opens the store that FILE names, or ./unavez.yaml when no FILE is named,
brings its tables to this version, and says which it had. FILE may be given as
--config FILE, too; --store names a store by itself.

In PostgreSQL it makes and changes the schema unavez, which serve never does: run
it before a new version serves. Several may run at once. A file of SQLite is
brought up to date by serve itself; this is for doing it at a time of one's own.

In PostgreSQL two roles can be kept apart: unavez_migrate owns the schema,
unavez_app runs. --roles prints the SQL that makes them, with the grants.`,
		Example: "  unavez migrate\n  unavez migrate unavez.yaml\n  unavez migrate --store unavez.db\n  unavez migrate --roles | psql postgres://postgres@db/shop",
		Args:    takes("[FILE]"),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				if o.Config != "" {
					return errUsage{errors.New("FILE and --config name two configurations: give one")}
				}
				o.Config = args[0]
			}
			if roles {
				if o.Config != "" || o.Store != "" {
					return errUsage{errors.New("--roles opens no store: leave FILE, --config and --store out")}
				}
				fmt.Print(server.Roles())
				return nil
			}
			m, err := server.Migrate(c.Context(), o)
			if err != nil {
				return err
			}
			fmt.Println(m)
			return nil
		},
	}
	storeFlags(c, &o)
	c.Flags().BoolVar(&roles, "roles", false, "print the SQL that makes the roles of PostgreSQL, and open nothing")
	return c
}

func storeFlags(c *cobra.Command, o *server.OpsOptions) {
	c.PersistentFlags().StringVar(&o.Config, "config", "", "configuration whose store is opened directly")
	c.PersistentFlags().StringVar(&o.Store, "store", "", "file of SQLite or URL of PostgreSQL, opened directly")
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which version this is",
		Args:  takes(),
		Run:   func(*cobra.Command, []string) { fmt.Println("unavez", version()) },
	}
}
