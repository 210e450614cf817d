// Package skew makes the wall clock of a process wrong, for the chaos suite: all
// of time.Now, also in libraries, while it runs. Programs that are shipped do
// not contain it.
package skew
