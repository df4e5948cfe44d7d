// Command gateway serves the sandbox payment API that the charge example calls.
// GET /log shows what was really charged:
//
//	go run ./gateway                 # honours idempotency keys
//	go run ./gateway -ignore-keys    # does not: every call charges
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/unavez/unavez/internal/gateway"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8090", "`address` to listen on")
	ignoreKeys := flag.Bool("ignore-keys", false, "charge at every call, whatever its Idempotency-Key")
	readDelay := flag.Duration("read-delay", 0, "how long a charge stays hidden from reads")
	flag.Parse()
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf(welcome, "http://"+listener.Addr().String())
	server := &http.Server{
		Handler:           gateway.New(&gateway.Options{IgnoreKeys: *ignoreKeys, ReadDelay: *readDelay}),
		ReadHeaderTimeout: 5 * time.Second,
	}
	log.Fatal(server.Serve(listener))
}

const welcome = `listening on %[1]s

What was charged:

  curl %[1]s/log

Let the next call charge and lose its answer (or: slow, refuse, fail-after, fail-before):

  curl -X PUT %[1]s/plan -d '[{"kind":"lost-answer"}]'

`
