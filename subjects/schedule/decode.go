package schedule

import (
	"bytes"
	"embed"
	"errors"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
	"parley/subjects/run"
)

// What is wrong with a cron expression that is none to begin with.
var (
	errZone  = errors.New("the time zone is a member of its own, time_zone")
	errEvery = errors.New("an interval is a member of its own, every_seconds")
	errNever = errors.New("there is no such day")
)

//go:embed schema/*.json
var schemaFiles embed.FS

// Schemas returns the names of the messages that have a JSON Schema.
func Schemas() []string { return []string{"schedule"} }

// Schema returns the JSON Schema (2020-12) of a message; what fleet.Schema says
// of leniency holds here too: the clock and what is to be done have rules of
// their own.
func Schema(name string) ([]byte, error) {
	return subjects.ReadSchema(schemaFiles, Schemas(), name)
}

// Bounds of members.
const (
	minEvery = 1               // seconds
	maxEvery = 366 * 24 * 3600 // seconds
	maxGrace = 24 * 3600       // seconds
	maxText  = 1024            // bytes of a description
)

// Decode reads a SCHEDULE. Missed and Overlap are set afterwards.
func Decode(data []byte) (*Definition, error) {
	return fleet.DecodeMessage[Definition](data, TypeSchedule)
}

// Check adds every problem of d and settles its defaults.
func (d *Definition) Check(p *fleet.Problems) {
	name(p, "/name", string(d.Name), true)
	if len(d.Description) > maxText {
		p.Invalid("/description", "expected at most %d bytes, got %d", maxText, len(d.Description))
	}
	p.OneOf("/missed", string(d.Missed), string(Once), string(SkipThem))
	p.OneOf("/overlap", string(d.Overlap), string(Skip), string(Queue), string(Cancel))
	p.Between("/grace_seconds", d.GraceSeconds, 0, maxGrace)
	if d.Missed == "" {
		d.Missed = Once
	}
	if d.Overlap == "" {
		d.Overlap = Skip
	}
	d.checkClock(p)
	d.checkWork(p)
}

func (d *Definition) checkClock(p *fleet.Problems) {
	said := 0
	for _, is := range []bool{d.Cron != "", d.EverySeconds != 0, d.At != nil} {
		if is {
			said++
		}
	}
	switch {
	case said > 1:
		p.Add(subjects.Errorf(subjects.CodeInvalidMessage, "it has more than one clock").At("/cron").
			WithRemedy("send one of cron, every_seconds, at"))
		return
	case d.TimeZone != "" && d.Cron == "":
		p.Invalid("/time_zone", "it is of no use without cron")
	case d.EverySeconds != 0:
		p.Between("/every_seconds", d.EverySeconds, minEvery, maxEvery)
		if d.EverySeconds < 0 {
			return
		}
	}
	if _, err := d.Clock(time.Time{}); err != nil {
		p.Add(subjects.AsError(err))
	}
}

// checkWork checks what is to be done, with the rules of its own message.
func (d *Definition) checkWork(p *fleet.Problems) {
	said := 0
	for _, w := range []struct {
		at   string
		raw  *[]byte
		read func([]byte) error
	}{
		{"/dispatch", (*[]byte)(&d.Dispatch), checkDispatch},
		{"/message", (*[]byte)(&d.Message), checkMessage},
		{"/run", (*[]byte)(&d.Run), checkRun},
	} {
		if string(*w.raw) == "null" {
			*w.raw = nil
		}
		if len(*w.raw) == 0 {
			continue
		}
		said++
		if !bytes.HasPrefix(bytes.TrimSpace(*w.raw), []byte("{")) {
			p.Invalid(w.at, "expected an object")
			continue
		}
		if err := w.read(*w.raw); err != nil {
			e := subjects.AsError(err)
			all := append([]*subjects.Error{e}, e.Also...)
			e.Also = nil
			for _, problem := range all {
				p.Add(problem.At(w.at + problem.Pointer))
			}
		}
	}
	if said != 1 {
		p.Add(subjects.Errorf(subjects.CodeInvalidMessage, "expected one thing to do, got %d", said).At("/dispatch").
			WithRemedy("send one of dispatch, message, run"))
	}
	if d.Overlap == Cancel && len(d.Message) > 0 {
		p.Add(subjects.Errorf(subjects.CodeInvalidMessage, "a message cannot be taken back").At("/overlap").WithRemedy("use skip or queue"))
	}
}

// derived is what must be left out, because each time has its own.
func derived(pointer, what string) error {
	return subjects.Errorf(subjects.CodeInvalidMessage, "%s is not for all times", what).At(pointer).
		WithRemedy("leave it out: each time has its own")
}

func checkDispatch(data []byte) error {
	d, err := fleet.DecodeDispatch(data)
	switch {
	case err != nil:
		return err
	case d.Task.TaskID != "":
		return derived("/task/task_id", "an id")
	case d.Task.IdempotencyKey != "":
		return derived("/task/idempotency_key", "an idempotency key")
	case d.Deadline != nil:
		return derived("/deadline", "a deadline")
	}
	return nil
}

func checkMessage(data []byte) error {
	m, err := mesh.DecodeMessage(data)
	switch {
	case err != nil:
		return err
	case m.MessageID != "":
		return derived("/message_id", "an id")
	case m.Receiver() == "":
		return subjects.Errorf(subjects.CodeInvalidID, "expected the agent that it is for, got nothing").At("/to")
	}
	return nil
}

func checkRun(data []byte) error {
	d, err := run.Decode(data)
	if err == nil && d.TaskID != "" {
		return derived("/task_id", "an id")
	}
	return err
}

func name(p *fleet.Problems, pointer, s string, required bool) {
	if s == "" && !required || subjects.ValidToken(s) {
		return
	}
	p.Add(subjects.Errorf(subjects.CodeInvalidID, "%.80q is not an identifier", s).At(pointer).
		WithRemedy("use 1 to 64 of the characters A-Z a-z 0-9 _ -"))
}

func agent(p *fleet.Problems, pointer string, id subjects.AgentID) {
	if id != "" {
		_, err := subjects.ParseAgentID(string(id))
		p.ID(pointer, err)
	}
}
