// Package crash names the points between two steps of a worker at which its
// process can be made to die. In an ordinary build Point does nothing and
// costs nothing; built with the tag crashpoints it ends the process by SIGKILL
// where PARLEY_CRASH_AT says so, and Lost makes writes that were done look as if
// they had timed out as PARLEY_LOSE_ACKS says, which is how the sweep of crash points tests
// that nothing is lost or done twice.
package crash
