// Package postgres keeps the ledger in the application's own PostgreSQL
// database, 14 or newer, in the schema unavez. A handler writes on a pgx.Tx.
//
//	err := postgres.Migrate(ctx, owner, nil)          // once, as a member of unavez_migrate
//	ledger, err := postgres.New(pool, nil)            // as unavez_app
//	engine, err := unavez.New(ledger, nil)            // *unavez.Engine[pgx.Tx]
//
// # Guarantees
//
//   - An outcome is committed together with what its handler wrote, provided the
//     database keeps what it acknowledged (fsync, full_page_writes, synchronous_commit).
//   - Of all deliveries of an operation, in all workers, at most one runs at a
//     time: it holds an advisory lock of its transaction. The lock ends with the
//     transaction, so there is nothing to recover after a crash.
//   - At most one outcome of an operation is ever committed. At READ COMMITTED the
//     arbiter is that lock plus the read of every live slot under it, with the
//     slot's primary key behind; where outcomes are kept in one table, its key alone.
//   - The engine adds no round trip to BEGIN, statements, COMMIT: the gate goes
//     with BEGIN, the outcome with COMMIT. With Options.Lazy BEGIN and the gate go
//     with the handler's first statement, which is one round trip less.
//   - A key is free again within the limit of its transaction, also when its
//     worker is stopped or its host is gone. A host that goes in the middle of a
//     trip, between two messages, is found out by TCP within 20 s, or the limit
//     where that is longer: before version 17 no limit of the server runs there.
//
// # Protocol
//
// What is decided is decided by functions of the schema, which every program
// that takes part calls. Each is VOLATILE, so that its statements see what was
// committed before they began, and each raises what must stop a commit.
//
//	Begin    BEGIN · limits, try-lock · is anything stored? (live slots, tombstones; table and attempt once they were written to)
//	         outcome          → its frozen result        (ROLLBACK; nothing stays open)
//	         lock not granted → processing
//	         at rest          → its state, unless Gate.From names that attempt
//	handler  its statements
//	Commit   unavez.finish: transaction, limit, unwritten, synchronous_commit, fence; INSERT outcome · COMMIT
//
//	Claim    unavez.claim: try-lock, read, INSERT or UPDATE attempt; commits by itself
//	Finish   BEGIN · unavez.gate, waiting for the lock; ends like Begin
//
// In the lazy form Begin sends nothing. Its statements go ahead of the handler's
// first one, in one trip, and raise unless the operation may run, so that the
// server skips what is behind them; the transaction stays failed until the engine
// has ended it, and then reads what was found. The first statement rides by Exec,
// Query, QueryRow, SendBatch and Begin; ahead of CopyFrom, Prepare, LargeObjects
// and Conn, of several statements in one text, of the driver's options among the
// arguments, and of a query through OpenDB the gate takes a trip of its own. A
// handler that sends nothing costs one trip in all.
//
// The statements of gate and outcome are prepared under names of our own; a
// query tracer of the driver does not see them.
//
// The attempt's DELETE, which raises unless the fence is ours, goes with the
// COMMIT: until then nobody can take it over, since that needs the lock.
//
// # What a crash, a pause, a race and a lost answer do
//
//	step                  crash               pause (SIGSTOP)                race                        answer lost
//	pool, BEGIN, gate     nothing was begun   idle timeout ends it           loser: processing           connection closed, rolled back
//	lazy: first statement nothing was begun   the key was never taken        refused, nothing of it ran  connection closed, rolled back
//	handler's statements  rolled back         idle timeout ends it; a late   the same                    connection closed, rolled back
//	                                          commit is ErrLimit
//	finish raised         rolled back         —                              23505 of ours: ErrDuplicate ErrCommitUnknown, Settle: free
//	COMMIT sent           all or nothing      all or nothing                 the lock is held            ErrCommitUnknown, Settle decides
//	wait for a standby    as COMMIT           waits on; cancelled, it is     the lock is held            as COMMIT
//	                                          ErrCommitUnknown until the
//	                                          standby has it
//	committed             outcome is found    outcome is found               outcome is found            Settle finds it
//	claim                 lease runs out      lease runs out                 one INSERT; the others read ErrCommitUnknown; it ends by expiring
//	finish of an attempt  lease runs out      fence + 1 wins: ErrLeaseLost   waits, then ErrLeaseLost    as COMMIT
//	purge, any step       its transaction is  gates go on; other workers     one purges, the others see  the next purge goes on from
//	                      undone              purge again after 10 s         its lock and leave          what is committed
//	migration             undone whole        others wait                    one after the other         run it again
//
// # Where outcomes are
//
// A ring of four slots, plain tables of one span of time each, so that an insert
// touches few pages and a purge is one TRUNCATE; and one table for retentions
// longer than Settings.Ring. Gates read every live slot and the table, so an
// operation is found whatever retention it was stored with.
//
//	empty ── turn ──► current ── half of Ring ──► sealed ── measured, all over ──► copied ──► retired ──► empty
//
// An INSERT reads in its own statement which slot is current, after its lock on
// that table: a slot under a SHARE lock that is sealed gets no row any more. A
// sealed slot is measured once under that lock; when its last row is over, its
// identities are copied to the tombstones and committed, then gates leave it
// out, then it is emptied under ACCESS EXCLUSIVE NOWAIT, which never queues, and
// looked at once more under that lock. Slots under a megabyte are purged row by
// row and need none of this.
//
// # Queue
//
// Entries lie in a ring of four slots too, insert-only. An append is one trip and
// one commit, and draws its sequence after the last entry has arrived; inside a
// caller's transaction it holds the locks of its ordering keys meanwhile. Readers
// take the difference of two snapshots, so that nothing that commits late is
// missed or comes before what it was appended after, and a transaction that stays
// open costs them nothing. Who runs entries holds their lane: every gate, claim,
// finish, batch and block of it takes the lane's lock shared and raises unless the
// epoch is its own, in the same trip; a takeover takes it alone, and then raises
// the epoch.
//
//	empty ── turn ──► current ── half of Payloads, or full ──► sealed ── closed ──► all done or carried over ──► empty
//
// A turn waits a moment for the appends under way. What is not done when a slot is
// to be emptied is carried to the current slot with its sequence. As long as an
// entry is in the queue the ledger remembers that it is done.
//
//	step             crash                 pause                          race                            answer lost
//	append           nothing of it is kept nothing: one statement         one row; the others duplicates  ErrCommitUnknown; again is safe
//	enqueue          as its transaction    as its transaction             waits for the ordering key      as its transaction
//	batch            rolled back           idle timeout ends it           ErrDuplicate, all rolled back   ErrCommitUnknown, Settle decides
//	lane             lease runs out        epoch + 1 wins: ErrLaneLost    one takes it                    taken anew by the next round
//	block, unblock   nothing or all of it  epoch + 1 wins: ErrLaneLost    the smallest sequence stays     again is safe
//	turn, close,     its transaction is    appends go on, or into the     one purges                      the next purge goes on from
//	carry, empty     undone                next slot                                                      what is committed
//
// # Limits, and the errors that tell them
//
//	over the limit of the transaction                  store.ErrLimit
//	Commit, Rollback, COMMIT … by a handler            store.ErrForeignCommit
//	deadlock, serialization failure, failed statement  store.ErrAborted
//	no connection, shutdown, disk full, read-only,
//	lock not to be had in time                         store.ErrUnavailable
//	missing right, missing schema                      an error that names the command
//	a stored result does not match its checksum        store.ErrDamaged
//	a lane of another holder, or that is taken over    store.ErrLaneLost
//	no room in the queue                               store.ErrFull
//
// A handler's own errors, such as a violated constraint of its table, are
// returned as they are. What a handler sends over [Tx.Conn] is not looked at: a
// COMMIT there commits what was written so far, and the engine commits no outcome.
//
// Above READ COMMITTED outcomes must be kept in one table (Settings.NoRing), and
// there are no lanes and no batches. A transaction that keeps a turn of the queue
// waiting for longer than half a slot's time, and appends a key that another one
// appends meanwhile, may put it into two slots; the ledger decides which runs.
//
// PgBouncer in transaction mode works: nothing is kept in the session. Use
// pgx.QueryExecModeExec or pgx.QueryExecModeCacheDescribe there, or PgBouncer
// 1.21 or newer with max_prepared_statements; no parameter of a session in the
// URL, which it refuses. Signals (Listen) are not heard there: workers poll.
package postgres
