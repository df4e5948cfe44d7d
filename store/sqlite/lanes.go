package sqlite

import (
	"cmp"
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/unavez/unavez/store"
)

var _ store.Lanes = (*Store)(nil)

// bindLanes reads how many lanes the file has. The first worker decides; wanted is
// 0 for whatever the file says.
func (c *connector) bindLanes(ctx context.Context, wanted int) (n int, err error) {
	read := func(r *raw) error {
		_, err := r.row("SELECT value FROM unavez_setting WHERE name = 'lanes'", nil, func(v []driver.Value) (err error) {
			n, err = strconv.Atoi(word(v[0]))
			return err
		})
		return err
	}
	if err := c.gates.read(ctx, read); err != nil {
		return 0, err
	}
	if n == 0 {
		err := c.writer.write(ctx, nil, func(r *raw) error {
			if err := read(r); err != nil || n != 0 {
				return err
			}
			n = cmp.Or(wanted, defaultLanes)
			if _, err := r.exec("INSERT INTO unavez_setting (name, value) VALUES ('lanes', ?1)", strconv.Itoa(n)); err != nil {
				return err
			}
			const text = "WITH RECURSIVE l (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM l WHERE n + 1 < ?1)" +
				" INSERT INTO unavez_lane (lane, worker, epoch, expires, clean, cursor) SELECT n, '', 0, 0, 1, '' FROM l"
			_, err := r.exec(text, int64(n))
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	if n < 1 || wanted != 0 && wanted != n {
		return 0, fmt.Errorf("sqlite store: Lanes: file has %d, this worker wants %d: all workers on a file have the same number for ever, else entries would lie in lanes that nobody reads (set Lanes to %d, or to 0)", n, wanted, n)
	}
	return n, nil
}

// Lanes is how many the file has.
func (s *Store) Lanes() int { return s.lanes }

// holds fails unless the lane is still the holder's. In a unit nothing can change
// that before the unit is released: nobody else writes meanwhile.
func holds(r *raw, h store.Hold) error {
	const text = "SELECT EXISTS (SELECT 1 FROM unavez_lane WHERE lane = ?1 AND epoch = ?2 AND worker <> '')"
	n, err := r.number(text, int64(h.Lane), h.Epoch)
	return errors.Join(err, unless(err != nil || n == 1, store.ErrLaneLost))
}

// belongs is holds for a gate, which may belong to no lane.
func belongs(r *raw, h store.Hold) error {
	if h.Epoch == 0 {
		return nil
	}
	return holds(r, h)
}

// belongs looks before the writer is asked for; the unit looks again.
func (s *Store) belongs(ctx context.Context, all ...store.Hold) (err error) {
	look := func(r *raw) error {
		for _, h := range all {
			if err := belongs(r, h); err != nil {
				return err
			}
		}
		return nil
	}
	if len(all) == 0 || len(all) == 1 && all[0].Epoch == 0 {
		return nil
	}
	if s.c.writer.idle(func(r *raw) { err = look(r) }) {
		return err
	}
	return s.read(ctx, look)
}

// keeping is one round of a worker, as a unit.
type keeping struct {
	store.Keeping
	s   *Store
	now int64
}

// Keep waits for nothing: what still runs in a lane that it takes fails at its
// end, since no two units run at once.
func (s *Store) Keep(ctx context.Context, k store.Keeping) (share store.Share, err error) {
	if err := checkKeeping(&k); err != nil {
		return share, err
	}
	round := &keeping{Keeping: k, s: s}
	err = s.write(ctx, func(r *raw) error {
		share, err = round.run(r)
		return err
	})
	if err != nil {
		return store.Share{}, err
	}
	return share, nil
}

func checkKeeping(k *store.Keeping) error {
	var faults []error
	if n := len(k.Worker); n < 1 || n > 200 {
		faults = append(faults, fmt.Errorf("sqlite store: keep: Worker of %d bytes, want 1 to 200", n))
	}
	if k.Lease < time.Millisecond {
		faults = append(faults, fmt.Errorf("sqlite store: keep: Lease %v, want 1ms or more", k.Lease))
	}
	if k.Most < 0 {
		faults = append(faults, fmt.Errorf("sqlite store: keep: Most %d, want 0 or more", k.Most))
	}
	return errors.Join(faults...)
}

// lane is one row of unavez_lane.
type lane struct {
	number  int
	worker  string
	epoch   int64
	expires int64
	clean   bool
	cursor  string
}

func (k *keeping) run(r *raw) (share store.Share, err error) {
	if k.now, err = r.number("SELECT " + now); err != nil {
		return share, err
	}
	until := k.now + k.Lease.Milliseconds()
	if share.Workers, err = k.live(r, until); err != nil {
		return share, err
	}
	own := map[int]bool{}
	var all []lane
	if err := k.renew(r, until, own); err != nil {
		return share, err
	}
	const text = "SELECT lane, worker, epoch, expires, clean, cursor FROM unavez_lane ORDER BY lane"
	err = r.query(text, nil, func(v []driver.Value) error {
		all = append(all, lane{int(integer(v[0])), word(v[1]), integer(v[2]), integer(v[3]), integer(v[4]) != 0, word(v[5])})
		return nil
	})
	if err != nil {
		return share, err
	}
	fair := 0
	if !k.Leaving {
		fair = (len(all) + share.Workers - 1) / share.Workers
	}
	take := k.choose(all, own, fair)
	if err := k.take(r, take, until); err != nil {
		return share, err
	}
	for _, l := range all {
		switch {
		case own[l.number]:
			share.Held = append(share.Held, store.Held{Hold: store.Hold{Lane: l.number, Epoch: l.epoch}})
		case slices.Contains(take, l.number):
			share.Held = append(share.Held, store.Held{
				Hold: store.Hold{Lane: l.number, Epoch: l.epoch + 1}, Taken: true, Cursor: l.cursor, Clean: l.clean,
			})
		}
	}
	share.Spare = max(0, len(own)-fair)
	return share, nil
}

// live says that the worker lives, forgets those that do not, and counts.
func (k *keeping) live(r *raw, until int64) (int, error) {
	const worker = "INSERT INTO unavez_worker (name, expires) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET expires = excluded.expires"
	if k.Leaving {
		until = k.now
	}
	if _, err := r.exec(worker, k.Worker, until); err != nil {
		return 0, err
	}
	if _, err := r.exec("DELETE FROM unavez_worker WHERE expires <= ?1", k.now); err != nil {
		return 0, err
	}
	n, err := r.number("SELECT count(*) FROM unavez_worker")
	return int(n), err
}

// marked are the rows of m, which are marks as JSON, that are still the worker's.
const marked = " FROM (SELECT value ->> 0 AS lane, value ->> 1 AS epoch, value ->> 2 AS cursor FROM json_each(?1)) m" +
	" WHERE unavez_lane.lane = m.lane AND unavez_lane.epoch = m.epoch AND worker = ?2 AND worker <> ''"

// newCursor is the cursor of a mark, or the stored one where it has none.
const newCursor = "cursor = CASE m.cursor WHEN '' THEN unavez_lane.cursor ELSE m.cursor END"

// renew keeps what the worker rightly believes to hold, and notes it in own.
func (k *keeping) renew(r *raw, until int64, own map[int]bool) error {
	if len(k.Marks) == 0 {
		return nil
	}
	list, err := marks(k.Marks)
	if err != nil {
		return err
	}
	const text = "UPDATE unavez_lane SET expires = ?3, " + newCursor + marked + " RETURNING lane"
	return r.query(text, []driver.Value{list, k.Worker, until}, func(v []driver.Value) error {
		own[int(integer(v[0]))] = true
		return nil
	})
}

// marks is a list of lanes as JSON, for marked.
func marks(all []store.Mark) (string, error) {
	rows := make([][3]any, len(all))
	for i, m := range all {
		rows[i] = [...]any{m.Lane, m.Epoch, m.Cursor}
	}
	list, err := json.Marshal(rows)
	return string(list), err
}

// choose picks the lanes to take, up to the share: first those whose holder is
// this worker by name only, then those that have waited longest.
func (k *keeping) choose(all []lane, own map[int]bool, fair int) []int {
	n := max(0, fair-len(own))
	if k.Most > 0 {
		n = min(n, k.Most)
	}
	var free []lane
	for _, l := range all {
		if !own[l.number] && (l.worker == "" || l.worker == k.Worker || l.expires <= k.now) {
			free = append(free, l)
		}
	}
	rank := func(l lane) int {
		if l.worker == k.Worker {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(free, func(a, b lane) int { return cmp.Or(rank(a)-rank(b), cmp.Compare(a.expires, b.expires)) })
	var take []int
	for _, l := range free[:min(n, len(free))] {
		take = append(take, l.number)
	}
	return take
}

func (k *keeping) take(r *raw, lanes []int, until int64) error {
	if len(lanes) == 0 {
		return nil
	}
	list, err := json.Marshal(lanes)
	if err != nil {
		return err
	}
	const text = "UPDATE unavez_lane SET worker = ?2, epoch = epoch + 1, expires = ?3, clean = 0 WHERE lane IN (SELECT value FROM json_each(?1))"
	_, err = r.exec(text, string(list), k.Worker, until)
	return err
}

// HandBack raises the epoch, so that nothing of the old holder commits any more
// although nobody has taken the lane yet.
func (s *Store) HandBack(ctx context.Context, worker string, all []store.Mark, gone bool) error {
	list, err := marks(all)
	if err != nil {
		return err
	}
	return s.write(ctx, func(r *raw) error {
		const text = "UPDATE unavez_lane SET worker = '', epoch = unavez_lane.epoch + 1, clean = 1, " + newCursor + marked
		if _, err := r.exec(text, list, worker); err != nil {
			return err
		}
		if !gone {
			return nil
		}
		_, err := r.exec("DELETE FROM unavez_worker WHERE name = ?1", worker)
		return err
	})
}
