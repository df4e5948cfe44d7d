package unavez_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/store/memory"
)

func BenchmarkReplayFromMemory(b *testing.B) {
	engine, err := unavez.New(memory.New(nil), nil)
	if err != nil {
		b.Fatal(err)
	}
	op := operation("4711")
	handler := func(context.Context, Tx) (unavez.Result, error) { return answer(1), nil }
	b.ReportAllocs()
	for b.Loop() {
		if _, err := engine.Do(b.Context(), op, handler); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewOperation(b *testing.B) {
	engine, err := unavez.New(memory.New(nil), &unavez.Options{CacheSize: -1})
	if err != nil {
		b.Fatal(err)
	}
	handler := func(_ context.Context, tx Tx) (unavez.Result, error) { return answer(1), nil }
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		if _, err := engine.Do(b.Context(), operation(strconv.Itoa(n)), handler); err != nil {
			b.Fatal(err)
		}
	}
}
