// Package run is the contract of runs: tasks tied by dependencies.
//
// A Definition says what is to be done, by whom and in which order; it is
// checked at the door, with every problem at once. A Record says how far a run
// has come.
package run
