package sqlite

import (
	"fmt"
	"strings"

	"github.com/unavez/unavez/store"
)

// text is what the words of a statement, or of several, tell before SQLite sees
// them. A handler must not end the group's transaction by text.
type text struct {
	statements int
	refused    error  // why it may not run in a transaction
	ends       bool   // begins or ends a transaction; refused everywhere
	reads      bool   // cannot write
	with       bool   // one statement that begins with WITH: a reader tells
	counts     bool   // one INSERT, UPDATE, DELETE or REPLACE: run by Exec, it tells how many rows it changed
	schema     bool   // may change the schema
	savepoint  bool   // sets or ends savepoints
	bare       bool   // one statement that must run outside a transaction
	pragma     string // the pragma's name, when bare
	assigns    bool   // the pragma has a value
}

// savepoint is the name of a unit's savepoint; names like it are refused.
const savepoint = "unavez_unit"

// parse reads a text as SQLite's tokenizer does: words, strings, quoted names,
// comments, and the semicolons inside CREATE TRIGGER … BEGIN … END.
func parse(sql string) text {
	t := text{reads: true}
	s := scanner{rest: sql}
	for {
		words, more := s.statement()
		if len(words) > 0 {
			t.statements++
			t.add(words)
		}
		if !more {
			break
		}
	}
	if t.statements > 1 {
		t.bare, t.with, t.counts = false, false, false
	}
	return t
}

func (t *text) refuse(err error) {
	if t.refused == nil {
		t.refused = err
	}
}

// add takes in the leading words of one statement.
func (t *text) add(words []string) {
	word := func(i int) string {
		if i < len(words) {
			return strings.ToUpper(words[i])
		}
		return ""
	}
	switch word(0) {
	case "SELECT", "VALUES":
	case "EXPLAIN": // shows a statement and does not run it, but for pragmas, which act when they are compiled
		i := 1
		if word(1) == "QUERY" && word(2) == "PLAN" {
			i = 3
		}
		if word(i) == "PRAGMA" {
			t.add(words[i:])
		}
	case "WITH":
		t.reads, t.with = false, true
	case "BEGIN", "COMMIT", "END":
		t.control(word(0))
	case "ROLLBACK":
		to := 1
		if word(to) == "TRANSACTION" {
			to++
		}
		if word(to) != "TO" {
			t.control("ROLLBACK")
			return
		}
		t.name(word(to+1), word(to+2))
	case "RELEASE", "SAVEPOINT":
		if word(0) == "SAVEPOINT" {
			t.name("", word(1))
		} else {
			t.name(word(1), word(2))
		}
	case "PRAGMA":
		t.bare, t.reads = true, false
		i := 1
		if word(2) == "." {
			i = 3
		}
		t.pragma = strings.ToLower(strings.TrimPrefix(word(i), `"`))
		t.assigns = word(i+1) != ""
		if !looks(t.pragma, t.assigns) {
			t.refuse(fmt.Errorf("sqlite store: pragma %s is not for a transaction: nothing was run", t.pragma))
		}
	case "ATTACH", "DETACH", "VACUUM":
		t.reads = false
		t.bare = word(0) == "VACUUM"
		t.refuse(fmt.Errorf("sqlite store: %s is not for a transaction: nothing was run", word(0)))
	case "CREATE", "DROP", "ALTER", "ANALYZE": // ANALYZE writes tables of the schema, uncounted
		t.reads, t.schema = false, true
	case "INSERT", "UPDATE", "DELETE", "REPLACE":
		t.reads, t.counts = false, true
	default:
		t.reads = false
	}
}

func (t *text) control(word string) {
	t.reads, t.ends = false, true
	t.refuse(&fault{kind: store.ErrForeignCommit, text: word + " as text: nothing was run"})
}

// name refuses a savepoint called like the unit's own; optional is what stands
// where the word SAVEPOINT may be left out.
func (t *text) name(optional, name string) {
	t.reads, t.savepoint = false, true
	if optional != "SAVEPOINT" && optional != "" {
		name = optional
	}
	if strings.HasPrefix(strings.ToLower(strings.TrimPrefix(name, `"`)), "unavez") {
		t.control("savepoint " + name)
	}
}

// looks reports whether a pragma only looks and may run in a transaction.
func looks(name string, assigns bool) bool {
	switch name {
	case "table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo",
		"foreign_key_list", "foreign_key_check", "database_list", "collation_list", "function_list",
		"compile_options", "quick_check", "integrity_check":
		return true
	case "user_version", "application_id", "schema_version", "foreign_keys", "journal_mode", "synchronous",
		"page_count", "page_size", "freelist_count", "encoding", "data_version", "query_only", "defer_foreign_keys":
		return !assigns
	}
	return false
}

// fixed reports whether a pragma is the package's own affair: changing it on
// the writer would break its promises.
func fixed(name string) bool {
	switch name {
	case "journal_mode", "synchronous", "locking_mode", "query_only", "busy_timeout", "writable_schema",
		"read_uncommitted", "journal_size_limit", "fullfsync", "checkpoint_fullfsync", "ignore_check_constraints",
		"foreign_keys", "temp_store_directory", "key", "rekey", "secure_delete":
		return true
	}
	return false
}

// maxWords is how many words at the front of a statement decide what it is.
const maxWords = 6

// scanner walks over the tokens of a text.
type scanner struct {
	rest string
}

// statement returns the leading words of the next statement, as token gives
// them, and whether there is more behind it.
func (s *scanner) statement() (words []string, more bool) {
	trigger, ending, after := false, false, false // after: the last token was a semicolon
	for {
		word, ok := s.token()
		if !ok {
			return words, false
		}
		if word == ";" {
			if !trigger || ending {
				return words, true
			}
			after = true
			continue
		}
		if trigger {
			ending = after && strings.EqualFold(word, "END")
		}
		after = false
		if len(words) < maxWords {
			words = append(words, word)
			trigger = trigger || isTrigger(words)
		}
	}
}

// isTrigger tells [EXPLAIN [QUERY PLAN]] CREATE [TEMP|TEMPORARY] TRIGGER.
func isTrigger(words []string) bool {
	is := func(i int, word string) bool { return i < len(words) && strings.EqualFold(words[i], word) }
	i := 0
	if is(0, "EXPLAIN") {
		i = 1
		if is(1, "QUERY") && is(2, "PLAN") {
			i = 3
		}
	}
	if !is(i, "CREATE") {
		return false
	}
	i++
	if is(i, "TEMP") || is(i, "TEMPORARY") {
		i++
	}
	return is(i, "TRIGGER")
}

// token returns the next word, name, semicolon or other sign; ok is false at
// the end. What stood in quotes is returned with one double quote before it, so
// that no string passes for a word or a semicolon.
func (s *scanner) token() (word string, ok bool) {
	for s.rest != "" {
		c := s.rest[0]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\v' || c == '\f' || c == '\r': // \v counts within a run of spaces
			s.rest = s.rest[1:]
		case strings.HasPrefix(s.rest, "\xef\xbb\xbf"): // SQLite takes a byte order mark for a space
			s.rest = s.rest[3:]
		case strings.HasPrefix(s.rest, "--"):
			_, s.rest, _ = strings.Cut(s.rest, "\n")
		case strings.HasPrefix(s.rest, "/*") && len(s.rest) > 2:
			_, s.rest, _ = strings.Cut(s.rest[2:], "*/")
		case c == '\'' || c == '"' || c == '`':
			return s.quoted(c), true
		case c == '[':
			word, s.rest, _ = strings.Cut(s.rest[1:], "]")
			return `"` + word, true
		case c == '$' || c == '@' || c == '#' || c == ':':
			n := variable(s.rest)
			word, s.rest = s.rest[:n], s.rest[n:]
			return word, true
		case wordByte(c):
			n := 1
			for n < len(s.rest) && wordByte(s.rest[n]) {
				n++
			}
			word, s.rest = s.rest[:n], s.rest[n:]
			return word, true
		default:
			word, s.rest = s.rest[:1], s.rest[1:]
			return word, true
		}
	}
	return "", false
}

// quoted reads a string or name whose quotes are doubled inside.
func (s *scanner) quoted(quote byte) string {
	q := string(quote)
	rest := s.rest[1:]
	var b strings.Builder
	b.WriteByte('"')
	for {
		part, behind, found := strings.Cut(rest, q)
		b.WriteString(part)
		if !found || !strings.HasPrefix(behind, q) {
			s.rest = behind
			return b.String()
		}
		b.WriteByte(quote)
		rest = behind[1:]
	}
}

// variable is the length of a variable's name, as SQLite takes it: with the
// colons and the parenthesis of a Tcl variable, which may hold quotes.
func variable(text string) int {
	letters := 0
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case wordByte(c):
			letters++
		case c == '(' && letters > 0:
			for i++; i < len(text) && text[i] != ')' && !strings.ContainsRune(" \t\n\v\f\r", rune(text[i])); i++ {
			}
			if i < len(text) && text[i] == ')' {
				i++
			}
			return i
		case c == ':' && i+1 < len(text) && text[i+1] == ':':
			i++
		default:
			return i
		}
	}
	return len(text)
}

func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= 0x80
}
