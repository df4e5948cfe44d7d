// Package interop compares the codec of source/cloudevents with the SDK of the
// CloudEvents project: what one writes, the other reads alike, in every content
// mode. It is a module of its own, so that the SDK is a dependency of this test
// and of nothing else.
package interop
