package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// serve listens until it is told to stop, then lets running requests end.
func serve(addr string, handler http.Handler) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf(welcome, "http://"+listener.Addr().String())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return server.Shutdown(last)
}

const welcome = `listening on %[1]s

Place an order, twice: one order, and the second answer says Idempotent-Replayed: true.

  curl -i %[1]s/orders -H 'Content-Type: application/json' -H 'Idempotency-Key: order-1' \
    -d '{"customer":"c-1","currency":"BRL","items":[{"sku":"A","quantity":2,"unit_price":1500}]}'

Look at it, and pay it (a second payment with another key is refused):

  curl -i %[1]s/orders/1
  curl -i %[1]s/orders/1/payments -H 'Content-Type: application/json' -H 'Idempotency-Key: payment-1' \
    -d '{"amount":3000,"currency":"BRL"}'

Have it shipped, which calls a carrier:

  curl -i -X POST %[1]s/orders/1/shipment -H 'Idempotency-Key: shipment-1'

`
