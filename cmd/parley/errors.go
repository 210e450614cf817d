package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// Exit codes beside those of the error codes.
const (
	exitOK       = 0
	exitFailed   = 1 // an error without a code
	exitUsage    = 2
	exitPartial  = 3
	exitBlocked  = 4
	exitError    = 5
	exitCanceled = 6
	exitExpired  = 7

	exitInterrupted = 130
)

// outcomes is the exit code of each way a task may end.
var outcomes = []struct {
	state   fleet.State
	exit    int
	meaning string
}{
	{fleet.StateDone, exitOK, "the task is done"},
	{fleet.StatePartial, exitPartial, "the task is done in part; what remains is listed"},
	{fleet.StateBlocked, exitBlocked, "nobody could do the task; the reason says why"},
	{fleet.StateError, exitError, "the task failed"},
	{fleet.StateCanceled, exitCanceled, "the task was canceled"},
	{fleet.StateExpired, exitExpired, "the deadline passed first"},
}

// problem is an error as a person reads it: what, why or where, and what to
// type next. It stands for the error below it.
type problem struct {
	what  string
	where string
	then  string // the next command, or what else to do
	exit  int
	err   error // the cause; nil for the person's own mistake
}

// Error gives the first part.
func (p *problem) Error() string { return p.what }

// Unwrap returns the cause.
func (p *problem) Unwrap() error { return p.err }

// next sets what to do about it and returns p.
func (p *problem) next(then string) *problem { p.then = then; return p }

// because sets why, or where, and returns p.
func (p *problem) because(format string, args ...any) *problem {
	p.where = fmt.Sprintf(format, args...)
	return p
}

// usage is a mistake in what was typed or set.
func usage(format string, args ...any) *problem {
	err := fmt.Errorf(format, args...)
	return &problem{what: err.Error(), exit: exitUsage, err: errors.Unwrap(err)}
}

// failed is an error that is not one of the contract's.
func failed(format string, args ...any) *problem {
	err := fmt.Errorf(format, args...)
	return &problem{what: err.Error(), exit: exitFailed, err: errors.Unwrap(err)}
}

// ended is how a task's end becomes the command's: nil when it is done. It
// prints nothing, since the outcome has been shown.
type ended struct{ state fleet.State }

// Error names the state.
func (e ended) Error() string { return "the task ended as " + string(e.state) }

func outcomeError(s fleet.State) error {
	if s == fleet.StateDone {
		return nil
	}
	return ended{s}
}

// exitCode is the process's exit code for err.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[ended](err); ok {
		for _, o := range outcomes {
			if o.state == e.state {
				return o.exit
			}
		}
	}
	if p, ok := errors.AsType[*problem](err); ok && p.exit != 0 {
		return p.exit
	}
	if e, ok := errors.AsType[*subjects.Error](err); ok {
		return codeExit(e.Code)
	}
	if errors.Is(err, context.Canceled) {
		return exitInterrupted
	}
	return exitFailed
}

// explain turns any error into a problem.
func explain(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	p := &problem{what: err.Error(), err: err}
	e, ours := errors.AsType[*subjects.Error](err)
	switch {
	case ours:
		p.what = fmt.Sprintf("%s (%s)", e.Message, e.Code)
		if e.Pointer != "" {
			p.where = "at " + e.Pointer
		}
		p.then = e.Remedy
		if p.then == "" {
			p.then = codeRemedy(e.Code)
		}
	case errors.Is(err, context.Canceled):
		p.what = "interrupted"
	case errors.Is(err, bus.ErrDenied):
		p.then = "use credentials that may do this: parley subjects --permissions ROLE ID prints what a role may do"
	}
	return p
}

// report prints err: in three parts for a person, as one JSON object for a
// program.
func report(w io.Writer, err error, asJSON bool) {
	if _, ok := errors.AsType[ended](err); ok {
		return
	}
	p := explain(err)
	e, ours := errors.AsType[*subjects.Error](err)
	if asJSON {
		if !ours {
			e = &subjects.Error{Code: codeOf(p.exit), Message: p.what, Remedy: p.then}
			if p.where != "" {
				e.Message += ": " + p.where
			}
		}
		if data, jerr := json.Marshal(fleet.ErrorReply{Error: e}); jerr == nil {
			fmt.Fprintln(w, string(data))
		}
		return
	}
	fmt.Fprintln(w, "parley:", p.what)
	part(w, "where:", p.where)
	if ours {
		for _, also := range e.Also {
			part(w, "also:", strings.TrimPrefix(also.Pointer+": "+also.Message, ": "))
		}
	}
	part(w, "next:", p.then)
}

// part prints one labelled part, if there is one.
func part(w io.Writer, label, text string) {
	if text == "" {
		return
	}
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if i > 0 {
			label = ""
		}
		fmt.Fprintf(w, "  %-6s %s\n", label, line)
	}
}

// codeOf is the error code that has the exit code, or what comes closest.
func codeOf(exit int) subjects.Code {
	for _, c := range subjects.Codes() {
		if codeExit(c) == exit {
			return c
		}
	}
	if exit == exitUsage {
		return subjects.CodeInvalidMessage
	}
	return subjects.CodeInternal
}

// codeExit is the exit code of an error code.
func codeExit(c subjects.Code) int {
	_, _, exit, _ := subjects.CodeInfo(c)
	return exit
}

// codeRemedy is what helps against an error code in general.
func codeRemedy(c subjects.Code) string {
	_, remedy, _, _ := subjects.CodeInfo(c)
	return remedy
}

// isNotFound reports whether err says that a thing is not there.
func isNotFound(err error) bool {
	return errors.Is(err, bus.ErrNotFound) || subjects.CodeOf(err) == subjects.CodeNotFound
}
