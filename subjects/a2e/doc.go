// Package a2e holds the messages by which an agent meets its environment: the
// handshake of A2E 1.0, in which it says what it would like to use and hears
// what is there, and the calls of the session that follows.
//
// Decoding is as strict as package fleet's: exact member names, no duplicates,
// UTF-8, bounds of size and depth; unknown members are kept and written back.
// A message of the source document is valid as it stands.
//
// Every decoder returns a *subjects.Error: payload_too_large, version_mismatch
// (which wins over all other errors of a message), invalid_id or
// invalid_message, with further problems in its Also. An offer to shake hands
// that can be read but not be granted is no error: it is a Response whose ok is
// false, see Refusal.
package a2e
