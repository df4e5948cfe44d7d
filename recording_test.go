package unavez

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unavez/unavez/store/memory"
)

type named struct{}

// What has happened is recorded although its caller is gone, for ten seconds at
// most and nine at least, with the caller's values.
func TestRecordingsOutliveTheirCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r recordings
		defer r.close()
		gone, leave := context.WithCancel(context.WithValue(t.Context(), named{}, "caller"))
		leave()
		began := time.Now()
		first := r.begin(gone)
		time.Sleep(recordStep - time.Millisecond)
		second := r.begin(t.Context())
		for name, record := range map[string]context.Context{"first": first, "second": second} {
			if err := record.Err(); err != nil {
				t.Errorf("%s: %v before its time", name, err)
			}
			if at, ok := record.Deadline(); !ok || !at.Equal(began.Add(recordLimit)) {
				t.Errorf("%s ends at %v, want %v behind its beginning", name, at.Sub(began), recordLimit)
			}
		}
		if first.Value(named{}) != "caller" || second.Value(named{}) != nil {
			t.Errorf("values %v and %v, want each its caller's", first.Value(named{}), second.Value(named{}))
		}
		time.Sleep(2 * time.Millisecond)
		third := r.begin(t.Context())
		if at, _ := third.Deadline(); !at.Equal(time.Now().Add(recordLimit)) {
			t.Errorf("a recording behind the step has %v left, want %v", time.Until(at), recordLimit)
		}
		<-first.Done()
		if took := time.Since(began); took != recordLimit || !errors.Is(first.Err(), context.DeadlineExceeded) {
			t.Errorf("first ended after %v with %v", took, first.Err())
		}
		if third.Err() != nil {
			t.Errorf("third: %v", third.Err())
		}
	})
}

// A store bounds a part of a recording for itself: that ends by its own time, and
// with the recording, and leaves nothing behind.
func TestPartOfARecordingEndsWithIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r recordings
		record := r.begin(t.Context())
		short, done := context.WithTimeout(record, time.Second)
		defer done()
		<-short.Done()
		if record.Err() != nil {
			t.Errorf("the end of a part has ended the recording: %v", record.Err())
		}
		part, cancel := context.WithCancel(record)
		defer cancel()
		r.close()
		synctest.Wait()
		if part.Err() == nil || record.Err() == nil {
			t.Errorf("closed, and part says %v, recording %v", part.Err(), record.Err())
		}
	})
}

// A closed engine leaves no timer behind.
func TestClosingEndsWhatRecordingsShare(t *testing.T) {
	t.Parallel()
	engine, err := New(memory.New(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	record := engine.recordings.begin(t.Context())
	if err := engine.Close(t.Context()); err != nil || record.Err() == nil {
		t.Errorf("closed with %v, and the recording says %v", err, record.Err())
	}
}

// Reading ahead of the gate pays where more than half of the last gates have
// found something: at the half it does not.
func TestHalfIsNotExpected(t *testing.T) {
	t.Parallel()
	for share, want := range map[int64]bool{511: false, 512: false, 513: true} {
		var e expectation
		e.share.Store(share)
		if e.likely() != want {
			t.Errorf("of 1024 %d were found: read ahead %v, want %v", share, e.likely(), want)
		}
	}
}
