package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// PostgreSQL is version 3 of its protocol:
// https://www.postgresql.org/docs/current/protocol-message-formats.html
const PostgreSQL = postgres(3)

type postgres int

// Messages of a client that have no type: their first four bytes after the
// length tell.
const (
	codeCancel = 80877102
	codeSSL    = 80877103
	codeGSS    = 80877104
)

func (postgres) read(from End, first bool, in *bufio.Reader) (*Message, error) {
	untyped := from == Client && first
	front := 5
	if untyped {
		front = 4
	}
	head := make([]byte, front)
	if _, err := io.ReadFull(in, head); err != nil {
		return nil, err
	}
	size := int64(binary.BigEndian.Uint32(head[front-4:]))
	if size < 4 || size > maxMessage {
		return nil, fmt.Errorf("message of %d bytes", size)
	}
	raw, err := take(head, in, int(size)-4)
	if err != nil {
		return nil, err
	}
	m := &Message{Bytes: raw, text: describe(from, raw[0])}
	if untyped {
		m.Kind, m.text = "Startup", nil
		if len(raw) >= 8 {
			switch binary.BigEndian.Uint32(raw[4:]) {
			case codeCancel:
				m.Kind = "CancelRequest"
			case codeSSL:
				m.Kind = "SSLRequest"
			case codeGSS:
				m.Kind = "GSSENCRequest"
			}
		}
		return m, nil
	}
	m.Kind = kindOf(from, raw[0])
	return m, nil
}

// answer refuses encryption, which would hide the messages.
func (postgres) answer(m *Message) []byte {
	if m.From == Client && (m.Kind == "SSLRequest" || m.Kind == "GSSENCRequest") {
		return []byte("N")
	}
	return nil
}

// The kinds of messages by their type.
const (
	clientKinds = " B:Bind C:Close D:Describe E:Execute F:FunctionCall H:Flush P:Parse Q:Query S:Sync X:Terminate" +
		" c:CopyDone d:CopyData f:CopyFail p:Password "
	serverKinds = " 1:ParseComplete 2:BindComplete 3:CloseComplete A:Notification C:CommandComplete D:DataRow E:ErrorResponse" +
		" G:CopyInResponse H:CopyOutResponse I:EmptyQueryResponse K:BackendKeyData N:NoticeResponse R:Authentication" +
		" S:ParameterStatus T:RowDescription V:FunctionCallResponse W:CopyBothResponse Z:ReadyForQuery c:CopyDone d:CopyData" +
		" n:NoData s:PortalSuspended t:ParameterDescription v:NegotiateProtocolVersion "
)

// kindOf names a message by its type.
func kindOf(from End, letter byte) string {
	kinds := clientKinds
	if from == Server {
		kinds = serverKinds
	}
	_, rest, known := strings.Cut(kinds, " "+string(rune(letter))+":")
	if !known {
		return fmt.Sprintf("%q", letter)
	}
	kind, _, _ := strings.Cut(rest, " ")
	return kind
}

// describe gives the text of messages that have one a person wants.
func describe(from End, letter byte) func([]byte) string {
	words := func(n int) func([]byte) string { // the n-th of the texts that follow
		return func(raw []byte) string {
			parts := bytes.SplitN(raw[5:], []byte{0}, n+1)
			if len(parts) < n {
				return ""
			}
			return string(parts[n-1])
		}
	}
	switch {
	case letter == 'Q' && from == Client, letter == 'C' && from == Server:
		return words(1)
	case letter == 'P' && from == Client, letter == 'B' && from == Client: // statement text, statement name
		return words(2)
	case letter == 'E' && from == Server, letter == 'N' && from == Server:
		return stateOf
	case letter == 'Z' && from == Server:
		return func(raw []byte) string { return string(raw[5:]) }
	}
	return nil
}

// stateOf is the SQLSTATE of an error.
func stateOf(raw []byte) string {
	for field := range bytes.SplitSeq(raw[5:], []byte{0}) {
		if len(field) > 1 && field[0] == 'C' {
			return string(field[1:])
		}
	}
	return ""
}
