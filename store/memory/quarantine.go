package memory

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/unavez/unavez/store"
)

var (
	_ store.Quarantine   = (*Store)(nil)
	_ store.Positions    = (*Store)(nil)
	_ store.Privacy      = (*Store)(nil)
	_ store.QueueCounter = (*Store)(nil)
	_ store.Signal       = (*Store)(nil)
)

// keep puts an item into quarantine, unless its key is there.
func (s *Store) keep(item store.Quarantined, now time.Time) {
	if s.queue.quarantine[item.Key] != nil {
		return
	}
	item = cloneQuarantined(item)
	item.Reason, item.Detail = store.CutReason(item.Reason), store.CutReason(item.Detail)
	item.Arrived, item.Erased = now, false
	s.queue.quarantine[item.Key] = &item
}

// Quarantined lists what is kept, by key.
func (s *Store) Quarantined(ctx context.Context, source string, after store.Key, limit int) ([]store.Quarantined, error) {
	if err := errors.Join(ctx.Err(), checkLimit("quarantined", limit)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var page []store.Quarantined
	for _, key := range sortedKeys(s.queue.quarantine) {
		item := s.queue.quarantine[key]
		if len(page) == limit {
			break
		}
		if compareKeys(key, after) > 0 && (source == "" || item.Source == source) {
			row := *item
			row.Payload = nil
			page = append(page, row)
		}
	}
	return page, nil
}

// ShowQuarantined returns one item whole.
func (s *Store) ShowQuarantined(ctx context.Context, key store.Key) (store.Quarantined, error) {
	if err := ctx.Err(); err != nil {
		return store.Quarantined{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	item := s.queue.quarantine[key]
	if item == nil {
		return store.Quarantined{}, store.ErrNotFound
	}
	return cloneQuarantined(*item), nil
}

// Readmit waits as Append does.
func (s *Store) Readmit(ctx context.Context, action store.Action, entries []store.Entry) ([]store.Appended, error) {
	if err := errors.Join(action.Validate(), checkEntries(entries)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.await(ctx, func() bool { return s.unreserved(entries, nil) }); err != nil {
		return nil, err
	}
	if s.queue.quarantine[action.Key] == nil {
		return nil, store.ErrNotFound
	}
	happens, answer := s.lost()
	if !happens {
		return nil, answer
	}
	said, err := s.append(entries)
	if err != nil {
		return nil, err
	}
	delete(s.queue.quarantine, action.Key)
	if answer != nil {
		return nil, answer
	}
	return said, nil
}

// Deliveries are in the order of their arrival.
func (s *Store) Deliveries(ctx context.Context, key store.Key, limit int) ([]store.Delivery, error) {
	if err := errors.Join(ctx.Err(), checkLimit("deliveries", limit)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.queue.deliveries[key]
	page := slices.Clone(all[:min(limit, len(all))])
	for i := range page {
		page[i].Sum = slices.Clone(page[i].Sum)
	}
	return page, nil
}

// position is how far the listing of a sender has been read.
type position struct {
	value, worker string
	lease         time.Time
}

// Position does not wait.
func (s *Store) Position(ctx context.Context, name, worker string, lease time.Duration) (string, bool, error) {
	if err := ctx.Err(); err != nil {
		return "", false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	happens, answer := s.lost()
	if !happens {
		return "", false, answer
	}
	now := s.clock()
	p := s.queue.positions[name]
	if p == nil {
		p = &position{}
		s.queue.positions[name] = p
	}
	if p.worker != worker && now.Before(p.lease) {
		return p.value, false, answer
	}
	p.worker, p.lease = worker, now.Add(lease)
	return p.value, true, answer
}

// SavePosition asks for the worker, not for its lease.
func (s *Store) SavePosition(ctx context.Context, name, worker, value string, lease time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.queue.positions[name]
	if p == nil || p.worker != worker {
		return store.ErrLeaseLost
	}
	happens, answer := s.lost()
	if happens {
		p.value, p.lease = value, s.clock().Add(lease)
	}
	return answer
}

// Erase removes the payloads of a subject.
func (s *Store) Erase(ctx context.Context, action store.Action) (int, error) {
	return s.erase(ctx, action, func(e *store.Entry) bool { return e.Subject == action.Key }, func(q *store.Quarantined) bool { return q.Subject == action.Key })
}

// EraseAccount removes the payloads of an account.
func (s *Store) EraseAccount(ctx context.Context, action store.Action, of store.Account) (int, error) {
	return s.erase(ctx, action, func(e *store.Entry) bool { return of.HoldsEntry(&e.Note) }, of.HoldsItem)
}

func (s *Store) erase(ctx context.Context, action store.Action, entry func(*store.Entry) bool, item func(*store.Quarantined) bool) (int, error) {
	if err := errors.Join(ctx.Err(), action.Validate()); err != nil {
		return 0, err
	}
	if action.Key == (store.Key{}) {
		return 0, errors.New("erase: Key is zero, want a subject's or an account's")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	happens, answer := s.lost()
	if !happens {
		return 0, answer
	}
	n := 0
	for _, e := range s.queue.entries {
		if entry(&e.row) && !e.row.Erased {
			e.row.Payload, e.row.Size, e.row.Erased = nil, 0, true
			n++
		}
	}
	for _, q := range s.queue.quarantine {
		if item(q) && !q.Erased {
			q.Payload, q.Erased = nil, true
			n++
		}
	}
	return n, answer
}

// QueueCounts looks at everything: there is little of it in memory.
func (s *Store) QueueCounts(ctx context.Context) (store.QueueCounts, error) {
	if err := ctx.Err(); err != nil {
		return store.QueueCounts{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, q := s.clock(), &s.queue
	c := store.QueueCounts{
		Blocked: int64(len(q.blocked)), Quarantined: map[string]int64{},
		Depth: map[string]int64{}, Oldest: map[string]time.Duration{},
		Full: float64(q.undone) / float64(s.limit),
	}
	for _, item := range q.quarantine {
		c.Quarantined[item.Source]++
	}
	for _, e := range q.entries {
		if !e.done {
			source := e.row.Note.Source
			c.Depth[source]++
			c.Oldest[source] = max(c.Oldest[source], now.Sub(e.row.Arrived))
		}
	}
	for i := range q.lanes {
		if l := &q.lanes[i]; l.holder == "" || !now.Before(l.lease) {
			c.Orphans++
		}
	}
	return c, nil
}

// Notify calls every listener of this store, and waits for them to return.
func (s *Store) Notify(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	wakes := make([]func(), 0, len(s.queue.listeners))
	for _, wake := range s.queue.listeners {
		wakes = append(wakes, wake)
	}
	s.mu.Unlock()
	for _, wake := range wakes {
		wake()
	}
	return nil
}

// Listen returns when ctx ends, with its error.
func (s *Store) Listen(ctx context.Context, wake func()) error {
	s.mu.Lock()
	s.queue.listened++
	number := s.queue.listened
	s.queue.listeners[number] = wake
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.queue.listeners, number)
	return ctx.Err()
}
