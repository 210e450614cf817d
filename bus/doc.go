// Package bus is the one door to NATS: connect, publish, request, serve,
// store, read back, tail, consume, key-value, objects, provisioning and dead
// letters. No other package of this module imports NATS, and no NATS type or
// error value crosses the door.
//
// # Guarantees
//
// Core messages (Publish, Subscribe) are at-most-once. Store and Records
// return only after the server acknowledged the write; whether that means an
// fsync is the server's setting (see bus/embedded). Records are written by
// compare-and-set on one literal subject; a write that timed out is read back
// from the stream's leader and is never sent again blindly. Tail gives each
// stored message once and in order, across reconnects. Consume is
// at-least-once: handlers are idempotent and never acknowledge, their error is
// the verdict (nil, Later, Never, any other).
//
// # Backpressure
//
// A slow Subscribe or Serve handler fills its subscription's buffer (256 MiB);
// what does not fit is dropped by the client and logged as a slow consumer. A
// slow Tail handler stalls the server's flow control, never memory. Consume
// takes no more messages than it has free handlers. A full stream refuses
// writes with ErrFull.
//
// All times are UTC.
package bus
