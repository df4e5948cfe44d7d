package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"strconv"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/statechart"
)

const maxBody = 64 << 10

func (o *orders) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", o.postOrder)
	mux.HandleFunc("POST /orders/{name}/events", o.postEvent)
	mux.HandleFunc("GET /orders/{name}", o.getOrder)
	return mux
}

func (o *orders) postOrder(w http.ResponseWriter, r *http.Request) {
	var in struct {
		ID    string `json:"id"`
		Total int64  `json:"total"`
	}
	body, ok := read(w, r, &in)
	if !ok {
		return
	}
	if in.ID == "" || in.Total <= 0 {
		http.Error(w, "want an id, and a total above 0 in minor units", http.StatusUnprocessableEntity)
		return
	}
	outcome, err := o.create(r.Context(), in.ID, in.Total, body)
	respond(w, outcome, err)
}

func (o *orders) postEvent(w http.ResponseWriter, r *http.Request) {
	var in struct {
		ID string `json:"id"`
	}
	body, ok := read(w, r, &in)
	if !ok {
		return
	}
	if in.ID == "" {
		http.Error(w, "id: want the event's own; it is what makes a repeat a repeat", http.StatusUnprocessableEntity)
		return
	}
	event, err := statechart.ParseEvent(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	outcome, err := o.apply(r.Context(), r.PathValue("name"), in.ID, event, body)
	respond(w, outcome, err)
}

func (o *orders) getOrder(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	s, err := o.load(r.Context(), o.db, name)
	if err != nil {
		respond(w, unavez.Outcome{}, err)
		return
	}
	said, err := o.answer(name, s, "shown")
	respond(w, unavez.Outcome{Result: unavez.Result{Code: http.StatusOK, Body: said}}, err)
}

func read(w http.ResponseWriter, r *http.Request, into any) ([]byte, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil, false
	}
	return body, true
}

// respond sends a frozen answer, or says why there is none.
func respond(w http.ResponseWriter, outcome unavez.Outcome, err error) {
	var (
		notNow *errNotNow
		failed *unavez.Error
	)
	switch {
	case outcome.Result.Code != 0: // also beside an error: a refusal that is frozen
		if outcome.Replayed {
			w.Header().Set("Idempotent-Replayed", "true")
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(outcome.Result.Code))
		_, _ = w.Write(outcome.Result.Body) // a client that has gone asks again
	case errors.Is(err, errNoOrder):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, errApplied):
		http.Error(w, errApplied.Error(), http.StatusConflict)
	case errors.As(err, &notNow):
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.Is(err, errUnknownEvent):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	case statechart.CodeOf(err) != "": // an expression that failed: a member is missing, or is no number
		http.Error(w, "the event does not have what the chart reads of it: "+err.Error(), http.StatusUnprocessableEntity)
	case errors.As(err, &failed) && failed.Code == unavez.CodeMismatch:
		http.Error(w, "this id was used with other content", http.StatusUnprocessableEntity)
	case errors.As(err, &failed):
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(failed.RetryAfter.Seconds()))))
		http.Error(w, string(failed.Code)+": send it again with the same id", http.StatusServiceUnavailable)
	default:
		log.Print(err)
		http.Error(w, "internal error", http.StatusInternalServerError)
	}
}
