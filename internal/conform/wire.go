package conform

import "time"

// The paths of the conformance app's control endpoints. The operation's path
// below /t/, the principal or nothing follows.
const (
	PathAbout    = "/ctl/about"     // GET: About
	PathPlan     = "/ctl/plan/"     // PUT: Plan, by operation path
	PathCount    = "/ctl/count/"    // GET: Count, by operation path
	PathCounters = "/ctl/counters/" // GET: Counters, by prefix of the principal
	PathRevoke   = "/ctl/revoke/"   // PUT, DELETE: revokes a principal, gives it back
	PathRuntime  = "/ctl/runtime"   // GET: Runtime
	PathWork     = "/t/"            // the operations themselves
)

// The routes of the conformance app: the first segment below /t/. Every other
// first segment is RoutePlain.
const (
	RoutePlain    = "plain"     // a plain http.Handler, transaction mode
	RouteHandle   = "handle"    // a handler that returns an error, transaction mode
	RouteOptional = "optional"  // the key is optional
	RouteMethods  = "methods"   // PUT and DELETE are keyed too
	RouteJSON     = "canonical" // JSON bodies are compared by value
	RouteExclude  = "exclude"   // the same, but for the member $.meta.sentAt
	RouteHook     = "hook"      // a revoked principal may not see a replay
	RouteLimited  = "limited"   // a short transaction limit, About.ShortLimit
	RouteShort    = "short"     // short retention and tombstone
	RouteLease    = "lease"     // a handler in lease mode whose outside calls are steps
	RouteHold     = "hold"      // a proxy; unknown: hold
	RouteRetry    = "retry"     // a proxy; unknown: retry
	RouteProbe    = "probe"     // a proxy; unknown: the fake provider is asked
)

// The points at which a plan can make its worker kill itself.
const (
	ExitBeforeClaim  = "before-claim"  // the request has arrived, nothing else
	ExitAfterClaim   = "after-claim"   // the operation is taken, its handler has not started
	ExitAfterEffect  = "after-effect"  // the handler has made its outside calls
	ExitBeforeCommit = "before-commit" // everything is written, nothing committed
	ExitAfterCommit  = "after-commit"  // the database has said yes
	ExitAfterStore   = "after-store"   // the engine has its outcome
	ExitBeforeWrite  = "before-write"  // the first byte of the answer is about to be sent
)

// When a behaviour panics.
const (
	PanicBefore = "before" // before the first write
	PanicAfter  = "after"  // after the rows are written
)

// How a behaviour ends a transaction that is not its own.
const (
	EndCall = "call" // by the transaction's Commit
	EndText = "text" // by a statement, COMMIT
)

// About describes the conformance app and its settings.
type About struct {
	// Conform is the version of these endpoints, 1.
	Conform int `json:"conform"`
	// Store is the kind of store: sqlite or postgres.
	Store string `json:"store"`
	// Routes that the app has.
	Routes []string `json:"routes"`
	// Lease is the length of a lease.
	Lease time.Duration `json:"lease"`
	// Limit of a transaction, and ShortLimit on RouteLimited.
	Limit      time.Duration `json:"limit"`
	ShortLimit time.Duration `json:"short_limit"`
	// Retention and Tombstone on RouteShort.
	Retention time.Duration `json:"retention"`
	Tombstone time.Duration `json:"tombstone"`
	// StoreTimeout is how long a request waits for a store that does not answer.
	StoreTimeout time.Duration `json:"store_timeout"`
	// RequestLimit and ResponseLimit in bytes.
	RequestLimit  int `json:"request_limit"`
	ResponseLimit int `json:"response_limit"`
	// CORS says that the app sends CORS headers.
	CORS bool `json:"cors"`
}

// Plan is what the handler of one path does.
type Plan struct {
	// Runs are the behaviours of the first, second … run; the last one repeats.
	Runs []Behaviour `json:"runs"`
	// Exit is the point at which a worker kills itself, once; empty means never.
	Exit string `json:"exit,omitempty"`
}

// Behaviour is one run of a handler.
type Behaviour struct {
	// Status of the answer; 0 means that the handler writes no status.
	Status int `json:"status,omitempty"`
	// Header lines of the answer, in order.
	Header []Line `json:"header,omitempty"`
	// Body of the answer.
	Body []byte `json:"body,omitempty"`
	// Chunks is the number of writes the body is sent in; 0 means one.
	Chunks int `json:"chunks,omitempty"`
	// ChunkDelay stands between two writes.
	ChunkDelay time.Duration `json:"chunk_delay,omitempty"`
	// SleepBefore stands before the first statement, SleepAfter behind the last.
	SleepBefore time.Duration `json:"sleep_before,omitempty"`
	SleepAfter  time.Duration `json:"sleep_after,omitempty"`
	// Rows to insert.
	Rows int `json:"rows,omitempty"`
	// Effects is the number of calls to the fake provider.
	Effects int `json:"effects,omitempty"`
	// Panic is PanicBefore or PanicAfter.
	Panic string `json:"panic,omitempty"`
	// End makes a handler in transaction mode end the transaction itself, after
	// its rows are written and before it answers: EndCall or EndText.
	End string `json:"end,omitempty"`
	// Error makes a handler of RouteHandle return an error with Status and this detail.
	Error string `json:"error,omitempty"`
	// Echo answers with an Echo of the request instead of Body.
	Echo bool `json:"echo,omitempty"`
}

// Line is one header line.
type Line struct {
	// Name and Value as they are sent.
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Echo is what a handler saw of its request.
type Echo struct {
	// SHA256 of the body, in hexadecimal, and its Length.
	SHA256 string `json:"sha256"`
	Length int    `json:"length"`
	// ContentLength as the handler saw it.
	ContentLength int64 `json:"content_length"`
	// Rest is what a second read of the body gave, in bytes.
	Rest int `json:"rest"`
	// Replayed is the marker as the request carried it.
	Replayed string `json:"replayed"`
}

// Count is what happened on one path, over all workers and restarts.
type Count struct {
	// Runs is how often the handler was entered.
	Runs int `json:"runs"`
	// Rows are the committed business rows.
	Rows int `json:"rows"`
	// Effects are the keys of the calls that the fake provider has seen.
	Effects []string `json:"effects"`
}

// Counters are what the engine has told its observer, by word, over all
// workers and restarts; and "purged" for the rows that upkeep has changed.
type Counters map[string]int

// Runtime is what a worker uses now.
type Runtime struct {
	// Goroutines and Files (open descriptors; -1 where they cannot be counted).
	Goroutines int `json:"goroutines"`
	Files      int `json:"files"`
}
