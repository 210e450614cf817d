// Package telemetry derives metrics and traces from what the fleet stores and
// tells anyway. Nothing else in the fleet is instrumented for it.
//
// Counts and times come from the records of tasks as they are heard on
// fleet.event: the workers of this kind share them in a queue group, so each
// record counts at one of them and the sum over all of them is right. Hearing
// is best effort: what passes while none of them runs, or while one is cut off,
// is not counted. Gauges are asked for when the page is read, of the other
// workers' statistics and of JetStream; every worker shows the same.
//
// No label has an unbounded number of values: what goes beyond is counted as
// other.
//
// Traces are made by those workers alone that have somewhere to send them, one
// of which hears of each end.
//
// Any number of them can run; none holds anything that is missed when it ends.
package telemetry
