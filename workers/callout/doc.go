// Package callout keeps identities, and judges by them who connects and who
// sends.
//
// The worker serves the API identity.*, and answers the servers that ask who may
// connect (auth callout), where it has the key of their issuer. Whoever proves
// an identity gets what the catalogue allows it, for a short time. Identities is
// what each process knows of all records; its Guard judges announces, and where
// messages must be signed, every message that is not a worker's own.
//
// # Promises
//
// Whatever fails here, nobody gets in by it: no answer is a refusal. A proof
// counts once, whichever process it comes to; only a message of a stream that
// comes again counts again. A revoked identity gets in nowhere from the moment
// that identity revoke is answered; a connection that it has ends with its time,
// and its signed messages are refused as soon as the processes have heard of it.
//
// Secrets are stored sealed, and opened in the memory of workers only. Every
// decision is told to the audit; of refusals beyond 20 a second their number.
//
// # Order and backpressure
//
// A decision takes two writes and a read of the store. Proofs that are wrong
// cost none of them, so a flood of them takes the worker's time and nothing
// else.
package callout
