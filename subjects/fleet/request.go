package fleet

import (
	"bytes"
	stdjson "encoding/json"
	"strings"

	"github.com/go-json-experiment/json"

	"parley/subjects"
)

// DecodeRequest reads the request of an API call. An empty payload is the zero
// value, which is refused where the call needs a task_id or agent_id.
func DecodeRequest[T any](data []byte) (T, error) {
	var v, zero T
	if len(bytes.TrimSpace(data)) > 0 {
		if err := strict.check(data); err != nil {
			return zero, err
		}
		if err := unmarshal(data, &v); err != nil {
			return zero, err
		}
	}
	var p problems
	switch r := any(&v).(type) {
	case interface{ check(p *problems) }:
		r.check(&p)
	case Checker:
		r.Check(&p)
	}
	if err := p.err(); err != nil {
		return zero, err
	}
	return v, nil
}

// DecodeStored reads what the fleet's own workers have stored: of any size, as
// a DecodeRequest otherwise.
func DecodeStored[T any](data []byte) (*T, error) {
	if err := trusted.check(data); err != nil {
		return nil, err
	}
	v := new(T)
	if err := unmarshal(data, v); err != nil {
		return nil, err
	}
	return v, nil
}

// DecodeReply reads the reply to an API call. An ErrorReply becomes the error,
// a *subjects.Error.
func DecodeReply[T any](data []byte) (T, error) {
	var v, zero T
	if err := trusted.check(data); err != nil {
		return zero, err
	}
	if err := errorReply(data); err != nil {
		return zero, err
	}
	if err := unmarshal(data, &v); err != nil {
		return zero, err
	}
	return v, nil
}

// errorReply returns the error that data holds if it is an ErrorReply: an
// object of that one member. A result has an error too, among others.
func errorReply(data []byte) error {
	if !bytes.Contains(data, []byte(`"error"`)) {
		return nil
	}
	var r struct {
		Error *subjects.Error `json:"error"`
		Rest  Unknown         `json:",unknown"`
	}
	if json.Unmarshal(data, &r) != nil || r.Error == nil || r.Error.Code == "" || len(r.Rest) > 0 {
		return nil
	}
	return r.Error
}

func (r *TaskRef) check(p *problems) { p.taskID("/task_id", r.TaskID, true) }

func (r *TaskWait) check(p *problems) {
	p.taskID("/task_id", r.TaskID, true)
	p.between("/timeout_seconds", r.TimeoutSeconds, 0, 60)
}

func (r *TaskEvents) check(p *problems) {
	p.taskID("/task_id", r.TaskID, true)
	p.between("/limit", float64(r.Limit), 0, 1000)
}

func (r *TaskLogs) check(p *problems) { p.taskID("/task_id", r.TaskID, true) }

func (r *TaskCancel) check(p *problems) { p.taskID("/task_id", r.TaskID, true) }

func (r *TaskAnswer) check(p *problems) {
	p.taskID("/task_id", r.TaskID, true)
	p.parts("/parts", r.Parts)
	p.object("/metadata", &r.Metadata)
	if r.Text == "" {
		r.Text = TextOf(r.Parts)
	}
	if r.Text == "" && len(r.Parts) == 0 {
		p.invalid("/text", "an answer needs text or parts")
	}
}

func (r *TaskMessage) check(p *problems) {
	p.taskID("/task_id", r.TaskID, true)
	p.parts("/parts", r.Parts)
	p.object("/metadata", &r.Metadata)
	if r.ID != "" {
		p.refID("/id", r.ID)
	}
	if r.Text == "" {
		r.Text = TextOf(r.Parts)
	}
	if r.Text == "" && len(r.Parts) == 0 {
		p.invalid("/text", "a message needs text or parts")
	}
}

func (r *TaskResume) check(p *problems) {
	p.taskID("/task_id", r.TaskID, true)
	p.human(r.Verb, r.AgentID, r.Text, r.Result)
	p.token("/answer_id", "answer_id", r.AnswerID, false)
	if len(r.By) > maxName {
		p.invalid("/by", "expected at most %d bytes, got %d", maxName, len(r.By))
	}
}

// maxHumanText bounds what a human writes, in bytes.
const maxHumanText = 16 << 10

// human checks what a human decided about a task or an alert.
func (p *problems) human(verb string, agent subjects.AgentID, text string, result stdjson.RawMessage) {
	if verb == "" {
		p.invalid("/verb", "expected one of %s, got nothing", strings.Join(HumanVerbs(), ", "))
	}
	p.oneOf("/verb", verb, HumanVerbs()...)
	p.agentID("/agent_id", agent, verb == VerbReassign)
	if verb == VerbAnswer && strings.TrimSpace(text) == "" {
		p.invalid("/text", "expected what the next agent is to know, got nothing")
	}
	if len(text) > maxHumanText {
		p.invalid("/text", "expected at most %d bytes, got %d", maxHumanText, len(text))
	}
	if verb == VerbComplete && (len(result) == 0 || null(result)) {
		p.invalid("/result", "expected a TASK_RESULT, got nothing")
	}
}

func (r *TaskList) check(p *problems) {
	p.state(r.State, false)
	p.agentID("/agent_id", r.AgentID, false)
	p.agentID("/from", r.From, false)
	p.runID("/run_id", r.RunID)
	p.sessionID("/session_id", r.SessionID)
	p.labels("/labels", r.Labels)
	p.token("/id_part", "id_part", r.IDPart, false)
	if len(r.Text) > maxName {
		p.invalid("/text", "expected at most %d bytes", maxName)
	}
	p.between("/limit", float64(r.Limit), 0, 1000)
}

func (r *AgentList) check(p *problems) {
	p.agentID("/agent_id", r.AgentID, false)
	p.between("/limit", float64(r.Limit), 0, 1000)
	agent, instance, _ := strings.Cut(r.After, ".")
	if r.After != "" && (!subjects.ValidToken(agent) || !subjects.ValidToken(instance)) {
		p.invalid("/after", "expected the next of a page before, got %q", clip(r.After))
	}
}

func (r *AgentForget) check(p *problems) { p.agentID("/agent_id", r.AgentID, true) }

func (r *AgentDrain) check(p *problems) { p.agentID("/agent_id", r.AgentID, true) }
