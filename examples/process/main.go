// Command process keeps the life of orders as a statechart: order.json says what
// may follow what, and each event is applied once, however often it arrives.
//
//	go run .                              # SQLite, prints requests to try
//	go run . -store postgres://…          # for any number of workers
//	go run ../../cmd/unavez analyze order.json --declare actions.yaml
//
// # What happens
//
//	POST /orders/o-1/events {"id":"p-1","type":"pay","amount":1000}
//
//	identity   (order.event.v1, order, event id)
//	gate       was this event applied before? then the answer of then
//	step       snapshot → statechart.Next → snapshot after, effects
//	write      the snapshot, where its revision is still the one that was read;
//	           the effects as commands, each under a key derived from the event
//	commit     snapshot, commands, outcome (the applied mark) and frozen answer
//
// # What is promised
//
// One step and one answer for each event id, and a chain of revisions without
// gaps. Two events that meet are two steps, one after the other: who loses the
// race for the revision steps again from the snapshot that won, and the chart
// may then say something else.
//
// An event that the order cannot take now is answered 409 and not remembered: it
// may have come too early, and the sender may send it again. One that comes after
// the end is remembered with its answer, since nothing will ever change.
//
// The effects are rows of the table command: what sends receipts and reserves
// stock takes them from there, with the key that makes each of them once too.
//
// Start with apply in process.go.
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

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "`address` to listen on")
	store := flag.String("store", "process.db", "SQLite `file`, or postgres://… for any number of workers")
	flag.Parse()
	if err := run(*addr, *store); err != nil {
		log.Fatal(err)
	}
}

// run serves until it is told to stop, then lets running requests end.
func run(addr, store string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := open(ctx, store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf(welcome, "http://"+listener.Addr().String())
	server := &http.Server{Handler: o.routes(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	return server.Shutdown(last)
}

const welcome = `listening on %[1]s

Open an order, pay a part of it twice with one event, pay the rest, and look:

  curl -i %[1]s/orders -d '{"id":"o-1","total":3000}'
  curl -i %[1]s/orders/o-1/events -d '{"id":"p-1","type":"pay","amount":1000}'
  curl -i %[1]s/orders/o-1/events -d '{"id":"p-1","type":"pay","amount":1000}'
  curl -i %[1]s/orders/o-1/events -d '{"id":"p-2","type":"pay","amount":2000}'
  curl %[1]s/orders/o-1

`
