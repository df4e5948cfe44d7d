package inbox

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"modernc.org/sqlite"

	"github.com/unavez/unavez/store"
	ledger "github.com/unavez/unavez/store/sqlite"
)

// childFile names, in the environment, the database that this program is to
// receive into instead of running its tests.
const childFile = "UNAVEZ_RECEIVE_INTO"

func TestMain(m *testing.M) {
	if file := os.Getenv(childFile); file != "" {
		if err := receiveInto(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// receiveInto serves until it is killed.
func receiveInto(file string) error {
	db, err := ledger.OpenDB(&sqlite.Driver{}, file, nil)
	if err != nil {
		return err
	}
	s, err := ledger.New(db, nil)
	if err != nil {
		return err
	}
	r, err := newReceiver(s, []Source{gitHub("hub")}, []want{{name: "a.v1"}, {name: "b.v1"}}, nil)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return http.Serve(l, r.Handler("hub"))
}

// child is a process that receives.
type child struct {
	cmd     *exec.Cmd
	address string
}

func startChild(t *testing.T, file string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childFile+"="+file)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd}
	if _, err := fmt.Fscanln(out, &c.address); err != nil {
		c.kill()
		t.Fatalf("the child says no address: %v", err)
	}
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may be gone already
	_ = c.cmd.Wait()         // it was killed
}

// TestWhatWasAcknowledgedIsThereOnceWhoeverIsKilled sends events, each until it
// is acknowledged, to a process that is killed again and again.
func TestWhatWasAcknowledgedIsThereOnceWhoeverIsKilled(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	file := filepath.Join(t.TempDir(), "in.db")

	var mu sync.Mutex
	now := startChild(t, file)
	t.Cleanup(func() { now.kill() })
	address := func() string {
		mu.Lock()
		defer mu.Unlock()
		return now.address
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	const senders, events = 4, 150
	progress := make(chan struct{}, senders*events)
	lost := make([]int, senders) // answers
	var all sync.WaitGroup
	for s := range senders {
		all.Go(func() {
			for i := range events {
				body := fmt.Appendf(nil, `{"id":"%d-%d"}`, s, i)
				header := signed(gitHubSecret, fmt.Sprintf("%d-%d", s, i), "push", body)
				for tries := 0; ; tries++ {
					r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address()+"/", bytes.NewReader(body))
					if err != nil {
						t.Error(err)
						return
					}
					for n := 0; n < len(header); n += 2 {
						r.Header.Set(header[n], header[n+1])
					}
					response, err := client.Do(r)
					if err != nil {
						lost[s]++
						if ctx.Err() != nil {
							t.Errorf("sender %d: %v", s, ctx.Err())
							return
						}
						continue
					}
					_ = response.Body.Close()
					if response.StatusCode == 200 {
						break
					}
					if response.StatusCode != 503 {
						t.Errorf("answer %d", response.StatusCode)
						return
					}
				}
				progress <- struct{}{}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	kills := 0
	for ended := false; !ended; {
		for range 10 + random.IntN(30) { // then the next one dies
			select {
			case <-progress:
			case <-done:
				ended = true
			}
			if ended {
				break
			}
		}
		mu.Lock()
		now.kill()
		kills++
		if !ended {
			now = startChild(t, file)
		}
		mu.Unlock()
	}
	total := 0
	for _, n := range lost {
		total += n
	}
	if kills < 10 || total < 5 {
		t.Errorf("%d kills, %d lost answers: the test proves little", kills, total)
	}

	db, err := ledger.OpenDB(&sqlite.Driver{}, file, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	kept, err := ledger.New(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	reading := store.Reading{Limit: store.MaxReading}
	for lane := range kept.Lanes() {
		reading.Lanes = append(reading.Lanes, lane)
	}
	for {
		page, err := kept.Read(context.WithoutCancel(ctx), reading)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			times[e.Note.Identity.Effect+" "+e.Note.ID[0]]++
		}
		if !page.More {
			break
		}
		reading.Until, reading.After = page.Until, page.Entries[len(page.Entries)-1].Sequence
	}
	for s := range senders {
		for i := range events {
			for _, effect := range []string{"a.v1", "b.v1"} {
				if n := times[fmt.Sprintf("%s %d-%d", effect, s, i)]; n != 1 {
					t.Errorf("event %d-%d of %s is there %d times", s, i, effect, n)
				}
			}
		}
	}
	if len(times) != 2*senders*events {
		t.Errorf("%d entries", len(times))
	}
}
