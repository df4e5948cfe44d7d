package orders

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/unavez/unavez/inbox"
	"github.com/unavez/unavez/source"
)

// What the example's senders prove themselves with. They are printed, since they
// protect nothing.
const (
	platformSecret = "example-app-secret"
	gridSecret     = "example-grid-secret"
)

// The names of the two sources, which are the ends of their paths too.
const (
	Platform = "nuvemshop"
	Grid     = "eventgrid"
)

// Sources are the senders of the example: a shop platform that sends hints of its
// orders, and Azure Event Grid.
func Sources() ([]inbox.Source, error) {
	grid, err := source.EventGrid(source.EventGridOptions{Secret: &source.Token{Query: "code"}})
	if err != nil {
		return nil, err
	}
	return []inbox.Source{
		{
			Name: Platform, Contract: source.Nuvemshop(), Types: []string{"order/*"}, Fetch: platformOrder,
			Config: source.Config{Secrets: []source.Secret{source.NewSecret("current", platformSecret)}},
		},
		{
			Name: Grid, Contract: grid, Types: []string{"Orders.*"},
			Config: source.Config{Secrets: []source.Secret{source.NewSecret("current", gridSecret)}},
		},
	}, nil
}

// platformOrder stands in for the platform's API: a message names an order and
// nothing else, and what changed is read there. This one knows every order; one
// that is told to be paid is paid a little later than it was made.
func platformOrder(_ context.Context, e *inbox.Event, at string) (int, string, []byte, error) {
	payment, updated := "pending", time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	switch e.Type {
	case "order/paid":
		payment, updated = "paid", updated.Add(10*time.Minute)
	case "order/updated":
		updated = updated.Add(5 * time.Minute)
	}
	body := fmt.Sprintf(`{"id":%s,"currency":"BRL","total":"149.90","payment_status":%q,"updated_at":%q}`, path.Base(at), payment, updated.Format(time.RFC3339))
	return http.StatusOK, "application/json", []byte(body), nil
}

// platformData is what the platform's API says of an order.
type platformData struct {
	ID      json.Number `json:"id"`
	Total   string      `json:"total"`
	Payment string      `json:"payment_status"`
	Updated string      `json:"updated_at"`
}

func platformDataOf(e *inbox.Event) (d platformData, err error) {
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return d, inbox.Permanent(fmt.Errorf("the platform's order: %w", err))
	}
	return d, nil
}

// parts name the platform's order: platform, store, id. The subject is store,
// family and id.
func parts(e *inbox.Event) ([]string, error) {
	if len(e.Subject) != 3 {
		return nil, fmt.Errorf("subject of %d parts", len(e.Subject))
	}
	return []string{Platform, e.Subject[0], e.Subject[2]}, nil
}

func fromPlatform(types ...string) func(*inbox.Event) (bool, error) {
	return func(e *inbox.Event) (bool, error) {
		for _, t := range types {
			if e.Source == Platform && e.Type == t {
				return true, nil
			}
		}
		return false, nil
	}
}

// Effects are what the events bring about, in the transaction that commits their
// outcome. Made and paid name one import; every later change is applied if it is
// newer than the last one.
func (s *Shop) Effects() []inbox.Effect[*sql.Tx] {
	return []inbox.Effect[*sql.Tx]{
		{
			Name: "order.import.v1", When: fromPlatform("order/created", "order/paid"), Key: parts, OrderBy: parts,
			Handle: importOrder, Owner: "orders-team",
		},
		{
			Name: "order.update.v1", When: fromPlatform("order/paid", "order/updated"), OrderBy: parts, Handle: updateOrder, Owner: "orders-team",
			Version: func(e *inbox.Event) (string, error) {
				d, err := platformDataOf(e)
				return d.Updated, err
			},
		},
		{
			Name: "order.notice.v1", When: func(e *inbox.Event) (bool, error) { return e.Source == Grid, nil },
			OrderBy: func(e *inbox.Event) ([]string, error) { return e.Subject, nil },
			Handle: func(ctx context.Context, tx *sql.Tx, e *inbox.Event) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO notices (event_id, type, subject) VALUES (?, ?, ?)`, strings.Join(e.ID, " "), e.Type, strings.Join(e.Subject, "/"))
				return err
			},
		},
	}
}

// importOrder takes an order over, whatever was heard of it first.
func importOrder(ctx context.Context, tx *sql.Tx, e *inbox.Event) error {
	return put(ctx, tx, e, "DO NOTHING")
}

// updateOrder applies a change. Which is the newest is the inbox's to say.
func updateOrder(ctx context.Context, tx *sql.Tx, e *inbox.Event) error {
	return put(ctx, tx, e, "DO UPDATE SET payment = excluded.payment, total = excluded.total, updated_at = excluded.updated_at WHERE excluded.updated_at > updated_at")
}

// put writes an order of the platform, and does something else where it is there.
func put(ctx context.Context, tx *sql.Tx, e *inbox.Event, otherwise string) error {
	d, err := platformDataOf(e)
	if err != nil {
		return err
	}
	key, err := parts(e)
	if err != nil {
		return inbox.Permanent(err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO imports (platform, store, external_id, payment, total, updated_at)
		VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (platform, store, external_id) `+otherwise, key[0], key[1], key[2], d.Payment, d.Total, d.Updated)
	return err
}

// Import is an order of the platform, as it is shown.
type Import struct {
	// Platform, Store and ExternalID name it.
	Platform   string `json:"platform"`
	Store      string `json:"store"`      // of the platform
	ExternalID string `json:"externalId"` // within the store
	// Payment is pending or paid.
	Payment string `json:"payment"`
	// Total as the platform writes it.
	Total string `json:"total"`
	// UpdatedAt is the version of what is shown.
	UpdatedAt string `json:"updatedAt"`
}

// Notice is an event that came by Event Grid.
type Notice struct {
	ID      string `json:"id"`      // the sender's
	Type    string `json:"type"`    // of the event
	Subject string `json:"subject"` // what it is about
}

// Imports serves what was received.
func (s *Shop) Imports() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown := struct {
			Imports []Import `json:"imports"`
			Notices []Notice `json:"notices"`
		}{[]Import{}, []Notice{}}
		err := each(r.Context(), s.db, `SELECT platform, store, external_id, payment, total, updated_at FROM imports ORDER BY rowid DESC LIMIT 100`, func(rows *sql.Rows) error {
			var i Import
			err := rows.Scan(&i.Platform, &i.Store, &i.ExternalID, &i.Payment, &i.Total, &i.UpdatedAt)
			shown.Imports = append(shown.Imports, i)
			return err
		})
		if err == nil {
			err = each(r.Context(), s.db, `SELECT event_id, type, subject FROM notices ORDER BY rowid DESC LIMIT 100`, func(rows *sql.Rows) error {
				var n Notice
				err := rows.Scan(&n.ID, &n.Type, &n.Subject)
				shown.Notices = append(shown.Notices, n)
				return err
			})
		}
		if err != nil {
			http.Error(w, "what was received cannot be read", http.StatusInternalServerError)
			return
		}
		_ = answer(w, http.StatusOK, shown) // the client has gone if it fails
	})
}

func each(ctx context.Context, db *sql.DB, query string, scan func(*sql.Rows) error) error {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Sample is a delivery as its sender would send it.
type Sample struct {
	Path    string   // with the query
	Headers []string // as "Name: value"
	Body    string   // the bytes that are signed
}

// Samples are deliveries that are accepted as they stand: an order that is made,
// the same that is paid, and an event of Event Grid.
func Samples() (made, paid, event Sample) {
	hint := func(kind string) Sample {
		body := fmt.Sprintf(`{"store_id":1234567,"event":%q,"id":871254203}`, kind)
		mac := hmac.New(sha256.New, []byte(platformSecret))
		mac.Write([]byte(body))
		return Sample{
			Path:    "/in/" + Platform,
			Headers: []string{"Content-Type: application/json", "x-linkedstore-hmac-sha256: " + hex.EncodeToString(mac.Sum(nil))}, Body: body,
		}
	}
	return hint("order/created"), hint("order/paid"), Sample{
		Path:    "/in/" + Grid + "?code=" + gridSecret,
		Headers: []string{"Content-Type: application/json", "aeg-event-type: Notification"},
		Body: `[{"id":"3f0c2f4e","topic":"/shop","eventType":"Orders.Shipped","subject":"orders/871254203",` +
			`"eventTime":"2026-05-04T12:30:00Z","dataVersion":"1","data":{"carrier":"correios"}}]`,
	}
}
