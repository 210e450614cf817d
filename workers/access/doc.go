// Package access tells the audit what somebody was not let do: by a broker that
// runs in this process, to connect, or to publish or subscribe to a subject that
// is not theirs; by the workers of this process, a request that was forbidden,
// too large or no message.
//
// # Promises
//
// Each refusal becomes a line of the audit, of the event access_refused, under
// the name of whoever tried; who could not prove a name is "unknown". Of very
// many the first hundred are told, then twenty a second, and the next line says
// how many are unsaid. A line holds the subject, the action and the address:
// nothing of a message.
//
// # Order and backpressure
//
// Refusals are told in their order. The broker waits for nobody: what comes
// while the queue is full is counted with what is unsaid.
package access
