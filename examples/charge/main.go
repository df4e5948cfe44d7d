// Command charge is a shop whose one request charges at a payment gateway and
// then writes the order. The charge is outside the database, so no transaction
// can cover it: the request works under a lease, and its one outside call is a
// step.
//
//	go run ./gateway     # the sandbox gateway, in a terminal of its own
//	go run .             # prints requests to try
//
// # What happens
//
//	claim      the operation is written down, with the key for the gateway
//	charge     POST to the gateway with that key; no transaction is open
//	step       the gateway's answer is written down
//	finish     order, outcome and frozen answer, in one commit
//
// Kill the program between charge and step, or let the gateway lose its answer,
// and nobody can tell from here whether money was taken: the operation is
// unknown. What the client's next request with the same key does is -unknown:
//
//	repeat   the gateway honours keys: charge again with the same key, and it
//	         answers with the first charge. One charge. Wrong where the gateway
//	         ignores keys, or forgets them sooner than clients repeat.
//	probe    the gateway is asked for a charge with our reference. Found: it is
//	         recorded, nothing is charged. Not found, also after -settle: charged
//	         now. Several, or other money: it stays unknown, for a person.
//	hold     nothing: 409 outcome-unknown until a person decides.
//
// # What is promised
//
// One order for each key, whatever happens. One charge for each key with repeat
// at a gateway that honours keys; with probe as long as a call takes effect and
// can be seen within -settle. A worker that is paused right before its call can
// still send it late: it cannot be recalled, but its finish is refused.
//
// Start with create in shop.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// config is what the flags say.
type config struct {
	addr, path, gateway, unknown string
	lease, timeout, settle       time.Duration
	transport                    http.RoundTripper // to the gateway; tests put themselves in between
}

// configure reads the flags.
func configure(args []string) config {
	c := config{transport: &http.Transport{
		// A connection for each call. On a reused one that dies, net/http may send
		// the request again by itself, and then one call could charge twice.
		DisableKeepAlives: true,
	}}
	flags := flag.NewFlagSet("charge", flag.ExitOnError)
	flags.StringVar(&c.addr, "addr", "127.0.0.1:8080", "`address` to listen on")
	flags.StringVar(&c.path, "db", "charge.db", "SQLite `file` for orders and ledger")
	flags.StringVar(&c.gateway, "gateway", "http://127.0.0.1:8090", "`URL` of the payment gateway")
	flags.StringVar(&c.unknown, "unknown", "repeat", "what follows a charge whose answer is lost: repeat, probe or hold")
	flags.DurationVar(&c.lease, "lease", 30*time.Second, "how long an order waits for a worker that died")
	flags.DurationVar(&c.timeout, "timeout", 10*time.Second, "how long to wait for the gateway")
	flags.DurationVar(&c.settle, "settle", 5*time.Second, "how long after a call its charge may still appear at the gateway")
	_ = flags.Parse(args) // ExitOnError
	return c
}

func main() {
	if err := run(configure(os.Args[1:])); err != nil {
		log.Fatal(err)
	}
}

// run serves until it is told to stop, then lets running requests end.
func run(c config) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := open(c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	listener, err := net.Listen("tcp", c.addr)
	if err != nil {
		return err
	}
	fmt.Printf(welcome, "http://"+listener.Addr().String(), c.gateway)
	server := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.Background(), c.timeout+c.settle)
	defer cancel()
	return server.Shutdown(last)
}

const welcome = `listening on %[1]s

Let the gateway charge and lose its answer, order twice with one key, and look
at what was charged:

  curl -X PUT %[2]s/plan -d '[{"kind":"lost-answer"}]'
  curl -i %[1]s/orders -H 'Idempotency-Key: order-1' -d '{"customer":"c-1","amount":3000,"currency":"BRL"}'
  curl -i %[1]s/orders -H 'Idempotency-Key: order-1' -d '{"customer":"c-1","amount":3000,"currency":"BRL"}'
  curl %[2]s/log

`
