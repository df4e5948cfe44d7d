// Package sqlite keeps the ledger and the queue in one SQLite file, beside the
// application's own tables. The SQLite driver comes from the caller; the package is tested on
// modernc.org/sqlite and github.com/ncruces/go-sqlite3/driver.
//
//	db, err := sqlite.OpenDB(&modernc.Driver{}, "shop.db", nil)
//	ledger, err := sqlite.New(db, nil)
//	engine, err := unavez.New(ledger, nil) // *unavez.Engine[*sql.Tx]
//
// # Guarantees
//
//   - An outcome is committed together with what its handler wrote, and it is
//     on the disk before anyone hears of it, provided the disk keeps what it
//     was told to sync (WAL, synchronous=FULL).
//   - Of all deliveries of an operation, in all workers on the file, at most
//     one runs at a time: it holds the operation's lock from before its handler
//     until its commit is durable. The lock dies with the worker.
//   - Nothing the handler does can commit, or make the group lose, what another
//     unit has written without that unit being told.
//   - "database is locked" never reaches a caller. Who cannot get the writer in
//     time gets [store.ErrUnavailable], and nothing happened.
//
// # Units and groups
//
// Everything written goes over one connection, the writer. A unit is what one
// caller wants committed whole: a handler with its outcome, a claim, a statement
// outside a transaction. Units take turns, first come first served, each behind
// the first inside a savepoint; a group is what one COMMIT makes durable.
//
//	unit   idle ── first statement ──► waiting ── its turn ──► running
//	                                      │                     │ │ │
//	          gave up: ErrUnavailable ◄───┘   ROLLBACK TO ◄─────┘ │ └──► RELEASE
//	                                          (error, limit)      │        │
//	                               group lost: ErrUnavailable ◄───┘        ▼
//	                                                                    released
//	                                                                       │ the group's COMMIT
//	                                                                       ▼
//	                                                                    durable
//
//	group  none ── BEGIN IMMEDIATE ──► open ── nobody waits, or full ──► COMMIT ──► none
//	                                    └── SQLite left the transaction ──► lost ──► none
//
// What a handler does before its first statement runs outside the writer, beside
// others. From then until its end it holds the turn and has Options.HandlerLimit.
// Rows that it leaves open are closed at its end, and do not stand against it; a
// Scan into sql.RawBytes whose rows are never closed leaves a goroutine and a
// connection of database/sql behind, until they are.
// The unit that ends with nobody waiting commits the group for all, on its own
// goroutine; so a lone caller goes at once, and whoever arrives during the sync
// makes up the next group.
//
// A transaction the application opens itself (db.BeginTx) is a group of one with
// a plain BEGIN and COMMIT. A statement outside a transaction is a unit like any
// other, durable when the call returns. Reads outside one, and read-only
// transactions, use a pool of connections that cannot write. A gate reads on the
// writer's connection while no group is open there and nobody works on it, since
// the pages it wrote last are in its memory; else on a reader, together with the
// other gates that come at the same moment.
//
// The outcomes of a group are written together, just before its COMMIT. Until
// then each unit holds its operation's lock, so nobody looks for one of them.
//
// # What a crash, a pause, a race and a lost answer do
//
//	step                     crash              pause (SIGSTOP)            race
//	lock taken               lock gone          key stays in flight        loser: Processing
//	gate read                lock gone          key stays in flight        the lock excludes it
//	handler, no statement    lock gone          key stays in flight        runs beside others
//	waiting for the turn     lock gone          key stays in flight        first come first served
//	group open               all rolled back    other workers' writers     other workers wait, then
//	                                            get ErrUnavailable         ErrUnavailable
//	COMMIT sent              all or nothing     the same                   the same
//	durable, lock still held outcome is found   key in flight, Look sees   Processing, then the
//	                                            the outcome                outcome
//
// A statement that fails leaves the unit usable, as in SQLite, unless SQLite left
// the transaction with it: after an error the writer asks (a BEGIN that succeeds
// says so). Then the group is lost: nothing of it was committed, every unit of it
// gets [store.ErrLost], after which an operation that is declared re-runnable runs
// again in a group of its own, and the unit that met it gets that first error from each further
// statement. Statements of a unit never see a context that ends, because
// an interrupted write takes the whole group with it. Limits act between statements.
//
// A handler that is over its limit while its Go code runs loses the turn: its
// savepoint is rolled back and its later statements fail with [store.ErrLimit]. A
// statement that runs is not interrupted; it keeps the turn until it returns,
// over every limit, so keep statements short. Meanwhile nobody else waits past
// its own context or limit:
//
//	has run no statement     begins, reads and gives up as ever
//	waits for the turn       ErrUnavailable, nothing happened
//	released in its group    waits for the COMMIT; when its context ends first,
//	                         ErrCommitUnknown: it holds its lock until the
//	                         COMMIT, and Settle answers Processing until then
//	ended                    hears why at once
//	over, but a statement of its handler was left running in a goroutine: its
//	                         end waits for the statement, the engine does not
//
// Only database/sql's own Commit, Rollback and Close wait for a statement, and
// whoever has sent the COMMIT waits for the disk.
//
// An outcome that is there already at the end of a group, which takes a worker
// with a broken lock, loses the group; its units then come singly, and the next
// time it fails alone, with [store.ErrDuplicate].
//
// COMMIT that fails: a full disk, a read-only file and a violated deferred
// constraint rolled back for certain. An I/O error may have left the commit in the
// log: [store.ErrCommitUnknown], the connection is opened anew, and Settle
// answers. A deferred foreign key shows only at COMMIT; it takes its neighbours
// with it once, after which groups have one unit for a while, so that the next
// time it fails alone.
//
// # The lock of an operation
//
// A one-byte lock of the open file description on "<file>-gate", at the offset of
// the operation's 64-bit hash without its sign bit; nothing is stored in that
// file. Within one connector a table in memory does the same, since such locks do
// not exclude their own owner. Where the platform has no such locks, the gate file
// is locked whole and a second worker is refused when it opens the database.
//
// The byte at the end of the offsets is the turnstile: who wants the file's writer
// holds it while waiting, so that a busy worker notices and lets another one in.
// It orders and decides nothing.
//
// # The queue
//
// An arrival is one unit: it shares its commit with whatever comes beside it, and
// its entries are there whole or not at all. The ids of unavez_queue are the
// sequence. With one writer their order is the order of the commits, and none comes
// again, so a cursor is the last id in decimal; a reading goes on from there on a
// reader and waits for nobody. An entry is done when unavez_outcome has its key:
// doing it writes nothing to the queue. The entry is deleted with its outcome at the
// latest, so nothing that was done is taken for undone.
//
// A lane has no lock. The unit in which something of a lane commits looks at the
// lane's epoch; no other unit runs from its first statement to its end, so that what
// it has seen holds until it is released. Who takes a lane therefore waits for
// nothing: what its last holder still runs fails with [store.ErrLaneLost]. Begin
// looks as well, so that a handler does not run in vain.
//
//	step                     crash              pause (SIGSTOP)            race
//	append, before its       nothing is there   other workers get          first come first served
//	COMMIT                                      ErrUnavailable
//	append, durable, not     it is there; the   the same                   the repetition is a
//	answered                 sender repeats it                             Duplicate
//	lanes held               free after the     others take them after     one taker: the round is
//	                         lease              the lease                  one unit
//	batch, handlers run      nothing is done    as group open, above; its  the locks of its operations
//	                                            lanes may be taken         exclude others
//	batch, lane taken        -                  ErrLaneLost, nothing is    the unit that raises the
//	meanwhile                                   written                    epoch comes before or after
//	batch, COMMIT sent       all or nothing     the same                   the same
//	cursor not yet stored    read again; what   the same                   the gates tell what is done
//	                         is done is found
//	blocked, COMMIT sent     both rows or none  the same                   ErrConflict where the attempt
//	                                                                       moved
//
// How many entries are not done is counted only where there could be too many for
// StoreOptions.Room: since the last count there are at most as many more as ids were
// given. Counting begins at the cursor that all lanes have passed. A queue that is
// full may refuse for a moment after something was done.
//
// Leases are ended by the file's own clock, that of the host. A clock that is set
// forward ends leases early, which costs a takeover and no more; one that is set
// back makes a takeover wait for as long.
//
// # Limits, and the errors that tell them
//
//	over the handler's or the transaction's limit     store.ErrLimit
//	Commit, Rollback, COMMIT … by a handler           store.ErrForeignCommit
//	PRAGMA (but for looking), ATTACH, DETACH, VACUUM
//	in a transaction                                  an error, nothing was run
//	another worker holds the writer too long          store.ErrUnavailable
//	disk full, file read-only or corrupt              store.ErrUnavailable, naming what to do
//	more than Room entries are not done               store.ErrFull
//	the lane has another holder                       store.ErrLaneLost
//	another number of lanes than the file's           an error from New
//	file of a newer version                           an error from New
//	a database in memory                              an error from OpenDB
//	a stored result does not match its checksum       store.ErrDamaged
//
// A transaction of the application that is over its limit gives back what it has
// joined, whether or not the application ever ends it.
//
// A handler that writes past its transaction, on the database itself, waits for
// its own turn to end; its limit ends that. Temporary tables belong to the one
// connection that writes, so all handlers see them.
//
// One worker stopped inside its transaction stops the other writers of the file
// until it goes on or dies. Network file systems are not supported: SQLite's log
// and the locks both need one kernel.
package sqlite
