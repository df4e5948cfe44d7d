package wire

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Fate is what becomes of a message.
type Fate int

// The fates. Each but Pass and Hold is the end of the connection: nothing that
// comes after the message is passed on, in either direction.
const (
	// Pass gives the message to the other end.
	Pass Fate = iota
	// Hold keeps it, and gives it to the other end together with the next
	// message of its direction that passes. A connection that ends before loses it.
	Hold
	// Cut closes the connection at both ends, in order. Each end still gets what
	// was passed before.
	Cut
	// Tear is Cut after the first half of the message.
	Tear
	// Reset breaks the connection at both ends. What was passed before may be
	// lost with it.
	Reset
	// Stall leaves both ends waiting: no byte comes, and no end of the
	// connection, until the proxy is closed. It is a host that is there, and a
	// process that does nothing: bytes and questions of TCP are acknowledged.
	Stall
	// Vanish is Stall with a host that is not there: nothing is acknowledged
	// either. Where the system cannot do that (it is Linux that can), or the
	// connection is none of TCP, it is Stall.
	Vanish
)

// String is the fate's word in reports.
func (f Fate) String() string {
	return [...]string{"pass", "hold", "cut", "tear", "reset", "stall", "vanish"}[f]
}

// End is one end of a connection.
type End int

// The ends.
const (
	// Client is who connected.
	Client End = iota
	// Server is who was connected to.
	Server
)

// String is the end's word in reports.
func (e End) String() string {
	if e == Server {
		return "server"
	}
	return "client"
}

// Message is one message of the protocol.
type Message struct {
	// From is the end that sent it.
	From End
	// Kind is the protocol's word for it, such as Bind; of Redis it is command
	// or the kind of the answer.
	Kind string
	// Bytes are the message as it was sent. A watcher may put others in their
	// place: a server that lies.
	Bytes []byte
	// Connection counts the connections from 1.
	Connection int

	text func([]byte) string
}

// Text is what a person wants to see of it: the statement, the tag, the words of
// the command. It may be empty.
func (m *Message) Text() string {
	if m.text == nil {
		return ""
	}
	return m.text(m.Bytes)
}

// String names the message in reports.
func (m *Message) String() string {
	s := m.From.String() + " " + m.Kind
	if text := m.Text(); text != "" {
		s += " " + text
	}
	return s
}

// Protocol knows where a message ends.
type Protocol interface {
	// read takes the next message of an end from its connection. first says that
	// it is the end's first.
	read(from End, first bool, in *bufio.Reader) (*Message, error)
	// answer is what the proxy answers by itself in the server's place; nil for
	// a message that is the server's.
	answer(m *Message) []byte
}

// maxMessage bounds what is read into memory.
const maxMessage = 1 << 30

// take reads the next n bytes behind raw. Memory grows with what comes, not with
// what was announced.
func take(raw []byte, in *bufio.Reader, n int) ([]byte, error) {
	for n > 0 {
		from, step := len(raw), min(n, 64<<10)
		raw = append(raw, make([]byte, step)...)
		if _, err := io.ReadFull(in, raw[from:]); err != nil {
			return nil, io.ErrUnexpectedEOF
		}
		n -= step
	}
	return raw, nil
}

// Proxy is a server for clients and a client of the server. Its methods may be
// called concurrently.
type Proxy struct {
	protocol Protocol
	dial     func(context.Context) (net.Conn, error)
	listener net.Listener
	closed   context.Context
	end      context.CancelFunc
	running  sync.WaitGroup

	mu    sync.Mutex
	watch func(*Message) Fate
	open  map[*connection]bool
	count int
}

// Listen starts a proxy on a free port of the loopback interface. dial connects
// to the server, once for each client. [Proxy.Close] ends it.
func Listen(protocol Protocol, dial func(context.Context) (net.Conn, error)) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{protocol: protocol, dial: dial, listener: listener, open: map[*connection]bool{}}
	p.closed, p.end = context.WithCancel(context.Background())
	p.running.Go(p.accept)
	return p, nil
}

// To dials a server by its address, for [Listen].
func To(address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{Timeout: dialLimit}).DialContext(ctx, "tcp", address)
	}
}

// dialLimit of a connection to the server.
const dialLimit = 10 * time.Second

// Addr is its host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Watch has f decide what becomes of each message from now on; nil passes all.
// f is called for one message at a time, over all connections in the order in
// which the proxy got them, and must not call the proxy.
func (p *Proxy) Watch(f func(*Message) Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = f
}

// Close ends all connections, and with them those that were left waiting. It
// returns when nothing of the proxy runs any more.
func (p *Proxy) Close() error {
	p.end()
	err := p.listener.Close()
	p.mu.Lock()
	for c := range p.open {
		c.close()
	}
	p.mu.Unlock()
	p.running.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	server, err := p.dial(p.closed)
	if err != nil {
		_ = client.Close() // as a server that is not there does
		return
	}
	c := &connection{proxy: p, ends: [2]net.Conn{client, server}}
	p.mu.Lock()
	p.count++
	c.number = p.count
	p.open[c] = true
	p.mu.Unlock()
	if p.closed.Err() != nil { // Close may have looked before
		c.close()
	}
	var pumps sync.WaitGroup
	for _, from := range []End{Client, Server} {
		pumps.Go(func() { c.pump(from) })
	}
	pumps.Wait()
	c.close()
	p.mu.Lock()
	delete(p.open, c)
	p.mu.Unlock()
}

// connection is one client's connection and that to its server.
type connection struct {
	proxy  *Proxy
	number int
	ends   [2]net.Conn // by End
	fate   Fate        // what has become of it; the proxy's mutex is held
}

func (c *connection) close() {
	for _, end := range c.ends {
		_ = end.Close() // it may be closed already
	}
}

// pump passes what one end sends to the other, message by message.
func (c *connection) pump(from End) {
	in, to := bufio.NewReaderSize(c.ends[from], 64<<10), c.ends[1-from]
	var passed, held []byte
	flush := func() bool {
		_, err := to.Write(passed)
		passed = passed[:0]
		return err == nil
	}
	first := true
	for {
		m, err := c.proxy.protocol.read(from, first, in)
		if err != nil {
			_ = flush() // the end may have gone
			switch {
			case c.stalled():
				<-c.proxy.closed.Done()
			case errors.Is(err, io.EOF): // it still gets what the other sends
				halfClose(to)
			default:
				c.close()
			}
			c.discard(in)
			return
		}
		m.From, m.Connection = from, c.number
		if answer := c.proxy.protocol.answer(m); answer != nil { // and its next is its first
			if _, err := c.ends[from].Write(answer); err != nil {
				c.close()
				return
			}
			continue
		}
		first = false
		switch c.decide(m) {
		case Pass:
			passed = append(append(passed, held...), m.Bytes...)
			held = held[:0]
			if in.Buffered() > 0 && len(passed) < 64<<10 {
				continue // the rest of what was sent at once
			}
			if !flush() {
				c.close()
				return
			}
			continue
		case Hold:
			held = append(held, m.Bytes...)
			if in.Buffered() == 0 && !flush() {
				c.close()
				return
			}
			continue
		case Tear:
			passed = append(append(passed, held...), m.Bytes[:len(m.Bytes)/2]...)
			fallthrough
		case Cut:
			_ = flush() // the end may have gone
			halfClose(c.ends[Client])
			halfClose(c.ends[Server])
		case Reset:
			_ = flush()
			for _, end := range c.ends {
				if tcp, ok := end.(*net.TCPConn); ok {
					_ = tcp.SetLinger(0)
				}
			}
			c.close()
		case Vanish:
			_ = flush()
			for _, end := range c.ends {
				if tcp, ok := end.(*net.TCPConn); ok {
					vanish(tcp)
				}
			}
			<-c.proxy.closed.Done()
		case Stall:
			_ = flush()
			<-c.proxy.closed.Done()
		}
		c.discard(in)
		return
	}
}

// stalled reports whether the connection was left waiting.
func (c *connection) stalled() bool {
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	return c.fate == Stall || c.fate == Vanish
}

// decide asks the watcher, unless the connection has ended already.
func (c *connection) decide(m *Message) Fate {
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	switch c.fate {
	case Stall, Vanish:
		return Stall
	case Cut, Tear, Reset:
		return Cut
	}
	if c.proxy.watch == nil {
		return Pass
	}
	fate := c.proxy.watch(m)
	if fate != Hold {
		c.fate = fate
	}
	return fate
}

// discard reads what still comes, so that the other end is not reset for having
// sent it.
func (c *connection) discard(in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) }

// halfClose says that nothing more comes.
func halfClose(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // it may be closed already
		return
	}
	_ = conn.Close()
}
