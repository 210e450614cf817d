// Package plant names bugs that can be planted, one at a time, to prove that
// the chaos suite's checker finds them. In an ordinary build Bug is false, and
// the compiler leaves the bugs out; built with the tag planted, PARLEY_PLANT
// names the one that is there, and PARLEY_CLOCK a file that says how wrong the
// clock is.
package plant
