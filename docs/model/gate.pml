/* Transaction mode over a ring of slots: gate, handler, finish, and the purge
 * that turns, copies, retires and empties. One operation, several deliveries.
 *
 * A step here is a step there: the names are those of store/postgres (gate,
 * finish; turn, measure, copy, retire, empty). Each labelled step is atomic and
 * sees what was committed before it, as a statement at READ COMMITTED does.
 *
 * Promised: at most one effect is committed, for as long as anything remembers;
 * and no row arrives in a slot that has been measured.
 *
 * Compile with -DFLAW_… to take one protection away; the verifier finds how that
 * makes two effects.
 */

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef DELIVERIES
#define DELIVERIES 2
#endif
#define SLOTS 2
#define NONE 255

byte locked = NONE;      /* the operation's lock, of the transaction */
bit  row[SLOTS];         /* committed outcomes */
bit  tomb;               /* committed tombstone */
byte current;            /* the slot to write to */
bit  live[SLOTS];        /* what gates read */
bit  sealed[SLOTS], measured[SLOTS], copied[SLOTS], retired[SLOTS];
byte reading[SLOTS];     /* transactions that hold ACCESS SHARE */
byte writing[SLOTS];     /* transactions that hold ROW EXCLUSIVE */
byte effects;            /* committed */
bit  frozen, expired, inflight, emptied; /* that each was reached */

inline unlockAll() {
	i = 0;
	do
	:: i < SLOTS ->
		reading[i] = reading[i] - reads[i]; reads[i] = 0;
		writing[i] = writing[i] - writes[i]; writes[i] = 0;
		i++
	:: else -> break
	od;
	if :: locked == me -> locked = NONE :: else fi;
	i = 0
}

proctype worker(byte me) {
	byte left = DELIVERIES, i, target;
	bit seen[SLOTS], reads[SLOTS], writes[SLOTS], found, was[SLOTS], wasTomb;

	do
	:: left == 0 -> break
	:: left > 0 ->
		left--;
		found = 0;
#ifdef FLAW_ONE_STATEMENT
		/* lock and read in one statement: one snapshot, taken before the lock */
		atomic { i = 0; do :: i < SLOTS -> was[i] = row[i]; i++ :: else -> break od; wasTomb = tomb; i = 0 }
#endif
tryLock:
#ifndef FLAW_NO_LOCK
		atomic {
			if
			:: locked == NONE -> locked = me
			:: else -> inflight = 1; goto next /* answered at once, holds nothing */
			fi
		}
#endif
#ifdef FLAW_TOMBSTONE_FIRST
		atomic { found = found | tomb };
#endif
readLedger:
		atomic { i = 0; do :: i < SLOTS -> seen[i] = live[i]; i++ :: else -> break od; i = 0; target = current }
readSlots:
		do
		:: i < SLOTS && seen[i] ->
			atomic {
				reading[i]++; reads[i] = 1;
#ifdef FLAW_ONE_STATEMENT
				if :: was[i] -> found = 1 :: else fi;
#else
				if :: row[i] -> found = 1 :: else fi;
#endif
				i++
			}
		:: i < SLOTS && !seen[i] -> i++
		:: i == SLOTS -> break
		od;
readTombstone:
		atomic {
#ifdef FLAW_ONE_STATEMENT
			if :: wasTomb && !found -> found = 1; expired = 1 :: else fi;
#else
#ifndef FLAW_TOMBSTONE_FIRST
			if :: tomb && !found -> found = 1; expired = 1 :: else fi;
#endif
#endif
			i = 0
		}
		if
		:: found -> atomic { frozen = 1; unlockAll(); goto next }
		:: else
		fi;
#ifdef FLAW_UNLOCK_EARLY
		/* a lock of the session, given back before the commit */
		atomic { if :: locked == me -> locked = NONE :: else fi };
#endif
handler:
		if
		:: skip
		:: atomic { unlockAll(); goto next } /* crash, error, limit: all is gone */
		fi;
#ifndef FLAW_REMEMBERED_SLOT
readTarget:
		target = current;
#endif
insert:
		/* the lock on the table, then the statement's snapshot */
		atomic { writing[target]++; writes[target] = 1 };
insertRow:
		atomic {
#ifndef FLAW_REMEMBERED_SLOT
			if
			:: target != current -> /* sealed meanwhile: no row; once more */
				writing[target]--; writes[target] = 0; goto readTarget
			:: else
			fi;
#endif
			if
			:: row[target] -> unlockAll(); goto next /* the primary key raises */
			:: else
			fi
		}
		if
		:: skip
		:: atomic { unlockAll(); goto next } /* crash before the commit */
		fi;
commit:
		atomic {
			assert(!measured[target]);
			row[target] = 1;
			effects++;
			assert(effects <= 1);
			unlockAll()
		}
		/* the answer may be lost: the next delivery stands for the retry */
next:
		skip
	od
}

/* The purge: each step a transaction, any of them the last before a crash. Rows
 * are over as soon as the slot is sealed: time is not what protects. */
proctype purge() {
	byte turns = 2, n, other;
	bit any;

	do
	:: turns > 0 ->
		turns--;
turn:
		atomic {
			other = 1 - current;
			if
			:: !live[other] && !sealed[other] -> sealed[current] = 1; n = current; live[other] = 1; current = other
			:: else -> n = other /* a slot is still on its way: go on with it */
			fi
		}
measure:
#ifdef FLAW_MEASURE_UNLOCKED
		measured[n] = 1;
#else
		atomic { if :: writing[n] == 0 -> measured[n] = 1 :: else -> goto later fi };
#endif
#ifdef FLAW_RETIRE_FIRST
		atomic { retired[n] = 1; live[n] = 0 };
#endif
copy:
		atomic { any = row[n]; tomb = tomb | any; copied[n] = 1 };
retire:
#ifndef FLAW_RETIRE_FIRST
		atomic { if :: writing[n] == 0 -> retired[n] = 1; live[n] = 0 :: else -> goto later fi };
#endif
emptySlot:
		atomic {
			if :: reading[n] == 0 && writing[n] == 0 -> skip :: else -> goto later fi;
			row[n] = 0; emptied = 1;
			sealed[n] = 0; measured[n] = 0; copied[n] = 0; retired[n] = 0
		};
later:
		skip
	:: turns == 0 -> break
	od
}

init {
	byte w = 0;
	atomic {
		live[0] = 1;
		run purge();
		do
		:: w < WORKERS -> run worker(w); w++
		:: else -> break
		od
	}
}

/* With -DREACH=condition the verifier looks for a run that reaches it: a model
 * in which nothing ever happens holds every promise. */
#ifdef REACH
active proctype witness() {
end:	(REACH) -> assert(false)
}
#endif
