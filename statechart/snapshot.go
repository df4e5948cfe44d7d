package statechart

// Layout is the version of the JSON of a snapshot.
const Layout = 1

// Status tells whether a process goes on.
type Status string

// The statuses.
const (
	Active Status = "active"
	Done   Status = "done"
)

// Snapshot is where one process stands. It never changes and may be shared
// between goroutines.
type Snapshot struct {
	def         *Definition
	active      []uint64       // bit set over Definition.nodes
	history     map[int][]int  // history node → recorded nodes in document order
	context     map[string]any // never changed in place
	generations []uint64       // by Node.slot
	status      Status
	output      any
	hasOutput   bool
	revision    uint64
}

// Definition that the snapshot belongs to.
func (s *Snapshot) Definition() *Definition { return s.def }

// Status of the process.
func (s *Snapshot) Status() Status { return s.status }

// Revision counts the steps that changed the snapshot; 1 after Start.
func (s *Snapshot) Revision() uint64 { return s.revision }

// Context of the process, for reading only.
func (s *Snapshot) Context() map[string]any { return s.context }

// Output of a process that is done; false if it has none.
func (s *Snapshot) Output() (any, bool) { return s.output, s.hasOutput }

func (s *Snapshot) has(n *Node) bool { return s.active[n.Order>>6]&(1<<(n.Order&63)) != 0 }

// In tells whether the node with this id is active.
func (s *Snapshot) In(id string) bool {
	n, ok := s.def.byID[id]
	return ok && s.has(n)
}

// Active are the active nodes in document order.
func (s *Snapshot) Active() []*Node {
	var active []*Node
	for _, n := range s.def.nodes {
		if s.has(n) {
			active = append(active, n)
		}
	}
	return active
}
