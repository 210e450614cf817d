// Package subjects is Parley's wire contract: identifiers, subjects, the
// catalogue of who writes and reads what, and the error codes. The messages
// themselves live in one package per protocol beside it (fleet, …).
//
// It imports nothing of ours and nothing of NATS, reads no clock and does no
// I/O: everything here can be called from any goroutine at any time. Names
// with a grammar are types; they are parsed once at the edge and trusted
// inside.
package subjects

//go:generate go test . -run ^TestReference$ -update
