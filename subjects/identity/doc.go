// Package identity holds who may speak on the bus, and the proof that they do:
// the agent signatures of the session protocol, and the records by which they
// are judged.
//
// A proof is an agent's id, a session (if it is about one), a time, a nonce and
// a signature. It goes with a connection, as its password or token, or with a
// message, as its headers. There are two forms of signature:
//
//	v1  v1.<key id>.<base64url of HMAC-SHA256>, with a key derived by
//	    HKDF-SHA256 (info "parley/agent-msg/v1") from the secret, over the
//	    length-prefixed fields "parley/agent-msg/v1", agent, session, time,
//	    nonce, subject, key id, hex SHA-256 of the body
//	v0  <hex of HMAC-SHA256>, with the secret itself, over agent + session + time
//
// v0 is the protocol's own. It covers neither the body nor the subject, is the
// same for two messages of one second, and its fields run into each other: so
// it counts only where a record says so, for ids and times of a form in which
// they cannot, for one body, and never after v1 was seen from that agent.
//
// Everything here is pure: the caller passes time and random bytes. The vectors
// in testdata/vectors.json are for other implementations.
package identity
