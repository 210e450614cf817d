// Package registry lists the fleet's agents and tells when one comes, goes,
// drains or resumes. It decides nothing: routers keep their own view, and no
// part of the fleet waits for a registry.
//
// It reads the announces that are kept (the last of each instance), heartbeats
// as they are heard, and the bucket in which operators and routers say who is
// drained and who cools down. From these it serves the API agent.list, in a
// queue group, so that several registries share the calls.
//
// # Promises
//
// A listing is what this registry has heard, never older than the heartbeat
// interval. After a start it knows every announce before it serves; an instance
// counts as live once it has been heard of within its lease, so that a listing
// may miss live ones until their next heartbeat.
//
// Events (fleet.agent.<agent>.<instance>) are best effort: not kept, not told
// for what happened while no registry ran, and told at least once by several
// registries together, each leaving out what it has heard from another.
//
// Progress that agents tell is kept for a day, the last 200 lines of each task at
// least, for whoever may see the task (task.logs). It is best effort: stored every
// two seconds, one chunk for each task, and lost with the registry that has not
// stored it yet.
//
// # Backpressure
//
// Of the progress that is not stored yet 20 000 lines are held at most; four writes
// are under way at a time. Beyond that, lines are left out.
//
// Calls are bounded by the bus's service. Nothing is queued here: a registry
// that falls behind loses heartbeats, which shows as agents that are lost, in
// its listing only.
package registry
