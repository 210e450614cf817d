package handshake

import (
	"encoding/json"
	"maps"
	"strconv"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Bounds of a context.
const (
	MaxInline = 128 << 10 // bytes of an output inside its entry; a larger one is stored in parts
	PartSize  = 512 << 10 // bytes of a part, the last one excepted
	MaxOutput = 64 << 20  // bytes of an output unless the fleet says otherwise
	MaxLimit  = 1000      // records of one page
	MaxWait   = 60        // seconds that a read may wait for news
)

// Requests and replies of the session API, fleet.api.<from>.session.<verb>.
// Every reply may instead be a fleet.ErrorReply.
//
// Who may use a session: its owner, operators, and whoever has its token.

// Create opens a session: session create.
type Create struct {
	TaskID       subjects.TaskID `json:"task_id,omitempty"`
	TaskMetadata TaskMetadata    `json:"task_metadata,omitzero"`
}

// Opened is the reply to session create and session update: the record, and the
// token that it is now used with.
type Opened struct {
	Session   Session   `json:"session"`
	Token     string    `json:"token"`
	KeptUntil time.Time `json:"kept_until"`
}

// Ref asks about one session: session get, session delete.
type Ref struct {
	SessionID subjects.SessionID `json:"session_id"`
	Token     string             `json:"token,omitempty"` // for who is neither owner nor operator
}

// View is the reply to session get.
type View struct {
	Session   Session   `json:"session"`
	Version   uint64    `json:"version"` // of its context
	KeptUntil time.Time `json:"kept_until"`
}

// Update renews a session, and changes what is given: session update. Only the
// owner and operators may.
type Update struct {
	SessionID    subjects.SessionID `json:"session_id"`
	TaskID       subjects.TaskID    `json:"task_id,omitempty"`
	TaskMetadata *TaskMetadata      `json:"task_metadata,omitempty"`
}

// Deleted is the reply to session delete.
type Deleted struct {
	SessionID subjects.SessionID `json:"session_id"`
	OK        bool               `json:"ok"`
}

// List asks for the sessions that the caller owns, an operator for all:
// session list.
type List struct {
	Limit int `json:"limit,omitzero"` // absent 100, at most 1000
}

// ListReply lists sessions, newest first.
type ListReply struct {
	Sessions []View `json:"sessions"`
	Total    int    `json:"total"`
}

// Greet is a handshake_init that the fleet passes on: session handshake. Its
// initiator is the caller; the reply is the target's handshake_ack.
type Greet struct {
	Init
	Token string `json:"token,omitempty"`
}

// Append adds what an agent did to the context: session append.
type Append struct {
	SessionID   subjects.SessionID         `json:"session_id"`
	Token       string                     `json:"token,omitempty"`
	Entry       Entry                      `json:"entry"` // agent_id and execution_time may be absent: the caller, now
	SharedData  map[string]json.RawMessage `json:"shared_data,omitempty"`
	Constraints *Constraints               `json:"constraints,omitempty"`
	Metadata    map[string]json.RawMessage `json:"metadata,omitempty"`
	// AfterVersion, if given, is the version that the caller has read: the
	// append is refused (context_conflict) when there is a later one.
	AfterVersion *uint64 `json:"after_version,omitempty"`
	// Redact masks what looks like a secret instead of refusing it.
	Redact bool `json:"redact,omitzero"`
	// Key makes a repeat of the append the same append.
	Key string `json:"key,omitempty"`
}

// Appended is the reply to session append.
type Appended struct {
	SessionID subjects.SessionID `json:"session_id"`
	Version   uint64             `json:"version"`
	Redacted  []string           `json:"redacted,omitempty"` // rule and place of what was masked
	Duplicate bool               `json:"duplicate,omitzero"` // the key was there already
}

// Record is one version of a context as it is stored.
type Record struct {
	SessionID   subjects.SessionID         `json:"session_id"`
	Version     uint64                     `json:"version"` // from 1, without gaps
	Time        time.Time                  `json:"time"`
	Entry       Entry                      `json:"entry"`
	SharedData  map[string]json.RawMessage `json:"shared_data,omitempty"`
	Constraints *Constraints               `json:"constraints,omitempty"`
	Metadata    map[string]json.RawMessage `json:"metadata,omitempty"`
	Key         string                     `json:"key,omitempty"`
	Unknown     fleet.Unknown              `json:",unknown"`
}

// Read asks for the context from a version on: session context. With a wait it
// answers as soon as there is news, or nothing when the time is over.
type Read struct {
	SessionID    subjects.SessionID `json:"session_id"`
	Token        string             `json:"token,omitempty"`
	AfterVersion uint64             `json:"after_version,omitzero"`
	Limit        int                `json:"limit,omitzero"`        // absent 100, at most 1000
	WaitSeconds  float64            `json:"wait_seconds,omitzero"` // at most 60
}

// ReadReply is a page of the context; More says that the next is not empty.
type ReadReply struct {
	SessionID subjects.SessionID `json:"session_id"`
	Version   uint64             `json:"version"` // the last there is
	Records   []Record           `json:"records"`
	More      bool               `json:"more,omitzero"`
}

// Put stores one part of a large output: session put. Once all parts are there
// an entry may name them (Entry.Stored).
type Put struct {
	SessionID subjects.SessionID `json:"session_id"`
	Token     string             `json:"token,omitempty"`
	Digest    string             `json:"digest"` // of the whole
	Index     int                `json:"index"`  // from 0
	Data      []byte             `json:"data"`   // base64; PartSize bytes, or fewer at the end
}

// PutReply is the reply to session put.
type PutReply struct {
	Digest string `json:"digest"`
	Index  int    `json:"index"`
}

// Fetch reads one part of a large output: session fetch.
type Fetch struct {
	SessionID subjects.SessionID `json:"session_id"`
	Token     string             `json:"token,omitempty"`
	Digest    string             `json:"digest"`
	Index     int                `json:"index"`
}

// FetchReply is the reply to session fetch.
type FetchReply struct {
	Digest string `json:"digest"`
	Index  int    `json:"index"`
	Data   []byte `json:"data"`
}

const maxToken = 256

func (p *problems) token(v string) { p.word("/token", v, maxToken, false) }

func (r *Create) check(p *problems) {
	p.taskID("/task_id", r.TaskID, false)
	r.TaskMetadata.check(p)
}

func (r *Ref) check(p *problems) {
	p.sessionID(r.SessionID)
	p.token(r.Token)
}

func (r *Update) check(p *problems) {
	p.sessionID(r.SessionID)
	p.taskID("/task_id", r.TaskID, false)
	if r.TaskMetadata != nil {
		r.TaskMetadata.check(p)
	}
}

func (r *List) check(p *problems) { p.between("/limit", r.Limit, MaxLimit) }

func (p *problems) between(pointer string, v, most int) {
	if v < 0 || v > most {
		p.add(invalid(pointer, "expected 0 to %d, got %d", most, v))
	}
}

func (r *Greet) check(p *problems) {
	if err := r.judge(TypeInit); err != nil {
		p.add(err)
		return
	}
	r.Init.check(p)
	p.token(r.Token)
}

func (r *Append) check(p *problems) {
	p.sessionID(r.SessionID)
	p.token(r.Token)
	if r.Entry.AgentID != "" {
		p.agentID("/entry/agent_id", r.Entry.AgentID)
	}
	r.Entry.checkWork(p, "/entry")
	if r.Entry.Version != 0 || r.Entry.Omitted {
		p.add(invalid("/entry/version", "the fleet gives an entry its version"))
	}
	r.Constraints.check(p, "/constraints")
	p.word("/key", r.Key, maxName, false)
}

func (r *Read) check(p *problems) {
	p.sessionID(r.SessionID)
	p.token(r.Token)
	p.between("/limit", r.Limit, MaxLimit)
	if r.WaitSeconds < 0 || r.WaitSeconds > MaxWait {
		p.add(invalid("/wait_seconds", "expected 0 to %d, got %g", MaxWait, r.WaitSeconds))
	}
}

func (r *Put) check(p *problems) {
	p.part(r.SessionID, r.Token, r.Digest, r.Index)
	if len(r.Data) == 0 || len(r.Data) > PartSize {
		p.add(invalid("/data", "expected 1 to %d bytes, got %d", PartSize, len(r.Data)))
	}
}

func (r *Fetch) check(p *problems) { p.part(r.SessionID, r.Token, r.Digest, r.Index) }

func (p *problems) part(id subjects.SessionID, token, digest string, index int) {
	p.sessionID(id)
	p.token(token)
	p.digest("/digest", digest)
	p.between("/index", index, 1<<20)
}

// DecodeRecord reads a stored version of a context. It is written by the
// fleet's own workers: what an entry says is not judged again.
func DecodeRecord(data []byte) (*Record, error) { return fleet.DecodeStored[Record](data) }

// Fold is the context that records (in order) make: every entry, and of the
// rest the latest word on each name.
func Fold(id subjects.SessionID, records []Record) *ContextView {
	v := &ContextView{SessionID: id}
	v.Context.SharedData = map[string]json.RawMessage{}
	for i := range records {
		r := &records[i]
		e := r.Entry
		e.Version = r.Version
		v.Context.PreviousAgents = append(v.Context.PreviousAgents, e)
		v.Context.Version = r.Version
		maps.Copy(v.Context.SharedData, r.SharedData)
		if len(r.Metadata) > 0 {
			if v.Context.Metadata == nil {
				v.Context.Metadata = map[string]json.RawMessage{}
			}
			maps.Copy(v.Context.Metadata, r.Metadata)
		}
		if r.Constraints != nil {
			v.Context.Constraints = r.Constraints
		}
	}
	return v
}

// Bound leaves findings and inline outputs out of v, the oldest first, until
// it takes at most size bytes as JSON, then the oldest entries as a whole; what
// is left out is there by its version. It reports false if even that is more.
func (v *ContextView) Bound(size int) bool {
	list := v.Context.PreviousAgents
	over := len(fleet.MustEncode(v)) - size
	for i := 0; i < len(list) && over > 0; i++ {
		e := &list[i]
		before := len(fleet.MustEncode(e))
		if len(e.Output) == 0 && len(e.Findings) == 0 {
			continue
		}
		e.Output, e.Findings, e.Omitted = nil, nil, true
		over -= before - len(fleet.MustEncode(e))
	}
	drop := 0
	if over > 0 {
		over += len(`"metadata":{"omitted_up_to_version":18446744073709551615},`)
	}
	for drop < len(list) && over > 0 {
		over -= len(fleet.MustEncode(&list[drop])) + 1
		drop++
	}
	if drop > 0 {
		v.Context.PreviousAgents = list[drop:]
		if v.Context.Metadata == nil {
			v.Context.Metadata = map[string]json.RawMessage{}
		}
		first := strconv.FormatUint(list[drop-1].Version, 10)
		v.Context.Metadata["omitted_up_to_version"] = json.RawMessage(first)
	}
	return len(fleet.MustEncode(v)) <= size
}

// Router is who asks with session offer; no agent may have that id.
const Router subjects.AgentID = "router"

// OfferContext asks for the context that goes with an offer: session offer.
// Only routers may.
type OfferContext struct {
	SessionID subjects.SessionID `json:"session_id"`
	From      subjects.AgentID   `json:"from"` // who dispatched the task
	// AfterSeq is a sequence of the stream of task records: the answer waits, not
	// for long, until the results of all tasks that had ended by then are in.
	AfterSeq uint64 `json:"after_seq,omitzero"`
}

// OfferContextReply is a context, bounded in size, and a token of its session.
type OfferContextReply struct {
	Context json.RawMessage `json:"context"` // a ContextView
	Token   string          `json:"token"`
}

func (r *OfferContext) check(p *problems) {
	p.sessionID(r.SessionID)
	p.agentID("/from", r.From)
}
