package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/unavez/unavez/internal/conform"
)

// journal is the memory that the workers share outside the store, so that what
// happened can be counted whatever became of a transaction or a worker: a
// folder of files that are only appended to, and one file for each plan.
type journal struct {
	folder string

	mu    sync.Mutex
	files map[string]*os.File
}

// The files of a journal.
const (
	runsFile    = "runs"    // a line for each handler run: op
	effectsFile = "effects" // a line for each call of the fake provider: op, key
	sightsFile  = "sights"  // a line for each observation: principal, what
)

func openJournal(folder string) (*journal, error) {
	j := &journal{folder: folder, files: map[string]*os.File{}}
	if err := os.MkdirAll(filepath.Join(folder, "plans"), 0o700); err != nil {
		return nil, err
	}
	for _, name := range []string{runsFile, effectsFile, sightsFile} {
		f, err := os.OpenFile(filepath.Join(folder, name), os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, errors.Join(err, j.close())
		}
		j.files[name] = f
	}
	return j, nil
}

func (j *journal) close() (err error) {
	for _, f := range j.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// write appends a line; one write of a short line is whole.
func (j *journal) write(name string, fields ...string) {
	for i, f := range fields {
		fields[i] = hex.EncodeToString([]byte(f))
	}
	line := strings.Join(fields, " ") + "\n"
	if _, err := j.files[name].WriteString(line); err != nil {
		panic(fmt.Sprintf("journal: %v", err)) // nothing that is counted would be true
	}
}

// lines reads a file; each line is a list of fields.
func (j *journal) lines(name string) ([][]string, error) {
	content, err := os.ReadFile(filepath.Join(j.folder, name))
	if err != nil {
		return nil, err
	}
	var all [][]string
	for line := range bytes.Lines(content) {
		if line[len(line)-1] != '\n' {
			break // being written
		}
		fields := strings.Split(string(line[:len(line)-1]), " ")
		for i, f := range fields {
			plain, err := hex.DecodeString(f)
			if err != nil {
				return nil, fmt.Errorf("journal %s: %q: %w", name, line, err)
			}
			fields[i] = string(plain)
		}
		all = append(all, fields)
	}
	return all, nil
}

// enter counts a run of a path's handler and gives its number.
func (j *journal) enter(op string) (int, error) {
	j.write(runsFile, op)
	return j.runs(op)
}

func (j *journal) runs(op string) (int, error) {
	all, err := j.lines(runsFile)
	n := 0
	for _, line := range all {
		if line[0] == op {
			n++
		}
	}
	return n, err
}

// charge is the fake provider: it takes every call, and notes its key.
func (j *journal) charge(op, key string) { j.write(effectsFile, op, key) }

// charged tells whether the fake provider has seen a key.
func (j *journal) charged(key string) (bool, error) {
	all, err := j.lines(effectsFile)
	for _, line := range all {
		if line[1] == key {
			return true, err
		}
	}
	return false, err
}

// effects are the keys of the calls on a path.
func (j *journal) effects(op string) ([]string, error) {
	all, err := j.lines(effectsFile)
	keys := []string{}
	for _, line := range all {
		if line[0] == op {
			keys = append(keys, line[1])
		}
	}
	return keys, err
}

// observe notes what the engine has told its observer.
func (j *journal) observe(principal, what string) { j.write(sightsFile, principal, what) }

// counters counts the observations of the principals with a prefix.
func (j *journal) counters(prefix string) (conform.Counters, error) {
	all, err := j.lines(sightsFile)
	counters := conform.Counters{}
	for _, line := range all {
		if strings.HasPrefix(line[0], prefix) {
			counters[line[1]]++
		}
	}
	return counters, err
}

// file is the path of something named by a client.
func (j *journal) file(kind, name string) string {
	return filepath.Join(j.folder, "plans", hex.EncodeToString([]byte(name))+"."+kind)
}

// setPlan writes a path's plan, so that a reader sees the old or the new one.
func (j *journal) setPlan(op string, plan []byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	temporary := j.file("new", op)
	if err := os.WriteFile(temporary, plan, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, j.file("plan", op))
}

// plan of a path; one without runs when there is none.
func (j *journal) plan(op string) (conform.Plan, error) {
	var plan conform.Plan
	content, err := os.ReadFile(j.file("plan", op))
	if errors.Is(err, fs.ErrNotExist) {
		return plan, nil
	}
	if err != nil {
		return plan, err
	}
	return plan, json.Unmarshal(content, &plan)
}

// first reports, once for each kind and name over all workers, true.
func (j *journal) first(kind, name string) bool {
	f, err := os.OpenFile(j.file(kind, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return false
	}
	return f.Close() == nil
}

// revoke takes a principal's permission, or gives it back.
func (j *journal) revoke(principal string, revoked bool) error {
	if revoked {
		return os.WriteFile(j.file("revoked", principal), nil, 0o600)
	}
	return os.Remove(j.file("revoked", principal))
}

func (j *journal) revoked(principal string) bool {
	_, err := os.Stat(j.file("revoked", principal))
	return err == nil
}
