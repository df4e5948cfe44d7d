package evidence

// Fault is one that the project found in itself, or in the design it began with.
type Fault struct {
	// What was wrong.
	What string
	// Finder is the layer of tests, or the experiment, that showed it.
	Finder string
	// Package and Test are the test that holds it since.
	Package, Test string
}

// Who found a fault.
const (
	experiment = "experiment on a server"
	storm      = "storm of the inbox"
	cuts       = "cuts at every message"
	chaos      = "chaos with processes and servers"
	randomList = "random list against the model"
	suite      = "conformance suite"
	seeded     = "the zoo"
	mutation   = "mutants"
	board      = "random run of the inbox's board"
)

// Faults are all of them, the oldest first.
func Faults() []Fault {
	const pg, lite, in = "store/postgres", "store/sqlite", "inbox"
	return []Fault{
		{"above READ COMMITTED an operation takes effect twice when the ring turns between the snapshot and the finish", experiment, pg, "TestIsolationAboveReadCommitted"},
		{"a claim succeeds after a finish that came between its read and its insert: the outside call is made twice", experiment, pg, "TestLeaseIsGuardedByLockAndFence"},
		{"a fence that is checked by a SELECT lets an overtaken attempt commit", experiment, pg, "TestLeaseIsGuardedByLockAndFence"},
		{"a slot is emptied with an event that was appended and not yet committed", experiment, pg, "TestAppendUnderWayIsNotLostWithItsSlot"},
		{"an outcome that is inserted late goes with its slot", experiment, pg, "TestLateInsertIsNotLostWithItsSlot"},
		{"a duplicate in the lazy form runs its handler's statement before it is refused, and hangs on its twin's row locks", experiment, pg, "TestNothingOfALazyDuplicateRuns"},
		{"a TRUNCATE that queues stops every gate for as long as it waits", experiment, pg, "TestEmptyingNeverQueues"},
		{"the gate of an eight-slot ring leaves the fast path of relation locks", experiment, pg, "TestGateHoldsFewLocks"},
		{"events are numbered by the hash of their keys instead of by arrival", experiment, pg, "TestArrivalsAreNumberedInTheirOrder"},
		{"a client that falls silent inside its transaction keeps its key for ever", experiment, pg, "TestKeyOfASilentClientIsFreeWithinItsLimit"},
		{"reading behind a transaction that stays open looks at everything that came in since", experiment, pg, "TestReadingBehindAnOpenWriterCostsWhatIsNew"},
		{"after a promotion the control file still names the old timeline", experiment, pg, "TestFailoverIsNoticed"},
		{"the gate's read makes unrelated keys fail at SERIALIZABLE", experiment, pg, "TestIsolationAboveReadCommitted"},
		{"a gate in a savepoint that is rolled back has lost its lock and finishes all the same", experiment, pg, "TestFinishWithoutItsLockIsRefused"},
		{"one interrupted statement takes the whole group of SQLite with it", experiment, lite, "TestCancelledStatementLosesNoNeighbour"},
		{"of two messages of one key the later version is read first", experiment, pg, "TestEnqueueDrawsTheSequenceUnderTheLockOfTheOrderingKey"},
		{"the old holder of a lane goes on beside the new one", experiment, pg, "TestTakeoverWaitsForWhatRunsAndLetsNothingBegin"},
		{"a person could decide an attempt by the state that was stored before its lease ran out (memory)", randomList, "store/memory", "TestStoreKeepsEveryPromise"},
		{"a blocked key of a lane that nobody had held yet could be written (PostgreSQL)", suite, pg, "TestQueueHoldsWhatEveryQueuePromises"},
		{"the row of an entry that was done kept its place, so that a crash could find none for the one behind it", suite, pg, "TestQueueHoldsWhatEveryQueuePromises"},
		{"a blocked row was taken for the first of its key while entries before it were unread", storm, in, "TestOrderAndOnceHoldInAStorm"},
		{"a look at blocked rows that was older than the row moved the key back", storm, in, "TestOrderAndOnceHoldInAStorm"},
		{"a lane that left a reading was taken as read to its end", storm, in, "TestOrderAndOnceHoldInAStorm"},
		{"a look at blocked rows that was older than the last attempt brought that one's number back, and its turn forward", suite, in, "TestALookThatIsOlderThanAnAttemptDoesNotBringItBack"},
		{"a joined operation's end waited for ever for a connection that had fallen silent", cuts, ".", "TestSilentDatabaseHoldsAJoiningCallerForTenSeconds"},
		{"the BEGIN on a database/sql handle of others waited for a host that was gone, for as long as TCP does", cuts, "internal/torture", "TestConnectionCutAtAnyMessageLeavesOneEffectAndOneAnswer"},
		{"a PostgreSQL URL with a name for its connections was refused as unknown", chaos, "server/internal/config", "TestFaultsOfSingleFields"},
		{"a path of a configuration that ends within its opening bracket broke the program off", mutation, "internal/exact", "TestPathsThatAreNoneAreRefused"},
		{"a lane that nobody holds was handed back, with its cursor, by a worker without a name", mutation, "store/memory", "TestQueueKeepsEveryPromise"},
		{"an escaped slash counted as a slash where a client sent its target as a whole URL with a byte that has to be escaped", mutation, "httpkey", "TestWhatMakesTwoRequestsDifferent"},
		{"two forms had one fingerprint that differed before their first part or in a last part without content, behind lines that begin like the boundary", mutation, "httpkey", "TestWhatMakesTwoRequestsDifferent"},
		{"of several lines of Content-Encoding the first alone said whether a body is compared by value", mutation, "httpkey", "TestFingerprintsFollowFromTheProtocol"},
		{"of a key that was being read behind its row, what had committed late was left behind where it was more than is held of a key", mutation, in, "TestWhatCommitsLateWhileItsKeyIsPagedIsNotForgotten"},
		{"what committed late, in the moment in which the store had been asked for the followers of its key, was left behind", board, in, "TestWhatCommitsLateWhileItsKeyIsPagedIsNotForgotten"},
		{"a cursor passed what had committed late, was read with the followers of a row and stood before it", board, in, "TestBoardHoldsItsMarkBeforeWhatNoRowCovers"},
		{"a cursor passed what had committed late and came before a row that was yet to be written", board, in, "TestBoardLeavesWhatIsTooMuchOfAKeyInTheStore"},
		{"a row that was to be written behind what was held covered what was not held any more, and one that nobody knew to be there counted as certain", board, in, "TestBoardOwesWhatIsBehindAnUncertainRow"},
		{"of a lane whose holder was lost, an entry that was still to be read was passed by those behind a blocked row", board, in, "TestARowBeforeAnotherBringsTheReadingOfItsKeyBack"},
		{"a look at blocked rows that was older than the last task of a key undid what that had written", board, in, "TestALookThatIsOlderThanATaskIsLeftAlone"},
		{"a person who decided an entry, beyond those that are held of its key, while a lane was taken let it pass those before it", board, in, "TestARowWaitsForWhatIsUnreadBeforeIt"},
		{"an entry that was charged with the loss of its worker, and then came early, lost the row in which it waits", board, in, "TestAnEarlyVersionThatIsSuspectedKeepsItsRow"},
		{"an early version that failed when its turn had come left behind what had committed late before it", board, in, "TestAnEarlyVersionThatFailsPassesNothingBeforeIt"},
		{"where the lanes that were read together were all lost, those that lagged behind them were not read any more", board, in, "TestReadingGoesOnWhenTheMainOneHasLostItsLanes"},
		{"a secret of nothing but line ends was taken for a key in base64, and every delivery was refused then", mutation, "source", "TestSecretThatIsNoKeyVerifiesNothing"},
	}
}

// Missing are tests that were missing: a mistake was put into the code, and none
// noticed it.
func Missing() []Fault {
	return []Fault{
		{"a finish in lease mode sets the limits of its own transaction: without that a silent one keeps the key", seeded, "store/postgres", "TestKeyOfASilentFinishIsFreeWithinItsLimit"},
		{"a fence that is looked at by a SELECT, beside a takeover that has not committed", seeded, "store/postgres", "TestFenceWaitsForATakeoverThatHasNotCommitted"},
		{"lock and read of a gate that share a snapshot, beside a holder that commits meanwhile", seeded, "store/postgres", "TestGateThatWaitedSeesWhatTheHolderCommitted"},
		{"a number that is drawn before the locks of all ordering keys are held", seeded, "store/postgres", "TestEnqueueThatWaitsForOneKeyComesBehindWhoCommitsInAnother"},
		{"a lease that is counted from the answer of the claim instead of the question", seeded, ".", "TestLeaseIsCountedFromTheQuestion"},
		{"what stands behind an entry of its key that cannot run, in one batch", seeded, "inbox", "TestNothingOfABatchPassesAnEntryThatWaits"},
		{"a slot that is taken for over, with a result in it that is not", seeded, "store/postgres", "TestRetiredSlotIsNotEmptiedWithWhatIsNotOver"},
		{"what is left of an operation's earlier life, and what others have in the same tables", seeded, "store/sqlite", "TestEntryThatComesAgainIsKeptWhenItsEarlierLifeGoes"},
		{"canonical forms and decimals, each by its bytes", mutation, "internal/exact", "TestOneMeaningHasOneForm"},
		{"a signature of Standard Webhooks that fits, before one that does not; secrets of each length", mutation, "source", "TestStandardWebhooksTakesOneOfSeveralSignatures"},
		{"a token that its issuer signed, and that says something else; one that is signed by anybody; keys of an issuer that is not listed", mutation, "source", "TestTokensAreHeldToAllTheyHaveToSay"},
		{"each refusal of a signature that is described, and each fault of its description, by itself", mutation, "source", "TestRefusalsOfADescribedSignatureHaveTheirClass"},
		{"an HMAC under an empty key, where the secret is a public one or cannot be read", mutation, "source", "TestRefusalsOfStandardWebhooksHaveTheirClass"},
		{"each fault of an identity by itself, and what is exactly as long as it may be", mutation, "store", "TestEveryFaultOfAnIdentityIsReported"},
		{"a key in text that is one digit too long", mutation, "store", "TestKeyComesBackFromItsText"},
		{"each state by its own word", mutation, "store", "TestStatesHaveOneWordEach"},
		{"each part of a fingerprint by the bytes that docs/protocol.md has: long bodies, forms, codings, types", mutation, "httpkey", "TestFingerprintsFollowFromTheProtocol"},
		{"a target as the client sent it, behind a router that changes it", mutation, "httpkey", "TestTheFingerprintIsOfTheTargetThatWasSent"},
		{"what is told of a malformed key", mutation, "httpkey", "TestAMalformedKeyIsToldItsFault"},
		{"each decision of the inbox's board: what is held, covered, owed and marked, and what runs next", mutation, "inbox", "TestBoardForgetsNothingWhateverHappens"},
		{"an entry that is exactly as old as it may become", mutation, "inbox", "TestAnEntryIsGivenUpAtItsLimitAndNotBeforeIt"},
	}
}
