package store

import (
	"context"
	"time"
)

// Arrival is what one flush makes durable, all of it or nothing.
type Arrival struct {
	// Entries in the order of their arrival, at most MaxAppend; two of them may
	// have the same key, and then the first counts.
	Entries []Entry
	// Quarantined items; those whose key is there already change nothing.
	Quarantined []Quarantined
}

// Appended is what became of an entry of an arrival. The numbers are stored.
type Appended uint8

// What an append says of an entry.
const (
	// New: the entry is in the queue now.
	New Appended = 1
	// Duplicate: an entry of that key is in the queue, or has ended and is
	// remembered, with the same payload. No entry was added.
	Duplicate Appended = 2
	// Conflict: the same with another payload. No entry was added.
	Conflict Appended = 3
)

// String is the word in metrics and logs.
func (a Appended) String() string {
	switch a {
	case New:
		return "new"
	case Duplicate:
		return "duplicate"
	case Conflict:
		return "conflict"
	}
	return "none"
}

// Queue holds the entries until they are done. Who runs entries holds their
// lane: a hash bucket of ordering keys with one holder at a time. All methods
// may be called concurrently and none retries.
//
// An entry is done when its key has an outcome made since it was appended (not
// only its operation, which another entry may have named first). It stays done
// as long as it is in the queue, also where the ledger has forgotten that outcome.
type Queue interface {
	// Append makes an arrival durable in one commit. It draws the sequence after
	// the last entry has arrived and numbers in the given order. A key that is
	// in the queue, or whose outcome, tombstone or attempt the ledger has, is
	// Duplicate or Conflict, and a delivery row says that it was seen. It waits
	// for an open transaction that has appended one of its keys. The answers
	// stand in the order of the entries.
	// Errors: ErrFull, ErrUnavailable (nothing is kept); ErrCommitUnknown (may
	// be kept; appending again is safe).
	Append(ctx context.Context, arrival Arrival) ([]Appended, error)

	// Read returns entries of the given lanes that became visible between two
	// cursors, in the order of their sequence, a page at a time. Entries that
	// are done may be among them, unless the reading begins at the beginning.
	Read(ctx context.Context, reading Reading) (Page, error)
	// Followers returns the entries of one ordering key that are visible now,
	// are not done and have a larger sequence, in its order, at most limit.
	Followers(ctx context.Context, order Key, after int64, limit int) ([]Entry, error)
	// Load returns one entry with its whole payload, or ErrNotFound.
	Load(ctx context.Context, key Key) (Entry, error)

	// Block writes down that an entry's ordering key has to wait, and the
	// attempt that it waits for, in one commit; see Blocking. Errors:
	// ErrLaneLost; with an attempt to write also ErrConflict (the one that is
	// there has moved, or the operation runs elsewhere) and ErrDuplicate (the
	// operation has an outcome); ErrUnavailable; ErrCommitUnknown (blocking again
	// is safe, and answers ErrConflict where the first has written an attempt).
	Block(ctx context.Context, blocking Blocking) error
	// Unblock removes the row of an ordering key that Block wrote for the entry
	// of that sequence; none is no error. ErrLaneLost.
	Unblock(ctx context.Context, hold Hold, order Key, sequence int64) error
	// Waiting returns the blocked rows of lanes (all lanes if nil) behind a
	// place, ordered by (order, sequence), at most limit, with the state of what
	// each waits for, locks left out.
	Waiting(ctx context.Context, lanes []int, after Place, limit int) ([]Waiting, error)
}

// Lanes are shared out among workers. All methods may be called concurrently;
// none retries.
type Lanes interface {
	// Lanes is how many lanes there are.
	Lanes() int
	// Keep says that the worker lives, renews its lanes, stores their cursors
	// and takes lanes that are free or whose lease has run out, up to its share:
	// lanes divided by living workers, rounded up. Taking waits for what still
	// runs in the lane (its lock, exclusively) and then raises the epoch; a lane
	// whose lock is not to be had soon is left for the next round. A lane of the
	// worker that Marks does not name, as after a lost answer or a restart under
	// the same name, is free to be taken. An error keeps what was taken or
	// renewed before it.
	Keep(ctx context.Context, keeping Keeping) (Share, error)
	// HandBack frees lanes of the worker with their cursors, as cleanly given
	// back; those that are no longer its own are left alone, and a worker without
	// a name has none. The holds it had are lost from then on. With gone the worker itself is forgotten at once.
	HandBack(ctx context.Context, worker string, marks []Mark, gone bool) error
}

// Hold is the right to run entries of a lane. The zero Hold is none.
type Hold struct {
	// Lane from 0.
	Lane int
	// Epoch is the number of its holder, from 1; it only grows.
	Epoch int64
}

// Mark is how far the reading of a lane has come. A stored cursor means:
// everything visible in it is done, has an unfinished attempt and a blocked
// row, or has the blocked row of its ordering key at or before its sequence.
type Mark struct {
	Hold
	// Cursor of a Page, or "" to leave the stored one as it is.
	Cursor string
}

// Keeping is one round of a worker.
type Keeping struct {
	// Worker is its name, unique among living ones, 1 to 200 bytes.
	Worker string
	// Lease is how long its lanes stay its own without another round.
	Lease time.Duration
	// Marks are the lanes that it believes to hold, and their cursors.
	Marks []Mark
	// Most bounds the lanes it takes; 0 means its share.
	Most int
	// Leaving says that it takes no more lanes: it renews those of Marks and is
	// forgotten, as by a HandBack with gone, so that others take its share.
	Leaving bool
}

// Share is what a round of a worker came to.
type Share struct {
	// Held are all lanes that are the worker's own now, by number.
	Held []Held
	// Workers that live, this one among them unless it is leaving.
	Workers int
	// Spare is how many lanes it has above its share, to be handed back; all of
	// them for one that is leaving.
	Spare int
}

// Held is one lane of a worker.
type Held struct {
	Hold
	// Taken says that the lane was taken by this round; Cursor and Clean are
	// set only then.
	Taken bool
	// Cursor that was stored last, "" if none.
	Cursor string
	// Clean says that the holder before handed it back, or that there was none.
	// If not, what it ran when it was lost is not known, and may be what killed it.
	Clean bool
}

// Reading asks for a page.
type Reading struct {
	// Lanes wanted.
	Lanes []int
	// Since is the cursor up to which they were read: "" for the beginning,
	// where entries that are done are left out. A cursor of another incarnation
	// counts as "".
	Since string
	// Until is the cursor to read up to: "" for now. Where it is of another
	// incarnation the reading begins anew: Since counts as "", After as 0.
	Until string
	// After is the sequence of the last entry of the page before, 0 for the first.
	After int64
	// Limit is the size of a page, 1 to MaxReading.
	Limit int
}

// Page is what was read.
type Page struct {
	// Entries by their sequence. One that was read before may come again, where
	// the store has carried it to another slot.
	Entries []Entry
	// Until is the cursor that this reading goes up to: pass it on with Since
	// and After while there is more, then it is the next Since.
	Until string
	// More says that the reading is not at its end.
	More bool
}

// Blocking says that an entry cannot be done now.
type Blocking struct {
	// Hold of the entry's lane.
	Hold Hold
	// Entry that waits, with Sequence, Key, Operation, Order and Note. A first
	// attempt gets its Fingerprint.
	Entry *Entry
	// Gap says that it waits for an earlier version. It then does not keep the
	// followers of its ordering key, and there may be several of a key.
	// Without it a key has one row, of its smallest waiting sequence: a row for an
	// earlier entry stays, unless that entry is done (has an outcome), and then
	// gives way to this one in the same commit; a row for a later entry always
	// does. So the row says what the key waits for, and there is one at every
	// instant until Unblock. A row that is there for the entry gets the new Gap.
	Gap bool
	// Attempt, when not nil, is how the attempt of the operation rests.
	Attempt *Resting
}

// Resting is an attempt that was not made under a lease, and is at rest now.
type Resting struct {
	// Found is the fence of the attempt row that is there, 0 for none. It is
	// retryable (due or not), parked or unknown.
	Found int64
	// Fence is the number to write: Found, or one more.
	Fence int64
	// Rest is its state (Retryable, Parked or Dead), reason and delay.
	Rest Rest
	// DerivedKey and Origin, for the first; see Claim.
	DerivedKey, Origin string
}

// Place is the place of a blocked row in the list of them.
type Place struct {
	Order    Key   // the ordering key
	Sequence int64 // of the entry that waits
}

// Waiting is a blocked row and what it waits for.
type Waiting struct {
	Place
	// Lane of the ordering key.
	Lane int
	// Key of the entry, and its operation.
	Key, Operation Key
	// Gap as in Blocking.
	Gap bool
	// State of the entry if it is done; else of the operation's outcome or
	// attempt; else Free.
	State State
	// Done says that the entry itself has an outcome.
	Done bool
	// Fence, LeaseLeft and DueIn of the attempt.
	Fence            int64
	LeaseLeft, DueIn time.Duration
}

// Enqueuer appends inside a transaction of the store's own type.
type Enqueuer[Tx any] interface {
	// Enqueue appends entries in the caller's transaction, which must not end
	// before its error is looked at. It takes the locks of their ordering keys,
	// in order, and draws the sequence under them, so call it last. Entries that
	// are known already change nothing.
	Enqueue(ctx context.Context, tx Tx, entries []Entry) ([]Appended, error)
}

// Version is the last change of a resource that took effect.
type Version struct {
	// Number is the sender's own, compared by the reader.
	Number string
	// Content is a hash of what it carried.
	Content []byte
}

// Versions remember the last version of each ordering key of an effect, inside
// the transaction of the handler.
type Versions[Tx any] interface {
	// Version returns the last one of the ordering key, if there is any.
	Version(ctx context.Context, tx Tx, order Key) (Version, bool, error)
	// SetVersion stores it.
	SetVersion(ctx context.Context, tx Tx, order Key, v Version) error
}

// Batch is an open transaction of several operations.
type Batch[Tx any] interface {
	// Tx is what the handlers write on.
	Tx() Tx
	// Commit inserts an outcome for each operation whose end is not nil, in the
	// order of the gates, and commits. Errors as those of Txn.Commit; after one
	// of them nothing is committed, or ErrCommitUnknown. Outcomes stand at the
	// place of their gate.
	Commit(ctx context.Context, ends []*End) ([]*Outcome, error)
	// Rollback gives everything up.
	Rollback(ctx context.Context) error
}

// Batches run several operations in one transaction.
type Batches[Tx any] interface {
	// BeginBatch tries the locks of all operations and reads what is stored of
	// each; the verdicts stand in the order of the gates. The batch is not nil
	// if at least one operation is Free; the others have no part in it. The
	// first gate's Limit is the batch's, and every gate's own Hold counts: of
	// the batch nothing is committed where one of the lanes is lost. Keys are
	// distinct.
	BeginBatch(ctx context.Context, gates []Gate) (Batch[Tx], []Verdict, error)
}

// Quarantine is what an operator needs of kept deliveries. All methods may be
// called concurrently.
type Quarantine interface {
	// Quarantined returns a page, by key behind after, of one source ("" for all),
	// without payloads.
	Quarantined(ctx context.Context, source string, after Key, limit int) ([]Quarantined, error)
	// ShowQuarantined returns one with its payload, or ErrNotFound.
	ShowQuarantined(ctx context.Context, key Key) (Quarantined, error)
	// Readmit appends entries and removes the row in one commit; the action's
	// key names it. Without entries it discards. ErrNotFound.
	Readmit(ctx context.Context, action Action, entries []Entry) ([]Appended, error)
	// Deliveries returns what Append has seen of an entry's key besides its first
	// arrival: duplicates and conflicts, oldest first, at most limit. They are
	// remembered at least as long as the entry is in the queue.
	Deliveries(ctx context.Context, key Key, limit int) ([]Delivery, error)
}

// Delivery is one arrival that changed nothing.
type Delivery struct {
	At   time.Time // by the database's clock
	What Appended  // Duplicate or Conflict
	// Sum is the front of its fingerprint, 8 bytes.
	Sum []byte
}

// Positions are how far the listings of senders have been read.
type Positions interface {
	// Position takes the position of that name for the worker, for as long as
	// the lease lasts, unless another living one has it; and returns its value,
	// "" at first.
	Position(ctx context.Context, name, worker string, lease time.Duration) (value string, mine bool, err error)
	// SavePosition stores a value and renews, also after the lease has run out.
	// ErrLeaseLost when another worker has taken the position since.
	SavePosition(ctx context.Context, name, worker, value string, lease time.Duration) error
}

// Privacy erases what is kept of a person.
type Privacy interface {
	// Erase removes the payloads of all entries and quarantined items of the
	// subject and keeps their identities, and says how many. An entry that is
	// not done yet stays, without payload. The action's key is the subject.
	Erase(ctx context.Context, action Action) (int, error)
	// EraseAccount does the same for everything that belongs to an account. It looks
	// through all that is kept and commits part by part: after an error, calling it
	// again goes on. The action's key is the account's.
	EraseAccount(ctx context.Context, action Action, of Account) (int, error)
}

// Account selects what belongs to one: to a tenant, or of that to what one source
// has brought, or to the account or store that the sender's messages name.
type Account struct {
	// Tenant it is of, "" where there is one only.
	Tenant string
	// Source is the name of the source, "" for each of them.
	Source string
	// Name is what [Note.Account] says, "" for whatever that is.
	Name string
}

// Key is what is recorded of an erasure.
func (a Account) Key() Key {
	return Identity{Tenant: a.Tenant, Effect: "account", Parts: []string{a.Source, a.Name}}.Key()
}

// HoldsEntry reports whether an entry belongs to the account.
func (a Account) HoldsEntry(n *Note) bool { return a.holds(n.Event.Tenant, n.Source, n.Account) }

// HoldsItem reports whether a quarantined item belongs to the account. One that
// could not be read names none.
func (a Account) HoldsItem(q *Quarantined) bool { return a.holds(q.Tenant, q.Source, q.Note.Account) }

func (a Account) holds(tenant, source, name string) bool {
	return a.Tenant == tenant && (a.Source == "" || a.Source == source) && (a.Name == "" || a.Name == name)
}

// QueueCounts are what a queue knows about itself, for metrics.
type QueueCounts struct {
	// Blocked rows, and quarantined items by source.
	Blocked     int64
	Quarantined map[string]int64
	// Depth counts entries that are not done, by source, and Oldest is the age
	// of the oldest of them; both stop at DepthLimit entries looked at.
	Depth  map[string]int64
	Oldest map[string]time.Duration
	// Lanes without a living holder.
	Orphans int
	// Full is how much of the queue's room is used, 0 to 1.
	Full float64
}

// DepthLimit bounds the entries that QueueCounts looks at.
const DepthLimit = 100_000

// QueueCounter counts.
type QueueCounter interface {
	// QueueCounts may be called concurrently; it is too dear for every second.
	QueueCounts(ctx context.Context) (QueueCounts, error)
}

// Signal wakes readers in other workers. It is a hint: polling is the floor.
type Signal interface {
	// Notify says that something was appended. It never runs in a caller's
	// transaction.
	Notify(ctx context.Context) error
	// Listen calls wake for each hint until ctx ends or the connection is lost.
	Listen(ctx context.Context, wake func()) error
}
