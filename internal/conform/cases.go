package conform

// Cases lists the suite in the order of the specification. A new case is a new
// line here.
func Cases() []Case {
	modes, lease := modes(), leases()
	return []Case{
		// A. Header and key.
		{ID: "1", Level: Must, Title: "a required key is missing", run: keyMissing},
		{ID: "2", Level: Default, Title: "an optional key is missing", needs: needControls, routes: []string{RouteOptional}, run: keyOptional},
		{ID: "3", Level: Must, Title: "a quoted key, twice", run: quotedKey},
		{ID: "4", Level: Default, Title: "raw and quoted name the same key", run: rawAndQuoted},
		{ID: "5", Level: Must, Title: "an empty key", run: emptyKey},
		{ID: "7", Level: Must, Title: "two key lines", run: twoKeyLines},
		{ID: "9", Level: Must, Title: "control bytes are refused, other text is opaque", run: oddKeys},
		{ID: "11", Level: Must, Title: "GET, HEAD and OPTIONS pass through", needs: needControls, run: safeMethods},
		{ID: "12", Level: Default, Title: "PUT and DELETE with a key", needs: needControls, routes: []string{RouteMethods}, run: otherMethods},
		{ID: "D1", Level: Default, Title: "the length and the form of a key", run: keyForms},
		{ID: "D7", Level: Default, Title: "a forged marker is not believed", needs: needControls, run: forgedMarker},

		// B. Replay fidelity.
		{ID: "13", Level: Must, Title: "status, header lines and body come again", needs: needControls, routes: modes, run: headerFidelity},
		{ID: "15", Level: Must, Title: "64 KiB of random bytes", needs: needControls, routes: modes, run: binaryBody},
		{ID: "17", Level: Must, Title: "answers without a body", needs: needControls, routes: modes, run: emptyBodies},
		{ID: "18", Level: Must, Title: "HTML, text, a redirect, a problem", needs: needControls, routes: modes, run: contentTypes},
		{ID: "19", Level: Must, Title: "a body in 100 writes", needs: needControls, routes: modes, run: manyWrites},
		{ID: "21", Level: Default, Title: "an answer over the stored limit", needs: needControls, routes: modes, run: answerOverLimit},
		{ID: "22", Level: Must, Title: "a request over its limit", needs: needControls, routes: modes, run: requestOverLimit},
		{ID: "23", Level: Must, Title: "the handler sees the exact body once", needs: needControls, routes: modes, run: exactBody},
		{ID: "D8", Level: Default, Title: "what is never frozen", needs: needControls, routes: modes, run: neverFrozen},

		// C. Fingerprint and scope.
		{ID: "25", Level: Must, Title: "one changed byte is a mismatch", run: changedBody},
		{ID: "26", Level: Default, Title: "canonical JSON", needs: needControls, routes: []string{RouteJSON}, run: canonicalJSON},
		{ID: "28", Level: Default, Title: "an excluded member", needs: needControls, routes: []string{RouteExclude}, run: excludedMember},
		{ID: "29", Level: Must, Title: "another query", run: otherQuery},
		{ID: "30", Level: Must, Title: "another path", needs: needControls, run: otherPath},
		{ID: "32", Level: Must, Title: "two tenants, one key", needs: needControls, run: twoTenants},
		{ID: "33", Level: Must, Title: "nobody is calling", needs: needControls, run: noScope},
		{ID: "35", Level: Default, Title: "a revoked caller asks for a replay", needs: needControls, routes: []string{RouteHook}, run: revokedCaller},
		{ID: "D5", Level: Default, Title: "another method or content type", needs: needControls, run: otherMethodOrType},

		// D. Concurrency.
		{ID: "36", Level: Must, Title: "100 at once", Alone: true, run: hundredAtOnce},
		{ID: "37", Level: Must, Title: "a duplicate while it runs", needs: needControls, routes: modes, run: inFlight},
		{ID: "38", Level: Default, Title: "another payload while it runs", needs: needControls | needTwo, routes: modes, run: inFlightMismatch},
		{ID: "41", Level: Default, Title: "Prefer: wait", needs: needControls, routes: modes, run: preferWait},
		{ID: "42", Level: Must, Title: "two keys do not wait for each other", needs: needControls, Alone: true, run: twoKeys},

		// E. Crash, lease, disconnect, unknown.
		{ID: "43", Level: Must, Title: "killed after the claim", needs: needControls | needTwo | needControl, routes: modes, Alone: true, run: killedAfterClaim},
		{ID: "43a", Level: Must, Title: "killed before the claim", needs: needControls | needTwo | needControl, routes: modes, Alone: true, run: killedBeforeClaim},
		{ID: "43b", Level: Must, Title: "killed while its handler works", needs: needControls | needTwo | needControl, routes: modes, Alone: true, run: killedAtWork},
		{ID: "44", Level: Must, Title: "killed before the commit", needs: needControls | needTwo | needControl, routes: modes, Alone: true, run: killedBeforeCommit},
		{ID: "45", Level: Must, Title: "killed after the commit", needs: needControls | needTwo | needControl, routes: modes, Alone: true, run: killedAfterCommit},
		{ID: "46", Level: Must, Title: "the client hangs up", needs: needControls, routes: modes, run: clientHangsUp},
		{ID: "47", Level: Must, Title: "a handler longer than its lease", needs: needControls | needTwo, routes: lease, run: renewedLease},
		{ID: "48", Level: Must, Title: "stopped past its limit, in transaction mode", needs: needControls | needTwo | needControl, routes: []string{RouteLimited}, Alone: true, run: stoppedTransaction},
		{ID: "48b", Level: Must, Title: "stopped past its lease, in lease mode", needs: needControls | needTwo | needControl, routes: []string{RouteLease, RouteRetry}, Alone: true, run: stoppedLease},
		{ID: "51", Level: Must, Title: "killed after its outside effect", needs: needControls | needTwo | needControl, routes: lease, Alone: true, run: killedAfterEffect},
		{ID: "52", Level: Must, Title: "the handler panics", needs: needControls, routes: modes, run: handlerPanics},
		{ID: "52a", Level: Must, Title: "the handler is over its limit", needs: needControls, routes: []string{RouteLimited}, run: overLimit},

		// F. Status policy.
		{ID: "53", Level: Default, Title: "503 leaves the key free", needs: needControls, run: rolledBackFirst},
		{ID: "55", Level: Default, Title: "400 is recorded, 429 is not", needs: needControls, run: clientErrors},

		// G. Stores, retention, operations.
		{ID: "57", Level: Must, Title: "the database cannot be used, then it can", needs: needControls | needOutage, routes: modes, Alone: true, run: outage},
		{ID: "D10", Level: Default, Title: "after the retention, after the tombstone", needs: needControls, routes: []string{RouteShort}, run: retention},
		{ID: "D12", Level: Default, Title: "Connection may not name the key", needs: needControls, routes: modes, run: connectionHeader},
		{ID: "D13", Level: Default, Title: "Content-Length beside Transfer-Encoding", needs: needControls, run: twoLengths},
		{ID: "D14", Level: Must, Title: "the handler ends the transaction itself", needs: needControls, run: foreignCommit},
	}
}
