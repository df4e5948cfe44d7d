package main

import (
	"context"
	"os"
	"sync"

	"github.com/unavez/unavez/internal/conform"
	"github.com/unavez/unavez/store"
)

// planKey is the context key of the request's planned.
type planKey struct{}

// planned is the plan of the request that a context belongs to.
type planned struct {
	op   string
	plan conform.Plan
}

func plannedOf(ctx context.Context) planned {
	p, _ := ctx.Value(planKey{}).(planned)
	return p
}

// exits kills the worker at the points that a plan names.
type exits struct {
	journal *journal
	waiting sync.Map // store.Key → planned, for the engine's observer, which has no context
}

// at kills the worker when the plan says so at this point, once.
func (e *exits) at(p planned, point string) {
	if p.plan.Exit != point || !e.journal.first("exit", p.op) {
		return
	}
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill() // there is nobody left to hear of an error
	}
	select {}
}

// stored is told that the engine has an outcome.
func (e *exits) stored(key store.Key) {
	if p, ok := e.waiting.LoadAndDelete(key); ok {
		e.at(p.(planned), conform.ExitAfterStore)
	}
}

func (e *exits) remember(p planned, key store.Key) {
	if p.plan.Exit == conform.ExitAfterStore {
		e.waiting.Store(key, p)
	}
}

// exiting is a store that dies where a plan says so.
type exiting[Tx any] struct {
	unit[Tx]
	exits *exits
}

// Begin dies before the gate, or with the operation's lock in its hands.
func (s *exiting[Tx]) Begin(ctx context.Context, gate store.Gate) (store.Txn[Tx], store.Verdict, error) {
	p := plannedOf(ctx)
	s.exits.at(p, conform.ExitBeforeClaim)
	txn, verdict, err := s.unit.Begin(ctx, gate)
	if txn == nil {
		return txn, verdict, err
	}
	s.exits.at(p, conform.ExitAfterClaim)
	s.exits.remember(p, gate.Key)
	return &exitingTxn[Tx]{Txn: txn, exits: s.exits, planned: p}, verdict, err
}

// Claim dies before the claim, or when it is committed.
func (s *exiting[Tx]) Claim(ctx context.Context, claim store.Claim) (*store.Attempt, store.Verdict, error) {
	p := plannedOf(ctx)
	s.exits.at(p, conform.ExitBeforeClaim)
	attempt, verdict, err := s.unit.Claim(ctx, claim)
	if attempt != nil {
		s.exits.at(p, conform.ExitAfterClaim)
		s.exits.remember(p, claim.Key)
	}
	return attempt, verdict, err
}

// Finish gives a transaction that dies around its commit.
func (s *exiting[Tx]) Finish(ctx context.Context, gate store.Gate, fence int64) (store.Txn[Tx], error) {
	txn, err := s.unit.Finish(ctx, gate, fence)
	if txn == nil {
		return txn, err
	}
	return &exitingTxn[Tx]{Txn: txn, exits: s.exits, planned: plannedOf(ctx)}, err
}

// exitingTxn is a transaction that dies around its commit.
type exitingTxn[Tx any] struct {
	store.Txn[Tx]
	exits   *exits
	planned planned
}

// Commit dies before or after the database has said yes.
func (t *exitingTxn[Tx]) Commit(ctx context.Context, end store.End) (*store.Outcome, error) {
	t.exits.at(t.planned, conform.ExitBeforeCommit)
	out, err := t.Txn.Commit(ctx, end)
	if err == nil {
		t.exits.at(t.planned, conform.ExitAfterCommit)
	}
	return out, err
}
