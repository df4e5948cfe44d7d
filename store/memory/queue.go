package memory

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unavez/unavez/store"
)

var (
	_ store.Queue         = (*Store)(nil)
	_ store.Enqueuer[*Tx] = (*Store)(nil)
)

// queue is what waits to be done. Entries are here from the commit that
// appended them until a purge.
type queue struct {
	entries    map[store.Key]*entry
	sequence   int64             // drawn last
	commit     uint64            // number of the last commit that appended
	undone     int               // entries that are not done
	reserved   map[store.Key]*Tx // keys that open transactions have appended
	ordering   map[store.Key]*Tx // ordering keys that open transactions have locked
	deliveries map[store.Key][]store.Delivery
	blocked    map[store.Place]*blocked
	quarantine map[store.Key]*store.Quarantined
	versions   map[store.Key]store.Version
	positions  map[string]*position
	lanes      []lane
	workers    map[string]time.Time // until when each lives
	listeners  map[int]func()
	listened   int // of the listener that came last
	// incarnation goes into cursors, so that those of another one are known.
	incarnation int
}

// entry is one row of the queue.
type entry struct {
	row    store.Entry
	lane   int
	commit uint64 // that made it visible
	done   bool
	ended  time.Time // when it was done
}

func newQueue(lanes int) queue {
	q := queue{
		entries: map[store.Key]*entry{}, reserved: map[store.Key]*Tx{}, ordering: map[store.Key]*Tx{},
		deliveries: map[store.Key][]store.Delivery{}, blocked: map[store.Place]*blocked{},
		quarantine: map[store.Key]*store.Quarantined{}, versions: map[store.Key]store.Version{},
		positions: map[string]*position{}, lanes: make([]lane, lanes), workers: map[string]time.Time{},
		listeners: map[int]func(){}, incarnation: 1,
	}
	for i := range q.lanes {
		q.lanes[i].clean = true
	}
	return q
}

// lost takes effect on the next commit whose answer is to be lost: it tells
// whether the commit happens, and the error that its caller gets instead.
func (s *Store) lost() (happens bool, answer error) {
	if s.lose == nil {
		return true, nil
	}
	happens, s.lose = *s.lose, nil
	return happens, store.ErrCommitUnknown
}

// await waits until ready, or until ctx ends. The mutex is given up meanwhile.
func (s *Store) await(ctx context.Context, ready func() bool) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if ready() {
			return nil
		}
		freed := s.freed
		s.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
}

// checkEntry refuses what no entry can be.
func checkEntry(e *store.Entry) error {
	var none store.Key
	var faults []error
	if e.Key == none || e.Operation == none || e.Order == none {
		faults = append(faults, errors.New("no Key, Operation or Order"))
	}
	if len(e.Fingerprint.Sum) > 64 {
		faults = append(faults, fmt.Errorf("fingerprint: %d bytes, at most 64", len(e.Fingerprint.Sum)))
	}
	if _, err := e.Note.Encode(); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

func checkEntries(entries []store.Entry) error {
	if len(entries) > store.MaxAppend {
		return fmt.Errorf("append: %d entries, at most %d", len(entries), store.MaxAppend)
	}
	for i := range entries {
		if err := checkEntry(&entries[i]); err != nil {
			return fmt.Errorf("append: entry %d: %w", i+1, err)
		}
	}
	return nil
}

// Append waits only for open transactions that have appended one of the keys.
func (s *Store) Append(ctx context.Context, arrival store.Arrival) ([]store.Appended, error) {
	if err := checkEntries(arrival.Entries); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.await(ctx, func() bool { return s.unreserved(arrival.Entries, nil) }); err != nil {
		return nil, err
	}
	happens, answer := s.lost()
	if !happens {
		return nil, answer
	}
	said, err := s.append(arrival.Entries)
	if err != nil {
		return nil, err
	}
	now := s.clock()
	for _, item := range arrival.Quarantined {
		s.keep(item, now)
	}
	if answer != nil {
		return nil, answer
	}
	return said, nil
}

// append adds the new ones of the entries in one commit, and says of the others
// that they were seen.
func (s *Store) append(entries []store.Entry) ([]store.Appended, error) {
	now, q := s.clock(), &s.queue
	said, fresh := make([]store.Appended, len(entries)), map[store.Key]*entry{}
	for i := range entries {
		e := &entries[i]
		said[i] = s.known(e, now, fresh)
		if said[i] == store.New {
			fresh[e.Key] = s.arrived(e, now)
		}
	}
	if err := s.room(len(fresh)); err != nil {
		return nil, err
	}
	for i := range entries {
		e := &entries[i]
		if said[i] != store.New {
			q.deliveries[e.Key] = append(q.deliveries[e.Key], store.Delivery{
				At: now, What: said[i], Sum: slices.Clone(e.Fingerprint.Short()),
			})
			continue
		}
		q.sequence++
		fresh[e.Key].row.Sequence = q.sequence
	}
	s.show(fresh)
	return said, nil
}

// room refuses entries that the queue cannot hold.
func (s *Store) room(more int) error {
	if more > 0 && s.queue.undone+more > s.limit {
		return fmt.Errorf("%w: %d entries wait, at most %d", store.ErrFull, s.queue.undone, s.limit)
	}
	return nil
}

// show makes entries visible, by one commit. Their keys are not in the queue.
func (s *Store) show(fresh map[store.Key]*entry) {
	if len(fresh) == 0 {
		return
	}
	q, now := &s.queue, s.clock()
	q.commit++
	for key, e := range fresh {
		e.commit = q.commit
		q.entries[key] = e
		q.undone++
		if o := s.outcomes[key]; o.live(now) {
			s.done(key, now) // ended between an append in a transaction and its commit
		}
	}
}

// done writes that the key of an entry has an outcome.
func (s *Store) done(key store.Key, now time.Time) {
	if e := s.queue.entries[key]; e != nil && !e.done {
		e.done, e.ended = true, now
		s.queue.undone--
	}
}

// unreserved tells that no open transaction but tx has appended one of the keys.
func (s *Store) unreserved(entries []store.Entry, tx *Tx) bool {
	return !slices.ContainsFunc(entries, func(e store.Entry) bool {
		holder := s.queue.reserved[e.Key]
		return holder != nil && holder != tx
	})
}

// arrived is the row of an entry, without its sequence.
func (s *Store) arrived(e *store.Entry, now time.Time) *entry {
	row := cloneEntry(*e)
	row.Sequence, row.Size, row.Arrived, row.Erased = 0, len(row.Payload), now, false
	return &entry{row: row, lane: store.LaneOf(row.Order, len(s.queue.lanes))}
}

// known says what the entry is: by what comes with it, the queue, the ledger.
func (s *Store) known(e *store.Entry, now time.Time, beside map[store.Key]*entry) store.Appended {
	same := func(is bool) store.Appended {
		if is {
			return store.Duplicate
		}
		return store.Conflict
	}
	if other := beside[e.Key]; other != nil {
		return same(other.row.Fingerprint.Equal(e.Fingerprint))
	}
	if other := s.queue.entries[e.Key]; other != nil {
		return same(other.row.Fingerprint.Equal(e.Fingerprint))
	}
	if o := s.outcomes[e.Key]; o.live(now) {
		if o.purged || !now.Before(o.kept) {
			return same(bytes.Equal(o.short, e.Fingerprint.Short()))
		}
		return same(o.frozen.Fingerprint.Equal(e.Fingerprint))
	}
	if a := s.attempts[e.Key]; a != nil {
		return same(a.row.Fingerprint.Equal(e.Fingerprint))
	}
	return store.New
}

// Enqueue waits for open transactions that hold one of the ordering keys or
// have appended one of the keys, until ctx or the transaction's limit is over.
func (s *Store) Enqueue(ctx context.Context, tx *Tx, entries []store.Entry) ([]store.Appended, error) {
	if err := checkEntries(entries); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := &s.queue
	orders := make([]store.Key, len(entries))
	for i := range entries {
		orders[i] = entries[i].Order
	}
	slices.SortFunc(orders, compareKeys)
	for _, order := range slices.Compact(orders) {
		if err := s.await(ctx, func() bool { return tx.ended || q.ordering[order] == nil || q.ordering[order] == tx }); err != nil {
			return nil, err
		}
		if err := tx.usable(); err != nil {
			return nil, err
		}
		q.ordering[order] = tx
	}
	if err := s.await(ctx, func() bool { return tx.ended || s.unreserved(entries, tx) }); err != nil {
		return nil, err
	}
	if err := tx.usable(); err != nil {
		return nil, err
	}
	now, own := s.clock(), tx.own()
	said, fresh := make([]store.Appended, len(entries)), []*entry(nil)
	for i := range entries {
		e := &entries[i]
		said[i] = s.known(e, now, own)
		if said[i] == store.New {
			row := s.arrived(e, now)
			own[e.Key], fresh = row, append(fresh, row)
		}
	}
	if err := s.room(len(own)); err != nil {
		return nil, err
	}
	for _, e := range fresh {
		q.sequence++
		e.row.Sequence = q.sequence
		q.reserved[e.row.Key] = tx
	}
	tx.appended = append(tx.appended, fresh...)
	return said, nil
}

// own are the entries that the transaction has appended so far.
func (tx *Tx) own() map[store.Key]*entry {
	own := make(map[store.Key]*entry, len(tx.appended))
	for _, e := range tx.appended {
		own[e.row.Key] = e
	}
	return own
}

// cursor is the text of a commit's number, of this incarnation.
func (s *Store) cursor(commit uint64) string {
	return fmt.Sprintf("%d.%d", s.queue.incarnation, commit)
}

// reads tells how far a cursor goes, and whether it is one of this incarnation.
func (s *Store) reads(cursor string) (commit uint64, ours bool) {
	incarnation, number, _ := strings.Cut(cursor, ".")
	if incarnation != strconv.Itoa(s.queue.incarnation) {
		return 0, false
	}
	commit, err := strconv.ParseUint(number, 10, 64)
	return commit, err == nil
}

// Read shows what the commits between two cursors have appended. A cursor is
// the number of a commit, and commits follow each other, so an entry that was
// appended late is in a later reading although its sequence is an earlier one.
func (s *Store) Read(ctx context.Context, reading store.Reading) (store.Page, error) {
	if err := errors.Join(ctx.Err(), checkLimit("reading", reading.Limit)); err != nil {
		return store.Page{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := &s.queue
	since, goesOn := s.reads(reading.Since)
	until, after := q.commit, reading.After
	if reading.Until != "" {
		if commit, ours := s.reads(reading.Until); ours {
			until = commit
		} else {
			since, goesOn, after = 0, false, 0
		}
	}
	var found []*entry
	for _, e := range q.entries {
		if slices.Contains(reading.Lanes, e.lane) && e.row.Sequence > after && (goesOn || !e.done) &&
			e.commit <= until && (!goesOn || e.commit > since) {
			found = append(found, e)
		}
	}
	page := store.Page{Until: s.cursor(until), More: len(found) > reading.Limit}
	page.Entries = inOrder(found, reading.Limit)
	return page, nil
}

// inOrder are the first of the entries by their sequence, as they are read.
func inOrder(found []*entry, limit int) []store.Entry {
	slices.SortFunc(found, func(a, b *entry) int { return cmp.Compare(a.row.Sequence, b.row.Sequence) })
	var rows []store.Entry
	for _, e := range found[:min(limit, len(found))] {
		row := e.row
		if row.Size > store.MaxInline {
			row.Payload = nil
		}
		rows = append(rows, cloneEntry(row))
	}
	return rows
}

// checkLimit refuses a page that is out of bounds.
func checkLimit(what string, limit int) error {
	if limit < 1 || limit > store.MaxReading {
		return fmt.Errorf("%s: limit %d, want 1 to %d", what, limit, store.MaxReading)
	}
	return nil
}

// Followers are the undone entries of an ordering key behind a sequence.
func (s *Store) Followers(ctx context.Context, order store.Key, after int64, limit int) ([]store.Entry, error) {
	if err := errors.Join(ctx.Err(), checkLimit("followers", limit)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*entry
	for _, e := range s.queue.entries {
		if e.row.Order == order && e.row.Sequence > after && !e.done {
			found = append(found, e)
		}
	}
	return inOrder(found, limit), nil
}

// Load returns one entry, done or not.
func (s *Store) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	if err := ctx.Err(); err != nil {
		return store.Entry{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.queue.entries[key]
	if e == nil {
		return store.Entry{}, store.ErrNotFound
	}
	return cloneEntry(e.row), nil
}

// purgeEntries forgets entries whose payloads are over their time.
func (s *Store) purgeEntries(now time.Time, limit int) (n int) {
	for _, key := range sortedKeys(s.queue.entries) {
		if n >= limit {
			break
		}
		if e := s.queue.entries[key]; e.done && !now.Before(e.ended.Add(s.payloads)) {
			delete(s.queue.entries, key)
			delete(s.queue.deliveries, key)
			n++
		}
	}
	return n
}
