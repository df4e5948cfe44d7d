package wire

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// all reads what an end has sent to its end.
func all(p Protocol, from End, sent string) (messages []string, err error) {
	in := bufio.NewReaderSize(strings.NewReader(sent), 16)
	for first := true; ; first = false {
		m, err := p.read(from, first, in)
		if err == io.EOF {
			return messages, nil
		}
		if err != nil {
			return messages, err
		}
		m.From = from
		messages = append(messages, string(m.Bytes))
		_ = m.String()
	}
}

func TestElementsOfRedisEndWhereTheyEnd(t *testing.T) {
	t.Parallel()
	elements := []string{
		"+OK\r\n", "-ERR no\r\n", ":7\r\n", "$5\r\nhe\r\no\r\n", "$0\r\n\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "_\r\n", "#t\r\n", ",1.5\r\n",
		"(123456789012345678901234567890\r\n", "!3\r\nERR\r\n", "=7\r\ntxt:abc\r\n", "*2\r\n*1\r\n:1\r\n$1\r\na\r\n", "%1\r\n+a\r\n*2\r\n:1\r\n:2\r\n",
		"~2\r\n:1\r\n:2\r\n", ">2\r\n+message\r\n+x\r\n", "|1\r\n+ttl\r\n:3600\r\n:5\r\n", "PING " + strings.Repeat("x", 100) + "\r\n",
	}
	for _, from := range []End{Client, Server} {
		got, err := all(Redis, from, strings.Join(elements, ""))
		if diff := cmp.Diff(elements, got); diff != "" || err != nil {
			t.Errorf("from the %v: %v\n%s", from, err, diff)
		}
	}
	for _, cut := range []string{"$5\r\nhe", "*2\r\n:1\r\n", "+O", "*2", "%1\r\n+a\r\n"} {
		if got, err := all(Redis, Server, cut); err == nil || len(got) != 0 {
			t.Errorf("%q: %q, %v", cut, got, err)
		}
	}
	for _, wrong := range []string{"$x\r\n", "*9999999999\r\n", "$9999999999\r\n", strings.Repeat("*1\r\n", 100)} {
		if got, err := all(Redis, Server, wrong); err == nil {
			t.Errorf("%q: %q, no error", wrong, got)
		}
	}
}

func TestMessagesOfPostgreSQLEndWhereTheyEnd(t *testing.T) {
	t.Parallel()
	startup := "\x00\x00\x00\x08\x00\x03\x00\x00"
	messages := []string{startup, "Q\x00\x00\x00\x0eselect 1;\x00", "S\x00\x00\x00\x04", "X\x00\x00\x00\x04", "~\x00\x00\x00\x05x"}
	got, err := all(PostgreSQL, Client, strings.Join(messages, ""))
	if diff := cmp.Diff(messages, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, wrong := range []string{"\x00\x00\x00\x03", "\xff\xff\xff\xff", startup + "Q\x00\x00\x00\x00", startup + "Q\x00\x00\x00\x06x", startup[:6]} {
		if _, err := all(PostgreSQL, Client, wrong); err == nil {
			t.Errorf("%q: no error", wrong)
		}
	}
	for request, kind := range map[string]string{
		"\x00\x00\x00\x08\x04\xd2\x16\x2f": "SSLRequest", "\x00\x00\x00\x08\x04\xd2\x16\x30": "GSSENCRequest",
		"\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02": "CancelRequest", startup: "Startup",
	} {
		m, err := PostgreSQL.read(Client, true, bufio.NewReader(strings.NewReader(request)))
		if err != nil || m.Kind != kind {
			t.Errorf("%q: %+v, %v; want %s", request, m, err, kind)
		}
	}
}

// What is read is what was sent, whatever that is.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{"*1\r\n$4\r\nping\r\n", "+OK\r\n", "\x00\x00\x00\x08\x00\x03\x00\x00Q\x00\x00\x00\x0eselect 1;\x00", "C\x00\x00\x00\x0bCOMMIT\x00", "|1\r\n:1\r\n:1\r\n:1\r\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		for _, p := range []Protocol{PostgreSQL, Redis} {
			for _, from := range []End{Client, Server} {
				messages, err := all(p, from, string(sent))
				read := strings.Join(messages, "")
				if !strings.HasPrefix(string(sent), read) || err == nil && len(read) != len(sent) {
					t.Fatalf("from the %v: %q of %q, %v", from, read, sent, err)
				}
			}
		}
	})
}
