// Package httpkey makes HTTP requests take effect once: the Idempotency-Key
// header as middleware ([Layer]), as a reverse proxy ([Proxy]) and as the
// client's side ([Transport]).
//
//	layer, err := httpkey.New(engine, caller, nil)
//	http.Handle("POST /orders", layer.Handle(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
//		// write on tx and nowhere else, answer on w
//	}))
//
// # Guarantees
//
//   - One effect per key: of all requests of a caller that carry one key, at
//     most one handler's transaction commits, provided that the handler writes
//     on the transaction it is given. The answer leaves the server after the
//     commit and is part of it.
//   - One answer: a repeated request gets status, headers and body of the first,
//     byte for byte, as long as the result is kept (Options.Retention).
//   - A key names one request. The same key with another method, path, query,
//     content type or body is refused and touches nothing.
//   - Two callers never share a key. The identity of a request is (tenant,
//     "http", principal, key), and tenant and principal come from the scope
//     function, which is called before anything is looked up.
//   - Proxy: at most one attempt whose end is not known; then the declared
//     policy. "Once" if the application honours the key it is forwarded.
//
// The limit of all this is a handler that has effects outside its transaction,
// and a database that loses what it acknowledged.
//
// # Order of checks
//
// Method and key presence decide whether a request is keyed at all; then the
// Connection header (400), the scope function (its own status), the key (400),
// the body (413, 400), the gate: other payload (422) before in flight (409)
// where the running one's payload is known, otherwise 409 now and 422 once it
// has ended. AuthorizeReplay is asked last, before a stored answer is sent.
//
// # Answers of the layer
//
// Errors are application/problem+json (RFC 9457); type is Options.Docs + "#" +
// the word below, repeated as Link rel="describedby". R: with Retry-After.
//
//	400   key-missing          the method needs a key
//	400   key-malformed        empty, only spaces, over 255 bytes, not printable ASCII, two lines, parameters
//	400   connection-header    Connection names the key or a header that says who is calling
//	400   body-unreadable      the request body ended early
//	400   path-refused         dot segments (proxy)
//	403   replay-forbidden     AuthorizeReplay refused; the record is untouched
//	408   body-timeout         the request body came too slowly
//	409 R in-flight            lease mode: what remains of the lease; else 1 s up to the limit
//	409 R operation-retrying   failed, and runs again at a set time
//	409   outcome-unknown      a probe or a person decides; R where asking again makes the decision
//	409   operation-parked, operation-dead, operation-discarded   with the member "operation", its id
//	413   request-too-large    after reading one byte over the limit
//	422   key-reused           the key was used with another request
//	422   key-expired          it ended, and only the key is still remembered
//	422   not-replayable       it ended, and its answer was over ResponseLimit
//	500   scope-missing, foreign-commit, result-damaged, answer-too-large, internal
//	502   answer-too-large, upstream-broken (proxy)
//	503 R store-unavailable, commit-unresolved, limit-exceeded, transaction-aborted, shutting-down, lease-lost
//	503 R not-started, upstream-unreachable (proxy): nothing was sent
//	504   upstream-timeout     a request that is not keyed had no answer in time (proxy)
//
// After a 5xx, a 409 with Retry-After and a network error the client repeats
// the request with the same key. After a 422 it does not. Causes go to the log
// and to Options.Observe, never to the client.
//
// "Prefer: wait=n" (RFC 7240) makes a duplicate wait for the one in flight, at
// most Options.Wait; the answer then carries Preference-Applied.
//
// # What is frozen, and when
//
// Frozen is what committed, whatever the status. Rolled back is key free.
//
//	Handle  nil                                      commit, frozen
//	        error with a 4xx but 408, 425, 429       rolled back; frozen if nothing was written, else key free
//	        any other error                          rolled back, key free
//	Wrap    5xx, 408, 425, 429                       rolled back, key free, sent as written
//	        any other status                         commit, frozen (Options.Commit changes the rule)
//	both    panic                                    rolled back, key free, reaches the outer recovery
//	        over the limit                           rolled back, key free, 503
//	        the database gave the transaction up     rolled back, key free; an answer of 400 and up is sent as
//	                                                 it is, any other becomes 503 transaction-aborted
//
// Every header line is frozen, several of one name in their order, but for
// Set-Cookie, WWW-Authenticate, Proxy-Authenticate, Authentication-Info,
// Proxy-Authentication-Info, Authorization, Date, Preference-Applied, those of
// the connection (Connection and what it names, Keep-Alive, Proxy-Connection,
// TE, Trailer, Transfer-Encoding, Upgrade), and those that the layers around had
// set before the handler ran. The first answer carries all but those of the
// connection. Content-Length is the length of the body. A replay carries
// Idempotent-Replayed: true, which the first answer does not and which is taken
// out of requests, and Cache-Control: no-store unless the handler set its own.
//
// An answer over ResponseLimit is sent whole the first time and never again.
// What is over 1 MiB waits for the commit in a file of os.TempDir.
//
// # What a handler of a keyed request can rely on
//
// It gets the whole body, once, with the right ContentLength. Its answer is held
// until the commit: Flush does nothing, 1xx answers and trailers are dropped,
// Hijack, upgrades, full duplex and deadlines of the connection give
// http.ErrNotSupported. A client that hangs up does not cancel it, unless
// Options.CancelOnDisconnect; one that hangs up while it waits for its turn
// gives the place up. Streams belong on routes without a key.
//
// # Fingerprint, version 1
//
// A list is, for each element, its length as uint32 big-endian and its bytes.
// The fingerprint is the SHA-256 of the list of
//
//	"http"
//	method, as received
//	path: the list of the parts between slashes of the path as sent, percent-decoded
//	query: the list of name, value, name, value …, decoded (+ is a space), sorted by the bytes of the
//	    names, values of one name in their order; "a" is "a="; empty fields are left out
//	content type: the list of type, then parameter names and values sorted by name; type and names in
//	    lower case, the value of charset too; for a form without boundary. Where there is no one line that
//	    can be read, the list of "", "" and the lines joined by ", "
//	kind: "raw", "json" or "form"
//	content, by kind
//
// raw: the bytes of the body.
//
// json: with FingerprintOptions.JSON, for application/json and +json without
// Content-Encoding (identity is none): the canonical text, without white space,
// members sorted by the bytes of their names. Strings are UTF-8 in quotation
// marks with only quotation mark and backslash (by a backslash) and bytes below
// 0x20 (as \u00xx, lower case) escaped. A number is "0", or an optional minus, its digits without
// leading and trailing zeros, "e" and the decimal exponent: 1.0, 1e0 and 1 are
// 1e0; 1500 is 15e2; 2^53 and 2^53+1 differ. Values that the paths leave out are
// not there. A text that is not JSON, has two members of one name, lone
// surrogates or bad UTF-8, is nested over 100 deep or has an exponent of more
// than 15 digits is raw; so a fingerprint of kind json never equals one of bytes.
//
// form: for multipart/form-data that can be read, at most 1,000 parts, nothing
// before, between or behind them, without Content-Encoding: the list of, for each
// part in order, the list of its header lines and its content. The header list is
// name in lower case and value, sorted by name; Content-Disposition and
// Content-Type as for the content type above. A browser's changing boundary thus
// does not count.
//
// The version is stored with the record; a record is compared by its own
// version's algorithm. testdata/fingerprint.json has vectors.
//
// # Proxy
//
// The proxy works in lease mode: claim, one attempt on one connection, finish.
//
//	upstream                                     operation       client
//	refused or failed dial, TLS failure,
//	no byte written                              key free        503 upstream-unreachable
//	408, 425, 429 (ProxyOptions.NotDone)         key free        that answer
//	any other status below 500, and Final        frozen          that answer
//	any other 5xx                                unknown         that answer; repeats get 409 outcome-unknown
//	no whole answer, over Timeout                unknown         409 outcome-unknown
//
// unknown is then held, run again or probed by ProxyOptions.Unknown. A keyed
// request has a connection of its own, is never sent again by the transport,
// follows no redirect and no proxy of the environment, and its answer is not
// unpacked. Forwarded, X-Forwarded-* and X-Real-Ip of the client are replaced by
// the proxy's own; identity headers but Authorization and Cookie are taken out.
// Requests without a key stream through, upgrades included.
package httpkey
