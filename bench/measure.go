package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// variant is one way of doing the work.
type variant struct {
	name string
	op   func(ctx context.Context) error
	cpu  func() time.Duration // CPU used so far by whoever does the work
}

// figures of one variant, one entry a round.
type figures struct {
	rate, cpu []float64 // operations per second, CPU microseconds per operation
}

// load is how the work is asked for: by so many callers, each as fast as it is
// answered or, with a pace, once in that time. Only at one pace do two servers do
// equal work, so only there their CPU compares: a faster one is otherwise asked more.
type load struct {
	callers int
	pace    time.Duration
}

// compare lets the variants take turns, round by round.
func compare(s settings, l load, variants []variant) map[string]*figures {
	out := map[string]*figures{}
	for _, v := range variants {
		out[v.name] = &figures{}
		sample(v, l, s.sample/4) // warm up
	}
	for range s.rounds {
		for _, v := range variants {
			n, took, cpu := sample(v, l, s.sample)
			f := out[v.name]
			f.rate = append(f.rate, float64(n)/took.Seconds())
			f.cpu = append(f.cpu, float64(cpu.Microseconds())/float64(max(n, 1)))
		}
	}
	return out
}

// sample runs one variant under a load for so long.
func sample(v variant, l load, length time.Duration) (n int64, took, cpu time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), length)
	defer cancel()
	var count atomic.Int64
	var wg sync.WaitGroup
	begin, used := time.Now(), v.cpu()
	for i := range l.callers {
		wg.Go(func() {
			next := begin.Add(l.pace * time.Duration(i) / time.Duration(l.callers))
			for ctx.Err() == nil {
				if l.pace > 0 {
					select {
					case <-time.After(time.Until(next)):
					case <-ctx.Done():
						return
					}
					next = next.Add(l.pace)
				}
				must(0, v.op(context.WithoutCancel(ctx)))
				count.Add(1)
			}
		})
	}
	wg.Wait()
	return count.Load(), time.Since(begin), v.cpu() - used
}

// ratio is the median over the rounds of a's figure divided by b's.
func ratio(a, b []float64) float64 {
	all := make([]float64, len(a))
	for i := range a {
		all[i] = a[i] / b[i]
	}
	return median(all)
}

func median(v []float64) float64 {
	sorted := slices.Sorted(slices.Values(v))
	return sorted[len(sorted)/2]
}

// row prints one variant against a base.
func row(name string, f, base *figures) {
	fmt.Printf("  %-44s %9.0f/s %8.1f µs CPU   rate %5.2f   CPU %5.2f\n", name, median(f.rate), median(f.cpu), ratio(f.rate, base.rate), ratio(f.cpu, base.cpu))
}

// ownCPU is what this process has used.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cpuOf is what another process has used, from the run times of its threads.
func cpuOf(pid int) time.Duration {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return 0
	}
	var sum time.Duration
	for _, task := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, task.Name()))
		if err != nil {
			continue // the thread has ended
		}
		first, _, _ := strings.Cut(string(b), " ")
		if ns, err := strconv.ParseInt(first, 10, 64); err == nil {
			sum += time.Duration(ns)
		}
	}
	return sum
}
