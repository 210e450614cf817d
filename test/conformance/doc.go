// Package conformance holds the gateway against the A2A 1.0 specification: one
// check for every MUST and SHOULD that a server can be seen to keep, named by
// its section, through the whole path from the client's bytes over gateway,
// router and agent on a real NATS server and back, over JSON-RPC, HTTP+JSON
// and gRPC. Its table is docs/reference/a2a-conformance.md.
package conformance

//go:generate go test . -run ^TestReference$ -update
