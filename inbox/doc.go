// Package inbox receives webhooks and messages, keeps them until their effects
// have happened, and makes each effect happen once.
//
//	delivery → authenticate → authorise the type → validate → identify → append (durable) → acknowledge
//	        → lane → handler → outcome
//
// A [Source] is one configured sender, an [Effect] what an event is to bring
// about. An event that several effects want makes an entry for each of them, in
// the queue of the engine's own store.
//
// # What it promises
//
//   - A delivery is acknowledged after the commit that holds its entries, never
//     before; where the store cannot take it the answer is 503 with Retry-After.
//   - However often an event arrives, an effect wants it once: the second
//     delivery is acknowledged and changes nothing. Another payload under the same
//     identity is a conflict, which is kept for people to see, and no second effect.
//   - Of the entries of one ordering key one runs at a time, in the order of
//     arrival; an entry that fails keeps the later ones of its key waiting and
//     nobody else's.
//   - What fails is tried again with limits, then it is dead and waits for a
//     person. What cannot be an event at all is in quarantine. Nothing is dropped.
//
// # Receiving
//
// A [Receiver] answers the requests of a sender ([Receiver.Handler]), takes
// messages of a broker ([Receiver.Receive]) and items of a list
// ([Receiver.Admit], [Poll]). A delivery goes through these steps; a worker that
// dies at any of them has kept nothing or everything, and the sender, who has no
// answer, comes again.
//
//	limits        on the bytes that arrive, not on what they say of themselves
//	verify        the raw bytes, with every secret; a forged delivery leaves no trace
//	unpack        gzip, within a limit and a ratio
//	read          the contract takes the events out; each stands for itself from here
//	type, schema  of each; one that does not fit is in quarantine
//	effects       When, Key, OrderBy and Version see the event as it came
//	fingerprint   of what every repetition has alike ([source.Contract.Stable])
//	mask          of what is kept
//	commit        in one with other deliveries; a lane is in one commit at a time
//	answer        by the contract; 503 for whatever is our own trouble
//
// What can never succeed is acknowledged and kept in quarantine: sent again it
// would fail again. Its row has the sender's identity, or a hash of the item, so
// that a repetition makes no second one.
//
// A delivery under faults, and the tests that hold it:
//
//	up to the fingerprint
//	  crash          nothing is kept; the sender comes again      TestABodyThatIsCutOffIsNoDelivery
//	  forged         nothing is kept, but a count                 TestAForgedRequestLeavesNoTrace
//	erase, if asked for
//	  crash          erased, and again with the repetition        TestAnErasureIsCarriedOutBeforeItIsAcknowledged
//	commit
//	  crash          all of it or nothing                         TestWhatWasAcknowledgedIsThereOnceWhoeverIsKilled
//	  store fails    503; the repetition finds what was kept      TestABatchIsKeptWholeOrNotAtAll, TestAStoreThatIsDownIsAnsweredWithin2Seconds
//	  hangs          503; the flush goes on                       TestACallerGivesUpAndTheFlushGoesOn
//	  race           one entry, the others are duplicates         TestManyCopiesAtOnceAreOneEntry
//	  order          a lane is in one commit at a time            TestALaneIsInOneFlushAndKeepsItsOrder
//	  lost answer    committed once more, which changes nothing   TestALostAnswerOfTheCommitIsAskedForAgain
//	answer
//	  lost           the sender comes again and gets success      TestASlowHandlerIsNoConcernOfItsSender
//	cursor of a list
//	  crash          read again from where it stood               TestTheCursorMovesAfterTheCommit
//
// # Running
//
// Ordering keys are spread over lanes; a lane has one holder, whose epoch stands
// in every transaction of the lane. A holder reads the entries of its lanes from a
// cursor, in batches, and lets the first of each key run. The cursor moves past an
// entry that has an outcome, or that stands behind its key's blocked row: the row
// that says from which entry on a key waits. So whatever a worker knows can be
// read again by the next.
//
//	take       a share of the lanes, every third of Options.Lease
//	rows       the blocked rows of a lane come first: nothing of it runs before
//	read       entries since the cursor, by what became visible
//	run        the first of a key: in a transaction, with others in one, or outside
//	           under a lease
//	block      what failed rests with its key; so does what runs elsewhere, is
//	           unknown, or has no effect here
//	page       what waits behind a row is read when its turn comes, some at a time
//	unblock    when nothing waits behind it any more
//	hand back  with the cursor, when stopping, or to a worker that came
//
// Under faults. Tests in quotes are those of TestPromisesHoldOnMemory,
// TestPromisesHoldOnSQLite and TestPromisesHoldOnPostgres. Besides them all,
// TestOrderAndOnceHoldInAStorm does everything at random, and so does
// TestBoardForgetsNothingWhateverHappens with what decides alone;
// TestInboxUnderEveryFault in internal/fault puts each fault at each step.
//
//	take
//	  crash          the lease runs out, and another takes the lane       "an entry whose worker was killed runs once more and counts"
//	  pause          the epoch is another's: nothing of it begins         "a holder that was paused before an entry does not run it"
//	  race           the store gives a lane to one                        "lanes are shared out when workers come and go"
//	  lost answer    lanes that are not known of are taken anew           TestOrderAndOnceHoldInAStorm
//	read, page
//	  crash          read again from the stored cursor                    "entries behind the ones that are held wait for them"
//	  race           what arrives meanwhile is read, or behind the row    TestEntryThatArrivesWhileItsKeyIsUnblockedIsNotForgotten
//	  late commit    held, however much of its key is                     TestWhatCommitsLateWhileItsKeyIsPagedIsNotForgotten
//	run, in a transaction
//	  crash          rolled back; the next holder counts the run first    "an entry whose worker was killed runs once more and counts"
//	  kills its host the same, until its attempts are used up             TestPoisonThatKillsItsWorkerIsDeadAfterItsAttempts
//	  pause          the commit fails: the epoch is another's             "a holder that was paused in a handler cannot commit"
//	  race           two events of one operation: the second finds it     "events that name one operation bring it about once, in transactions"
//	  lost answer    the ledger is asked                                  TestOrderAndOnceHoldInAStorm
//	  store fails    no attempt; again after a pause                      TestTroubleOfTheStoreIsNoAttempt
//	  fails, panics  an attempt, with its pause                           "what fails is tried again within its limits and then dead", "how a failure is declared decides"
//	  Goexit         the same                                             TestAHandlerThatEndsItsGoroutineIsTriedAgainAfterItsPause
//	run, with others in one transaction
//	  any            taken back; its entries run singly, at once          "order and once hold in a storm, in batches"
//	run, in lease mode
//	  crash, Goexit  unknown when the lease is over: Effect.Unknown       TestAHandlerThatEndsItsGoroutineIsTriedAgainAfterItsPause
//	  pause          claimed by the next holder; the finish is refused    "a worker that stands still in lease mode ends nothing"
//	  fails          by what the error declares, else unknown             "ten failures are listed and a permanent one is the only one"
//	block
//	  crash          it runs again, and that counts                       "an entry whose worker was killed runs once more and counts"
//	  lost answer    written again; the number tells that it was          TestOrderAndOnceHoldInAStorm
//	  race           with a person, or a claim: looked at once more       "what fails is tried again within its limits and then dead"
//	unblock
//	  crash          the next holder finds nothing behind it, removes it  TestEntryThatArrivesWhileItsKeyIsUnblockedIsNotForgotten
//	gap
//	  crash          its row and attempt are one write                    "a version that comes early waits for those before it"
//	  kills its host charged, and parked in the same row                  TestAnEarlyVersionThatIsSuspectedKeepsItsRow
//	  never closes   its owner is told                                    TestGapThatDoesNotCloseIsLeftForItsOwner
//	fetch of a hint
//	  pause          what was seen may be older: the finish is refused    TestOvertakenFetchAppendsNothing
//	  fails          tried again within the limits, then dead             TestFetchIsTriedAgainAndGivenUp
//	hand back
//	  handler runs   the lane stays until it has ended                    "a worker that stops hands its lanes over at once"
//	  time is over   handlers are cancelled, which is no attempt          TestStopCancelsHandlersWhenItsTimeIsOver
//	another history of the database
//	  any            everything that was read is forgotten                "another history of the database loses nothing"
//
// # Delivering by HTTP
//
// [Deliver] makes the Run of an effect whose handler is an application in any
// language. One attempt is at most one request on the wire: the body cannot be
// had a second time, so that net/http never sends it again, and redirects are not
// followed. An attempt of which no byte was written never started; what ended
// without an answer after that is unknown, and Effect.Unknown decides.
package inbox
