package memory

// rows are the committed business rows, each with as many versions as open
// transactions can still see.
type rows struct {
	seq      uint64 // of the last commit
	versions map[string][]version
	open     map[uint64]int // transactions by the commit they see last
}

// version is what one commit made of a row; nil is a deletion.
type version struct {
	seq   uint64
	value *string
}

func newRows() rows {
	return rows{versions: map[string][]version{}, open: map[uint64]int{}}
}

// get reads a row as of commit at.
func (r *rows) get(key string, at uint64) (string, bool) {
	all := r.versions[key]
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].seq > at {
			continue
		}
		if all[i].value == nil {
			return "", false
		}
		return *all[i].value, true
	}
	return "", false
}

// all reads every row as of commit at.
func (r *rows) all(at uint64) map[string]string {
	seen := make(map[string]string, len(r.versions))
	for key := range r.versions {
		if value, ok := r.get(key, at); ok {
			seen[key] = value
		}
	}
	return seen
}

// changed tells whether a commit after at has written the row.
func (r *rows) changed(key string, at uint64) bool {
	all := r.versions[key]
	return len(all) > 0 && all[len(all)-1].seq > at
}

// commit adds the writes as the newest versions and drops what nobody can see.
func (r *rows) commit(writes map[string]*string) {
	r.seq++
	for key, value := range writes {
		r.versions[key] = append(r.versions[key], version{r.seq, value})
	}
	oldest := r.seq
	for at := range r.open {
		oldest = min(oldest, at)
	}
	for key := range writes {
		r.prune(key, oldest)
	}
}

// prune keeps the newest version that oldest can see, and all after it.
func (r *rows) prune(key string, oldest uint64) {
	all := r.versions[key]
	first := 0
	for i, v := range all {
		if v.seq <= oldest {
			first = i
		}
	}
	all = append([]version(nil), all[first:]...)
	if len(all) == 1 && all[0].value == nil && all[0].seq <= oldest {
		delete(r.versions, key)
		return
	}
	r.versions[key] = all
}

// see registers a transaction that reads the present state.
func (r *rows) see() uint64 {
	r.open[r.seq]++
	return r.seq
}

// leave ends what see began.
func (r *rows) leave(at uint64) {
	if r.open[at]--; r.open[at] == 0 {
		delete(r.open, at)
	}
}
