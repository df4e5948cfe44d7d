package sqlite

import "time"

// alarm calls rings at the first of the instants it was set to, or before it was
// set to a later one. To take one back is the affair of rings, which looks what
// is due: most units end long before their limit, and then nobody touches a
// timer. Its methods are called under one lock, which rings takes too.
type alarm struct {
	rings func()
	timer *time.Timer
	next  time.Time // when it rings; zero when it does not
}

// at lets the alarm ring at an instant, if it does not ring before it.
func (a *alarm) at(t time.Time) {
	if !a.next.IsZero() && !t.Before(a.next) {
		return
	}
	a.next = t
	if a.timer == nil {
		a.timer = time.AfterFunc(time.Until(t), a.rings)
		return
	}
	a.timer.Reset(time.Until(t))
}

// rang is what rings calls first: it is no longer set.
func (a *alarm) rang() { a.next = time.Time{} }

// stop ends the alarm.
func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
	a.next = time.Time{}
}
