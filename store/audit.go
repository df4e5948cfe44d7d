package store

import (
	"fmt"
	"time"
)

// Invariant is one thing that an audit proves of what is stored. Its code never
// changes its meaning.
type Invariant struct {
	// Code is AUD and three digits.
	Code string
	// Name says what holds, in a few words.
	Name string
	// Means says what a violation is, and what may have made it.
	Means string
	// Way out of a violation.
	Way string
}

// Codes of the invariants.
const (
	OneOutcome    = "AUD001"
	EndedOnce     = "AUD002"
	Fences        = "AUD003"
	LegalStates   = "AUD004"
	History       = "AUD005"
	Tombstones    = "AUD006"
	ResultIntact  = "AUD007"
	ResultThere   = "AUD008"
	IdentityTrue  = "AUD009"
	DerivedKey    = "AUD010"
	TimesInOrder  = "AUD011"
	Purged        = "AUD012"
	SlotLayout    = "AUD013"
	SlotsUnused   = "AUD014"
	SlotsSealed   = "AUD015"
	StepsOwned    = "AUD016"
	LeasesEnd     = "AUD017"
	FunctionsTrue = "AUD018"
	TablesTrue    = "AUD019"
	Privileges    = "AUD020"
	Agreed        = "AUD021"
	EntryTrue     = "AUD022"
	NonePassed    = "AUD023"
	BlockedTrue   = "AUD024"
)

// Invariants are all that audits prove, by code. Not every store has all of
// them: slots, functions and privileges are PostgreSQL's.
func Invariants() []Invariant {
	return []Invariant{
		{
			OneOutcome, "at most one outcome of an operation",
			"An operation has two outcomes: it may have taken effect twice. A unique key was dropped, two databases were merged, or somebody wrote past the protocol.",
			"Compare the business rows of both; keep the outcome that is right and delete the other row as the schema's owner.",
		},
		{
			EndedOnce, "no outcome beside an unfinished attempt",
			"An operation has ended and is unfinished at once. Duplicates get the outcome; the attempt is left over and would be worked on by hand.",
			"Find out by the attempt's steps and the outside system whether it called again, then delete the attempt and its steps as the schema's owner.",
		},
		{
			Fences, "fences are numbers from 1, and no step is ahead of its attempt",
			"A fence below 1, or a step with a fence its attempt never had: a row was written past the protocol, and a worker that was outlived might be let through.",
			"Stop the workers, find out who wrote, and end the operation with unavez ops complete or discard.",
		},
		{
			LegalStates, "every row is in a legal state and has what that state needs",
			"A state that the protocol does not have, a lease that ends before it began, or a value over its bounds.",
			"Find out who wrote it; end an attempt with unavez ops complete or discard.",
		},
		{
			History, "histories go forward and end where the operation stands",
			"A transition that the protocol does not have, or a history whose end is not the operation's state: a state was changed, or an outcome deleted, without a trace.",
			"Find out who wrote; the transition table says who acted and why up to then.",
		},
		{
			Tombstones, "a tombstone stands only where the result is over",
			"A tombstone beside a result that is still kept, beside an unfinished attempt, or two that disagree: a purge ran against the database's clock, or rows were restored one by one.",
			"Where the outcome stands it wins. Delete the tombstone as the schema's owner.",
		},
		{
			ResultIntact, "stored results match their checksums",
			"A stored result was changed or damaged. It is not served: duplicates get result-damaged, and the operation does not run again.",
			"Look at the disk and at who may write. Who knows the result gives it again: unavez ops complete.",
		},
		{
			ResultThere, "a result is there unless it is marked not replayable",
			"A result that is marked not replayable has a body, a header cannot be read, or a request's outcome has no HTTP status.",
			"Find out who wrote it; restore the row from a backup.",
		},
		{
			IdentityTrue, "keys are those of the identities beside them",
			"The key of a row is not the one of its tenant, effect name and key parts: a duplicate would not find it and would run.",
			"Find out who wrote it. Restore the row from a backup, or delete it as the schema's owner when its effect is known not to exist.",
		},
		{
			DerivedKey, "derived keys are those of the identities beside them",
			"An unfinished operation would call outside with another key than before: the receiver could not tell that it is the same.",
			"Do not release it. Ask the receiver about both keys, then end it with unavez ops complete or discard.",
		},
		{
			TimesInOrder, "times stand in their order",
			"A result that is kept for no time, or forgotten before it is over, or an attempt that changed before it was made.",
			"Find out who wrote it. Where a result's identity would be forgotten too early, set forgets as the schema's owner.",
		},
		{
			Purged, "what is over its time is purged",
			"Results are kept for longer than was promised. Nobody is served them, but they hold what was to be forgotten. No worker runs its upkeep, or a long transaction keeps a slot from being emptied.",
			"Run a worker (unavez serve, or unavez.Upkeep in the program), and end transactions that are open for hours.",
		},
		{
			SlotLayout, "the ledger's slots are those of its ring",
			"The one row that gates read does not fit the life of the slots: a gate might leave out a slot that has outcomes.",
			"Stop the workers. Set unavez.ledger from unavez.slot as the schema's owner: live has a bit for each current and sealed slot.",
		},
		{
			SlotsUnused, "slots that gates leave out hold nothing that counts",
			"A slot that no gate reads has outcomes within their retention: their duplicates would run.",
			"Stop the workers; move the rows to unavez.outcome_table as the schema's owner, before the slot is emptied.",
		},
		{
			SlotsSealed, "sealed slots hold nothing beyond what was measured",
			"A sealed slot has a row that outlives the time at which the slot will be emptied.",
			"Set until of the slot in unavez.slot to null as the schema's owner: the next purge measures it anew.",
		},
		{
			StepsOwned, "steps belong to unfinished operations",
			"Steps without their attempt: an attempt was deleted past the protocol, and a next attempt would take them for its own.",
			"Find out whether the operation has an outcome; delete the steps as the schema's owner if it has.",
		},
		{
			LeasesEnd, "attempts whose lease ran out are taken up",
			"A lease ran out long ago and nobody has made the operation unknown: it is in no list that a person sees.",
			"Run a worker (unavez serve, or unavez.Upkeep in the program).",
		},
		{
			FunctionsTrue, "the schema's functions are those of this program",
			"A function of the schema is not the one of this program's migrations: what decides who may run was changed.",
			"Find out who changed it. Restore it from the migration of the same name, or run the version of unavez that the schema was made by.",
		},
		{
			TablesTrue, "the schema's tables are those of this program",
			"A column, key, index, trigger, rule or policy is missing, foreign or different: a key that is gone arbitrates nothing, a trigger may change what is stored.",
			"Drop what is foreign and restore what is missing, as the schema's owner.",
		},
		{
			Privileges, "who runs can change what is stored by the protocol only",
			"unavez_app, or everybody, may do more in the schema than the protocol needs, or owns a part of it.",
			"REVOKE what is named; let unavez_migrate own the schema (unavez migrate --roles).",
		},
		{
			Agreed, "what all workers agree on is there",
			"The protocol's version, the number of lanes or the ledger's one row is missing or another.",
			"Restore the setting from a backup, or run the version of unavez that the schema was made by.",
		},
		{
			EntryTrue, "entries lie where their notes say",
			"The key, operation, ordering key or lane of an entry is not the one that its note names: a duplicate would not find it, or no worker reads it.",
			"Find out who wrote it. Send the event again, and delete the row as the schema's owner.",
		},
		{
			NonePassed, "no entry is passed by",
			"An entry that is not done lies before the cursor of its lane, and no blocked row keeps its place: no worker will do it. A blocked row was deleted past the protocol, or a cursor moved.",
			"Set the cursor of its lane to the empty text as the schema's owner: the next worker that takes the lane reads it from the beginning.",
		},
		{
			BlockedTrue, "blocked rows are those of their entries",
			"A blocked row names another place, operation or lane than its entry has, or an ordering key has two that keep its followers: it may wait for what never comes.",
			"Delete the row as the schema's owner, and set the cursor of its lane to the empty text: the next worker that takes the lane finds out anew.",
		},
	}
}

// Proof is what an audit found of one invariant.
type Proof struct {
	// Code of the invariant.
	Code string `json:"code"`
	// Looked is how many rows or parts of the schema were looked at.
	Looked int64 `json:"looked"`
	// Broken is how many of them violate it.
	Broken int64 `json:"broken"`
	// First of those that violate it: keys and names, never what they carry.
	First []string `json:"first,omitempty"`
	// Left says what was not looked at, and why; empty when everything was.
	Left string `json:"left,omitempty"`
}

// AuditOptions of an audit. The zero value of every field means its default.
type AuditOptions struct {
	// All reads every stored result and identity, not a sample of them.
	All bool
	// Sample is about how many of them are read otherwise, spread over all.
	// Default 10,000.
	Sample int
	// Limit of one statement. One that takes longer is sent again for less.
	// Default 5 s.
	Limit time.Duration
	// Page is about how many rows one statement looks at. Default 50,000.
	Page int
	// Grace is how far upkeep may be behind before that is a violation.
	// Default 1 h.
	Grace time.Duration
	// Offenders is how many of those that violate an invariant are named.
	// Default 5.
	Offenders int
}

// Complete gives a copy of o with its defaults filled in; nil is all defaults.
// It reports every value that is out of its bounds.
func (o *AuditOptions) Complete() (AuditOptions, error) {
	var out AuditOptions
	if o != nil {
		out = *o
	}
	set := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	set(&out.Sample, 10_000)
	set(&out.Page, 50_000)
	set(&out.Offenders, 5)
	if out.Limit == 0 {
		out.Limit = 5 * time.Second
	}
	if out.Grace == 0 {
		out.Grace = time.Hour
	}
	switch {
	case out.Sample < 1, out.Page < 1, out.Offenders < 1 || out.Offenders > 1000:
		return out, fmt.Errorf("audit: Sample %d, Page %d, Offenders %d: want 1 or more, and Offenders at most 1000", out.Sample, out.Page, out.Offenders)
	case out.Limit < 10*time.Millisecond, out.Grace < 0:
		return out, fmt.Errorf("audit: Limit %v, Grace %v: want at least 10ms, and no negative grace", out.Limit, out.Grace)
	}
	return out, nil
}

// Proofs collects what an audit finds, by code. Its methods are for one
// goroutine.
type Proofs struct {
	most int
	all  []Proof
}

// NewProofs makes a proof without findings for each code.
func NewProofs(offenders int, codes ...string) *Proofs {
	p := &Proofs{most: offenders}
	for _, code := range codes {
		p.all = append(p.all, Proof{Code: code})
	}
	return p
}

// Look counts what was looked at for some invariants.
func (p *Proofs) Look(n int64, codes ...string) {
	for _, code := range codes {
		p.of(code).Looked += n
	}
}

// Break notes violations: how many, and the names of some of them.
func (p *Proofs) Break(code string, n int64, names ...string) {
	proof := p.of(code)
	proof.Broken += n
	proof.First = append(proof.First, names[:min(len(names), max(0, p.most-len(proof.First)))]...)
}

// Leave says what is not looked at.
func (p *Proofs) Leave(code, why string) { p.of(code).Left = why }

// All are the proofs, in the order of their codes.
func (p *Proofs) All() []Proof { return p.all }

// of finds a proof; a code that was not given to NewProofs is a fault of the program.
func (p *Proofs) of(code string) *Proof {
	for i := range p.all {
		if p.all[i].Code == code {
			return &p.all[i]
		}
	}
	panic("audit: no proof of " + code)
}
