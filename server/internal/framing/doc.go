// Package framing refuses requests whose end two parsers could see in
// different places.
//
// net/http accepts a request that carries both Content-Length and
// Transfer-Encoding and drops the first. A proxy in front that believes the
// first has then sent something else than we received: the rest is a request
// that nobody authenticated. So each connection is watched below net/http. A
// scanner follows the bytes of every head and of every body's framing, also
// over keep-alive and pipelining, and at the first byte that is not strictly
// what RFC 9112 says it hands net/http a line that net/http itself answers with
// 400, after the answers to the requests before it, and then the end of the
// connection.
//
// Refused are Content-Length together with Transfer-Encoding, either of them
// twice, a Content-Length that is not only digits, a Transfer-Encoding that is
// not exactly chunked or comes with HTTP/1.0, folded header lines, lines that
// end in a bare LF, a CR without LF, NUL, white space around a header's name,
// and chunk sizes that are not plain hexadecimal.
package framing
