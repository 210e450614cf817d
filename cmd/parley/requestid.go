package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"strings"

	"github.com/spf13/pflag"

	"parley/bus"
	"parley/subjects"
)

// requestID is the flag that makes a command a repeat of one that brought no
// answer.
type requestID struct{ id string }

func (r *requestID) bind(fs *pflag.FlagSet) {
	fs.StringVar(&r.id, "request-id", "", "repeat the request of this id, of which no answer came: it counts once")
}

// value is the id that the request goes with: a new one, unless it is a repeat.
// Every call of a command with that value is the same request.
func (r *requestID) value() string {
	r.id = cmp.Or(r.id, strings.ToLower(rand.Text()))
	return r.id
}

// repeatable tells how a request is repeated so that it counts once, if err leaves
// open whether it was carried out.
func (r *requestID) repeatable(err error) error {
	if !isUnclear(err) {
		return err
	}
	p := explain(err)
	p.where = "it may have been done all the same"
	return p.next("repeat the command with --request-id " + r.value() + "  and it counts once; a longer --timeout may help")
}

// isUnclear reports whether nobody knows what became of a request.
func isUnclear(err error) bool {
	return errors.Is(err, bus.ErrTimeout) || subjects.CodeOf(err) == subjects.CodeUnavailable
}

// lookFirst are the calls that do more if they are repeated, and the command that
// tells whether they were carried out. A repeat of any other does no harm: it
// changes nothing, has an id of its own, or says how things are to be.
func lookFirst(noun, verb string) string {
	return map[string]string{
		"task dispatch":      "parley task ls",
		"task answer":        "parley task get TASK",
		"task message":       "parley task get TASK",
		"escalation silence": "parley escalation ls",
		"session create":     "parley session ls",
		"session append":     "parley session context SESSION",
		"run start":          "parley run ls",
		"run retry":          "parley run get RUN",
		"mesh send":          "parley mesh thread THREAD",
		"schedule run":       "parley schedule get NAME",
		"webhook replay":     "parley webhook ls",
		"identity rotate":    "parley identity get AGENT",
		"a2e call":           "parley session context SESSION",
	}[noun+" "+verb]
}
