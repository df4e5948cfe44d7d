package unsent_test

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/unavez/unavez/internal/unsent"
)

// failing is a connection on which no write succeeds.
type failing struct{ net.Conn }

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestWriteThatFailsMayHaveSent(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	c := &unsent.Conn{Conn: failing{here}}
	if n := c.Writes(); n != 0 {
		t.Errorf("%d writes before the first", n)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("error %v", err)
	}
	if n := c.Seal(); n != 1 {
		t.Errorf("%d writes, want the one that failed", n)
	}
}

// TestNothingIsWrittenBehindASeal has a writer and a seal race: whatever the
// other side receives, the seal has counted.
func TestNothingIsWrittenBehindASeal(t *testing.T) {
	for range 200 {
		here, there := net.Pipe()
		c := &unsent.Conn{Conn: here}
		var got int
		var both sync.WaitGroup
		both.Go(func() {
			b := make([]byte, 1)
			got, _ = there.Read(b) // it ends with the connection
		})
		wrote := make(chan error, 1)
		both.Go(func() {
			_, err := c.Write([]byte("x"))
			wrote <- err
		})
		counted := c.Seal()
		both.Wait()
		if got == 1 && counted == 0 {
			t.Fatal("a byte arrived that the seal had not counted")
		}
		if err := <-wrote; counted == 0 && !errors.Is(err, net.ErrClosed) {
			t.Fatalf("a write behind the seal ended with %v", err)
		}
		if _, err := c.Write([]byte("y")); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("the next write ended with %v", err)
		}
	}
}
