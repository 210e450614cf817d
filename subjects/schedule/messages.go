package schedule

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Message types.
const (
	TypeSchedule = "SCHEDULE"
	TypeRecord   = "SCHEDULE_RECORD"
)

// Name names a schedule among those of its creator. One NATS token.
type Name string

// Missed is what becomes of times that nobody was there for, or that the fleet
// was too late for.
type Missed string

// The values of Missed.
const (
	Once     Missed = "once" // the default: the last of them is made up for, one time
	SkipThem Missed = "skip" // they are left out
)

// Overlap is what becomes of a time that comes while what was begun before is
// still under way.
type Overlap string

// The values of Overlap.
const (
	Skip   Overlap = "skip"   // the default: it is left out
	Queue  Overlap = "queue"  // it waits for the end of that
	Cancel Overlap = "cancel" // that is canceled
)

// Defaults and bounds.
const (
	DefaultGrace = time.Minute
	MaxWaiting   = 100 // times that wait by Queue, and calls to run now
	MaxAsked     = 100 // calls to run now of which a repeat is known
)

// Definition is SCHEDULE: when, and what.
type Definition struct {
	fleet.Header
	Name        Name   `json:"name"`
	Description string `json:"description,omitempty"`

	// When: one of these.
	Cron         string     `json:"cron,omitempty"`          // 5 fields, or 6 with the seconds first
	TimeZone     string     `json:"time_zone,omitempty"`     // of Cron, as in Europe/Berlin; absent: UTC
	EverySeconds float64    `json:"every_seconds,omitzero"`  // from the time of creation on
	At           *time.Time `json:"at,omitempty"`            // once
	Missed       Missed     `json:"missed,omitempty"`        // absent: once
	GraceSeconds float64    `json:"grace_seconds,omitempty"` // later than this is missed; absent 60
	Overlap      Overlap    `json:"overlap,omitempty"`       // absent: skip

	// What: one of these, without an id and without a deadline.
	Dispatch json.RawMessage `json:"dispatch,omitzero"` // TASK_DISPATCH
	Message  json.RawMessage `json:"message,omitzero"`  // MESH_MESSAGE
	Run      json.RawMessage `json:"run,omitzero"`      // TASK_DEFINITION

	Unknown fleet.Unknown `json:",unknown"`
}

// Grace is how late a time may be acted upon before it counts as missed.
func (d *Definition) Grace() time.Duration {
	if d.GraceSeconds == 0 {
		return DefaultGrace
	}
	return seconds(d.GraceSeconds)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// State is how a schedule stands.
type State string

// The states.
const (
	Active State = "active"
	Paused State = "paused"
	Ended  State = "ended" // nothing follows
)

// Record is how far a schedule has come: the truth about it, written by
// compare-and-set.
type Record struct {
	fleet.Header
	From       subjects.AgentID `json:"from"`
	Definition Definition       `json:"definition"`
	Generation int64            `json:"generation"` // tells it from others that had its name
	Created    time.Time        `json:"created"`
	State      State            `json:"state"`
	Reckoned   time.Time        `json:"reckoned"`       // the times up to this one are seen to
	Next       *time.Time       `json:"next,omitempty"` // when it is due
	Last       *Firing          `json:"last,omitempty"` // what was begun last, or is to be begun now
	Cancel     string           `json:"cancel,omitempty"`
	Waiting    []Firing         `json:"waiting,omitempty"` // to be begun when Last has ended
	Asked      []string         `json:"asked,omitempty"`   // ids of what the latest calls to run now have begun, or will
	Begun      int              `json:"begun,omitzero"`
	Missed     int              `json:"missed,omitzero"`  // nobody was there, or it was too late
	Skipped    int              `json:"skipped,omitzero"` // the one before was under way
	Refused    int              `json:"refused,omitzero"` // the fleet did not take it
	Unknown    fleet.Unknown    `json:",unknown"`
}

// Firing is one time at which a schedule has something done.
type Firing struct {
	ID     string        `json:"id"`   // of the task, run or message
	Time   time.Time     `json:"time"` // at which it was due, or asked for
	Manual bool          `json:"manual,omitzero"`
	Begun  *time.Time    `json:"begun,omitempty"`  // absent: it is being begun
	Reason *fleet.Reason `json:"reason,omitempty"` // the fleet did not take it
}

// ID is the id of what a schedule begins at a time: always the same one, so
// that whoever begins it again begins nothing new. what is the time, or what
// names a call to run now.
func (r *Record) ID(what string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %s", r.From, r.Definition.Name, r.Generation, what))
	return "sch-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:20]))
}

// Due is the firing of a time.
func (r *Record) Due(t time.Time) Firing {
	return Firing{ID: r.ID(t.UTC().Format(time.RFC3339Nano)), Time: t.UTC()}
}

// DecodeRecord reads a record, which the fleet's own workers write.
func DecodeRecord(data []byte) (*Record, error) { return fleet.DecodeStored[Record](data) }
