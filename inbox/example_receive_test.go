package inbox_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store/memory"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// deliver does what GitHub does.
func deliver(to http.Handler, id, body string) int {
	mac := hmac.New(sha256.New, []byte("a secret"))
	mac.Write([]byte(body))
	r := httptest.NewRequest(http.MethodPost, "/in/hub", bytes.NewReader([]byte(body)))
	r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	r.Header.Set("X-GitHub-Delivery", id)
	r.Header.Set("X-GitHub-Event", "push")
	w := httptest.NewRecorder()
	to.ServeHTTP(w, r)
	return w.Code
}

// Each delivery is answered once it is durable; the effect happens once.
func ExampleReceiver_Handler() {
	db := memory.New(nil)
	engine := must(unavez.New(db, &unavez.Options{SingleTenant: true}))
	happened := make(chan string)
	in := must(inbox.New(engine, db, []inbox.Source{{
		Name: "hub", Contract: source.GitHub(), Types: []string{"push"},
		Config: source.Config{Secrets: []source.Secret{source.NewSecret("2026", "a secret")}},
	}}, []inbox.Effect[*memory.Tx]{{
		Name: "build.v1",
		Handle: func(_ context.Context, tx *memory.Tx, e *inbox.Event) error {
			happened <- string(e.Data)
			return tx.Put("built "+e.ID[0], "yes")
		},
	}}, nil))
	ctx := context.Background()
	if err := in.Start(ctx); err != nil {
		panic(err)
	}
	defer func() {
		_ = in.Stop(ctx)
		_ = engine.Close(ctx)
	}()

	hub := in.Receiver().Handler("hub") // http.Handle("POST /in/hub", hub)
	fmt.Println(deliver(hub, "1", `{"ref":"main"}`))
	fmt.Println(deliver(hub, "1", `{"ref":"main"}`))
	fmt.Println(<-happened)
	// Output:
	// 200
	// 200
	// {"ref":"main"}
}

// The handler may be an application in another language.
func ExampleDeliver() {
	application := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Println(r.Header.Get("Unavez-Effect"), r.Header.Get("Unavez-Event"), r.Header.Get("Unavez-Attempt"), string(body))
		fmt.Println(r.Header.Get("Idempotency-Key"))
	}))
	defer application.Close()

	db := memory.New(nil)
	engine := must(unavez.New(db, &unavez.Options{SingleTenant: true}))
	done := make(chan struct{})
	in := must(inbox.New(engine, db, []inbox.Source{{
		Name: "hub", Contract: source.GitHub(), Types: []string{"push"},
		Config: source.Config{Secrets: []source.Secret{source.NewSecret("2026", "a secret")}},
	}}, []inbox.Effect[*memory.Tx]{{
		Name:    "build.v1",
		Run:     must(inbox.Deliver(inbox.DeliverOptions{URL: application.URL + "/builds", Client: &http.Client{}})),
		Unknown: unavez.Retry, // the application honours the key
	}}, &inbox.Options{Observe: func(s inbox.Sight) {
		if s.What == "completed" {
			close(done)
		}
	}}))
	ctx := context.Background()
	if err := in.Start(ctx); err != nil {
		panic(err)
	}
	defer func() {
		_ = in.Stop(ctx)
		_ = engine.Close(ctx)
	}()
	deliver(in.Receiver().Handler("hub"), "1", `{"ref":"main"}`)
	<-done
	// Output:
	// build.v1 1 1 {"ref":"main"}
	// uv1-13cc5e388e015d6eccb6d0dbbeb823ad
}
