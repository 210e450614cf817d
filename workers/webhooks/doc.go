// Package webhooks is the worker that brings deliveries to their receivers by
// HTTP. Whoever wants a webhook called stores a fleet.Delivery in the outbox,
// the stream FLEET_WEBHOOKS; from then on it is this worker's.
//
// Delivery is at least once, always under one delivery id: a receiver that
// keeps the webhook-ids it has seen gets each exactly once. Deliveries to the
// same endpoint with the same order go one at a time, in the order in which
// they were stored. Nothing else is promised about order.
//
// Any number of workers share an outbox. Each reads the whole stream and knows
// every delivery; who attempts one is settled by compare-and-set on its state
// (fleet.webhookevent.<delivery>) before a byte is sent: the claim. A claim has
// a lease that is longer than the exchange can be. A worker that dies leaves
// its claim behind, and once others have waited for the lease they try again.
// Whatever the index holds can be told from the stream: pending, delivered or
// dead, the next attempt's time, and whether an endpoint's circuit is open.
//
// An endpoint that fails several times in a row has its circuit opened: what
// waits for it waits in memory and costs neither writes nor time-outs, and one
// delivery at a time probes whether it is back. Endpoints do not hold each
// other up. No endpoint is ever given up: only deliveries end.
//
// What may be called is checked where the connection is made: see guard.
package webhooks
