// Package escalation is the worker that tells humans, and takes their answers.
//
// It reads what the routers record and keeps every escalation of any level as a
// message of the session protocol. What is a human's (level 3) it logs to
// CHANGE.log and, while the task waits, makes part of an alert: tasks that fail
// for one cause are one alert. It calls the contacts one after the other, by
// deliveries that the webhooks worker sends, and repeats that until somebody
// acknowledges or answers. Answers become calls of task resume: the routers
// alone write task records.
//
// Tasks that wait for an agent, an account or terms have no record that says so.
// The worker asks the routers why tasks wait, and notifies people once for a cause.
//
// Order: none across tasks. Duplication: any number of replicas run at once.
// They share what is in the bucket FLEET_ALERTS and change it by
// compare-and-set; a call has one delivery id, derived from alert, number and
// contact, whoever makes it. After a crash a line of CHANGE.log may be there
// twice where its end cannot be read; nothing else is. In doubt a human is told
// rather twice than never. Backpressure: what is a human's is taken from its
// stream as fast as it is stored.
package escalation
