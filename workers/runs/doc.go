// Package runs carries out runs: tasks tied by dependencies.
//
// # Promises
//
// The record of a run (fleet.run.<run>, by compare-and-set) is all that there is
// to know of it: it says of each node whether it waits, was dispatched as which
// task, or how it ended. Next decides what follows from it, and is pure.
//
// A node is written down as dispatched before its task is dispatched, under an
// id that follows from run, node and generation. So whoever takes a run over
// may dispatch everything that the record says, and asks about all of it:
// whatever was heard or missed, a node has one task per generation. A result is
// stored beside the record which says that the node has ended, and what follows
// waits for both; one that was lost in between with its worker is read from its
// task again. When a run's last record is written, all results are stored.
//
// Any number of workers may run. Each run is driven by its owner (rendezvous
// hashing over the workers that live); where two believe to own it,
// compare-and-set decides, and what they dispatch is the same.
//
// # Backpressure
//
// The fleet's: a refusal as rate_limited or unavailable is tried again after a
// second. A run has at most 32 calls in hand.
package runs
