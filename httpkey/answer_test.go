package httpkey

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez"
)

func TestASpoolLeavesNoFileBehind(t *testing.T) {
	t.Parallel()
	s := newSpool(0, 4<<20)
	piece := strings.Repeat("x", 700<<10)
	var want bytes.Buffer
	for range 5 {
		want.WriteString(piece)
		if _, err := s.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	if s.file == nil || s.memory != nil {
		t.Fatal("over the limit of memory and not in a file")
	}
	name := s.file.Name()
	if _, err := s.Write(bytes.Repeat([]byte("x"), 1<<20)); !errors.Is(err, errAnswerTooLarge) {
		t.Errorf("over the limit: %v", err)
	}
	var got bytes.Buffer
	if err := s.send(&got); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("%d bytes, %v, want %d", got.Len(), err, want.Len())
	}
	s.close()
	s.close()
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
}

func TestPreferWait(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]time.Duration{
		"wait=5": 5 * time.Second, `respond-async, Wait = "7" ; x=y`: 7 * time.Second, "wait=1, wait=9": time.Second,
		"wait": 0, "wait=-1": 0, "wait=x": 0, "waiting=5": 0, "": 0, "wait=99999999999999999999999": unavez.MaxWait, "wait=9223372036854775807": unavez.MaxWait,
	} {
		if got := preferredWait([]string{line}); got != want {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
	if got := preferredWait([]string{"a", "wait=2"}); got != 2*time.Second {
		t.Errorf("second line: %v", got)
	}
}
