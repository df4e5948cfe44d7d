package server

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/unavez/unavez/httpkey"
	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/server/internal/config"
	"github.com/unavez/unavez/server/internal/observe"
	"github.com/unavez/unavez/server/internal/orders"
)

// ExampleFile is the store of the built-in example.
const ExampleFile = "unavez-example.db"

// exampleHeader is on every answer of the example.
const exampleHeader = "Unavez-Example"

// exampleConfig is what the example runs with: the defaults, loopback only.
func exampleConfig(o *Options) (*loaded, error) {
	c := &config.Config{Place: config.Place{Path: ExampleFile}, Listen: config.DefaultListen, Admin: config.Admin{Listen: config.DefaultAdminListen}}
	if o.Listen != "" {
		c.Listen = o.Listen
	}
	if o.AdminListen != "" {
		c.Admin.Listen = o.AdminListen
	}
	for _, address := range []string{c.Listen, c.Admin.Listen} {
		if !config.Loopback(address) {
			return nil, fmt.Errorf("%s: the example listens on loopback only (write a configuration: unavez serve FILE)", address)
		}
	}
	c.Log = config.Log{Level: "info", Format: "auto"}
	c.Limits = config.DefaultLimits()
	c.DocsURL = config.DefaultDocsURL
	return &loaded{config: c, name: "(built-in example)", example: true}, nil
}

// example makes the site of the orders example.
func (p *process) example(ctx context.Context, c *config.Config) (*site, error) {
	shop, err := orders.Open(ctx, p.storage.db, func(d time.Duration) { p.log.Info("the example pauses, as asked", "for", d) })
	if err != nil {
		return nil, err
	}
	engine, ok := p.engine.(engineOf[*sql.Tx])
	if !ok {
		return nil, fmt.Errorf("the example has no %T", p.engine)
	}
	layer, err := httpkey.New(engine.Engine, nil, &httpkey.Options{
		SingleTenant: true,
		Docs:         c.DocsURL,
		Logger:       slog.New(slog.DiscardHandler), // causes are in the line that access writes
		Observe: func(seen httpkey.Observation) {
			p.metrics.Request(seen)
			access(p.log, "orders example", seen)
		},
	})
	if err != nil {
		return nil, err
	}
	in, err := p.exampleIntake(c, engine, shop)
	if err != nil {
		return nil, err
	}
	route := &config.Route{Limit: 10 * time.Second, Methods: []string{http.MethodPost}}
	mux := http.NewServeMux()
	mux.Handle("/", within(route, p.log, shop.Handler(layer)))
	mux.Handle("GET /imports", shop.Imports())
	for _, name := range []string{orders.Platform, orders.Grid} {
		mux.Handle("/in/"+name, deliveries(name, p.intake))
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(exampleHeader, "orders")
		mux.ServeHTTP(w, r)
	})
	return &site{config: c, handler: handler, intake: in, close: func() {}}, nil
}

// exampleIntake makes the example's inbox, whose handlers write on the
// transaction that commits their outcome.
func (p *process) exampleIntake(c *config.Config, engine engineOf[*sql.Tx], shop *orders.Shop) (*intake, error) {
	sources, err := orders.Sources()
	if err != nil {
		return nil, err
	}
	in := &intake{config: c, close: func() {}, emptied: make(chan struct{}), alerts: newAlerter(c, nil, &p.parts)}
	in.running, err = inbox.New(engine.Engine, p.storage.queue(), sources, shop.Effects(), &inbox.Options{
		Log: p.log, Alert: in.alerts.tell,
		Observe: func(s inbox.Sight) {
			p.metrics.Sight(s)
			observe.Delivery(p.log, s)
		},
	})
	if err != nil {
		return nil, err
	}
	return in, nil
}

// exampleLines tell a newcomer what to do. Every command works as it stands.
func exampleLines(w io.Writer, requests, admin, file string) {
	// A terminal that has gone is no reason not to serve.
	_, _ = fmt.Fprintf(w, `EXAMPLE  There is no %[4]s here, so this is the built-in orders example.
EXAMPLE  requests  http://%[1]s
EXAMPLE  admin     http://%[2]s  (operations, /metrics, /healthz)
EXAMPLE  data      ./%[3]s  (to start anew: rm %[3]s*)

1. Send an order:

   curl -i http://%[1]s/orders -H 'Idempotency-Key: order-1' -H 'Content-Type: application/json' \
     -d '{"customer":"c-1","currency":"BRL","items":[{"sku":"A","quantity":2,"unit_price":1500}]}'

2. Send it again, with the same key: the same answer byte for byte, marked Idempotent-Replayed, and still one order:

   curl -i http://%[1]s/orders -H 'Idempotency-Key: order-1' -H 'Content-Type: application/json' \
     -d '{"customer":"c-1","currency":"BRL","items":[{"sku":"A","quantity":2,"unit_price":1500}]}'
   curl http://%[1]s/orders

3. Send another one that pauses with its order written and not committed, kill this process meanwhile (kill -9 %[5]s),
   start it again and repeat (Example-Pause may be left out: it is no part of the request's identity). Other orders
   wait meanwhile: SQLite has one writer, and a handler of this example may hold it for %[6]v (100ms is the default):

   curl -i http://%[1]s/orders -H 'Idempotency-Key: order-2' -H 'Content-Type: application/json' -H 'Example-Pause: 8s' \
     -d '{"customer":"c-2","currency":"BRL","items":[{"sku":"B","quantity":1,"unit_price":700}]}'

4. Pay the first order. It moves from pending to paid once:

   order=$(curl -s http://%[1]s/orders | grep -o 'ord_[a-z0-9]*' | tail -n 1)
   curl -i http://%[1]s/orders/$order/payments -H 'Idempotency-Key: pay-1' -H 'Content-Type: application/json' \
     -d '{"amount":3000,"currency":"BRL"}'

5. Be a shop platform (Nuvemshop) that tells of an order, twice, and then that it is paid: one import, and it is paid.
   The platform signs and sends no content, which is read from a stand-in for its API. Then be Azure Event Grid:

%[7]s
   curl http://%[1]s/imports

`, requests, admin, file, DefaultFile, strconv.Itoa(os.Getpid()), orders.HandlerLimit, sampleLines(requests))
}

// sampleLines are deliveries as commands.
func sampleLines(requests string) string {
	made, paid, event := orders.Samples()
	var lines strings.Builder
	for _, d := range []orders.Sample{made, made, paid, event} {
		fmt.Fprintf(&lines, "   curl -i 'http://%s%s'", requests, d.Path)
		for _, h := range d.Headers {
			fmt.Fprintf(&lines, " -H '%s'", h)
		}
		fmt.Fprintf(&lines, " \\\n     -d '%s'\n", d.Body)
	}
	return strings.TrimSuffix(lines.String(), "\n")
}
