// Package config reads and checks the configuration of the unavez binary.
//
// Parse reports every fault at once, each with its line, its field and the way
// out; it never stops at the first. It reads the syntax tree of the YAML itself
// instead of decoding into structs, because a strict decoder reports only one
// unknown field at a time.
//
// Strings may name environment variables (${NAME}) and files (${file:path}).
// They are filled in after parsing, so that a value can never change the
// structure of the file. A literal ${ is written $${.
package config
