package wire

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Redis is its serialization protocol, RESP 2 and 3:
// https://redis.io/docs/latest/develop/reference/protocol-spec/
const Redis = resp(3)

type resp int

func (resp) read(from End, _ bool, in *bufio.Reader) (*Message, error) {
	raw, err := element(nil, in, 0)
	if err != nil {
		return nil, err
	}
	m := &Message{Bytes: raw, Kind: "command", text: commandOf}
	if from == Server {
		m.Kind, m.text = answerKind(raw[0]), lineOf
	}
	return m, nil
}

func (resp) answer(*Message) []byte { return nil }

// maxDepth bounds how deep answers hold answers.
const maxDepth = 32

// element reads one element of RESP, with what it holds, behind raw.
func element(raw []byte, in *bufio.Reader, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("elements in elements, %d deep", depth)
	}
	line, err := in.ReadSlice('\n')
	if err != nil {
		if err == bufio.ErrBufferFull {
			return long(append(raw, line...), in)
		}
		if len(line) > 0 || len(raw) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	start := len(raw)
	raw = append(raw, line...)
	n, err := strconv.Atoi(strings.TrimSpace(string(raw[start+1:])))
	counted := err == nil
	switch raw[start] {
	case '$', '!', '=': // bytes
		if !counted || n > maxMessage {
			return nil, fmt.Errorf("length %q", raw[start:])
		}
		if n < 0 {
			return raw, nil // none
		}
		return take(raw, in, n+2)
	case '*', '~', '>', '%', '|': // elements, or pairs of them
		if !counted || n > maxMessage {
			return nil, fmt.Errorf("length %q", raw[start:])
		}
		if raw[start] == '%' || raw[start] == '|' {
			n *= 2
		}
		if raw[start] == '|' {
			n++ // it stands before what it says something about
		}
		for range max(n, 0) {
			if raw, err = element(raw, in, depth+1); err != nil {
				return nil, err
			}
		}
		return raw, nil
	}
	return raw, nil // a line: a simple value, an error, or a command as people type it
}

// long reads the rest of a line that is longer than the buffer.
func long(raw []byte, in *bufio.Reader) ([]byte, error) {
	rest, err := in.ReadBytes('\n')
	if err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	return append(raw, rest...), nil
}

// answerKind names an answer by its first byte.
func answerKind(first byte) string {
	kind := map[byte]string{
		'+': "status", '-': "error", ':': "number", '$': "text", '*': "array", '_': "null", '#': "boolean", ',': "double",
		'(': "big number", '!': "long error", '=': "verbatim text", '%': "map", '~': "set", '>': "push", '|': "attribute",
	}[first]
	if kind == "" {
		return fmt.Sprintf("%q", first)
	}
	return kind
}

// commandOf is a command's name, in upper case.
func commandOf(raw []byte) string {
	if raw[0] != '*' {
		name, _, _ := strings.Cut(strings.TrimSpace(string(raw)), " ")
		return strings.ToUpper(name)
	}
	lines := bytes.SplitN(raw, []byte("\r\n"), 4) // the count, the length, the name
	if len(lines) < 3 {
		return ""
	}
	return strings.ToUpper(string(lines[2]))
}

// lineOf is the first line of an answer.
func lineOf(raw []byte) string {
	line, _, _ := bytes.Cut(raw, []byte("\r\n"))
	return string(line)
}
