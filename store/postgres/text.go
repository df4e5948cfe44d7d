package postgres

import (
	"strings"
)

// endsTransaction reports whether a statement of a text would end the
// transaction it is sent in. The server takes several statements in one text
// when there are no arguments, so each of them is looked at. A statement inside
// a function or DO block cannot end it: the server refuses.
func endsTransaction(text string) bool {
	l := lexer{rest: text}
	for {
		first := l.word()
		switch first {
		case "commit", "end", "abort", "begin", "start":
			return true
		case "rollback":
			// ROLLBACK [WORK | TRANSACTION] TO stays inside.
			second := l.word()
			if second == "work" || second == "transaction" {
				second = l.word()
			}
			if second != "to" {
				return true
			}
		case "prepare":
			if l.word() == "transaction" {
				return true
			}
		}
		if !l.next() {
			return false
		}
	}
}

// lexer reads the words that begin statements.
type lexer struct{ rest string }

// word is the next word in lower case, "" where something else stands.
func (l *lexer) word() string {
	l.blank()
	n := 0
	for n < len(l.rest) && (isLetter(l.rest[n]) || n > 0 && l.rest[n] >= '0' && l.rest[n] <= '9') {
		n++
	}
	word := l.rest[:n]
	l.rest = l.rest[n:]
	return strings.ToLower(word)
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c >= 0x80 }

// blank skips white space and comments.
func (l *lexer) blank() {
	for l.rest != "" {
		switch {
		case strings.IndexByte(" \t\r\n\f\v", l.rest[0]) >= 0:
			l.rest = l.rest[1:]
		case strings.HasPrefix(l.rest, "--"):
			l.skipTo(strings.IndexAny(l.rest, "\r\n"), 1)
		case strings.HasPrefix(l.rest, "/*"):
			l.comment()
		default:
			return
		}
	}
}

// comment skips a block comment, which may hold others.
func (l *lexer) comment() {
	depth := 0
	for l.rest != "" {
		switch {
		case strings.HasPrefix(l.rest, "/*"):
			depth++
			l.rest = l.rest[2:]
		case strings.HasPrefix(l.rest, "*/"):
			depth--
			l.rest = l.rest[2:]
			if depth == 0 {
				return
			}
		default:
			l.rest = l.rest[1:]
		}
	}
}

// skipTo goes behind n bytes found at an index; to the end where it is negative.
func (l *lexer) skipTo(at, n int) {
	if at < 0 {
		l.rest = ""
		return
	}
	l.rest = l.rest[at+n:]
}

// next goes behind the end of the statement; false where the text ends with it.
func (l *lexer) next() bool {
	word := false // whether the byte before belongs to a word
	for l.rest != "" {
		c := l.rest[0]
		inWord := word
		word = isLetter(c) || c >= '0' && c <= '9' || c == '$'
		switch {
		case c == ';':
			l.rest = l.rest[1:]
			return true
		case strings.HasPrefix(l.rest, "--"), strings.HasPrefix(l.rest, "/*"):
			l.blank()
		case c == '"':
			l.skipTo(strings.IndexByte(l.rest[1:], '"'), 2)
		case c == '\'':
			l.quoted(false)
		case (c == 'e' || c == 'E') && !inWord && strings.HasPrefix(l.rest[1:], "'"):
			l.rest = l.rest[1:]
			l.quoted(true)
		case c == '$' && !inWord && l.dollar():
		default:
			l.rest = l.rest[1:]
		}
	}
	return false
}

// quoted skips a string. Without standard_conforming_strings a backslash
// escapes in every string; that setting is off by nobody's default, and the
// marker still finds what slips through.
func (l *lexer) quoted(escapes bool) {
	for i := 1; i < len(l.rest); i++ {
		switch {
		case l.rest[i] == '\\' && escapes:
			i++
		case l.rest[i] == '\'':
			l.rest = l.rest[i+1:]
			return
		}
	}
	l.rest = ""
}

// dollar skips a dollar-quoted string, if one begins here.
func (l *lexer) dollar() bool {
	n := 1
	for n < len(l.rest) && (isLetter(l.rest[n]) || n > 1 && l.rest[n] >= '0' && l.rest[n] <= '9') {
		n++
	}
	if n >= len(l.rest) || l.rest[n] != '$' {
		return false
	}
	tag := l.rest[:n+1]
	l.rest = l.rest[n+1:]
	l.skipTo(strings.Index(l.rest, tag), len(tag))
	return true
}
