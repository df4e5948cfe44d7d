package framing

// state of the scanner: what the next byte belongs to.
type state uint8

const (
	atStart      state = iota // before the first byte of a request line
	atStartLF                 // after the CR of an empty line before it
	inLine                    // in the request line
	inLineLF                  // after its CR
	atField                   // at the first byte of a header line
	inName                    // in the name of a header
	inValue                   // in the value of a header
	inValueLF                 // after its CR
	atHeadEnd                 // after the CR of the empty line
	inBody                    // in a body of known length
	inSize                    // in the size of a chunk
	inExtension               // behind a ';' of the size's line
	inSizeLF                  // after the CR of that line
	inChunk                   // in the bytes of a chunk
	afterChunk                // at the CR after a chunk
	afterChunkLF              // at its LF
	atTrailer                 // at the first byte of a trailer line
	inTrailer                 // in a trailer line
	inTrailerLF               // after its CR
	atBodyEnd                 // after the CR of the empty line after the trailers
)

// Bounds beyond which framing is refused; net/http bounds the rest.
const (
	maxName      = 24 // longer names are not ours to look at
	maxValue     = 32 // of the framing headers
	maxExtension = 256
	maxTrailer   = 16 << 10
	maxLength    = 1 << 53
)

// field is a header the scanner cares for.
type field uint8

const (
	other field = iota
	contentLength
	transferEncoding
)

// scanner follows the framing of the requests of one connection. It holds no
// memory beyond itself.
type scanner struct {
	state  state
	field  field
	inHead bool // what was refused is part of a head
	empty  bool // an empty line stood before this request
	length bool // Content-Length was seen
	coded  bool // Transfer-Encoding was seen
	old    bool // not HTTP/1.1
	digits int  // of a chunk's size
	size   int64
	left   int64 // bytes of the body or chunk that are to come
	line   int   // bytes of a line whose length is bounded
	n      int   // bytes in text
	text   [maxValue]byte
	tail   [8]byte // the last bytes of the request line
}

// scan goes through bytes of the connection. It returns how many of them are
// good, and whether the one after them is refused.
func (s *scanner) scan(p []byte) (int, bool) {
	for i := 0; i < len(p); {
		// Bodies are stepped over without looking at them.
		if s.state == inBody || s.state == inChunk {
			step := int(min(s.left, int64(len(p)-i)))
			s.left -= int64(step)
			i += step
			if s.left == 0 {
				if s.state == inBody {
					s.next()
				} else {
					s.state = afterChunk
				}
			}
			continue
		}
		// So is what stands in headers that say nothing about framing.
		if s.state == inValue && s.field == other && p[i] >= ' ' {
			i++
			continue
		}
		if !s.step(p[i]) {
			s.inHead = s.state < inBody
			return i, true
		}
		i++
	}
	return len(p), false
}

// next makes ready for the next request.
func (s *scanner) next() { *s = scanner{} }

// step takes one byte of a head or of a body's framing; false refuses it.
func (s *scanner) step(b byte) bool {
	if b == 0 {
		return false
	}
	switch s.state {
	case atStart:
		if b == '\r' && !s.empty { // one empty line is tolerated by RFC 9112 2.2
			s.state = atStartLF
			return true
		}
		s.state = inLine
		return isToken(b)
	case atStartLF:
		s.state, s.empty = atStart, true
		return b == '\n'
	case inLine:
		return s.requestLine(b)
	case inLineLF:
		s.state = atField
		s.old = string(s.tail[:]) != "HTTP/1.1"
		return b == '\n'
	case atField, inName:
		return s.name(b)
	case inValue:
		return s.value(b)
	case inValueLF:
		s.state = atField
		return b == '\n' && s.endValue()
	case atHeadEnd:
		return b == '\n' && s.endHead()
	}
	return s.body(b)
}

func (s *scanner) requestLine(b byte) bool {
	switch b {
	case '\r':
		s.state = inLineLF
		return true
	case '\n':
		return false
	}
	copy(s.tail[:], s.tail[1:])
	s.tail[7] = b
	return true
}

func (s *scanner) name(b byte) bool {
	if s.state == atField {
		if b == '\r' {
			s.state = atHeadEnd
			return true
		}
		s.state, s.n = inName, 0 // a space or tab here would fold the line before
	}
	if b == ':' {
		if s.n == 0 {
			return false
		}
		s.state, s.field = inValue, s.which()
		s.n = 0
		switch s.field {
		case contentLength:
			again := s.length
			s.length = true
			return !again && !s.coded
		case transferEncoding:
			again := s.coded
			s.coded = true
			return !again && !s.length && !s.old
		}
		return true
	}
	if s.n < maxName {
		s.text[s.n] = lower(b)
	}
	s.n = min(s.n+1, maxName+1)
	return isToken(b)
}

func (s *scanner) which() field {
	if s.n > maxName {
		return other
	}
	switch string(s.text[:s.n]) {
	case "content-length":
		return contentLength
	case "transfer-encoding":
		return transferEncoding
	}
	return other
}

func (s *scanner) value(b byte) bool {
	switch b {
	case '\r':
		s.state = inValueLF
		return true
	case '\n':
		return false
	case ' ', '\t':
		if s.field == other || s.n == 0 {
			return true
		}
	}
	if s.field == other {
		return true
	}
	if s.n == maxValue {
		return false
	}
	s.text[s.n] = lower(b)
	s.n++
	return true
}

// endValue reads the value of a framing header whole. White space behind it is
// allowed; within it is not.
func (s *scanner) endValue() bool {
	for s.n > 0 && (s.text[s.n-1] == ' ' || s.text[s.n-1] == '\t') {
		s.n--
	}
	switch s.field {
	case transferEncoding:
		return string(s.text[:s.n]) == "chunked"
	case contentLength:
		s.left = 0
		for _, b := range s.text[:s.n] {
			if b < '0' || b > '9' || s.left > maxLength {
				return false
			}
			s.left = s.left*10 + int64(b-'0')
		}
		return s.n > 0
	}
	return true
}

func (s *scanner) endHead() bool {
	switch {
	case s.coded:
		s.state, s.size, s.digits, s.line = inSize, 0, 0, 0
	case s.left > 0:
		s.state = inBody
	default:
		s.next()
	}
	return true
}

// body takes the framing of a chunked body.
func (s *scanner) body(b byte) bool {
	switch s.state {
	case inSize:
		if d, ok := hex(b); ok {
			s.size = s.size<<4 | int64(d)
			s.digits++
			return s.digits <= 13
		}
		switch b {
		case ';':
			s.state = inExtension
		case '\r':
			s.state = inSizeLF
		default:
			return false
		}
		return s.digits > 0
	case inExtension:
		s.line++
		if b == '\r' {
			s.state = inSizeLF
		}
		return b != '\n' && s.line <= maxExtension
	case inSizeLF:
		s.left, s.line = s.size, 0
		s.state = inChunk
		if s.size == 0 {
			s.state = atTrailer
		}
		return b == '\n'
	case afterChunk:
		s.state = afterChunkLF
		return b == '\r'
	case afterChunkLF:
		s.state, s.size, s.digits, s.line = inSize, 0, 0, 0
		return b == '\n'
	case atTrailer:
		if b == '\r' {
			s.state = atBodyEnd
			return true
		}
		s.state = inTrailer
		return isToken(b)
	case inTrailer:
		s.line++
		if b == '\r' {
			s.state = inTrailerLF
		}
		return b != '\n' && s.line <= maxTrailer
	case inTrailerLF:
		s.state = atTrailer
		return b == '\n'
	case atBodyEnd:
		if b != '\n' {
			return false
		}
		s.next()
		return true
	}
	return false
}

func lower(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}

func hex(b byte) (byte, bool) {
	switch b = lower(b); {
	case '0' <= b && b <= '9':
		return b - '0', true
	case 'a' <= b && b <= 'f':
		return b - 'a' + 10, true
	}
	return 0, false
}

// isToken tells the bytes of names, RFC 9110 5.6.2.
func isToken(b byte) bool {
	switch {
	case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		return true
	}
	switch b {
	case '!', '#', '$', '%', '&', '\'', '*', '+', '-', '.', '^', '_', '`', '|', '~':
		return true
	}
	return false
}
