package remote

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/a2aproject/a2a-go/v2/a2a"
	gojson "github.com/go-json-experiment/json"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// maxOutput is the longest output that fits into a result for sure.
const maxOutput = fleet.MaxMessage - 128<<10

// report is what a fleet tells of its task under fleet.ContractURI.
type report struct {
	Status        fleet.Status       `json:"status"`
	NextSteps     []string           `json:"next_steps"`
	Remaining     []string           `json:"remaining"`
	BlockedReason string             `json:"blocked_reason"`
	Error         *fleet.ResultError `json:"error"`
}

func (s *story) report() (r report) {
	data, err := json.Marshal(s.meta[fleet.ContractURI])
	if err != nil || gojson.Unmarshal(data, &r) != nil {
		return report{}
	}
	return r
}

// outcome is what a handler returns for a story that is over.
func (s *story) outcome(d *fleet.Dispatch) (fleet.Result, error) {
	spent := fleet.Result{TokensSpent: s.tokens}
	said := s.report()
	why := textOf(s.status)
	switch {
	case s.answer != nil || s.state == a2a.TaskStateCompleted:
	case s.state == a2a.TaskStateRejected:
		return spent, agent.Blocked(orElse(said.BlockedReason, orElse(why, "the remote agent rejects the task")))
	case s.state == a2a.TaskStateCanceled:
		return spent, &agent.Fail{Message: "the task was canceled on the remote agent's side: " + orElse(why, "it does not say why")}
	default:
		f := &agent.Fail{Retryable: true, Message: orElse(why, "the remote agent failed and does not say why")}
		if e := said.Error; e != nil {
			// Another fleet has tried for us already, and knows.
			f.Retryable, f.Message = e.Retryable, orElse(e.Message, f.Message)
			if slices.Contains([]subjects.Code{subjects.CodeBudgetExhausted, subjects.CodeAgentTimeout, subjects.CodeResultInvalid}, e.Code) {
				f.Code = e.Code
			}
		}
		return spent, f
	}
	r, err := s.result(d)
	r.TokensSpent = max(r.TokensSpent, s.tokens)
	if err != nil {
		return r, err
	}
	if said.Status == fleet.StatusPartial {
		r.Status, r.Remaining = fleet.StatusPartial, said.Remaining
	}
	if len(said.NextSteps) > 0 {
		r.NextSteps = said.NextSteps
	}
	return r, nil
}

// result makes a result of what the agent has given: the text of its artifacts,
// or their data; what else they hold was handed in as artifacts.
func (s *story) result(d *fleet.Dispatch) (fleet.Result, error) {
	var parts []fleet.Part
	var texts []string
	if s.answer != nil {
		var err error
		if parts, err = fleetParts(s.answer.Parts); err != nil {
			return fleet.Result{}, &agent.Fail{Err: err}
		}
		texts = append(texts, textOf(s.answer))
	}
	for _, p := range s.pieces {
		var b strings.Builder
		for _, part := range p.parts {
			if part.Text != nil {
				b.WriteString(*part.Text)
			}
		}
		texts, parts = append(texts, b.String()), append(parts, p.parts...)
	}
	text := strings.Join(slices.DeleteFunc(texts, func(t string) bool { return strings.TrimSpace(t) == "" }), "\n\n")
	var data []json.RawMessage
	for _, p := range parts {
		if len(p.Data) > 0 {
			data = append(data, p.Data)
		}
	}
	if len(data) == 1 && (text == "" || agent.WantsJSON(d)) {
		if len(data[0]) > maxOutput {
			return tooLong()
		}
		return fleet.Result{Status: fleet.StatusDone, Output: data[0]}, nil
	}
	if text == "" && len(parts) == 0 {
		text = orElse(textOf(s.status), textOf(s.last))
	}
	// Quoting makes a text longer, up to six times.
	if n := len(text); n > maxOutput || n > maxOutput/6 && len(fleet.MustEncode(text)) > maxOutput {
		return tooLong()
	}
	r, err := agent.ReadAnswer(text, d)
	if err == nil && s.answer != nil && onlyOthers(parts) {
		r.Parts, r.Output = parts, nil // files, say: no artifact has told of them
	}
	return r, err
}

func tooLong() (fleet.Result, error) {
	return fleet.Result{}, &agent.Fail{
		Code: subjects.CodePayloadTooLarge, Message: "the output is longer than a result can be; the artifacts have all of it",
	}
}

// onlyOthers reports whether parts are neither text nor data.
func onlyOthers(parts []fleet.Part) bool {
	return len(parts) > 0 && !slices.ContainsFunc(parts, func(p fleet.Part) bool { return p.Text != nil || len(p.Data) > 0 })
}

// question is what the agent asks, as the fleet asks it.
func (s *story) question(id string) fleet.Question {
	q := fleet.Question{ID: id, Text: textOf(s.status)}
	if s.status != nil {
		if parts, err := fleetParts(s.status.Parts); err == nil && sizeOf(parts) < maxChunk {
			q.Parts = parts
		}
	}
	if len(q.Text) > maxChunk {
		n := maxChunk
		for !utf8.RuneStart(q.Text[n]) {
			n--
		}
		q.Text = q.Text[:n]
	}
	if s.state == a2a.TaskStateAuthRequired {
		q.Text = strings.TrimSpace("The remote agent asks for authorization. " + q.Text)
	}
	q.Text = orElse(q.Text, "The remote agent asks for input and does not say for what.")
	return q
}
