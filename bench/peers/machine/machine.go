// Package machine tells what processes have used.
package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// OwnCPU is what this process has used.
func OwnCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// tick is the kernel's unit in /proc/PID/stat: 1/100 s on every Linux that runs Go.
const tick = 10 * time.Millisecond

// stat reads the fields of /proc/PID/stat that follow the name.
func stat(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.Fields(rest)
}

// ParentOf is the parent of a process, 0 where it is not on this machine.
func ParentOf(pid int) int {
	f := stat(pid)
	if len(f) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(f[1])
	return parent
}

// TreeCPU is what a server has used: itself, the children that have ended, and
// those that live.
func TreeCPU(pid int) time.Duration {
	if pid == 0 {
		return 0
	}
	sum := time.Duration(0)
	ticks := func(f []string, from, to int) {
		for _, i := range f[from:to] {
			n, _ := strconv.ParseInt(i, 10, 64)
			sum += time.Duration(n) * tick
		}
	}
	if f := stat(pid); len(f) > 15 {
		ticks(f, 11, 15) // utime, stime, cutime, cstime
	}
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		child, _ := strconv.Atoi(filepath.Base(dir))
		if f := stat(child); len(f) > 15 && f[1] == strconv.Itoa(pid) {
			ticks(f, 11, 13)
		}
	}
	return sum
}

// Named are the processes whose program has a name.
func Named(name string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		if b, err := os.ReadFile(dir + "/comm"); err == nil && strings.TrimSpace(string(b)) == name {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}
