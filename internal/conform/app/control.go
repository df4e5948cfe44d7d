package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"runtime"

	"github.com/unavez/unavez/internal/conform"
)

// maxPlan bounds a plan, in bytes.
const maxPlan = 16 << 20

// control adds the control endpoints.
func (a *app[Tx]) control(mux *http.ServeMux, routes []string) {
	mux.HandleFunc("GET "+conform.PathAbout, func(w http.ResponseWriter, _ *http.Request) {
		reply(w, conform.About{
			Conform: 1, Store: a.name, Routes: routes, Lease: lease, Limit: limit, ShortLimit: shortLimit,
			Retention: shortRetention, Tombstone: shortRetention, StoreTimeout: a.timeout,
			RequestLimit: requestLimit, ResponseLimit: responseLimit, CORS: true,
		}, nil)
	})
	mux.HandleFunc("PUT "+conform.PathPlan+"{op...}", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPlan))
		var plan conform.Plan
		if err == nil {
			err = json.Unmarshal(body, &plan)
		}
		if err == nil {
			err = a.journal.setPlan(r.PathValue("op"), body)
		}
		reply(w, struct{}{}, err)
	})
	mux.HandleFunc("GET "+conform.PathCount+"{op...}", func(w http.ResponseWriter, r *http.Request) {
		op := r.PathValue("op")
		var c conform.Count
		var err error
		if c.Runs, err = a.journal.runs(op); err == nil {
			c.Effects, err = a.journal.effects(op)
		}
		if err == nil {
			c.Rows, err = a.rows(r.Context(), op)
		}
		reply(w, c, err)
	})
	mux.HandleFunc("GET "+conform.PathCounters+"{prefix...}", func(w http.ResponseWriter, r *http.Request) {
		c, err := a.journal.counters(r.PathValue("prefix"))
		reply(w, c, err)
	})
	mux.HandleFunc(conform.PathRevoke+"{principal}", func(w http.ResponseWriter, r *http.Request) {
		reply(w, struct{}{}, a.journal.revoke(r.PathValue("principal"), r.Method == http.MethodPut))
	})
	mux.HandleFunc("GET "+conform.PathRuntime, func(w http.ResponseWriter, _ *http.Request) {
		files := -1
		if open, err := os.ReadDir("/proc/self/fd"); err == nil {
			files = len(open)
		}
		reply(w, conform.Runtime{Goroutines: runtime.NumGoroutine(), Files: files}, nil)
	})
}

// reply answers a control request.
func reply(w http.ResponseWriter, v any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client is gone
}
