// Package observe turns what happens into log lines and metrics.
//
// A log line never holds a body, a credential or a client's key: an operation
// is named by the hash that is its database key. What a client sends reaches a
// line only through slog's own quoting, so that it can forge no line.
package observe

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"

	"github.com/unavez/unavez/inbox"
)

// Logger makes the process's logger. Format is auto, json or text; auto is text
// on a terminal.
func Logger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: mask}
	if format == "text" || format == "auto" && terminal(w) {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

// Level reads a level that the configuration has accepted.
func Level(name string) slog.Level {
	var l slog.Level
	if l.UnmarshalText([]byte(name)) != nil {
		return slog.LevelInfo
	}
	return l
}

func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// mask is the last resort: whatever is logged under the name of a credential is
// not shown.
func mask(_ []string, a slog.Attr) slog.Attr {
	switch strings.ToLower(a.Key) {
	case "authorization", "proxy-authorization", "cookie", "set-cookie", "token", "password", "secret", "body", "idempotency-key":
		return slog.String(a.Key, "[redacted]")
	}
	if h, ok := a.Value.Any().(http.Header); ok {
		names := make([]string, 0, len(h))
		for name := range h {
			names = append(names, name)
		}
		return slog.Any(a.Key, names)
	}
	return a
}

type correlationKey struct{}

// Correlated gives every request an id: that of a valid traceparent or
// X-Request-Id, otherwise a new one.
func Correlated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithValue(r.Context(), correlationKey{}, correlation(r.Header))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// Correlation is the id that Correlated gave, "" without.
func Correlation(ctx context.Context) string {
	id, _ := ctx.Value(correlationKey{}).(string)
	return id
}

func correlation(h http.Header) string {
	if lines := h["Traceparent"]; len(lines) == 1 {
		fields := strings.Split(lines[0], "-")
		if len(fields) >= 4 && len(fields[0]) == 2 && len(fields[1]) == 32 && strings.Trim(fields[1], "0123456789abcdef") == "" && strings.Trim(fields[1], "0") != "" {
			return fields[1]
		}
	}
	if lines := h["X-Request-Id"]; len(lines) == 1 && len(lines[0]) > 0 && len(lines[0]) <= 64 {
		if !strings.ContainsFunc(lines[0], func(c rune) bool {
			return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.')
		}) {
			return lines[0]
		}
	}
	return rand.Text()
}

// Delivery writes the line of a delivery, and of an entry that came to an end or
// to rest. It names what the configuration names and the tenant, never what an
// event carried.
func Delivery(log *slog.Logger, s inbox.Sight) {
	level := slog.LevelInfo
	switch s.What {
	case "delivery", "completed", "discarded", "stale", "repaired":
	case "duplicate", "retry", "parked", "blocked", "ignored", "coalesced":
		level = slog.LevelDebug
	case "dead", "unknown", "lane-lost":
		level = slog.LevelWarn
	default: // the inbox has a line of its own
		return
	}
	ctx := context.Background()
	if !log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.String("state", s.What)}
	for _, field := range [][2]string{{"source", s.Source}, {"type", s.Type}, {"tenant", s.Tenant}, {"effect", s.Effect}, {"reason", s.Reason}, {"verified_with", s.Secret}} {
		if field[1] != "" {
			attrs = append(attrs, slog.String(field[0], field[1]))
		}
	}
	if s.Took > 0 {
		attrs = append(attrs, slog.Float64("duration_ms", float64(s.Took.Microseconds())/1000))
	}
	if s.Count > 1 {
		attrs = append(attrs, slog.Int("count", s.Count))
	}
	log.LogAttrs(ctx, level, "inbox", attrs...)
}
