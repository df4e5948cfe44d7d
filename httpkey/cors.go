package httpkey

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// CORS says which pages of other origins may use a keyed route from a browser.
// Without it a page cannot read the marker, Retry-After or any error.
type CORS struct {
	// Origins lists the allowed ones, such as "https://shop.example"; "*" is any.
	Origins []string
	// Allow, when not nil, is asked about origins that are not listed.
	Allow func(origin string, r *http.Request) bool
	// Credentials lets pages send cookies and Authorization. Not with "*".
	Credentials bool
	// Methods that a preflight allows (Proxy only); default GET, HEAD, POST,
	// PUT, PATCH and DELETE.
	Methods []string
	// Headers are request headers that a preflight allows beside Content-Type,
	// Authorization, Idempotency-Key and Prefer (Proxy only).
	Headers []string
	// Expose are response headers that pages may read beside the layer's own.
	Expose []string
	// MaxAge is how long a browser may keep a preflight's answer (Proxy only);
	// default 10 min.
	MaxAge time.Duration
}

func (c *CORS) validate() error {
	if c == nil {
		return nil
	}
	if c.Credentials && slices.Contains(c.Origins, "*") {
		return errors.New(`cors: credentials for any origin (list the origins instead of "*")`)
	}
	return nil
}

// exposed are the headers of the layer that pages may read.
func exposed() []string {
	return []string{ReplayedHeader, "Retry-After", "Link", "Location"}
}

// apply puts the headers for this request's origin on an answer and reports
// whether the origin is allowed. It is safe on nil.
func (c *CORS) apply(header http.Header, r *http.Request) bool {
	if c == nil {
		return false
	}
	anybody := slices.Contains(c.Origins, "*")
	if !anybody && !hasToken(header["Vary"], "Origin") {
		header.Add("Vary", "Origin")
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	switch {
	case anybody:
		header.Set("Access-Control-Allow-Origin", "*")
	case slices.Contains(c.Origins, origin), c.Allow != nil && c.Allow(origin, r):
		header.Set("Access-Control-Allow-Origin", origin)
	default:
		header.Del("Access-Control-Allow-Origin")
		return false
	}
	if c.Credentials {
		header.Set("Access-Control-Allow-Credentials", "true")
	}
	for _, name := range append(exposed(), c.Expose...) {
		if !hasToken(header["Access-Control-Expose-Headers"], name) {
			header.Add("Access-Control-Expose-Headers", name)
		}
	}
	return true
}

// isPreflight tells a browser's question about a request to come.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// preflight answers the browser's question.
func (c *CORS) preflight(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Add("Vary", "Access-Control-Request-Method")
	header.Add("Vary", "Access-Control-Request-Headers")
	if c.apply(header, r) {
		header.Del("Access-Control-Expose-Headers")
		allowed := c.Methods
		if allowed == nil {
			allowed = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}
		}
		header.Set("Access-Control-Allow-Methods", strings.Join(allowed, ", "))
		names := append([]string{"Content-Type", "Authorization", KeyHeader, "Prefer"}, c.Headers...)
		header.Set("Access-Control-Allow-Headers", strings.Join(names, ", "))
		age := c.MaxAge
		if age == 0 {
			age = 10 * time.Minute
		}
		header.Set("Access-Control-Max-Age", strconv.Itoa(int(age.Seconds())))
	}
	w.WriteHeader(http.StatusNoContent)
}
