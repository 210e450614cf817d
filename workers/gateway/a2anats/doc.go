// Package a2anats is the client side of A2A over NATS: a Transport for the
// official Go SDK, and the words that client and gateway share. The binding is
// described in docs/reference/a2a-over-nats.md.
//
// A call is a request with any number of frames as replies. The transport keeps
// a stream going across the loss of a gateway: it subscribes to the task again
// behind the last event that it had, at whichever gateway is there.
package a2anats
