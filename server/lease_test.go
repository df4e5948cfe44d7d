package server

import (
	"io"
	"net/http"
	"testing"

	"github.com/unavez/unavez/internal/testenv"
)

func TestARedisThatDiesInTheMiddleChangesNoAnswer(t *testing.T) {
	t.Parallel()
	redis := testenv.StartRedis(t)
	b := startOn(t, newApp(t), migrated(t)+"\nlease: redis://"+redis.Addr(), "log: {level: debug}\n"+holding)
	arrived, release := make(chan struct{}), make(chan struct{})
	b.app.set("/orders", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // it has arrived whole
		arrived <- struct{}{}
		<-release
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "made")
	})
	first := make(chan reply, 1)
	go func() { first <- b.post("/orders", "k-1") }()
	<-arrived
	redis.Kill()
	if got := b.post("/orders", "k-1"); got.problem() != "in-flight" {
		t.Errorf("a duplicate in flight: %+v", got)
	}
	close(release)
	if got := <-first; got.status != 201 || got.body != "made" {
		t.Errorf("the first: %+v", got)
	}
	if got := b.post("/orders", "k-1"); got.body != "made" || got.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("afterwards: %+v", got)
	}
	b.app.set("/orders", nil)
	if got := b.post("/orders", "k-2"); got.status != 201 {
		t.Errorf("without Redis: %+v", got)
	}
	b.log.wait(t, "Redis does not answer")
	if n := b.metric("unavez_leaser_failed_total"); n == "0" || n == "" {
		t.Errorf("%q failures", n)
	}
	if got := b.sendTo(b.admin, http.MethodGet, "/readyz", ""); got.status != 200 {
		t.Errorf("ready: %+v", got)
	}
	redis.Start()
	n := 0
	b.eventually("Redis is used again", func() bool {
		n++
		b.post("/orders", "again-"+string(rune('a'+n%26))+string(rune('a'+n/26)))
		return contains(b.log, "Redis answers again")
	})
	if n := b.app.count("POST /orders"); n < 3 {
		t.Errorf("%d calls", n)
	}
}

func TestARedisThatIsNotThereKeepsNoServerFromStarting(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]string{
		"nobody": "redis://:canary@127.0.0.1:1", "TLS": "rediss://127.0.0.1:1", "Sentinel": "redis://127.0.0.1:1?master_name=m&addr=127.0.0.1:2",
		"Cluster": "redis://127.0.0.1:1?addr=127.0.0.1:2",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t, "lease: "+place+"\n"+holding)
			b.log.wait(t, "Redis does not answer")
			if n := b.metric("unavez_leaser_failed_total"); n != "1" {
				t.Errorf("%q failures at the start", n)
			}
			first, second := b.post("/orders", "k-1"), b.post("/orders", "k-1")
			if first.status != 201 || second.body != first.body || b.app.count("POST /orders") != 1 || contains(b.log, "canary") {
				t.Errorf("first %+v, second %+v\n%s", first, second, b.log)
			}
		})
	}
}

func TestDatabasesThatShareARedisKeepOutOfEachOthersWay(t *testing.T) {
	t.Parallel()
	lease := "\nlease: redis://" + testenv.StartRedis(t).Addr()
	one := startOn(t, newApp(t), migrated(t)+lease, holding)
	arrived, release := make(chan struct{}), make(chan struct{})
	one.app.set("/orders", func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-release
	})
	first := make(chan reply, 1)
	go func() { first <- one.post("/orders", "k-1") }()
	<-arrived
	two := startOn(t, newApp(t), migrated(t)+lease, holding)
	if got := two.post("/orders", "k-1"); got.status != 201 {
		t.Errorf("the same key of another installation: %+v", got)
	}
	close(release)
	if got := <-first; got.status != 200 {
		t.Errorf("the first: %+v", got)
	}
}
