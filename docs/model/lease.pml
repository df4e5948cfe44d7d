/* Lease mode: claim, outside call, finish, for one operation. The lease may run
 * out at any moment, a worker may stop for ever or for long at any step, and
 * answers get lost.
 *
 * The names of the steps are those of store/postgres and of leased.go: claim,
 * call, finish. The outside system keeps its own log: calls, and the effects of
 * those that it honoured.
 *
 * Promised: a fence is given to one attempt; only the last fence ends the
 * operation; one outcome and one set of business rows; and by policy,
 *   POLICY_HOLD   at most one call, ever
 *   POLICY_RETRY  every call carries one derived key: one effect where keys are
 *                 honoured
 *   POLICY_PROBE  a further call only after the outside said "not done", but for
 *                 those that a stopped worker sends late, which nobody can recall
 *   POLICY_LEASE  the fast lease in the claim's place, and one that lies: it is
 *                 granted to everybody, nothing durable precedes the call, and
 *                 the finish alone decides
 */

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef DELIVERIES
#define DELIVERIES 2
#endif
#define NONE 255
#define MAXFENCE 8

byte locked = NONE;            /* the operation's lock */
bit  attempt;                  /* the row is there */
byte fence;                    /* its number */
bit  running;                  /* state processing, else unknown */
bit  over;                     /* the lease has run out, by the database's clock */
byte outcomes, businessRows;   /* committed */
byte calls, late, applied;     /* the outside's log: arrivals, those of an old fence, effects */
bit  given[MAXFENCE];
bit  refused, takenOver, frozen, held, probed; /* that each was reached */

proctype worker(byte me) {
	byte left = DELIVERIES, mine, was;
	bit found, exists, wasRunning, wasOver, answer;

	do
	:: left == 0 -> break
	:: left > 0 ->
		left--;
#ifdef POLICY_LEASE
		mine = 0;
		goto call;
#endif
tryLock:
#ifndef FLAW_NO_LOCK_IN_CLAIM
		atomic {
			if
			:: locked == NONE -> locked = me
			:: else -> goto next
			fi
		}
#endif
claimRead:
		atomic { found = (outcomes > 0); exists = attempt; was = fence; wasRunning = running; wasOver = over };
		if
		:: found -> frozen = 1; goto unlock
		:: else
		fi;
		if
		:: exists && wasRunning && !wasOver -> goto unlock /* in flight */
		:: exists && wasRunning && wasOver ->
#ifdef FLAW_RUN_EXPIRED
			skip /* takes an expired attempt over as if nothing could have happened */
#else
			/* an expired attempt is unknown: its policy decides */
#ifdef POLICY_HOLD
			held = 1; goto unlock
#endif
#endif
		:: exists && !wasRunning ->
#ifdef POLICY_HOLD
			held = 1; goto unlock
#else
			skip
#endif
		:: !exists
		fi;
claimWrite:
		atomic {
			if
			:: !exists && attempt -> goto unlock /* the primary key of attempt raises */
			:: else
			fi;
			if
			:: exists && !attempt -> goto unlock /* it ended meanwhile: zero rows */
			:: else
			fi;
			mine = (exists -> was + 1 : 1);
			if :: mine > 1 -> takenOver = 1 :: else fi;
			assert(!given[mine]);
			given[mine] = 1;
			attempt = 1; fence = mine; running = 1; over = 0;
			if :: locked == me -> locked = NONE :: else fi
		}
#if defined(POLICY_PROBE) && !defined(FLAW_RUN_EXPIRED)
		if
		:: mine > 1 ->
probe:
			atomic { answer = (applied > 0); probed = 1 };
			if
			:: answer -> goto finishLock /* done: its result is frozen, no call */
			:: else
			fi
		:: else
		fi;
#endif
		if
		:: skip
		:: goto next /* killed between the claim and the call: never started, but who knows */
		fi;
call:
		atomic {
			calls++;
			if :: !(attempt && fence == mine) -> late++ :: else fi;
#if defined(POLICY_RETRY) || defined(POLICY_LEASE)
			applied = 1 /* the derived key is the same, and it is honoured */
#else
			applied++
#endif
#ifdef POLICY_HOLD
			;
			assert(calls == 1)
#endif
#ifdef POLICY_PROBE
			;
			assert(applied <= 1 + late)
#endif
		}
		if
		:: skip
		:: goto next /* killed, or the answer lost: nothing is recorded */
		fi;
finishLock:
#ifndef FLAW_FINISH_UNLOCKED
		atomic {
			if
			:: locked == NONE -> locked = me /* it waits */
			fi
		}
#endif
#ifdef POLICY_LEASE
finishRead:
#ifndef FLAW_NO_READ_AT_FINISH
		atomic { if :: outcomes > 0 -> refused = 1; goto unlock :: else fi };
#endif
finishWrite:
		atomic {
			outcomes++; businessRows++;
			assert(outcomes <= 1 && businessRows <= 1);
			goto unlock
		};
#endif
#ifdef FLAW_FENCE_BY_SELECT
		if :: attempt && fence == mine -> skip :: else -> refused = 1; goto unlock fi;
		/* the lock is left to the statement that does not come */
		atomic { if :: locked == me -> locked = NONE :: else fi };
#endif
finish:
		atomic {
#ifndef FLAW_FENCE_BY_SELECT
#ifndef FLAW_ZERO_ROWS
			if
			:: attempt && fence == mine -> skip
			:: else -> refused = 1; goto unlock /* zero rows raise */
			fi;
#endif
#endif
			if
			:: outcomes > 0 -> refused = 1; goto unlock
			:: else
			fi;
			assert(attempt && fence == mine);
			attempt = 0; running = 0;
			outcomes++; businessRows++;
			assert(outcomes <= 1 && businessRows <= 1)
		};
unlock:
		atomic { if :: locked == me -> locked = NONE :: else fi };
next:
		skip
	od
}

/* Time: a lease runs out whenever it likes, again and again. */
proctype clock() {
end:	do
	:: attempt && running && !over -> over = 1
	od
}

/* The person who looked and lets a held operation go on is not in the model:
 * what a release starts is an attempt like any other. */

init {
	byte w = 0;
	atomic {
		run clock();
		do
		:: w < WORKERS -> run worker(w); w++
		:: else -> break
		od
	}
}

#ifdef REACH
active proctype witness() {
end:	(REACH) -> assert(false)
}
#endif
