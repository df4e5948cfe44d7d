package inbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/unavez/unavez/source"
	"github.com/unavez/unavez/store"
)

// delivery is one arrival on its way.
type delivery struct {
	*Receiver
	gate        *gate
	at          time.Time
	correlation string
	listed      bool          // a listing shows it, which may write an event in its own way
	patience    time.Duration // with each thing that others have to do; 0 is the caller's context
	proof       source.Proof
	kind        string // of its event, if it has only one
	own         bool   // it has an event without identity
	sights      []Sight
}

func (r *Receiver) begin(g *gate) *delivery {
	return &delivery{Receiver: r, gate: g, at: time.Now(), correlation: rand.Text()}
}

// receive is everything from the authenticity of a delivery to its commit.
func (d *delivery) receive(ctx context.Context, in *source.Request) (Receipt, error) {
	if int64(len(in.Body)) > d.gate.BodyLimit {
		return Receipt{}, ErrTooLarge
	}
	config := d.gate.config()
	if err := d.verify(ctx, &config, in); err != nil {
		return Receipt{}, err
	}
	switch fault, err := d.gate.unpack(in); {
	case err != nil:
		return Receipt{}, err
	case fault != nil:
		return d.admit(ctx, []source.Item{{Fault: fault, Raw: in.Body}}, &d.proof)
	}
	return d.take(ctx, in)
}

// unconfigured is a refusal that is our own fault.
type unconfigured struct{ fault *source.Fault }

func (u *unconfigured) Error() string { return u.fault.Error() }

// verify asks the contract. That the source has no secret is no fault of the
// sender's.
func (d *delivery) verify(ctx context.Context, config *source.Config, in *source.Request) (err error) {
	ctx, cancel := d.patiently(ctx)
	defer cancel()
	d.proof, err = d.gate.Contract.Verify(ctx, config, in)
	var fault *source.Fault
	if errors.As(err, &fault) && fault.Reason == source.EmptySecret {
		return &unconfigured{fault}
	}
	return err
}

// take reads an authentic delivery and makes it durable. One that cannot be read
// is kept: the sender will not write it otherwise the next time.
func (d *delivery) take(ctx context.Context, in *source.Request) (Receipt, error) {
	items, err := d.gate.Contract.Read(in)
	if err != nil {
		fault := &source.Fault{Reason: source.MalformedBody}
		errors.As(err, &fault)
		items = []source.Item{{Fault: fault, Raw: in.Text()}}
	}
	return d.admit(ctx, items, &d.proof)
}

// admit makes items durable: all of them, or the error says that they may not be.
// What it costs to say so is that the sender comes again.
func (d *delivery) admit(ctx context.Context, items []source.Item, proof *source.Proof) (Receipt, error) {
	var in store.Arrival
	var erasures []erasure
	var receipt Receipt
	for _, item := range items {
		m := d.Receiver.admit(d.gate, item, proof, d.correlation)
		if m.kept == nil && d.gate.erases(m.event) {
			asked, kept := d.erasure(m.event)
			if m.kept = kept; kept == nil {
				erasures = append(erasures, asked)
			}
		}
		d.own = d.own || m.own
		if m.event != nil && len(items) == 1 {
			d.kind = m.event.Type
		}
		switch {
		case m.kept != nil && d.listed && m.kept.Reason == reasonType:
			receipt.Ignored++ // a list shows what the source was never to send
		case m.kept != nil:
			in.Quarantined = append(in.Quarantined, *m.kept)
			receipt.Quarantined++
			d.will(Sight{What: "quarantined", Type: m.kept.Type, Tenant: m.kept.Tenant, Reason: m.kept.Reason})
			if d.quiet.passes(d.gate.Name + " quarantine " + m.kept.Reason) {
				d.opts.Log.Warn("item in quarantine", "source", d.gate.Name, "reason", m.kept.Reason, "detail", m.kept.Detail, "key", m.kept.Key.String(), "correlation", d.correlation)
			}
		case len(m.entries) == 0:
			receipt.Ignored++
			d.will(Sight{What: "ignored", Type: m.event.Type, Tenant: m.event.Tenant})
		default:
			in.Entries = append(in.Entries, m.entries...)
		}
	}
	for _, asked := range erasures {
		n, err := d.erased(ctx, asked)
		if err != nil {
			return Receipt{}, err
		}
		d.opts.Log.Info("erased on the sender's demand", "source", d.gate.Name, "payloads", n, "correlation", d.correlation)
	}
	results, err := d.append(ctx, in)
	if err != nil {
		return Receipt{}, err
	}
	d.count(in.Entries, results, &receipt)
	for _, s := range d.sights {
		d.sees(s)
	}
	return receipt, nil
}

// erases says that an event asks for payloads to be erased, and that the source
// does so.
func (g *gate) erases(e *Event) bool {
	return g.Erase && (e.Erasure == source.EraseCustomer || e.Erasure == source.EraseTenant)
}

// erasure is what an event asks to be erased: a person's data, or an account's.
type erasure struct {
	action  store.Action
	account *store.Account // nil for a person
}

// erasure is what an event asks to be erased. Of an account it is what the source
// itself has brought: another source's account may have the same name.
func (d *delivery) erasure(e *Event) (erasure, *store.Quarantined) {
	asked := erasure{action: store.Action{
		Actor: "source " + d.gate.Name, Reason: "the sender asks for it (" + plain(e.Type[:min(len(e.Type), 200)]) + ")",
	}}
	if e.Erasure == source.EraseTenant {
		if e.Account == "" {
			return erasure{}, d.keep(d.gate, e, badf(reasonSubject, "an erasure that does not say whose data it is about"))
		}
		asked.account = &store.Account{Tenant: e.Tenant, Source: d.gate.Name, Name: e.Account}
		asked.action.Key = asked.account.Key()
		return asked, nil
	}
	subject, wrong := d.gate.subject(e)
	if wrong == nil && subject == (store.Key{}) {
		wrong = badf(reasonSubject, "an erasure that does not say whose data it is about")
	}
	if wrong != nil {
		return erasure{}, d.keep(d.gate, e, wrong)
	}
	asked.action.Key = subject
	return asked, nil
}

// append makes an arrival durable. One of more rows than a store takes at once
// needs several commits: the sender is answered after the last, and if it does
// not come to that its repetition finds the earlier ones.
func (d *delivery) append(ctx context.Context, in store.Arrival) (results []store.Appended, err error) {
	for len(in.Entries)+len(in.Quarantined) > 0 {
		n, m := min(len(in.Entries), store.MaxAppend), min(len(in.Quarantined), store.MaxAppend)
		part := store.Arrival{Entries: in.Entries[:n], Quarantined: in.Quarantined[:m]}
		in.Entries, in.Quarantined = in.Entries[n:], in.Quarantined[m:]
		some, err := d.flushed(ctx, part)
		d.fills(err)
		if err != nil {
			return nil, err
		}
		results = append(results, some...)
	}
	return results, nil
}

// patiently bounds what a delivery waits for.
func (d *delivery) patiently(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.patience == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d.patience)
}

func (d *delivery) flushed(ctx context.Context, in store.Arrival) ([]store.Appended, error) {
	ctx, cancel := d.patiently(ctx)
	defer cancel()
	return d.flusher.append(ctx, in)
}

// eraseWithin bounds the erasure of an account, which looks through everything
// that is kept. It goes on when the sender has given up: the next demand finds it
// done.
const eraseWithin = 30 * time.Second

func (d *delivery) erased(ctx context.Context, asked erasure) (n int, err error) {
	if asked.account != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eraseWithin)
		defer cancel()
		n, err = d.privacy.EraseAccount(ctx, asked.action, *asked.account)
	} else {
		ctx, cancel := d.patiently(ctx)
		defer cancel()
		n, err = d.privacy.Erase(ctx, asked.action)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: erasure: %w", store.ErrUnavailable, err)
	}
	return n, nil
}

// count tells what became of the entries.
func (d *delivery) count(entries []store.Entry, results []store.Appended, receipt *Receipt) {
	for i, result := range results {
		note := &entries[i].Note
		s := Sight{Type: note.Type, Effect: note.Event.Effect, Tenant: note.Event.Tenant}
		if result == store.Conflict && d.listed {
			result = store.Duplicate
		}
		switch result {
		case store.Duplicate:
			receipt.Duplicates++
			s.What = "duplicate"
		case store.Conflict:
			receipt.Conflicts++
			s.What = "conflict"
			d.disputed(&entries[i])
		default:
			receipt.New++
			if !d.listed {
				continue
			}
			s.What = "repaired"
		}
		d.will(s)
	}
	if receipt.New > 0 && d.appended != nil {
		d.appended()
	}
}

// will remembers a sight that is true once the delivery is durable. Equal ones
// are counted together.
func (d *delivery) will(s Sight) {
	s.Source, s.Count = d.gate.Name, 1
	for i := range d.sights {
		same := d.sights[i]
		same.Count = 1
		if same == s {
			d.sights[i].Count++
			return
		}
	}
	d.sights = append(d.sights, s)
}

// end tells how the delivery ended.
func (d *delivery) end(err error) {
	s := Sight{
		What: "delivery", Source: d.gate.Name, Type: d.kind, Tenant: d.gate.Tenant, Secret: d.proof.Secret,
		Took: time.Since(d.at),
	}
	if err == nil {
		if d.own {
			s.Reason = noIdentity
		}
		d.gate.seen.beat()
		d.sees(s)
		return
	}
	s.What, s.Reason = "rejected", reasonOf(err)
	d.sees(s)
	if d.quiet.passes(d.gate.Name + " " + s.Reason) {
		level := slog.LevelWarn
		if isOurs(err) {
			level = slog.LevelError
		}
		d.opts.Log.Log(context.Background(), level, "delivery not taken", "source", d.gate.Name, "reason", s.Reason, "error", err, "correlation", d.correlation)
	}
}

// reasonOf is the class of an error of a delivery.
func reasonOf(err error) string {
	var fault *source.Fault
	var ours *unconfigured
	switch {
	case errors.As(err, &ours):
		return string(ours.fault.Reason)
	case errors.As(err, &fault):
		return string(fault.Reason)
	case errors.Is(err, ErrTooLarge):
		return "too_large"
	case errors.Is(err, errCutOff):
		return "cut_off"
	case errors.Is(err, store.ErrFull):
		return "full"
	}
	return "unavailable"
}

// isOurs says that an error is no fault of the sender's.
func isOurs(err error) bool {
	var fault *source.Fault
	return !errors.As(err, &fault) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, errCutOff)
}
