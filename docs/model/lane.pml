/* A lane: writers append entries, workers take the lane in turns, the holder
 * reads what became visible between two snapshots and runs it in the order of
 * its sequence. Entries 0 and 1 have one ordering key, each appended by a writer
 * of its own; entry 2 has another key, and its writer may stay open while others
 * commit. A worker may stop for long, or be killed, between any two steps.
 *
 * Steps: lock, draw, commit of an append; snapshot, enter, gate, effect of an
 * entry; move of the stored cursor; take of the lane.
 *
 * Promised: every entry takes effect once, by the holder of the lane at that
 * moment; the entries of one key in the order of their sequence, also where the
 * first has to be tried again; and the stored cursor never passes an entry that
 * has no outcome.
 */

#define ENTRIES 3
#define NONE 255
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef TAKES
#define TAKES 3
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif

/* appends */
byte drawn;                    /* the sequence: numbers drawn so far */
byte sequence[ENTRIES];        /* of each entry, once drawn */
bit  visible[ENTRIES];         /* committed */
byte keyLock = NONE;           /* of the key of 0 and 1, by its writer */

/* the lane */
byte epoch;                    /* counter of its holders */
byte inside;                   /* transactions that hold the lane's lock shared */
bit  cursor[ENTRIES];          /* the stored snapshot */
byte numbered;                 /* for the flaw: a sequence number as the cursor */
byte takes;

/* entries */
byte locked[ENTRIES];          /* the operation's lock: 0 is free */
bit  outcome[ENTRIES];         /* committed */
bit  retrying[ENTRIES];        /* an unfinished attempt, which blocks its key */
bit  failed;                   /* entry 0 fails once at most */
bit  refused, retried, late, passed, whole; /* that each was reached */

/* the entry of the same key that comes before e by its sequence, NONE if none */
#define prior(e) (e == 2 || !visible[1 - e] || sequence[1 - e] > sequence[e] -> NONE : 1 - e)

proctype writer(byte e) {
lockKey:
#ifndef FLAW_DRAW_BEFORE_LOCK
	if
	:: e < 2 -> atomic { keyLock == NONE -> keyLock = e }
	:: else
	fi;
#endif
draw:
	d_step { drawn++; sequence[e] = drawn };
#ifdef FLAW_DRAW_BEFORE_LOCK
	if
	:: e < 2 -> atomic { keyLock == NONE -> keyLock = e }
	:: else
	fi;
#endif
commit:
	d_step {
		visible[e] = 1;
		if :: drawn > sequence[e] -> late = 1 :: else fi;
		assert(sequence[e] > numbered); /* a cursor that has passed it forgets it */
		if :: keyLock == e -> keyLock = NONE :: else fi
	}
}

proctype worker() {
	byte mine, e = NONE, n, i, rounds;
	bit now[ENTRIES], known[ENTRIES], pending, blocked;

take:
	/* the lock exclusively: no transaction of the old holder is open */
	atomic {
#ifndef FLAW_TAKE_SHARED
		inside == 0;
#endif
		if
		:: takes == TAKES -> goto gone
		:: else
		fi;
		takes++; epoch++; mine = epoch; rounds = 0;
		i = 0;
		do
		:: i < ENTRIES -> known[i] = cursor[i]; i++
		:: else -> break
		od; i = 0
	};
round:
	atomic { /* forget, so that equal states are one */
		e = NONE; n = 0; pending = 0; blocked = 0; i = 0;
		do
		:: i < ENTRIES -> now[i] = 0; i++
		:: else -> break
		od; i = 0
	};
	if
	:: rounds == ROUNDS -> goto take /* lost the lane to somebody, or comes back */
	:: rounds < ROUNDS -> goto take  /* the same, earlier: a stop at any round */
	:: rounds < ROUNDS -> rounds++
	fi;
snapshot:
	d_step {
		pending = 0; blocked = 0; n = 0; i = 0;
		do
		:: i < ENTRIES -> now[i] = visible[i]; i++
		:: else -> break
		od; i = 0
	};
pick:
	/* the entries between the snapshots, in the order of their sequence */
	atomic {
		n++; e = NONE; i = 0;
		do
		:: i < ENTRIES ->
#ifdef FLAW_SEQUENCE_CURSOR
			if :: now[i] && sequence[i] == n && n > numbered -> e = i :: else fi;
#else
			if :: now[i] && !known[i] && sequence[i] == n -> e = i :: else fi;
#endif
			i++
		:: else -> break
		od; i = 0;
		if
		:: n > ENTRIES -> goto move
		:: n <= ENTRIES && e == NONE -> goto pick
		:: n <= ENTRIES && e != NONE
		fi
	};
enter:
#ifdef FLAW_NO_EPOCH
	inside++;
#else
#ifdef FLAW_EPOCH_UNLOCKED
	if :: epoch == mine :: else -> refused = 1; goto take fi;
	inside++;
#else
	/* the lock, shared, then the epoch under it */
	atomic {
		if
		:: epoch != mine -> refused = 1; goto take
		:: else -> inside++
		fi
	};
#endif
#endif
gate:
	atomic {
		if
		:: outcome[e] -> inside--; goto pick
		:: else
		fi;
		/* in flight, not due yet, or behind one that is: the key waits */
		if
		:: locked[e] -> pending = 1; blocked = blocked | (e < 2); inside--; goto pick
		:: retrying[e] && !locked[e] ->
			pending = 1;
#ifndef FLAW_NOT_BLOCKED
			blocked = blocked | (e < 2);
#endif
			inside--; passed = 1; goto pick
		:: blocked && e < 2 -> pending = 1; inside--; goto pick
		:: !locked[e] && !(blocked && e < 2) -> locked[e] = 1 /* free, or due */
		fi
	};
	if
	:: !failed && e == 0 ->
		atomic {
			failed = 1; retrying[e] = 1; retried = 1; pending = 1;
#ifndef FLAW_NOT_BLOCKED
			blocked = 1;
#endif
			locked[e] = 0; inside--; goto pick
		}
	:: atomic { locked[e] = 0; inside--; goto take } /* killed: nothing is committed */
	:: skip
	fi;
effect:
	d_step {
		assert(!outcome[e]);
		assert(epoch == mine);
		assert(prior(e) == NONE || outcome[prior(e)]); /* the order of the key */
		outcome[e] = 1; retrying[e] = 0; locked[e] = 0;
		inside--
	};
	goto pick;
move:
	/* the cursor moves when nothing of what it shows is left to do */
	atomic {
#ifdef FLAW_MOVE_EARLY
		pending = 0;
#endif
		if
		:: !pending && epoch == mine ->
			i = 0;
			do
			:: i < ENTRIES ->
				known[i] = now[i]; cursor[i] = now[i];
				assert(!cursor[i] || outcome[i]);
#ifdef FLAW_SEQUENCE_CURSOR
				if :: now[i] && sequence[i] > numbered -> numbered = sequence[i] :: else fi;
#endif
				i++
			:: else -> break
			od; i = 0;
			whole = whole | (epoch == TAKES && cursor[0] && cursor[1] && cursor[2])
		:: else
		fi
	};
	goto round;
gone:
	skip
}

init {
	byte w = 0;
	atomic {
		run writer(0); run writer(1); run writer(2);
		do
		:: w < WORKERS -> run worker(); w++
		:: else -> break
		od
	}
}

#ifdef REACH
active proctype witness() {
end:	(REACH) -> assert(false)
}
#endif
