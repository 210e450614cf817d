// Package handshake holds the messages of the session protocol 1.x: the session
// record, the handshake in its three phases (init, ack, context exchange), the
// context with its entries, an agent's identity and the log line; the requests
// and replies of the session API; and session tokens.
//
// Decoding is as strict as package fleet's: exact member names, no duplicates,
// UTF-8, at most fleet.MaxMessage bytes and fleet.MaxDepth levels; unknown
// members are kept and written back. A message of the source document is valid
// as it stands: what Parley adds is optional.
//
// Every decoder returns a *subjects.Error: payload_too_large, version_mismatch
// (which wins over all other errors of a message), invalid_id or
// invalid_message, with further problems in its Also.
//
// A token is checked against a clock and keys that the caller passes: nothing
// here reads either.
package handshake
