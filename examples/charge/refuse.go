package main

import (
	"encoding/json"
	"errors"
	"log"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/unavez/unavez"
	"github.com/unavez/unavez/httpkey"
)

// refuse answers an error of create. The causes stay in the log: an answer of
// the gateway is not for the client.
func (s *shop) refuse(w http.ResponseWriter, err error) {
	var bad *httpkey.Error
	var engine *unavez.Error
	status, kind, detail := http.StatusServiceUnavailable, "", "Nothing was charged. Repeat the request with the same key."
	retryAfter := time.Second
	switch {
	case errors.As(err, &bad):
		status, detail, retryAfter = bad.Status, bad.Detail, 0
	case errors.As(err, &engine):
		kind, retryAfter = string(engine.Code), engine.RetryAfter
		status, detail = http.StatusInternalServerError, ""
		switch {
		case engine.Code == unavez.CodeUnknown:
			status, detail = http.StatusConflict, "It is not known whether you were charged. Nothing is charged again before that is found out."
			if s.unknown != unavez.Hold { // the next request finds out
				retryAfter = max(retryAfter, time.Second)
			}
		case engine.Code == unavez.CodeMismatch, engine.Code == unavez.CodeExpired:
			status = http.StatusUnprocessableEntity
		case engine.Code == unavez.CodeInFlight, engine.Code == unavez.CodeRetrying, engine.Code == unavez.CodeDiscarded:
			status = http.StatusConflict
		case unavez.SafeToRetry(err):
			status = http.StatusServiceUnavailable
		}
	}
	if status >= 500 || kind == string(unavez.CodeUnknown) {
		log.Print(err)
	}
	if retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(retryAfter.Seconds()))))
	}
	members := map[string]any{"title": http.StatusText(status), "status": status}
	if kind != "" {
		members["type"] = httpkey.DefaultDocs + "#" + kind
		members["operation"] = engine.Key.String()
	}
	if detail != "" {
		members["detail"] = detail
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(members) // a client that has gone asks again
}
