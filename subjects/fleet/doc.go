// Package fleet holds the messages of the fleet handshake, protocol 2.x:
// announce, heartbeat, dispatch, offer, progress, result, control, the records
// of a task, and the API's requests and replies.
//
// Decoding is strict: exact member names, no duplicates, UTF-8, at most
// MaxMessage bytes and MaxDepth levels; every error names the place by JSON
// pointer and says what was expected. Unknown members are kept and written
// back, so a newer peer's message passes through unharmed. A message of the
// source document is always valid as it stands: what Parley adds is optional.
//
// Every decoder returns a *subjects.Error: payload_too_large, version_mismatch
// (which wins over all other errors of a message), invalid_id, or
// invalid_message, with further problems in its Also. A null counts as absent,
// and so does an empty text where an identifier or one of several words may be.
// After decoding a message has its Type and ProtocolVersion even if it came
// without.
package fleet
