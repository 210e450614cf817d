package gateway

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	gojson "github.com/go-json-experiment/json"

	"parley/subjects"
	"parley/subjects/fleet"
)

// ContractURI names the extension by which a message carries the terms of its
// task, and a task tells how it went, to clients that have activated it. A change that
// breaks it gets another URI.
const ContractURI = fleet.ContractURI

// Contract is what a message's metadata may hold under ContractURI. Absent
// members have the defaults of a dispatch.
type Contract struct {
	Priority             fleet.Priority     `json:"priority,omitempty"`
	TokenBudget          int64              `json:"token_budget,omitzero"`
	RequiredMCP          []string           `json:"required_mcp,omitempty"`
	RequiredCapabilities []string           `json:"required_capabilities,omitempty"`
	ModelTier            string             `json:"model_tier,omitempty"`
	CleanRepo            bool               `json:"clean_repo,omitzero"`
	Labels               map[string]string  `json:"labels,omitempty"`
	Deadline             *time.Time         `json:"deadline,omitempty"`
	TimeoutSeconds       float64            `json:"timeout_seconds,omitzero"`
	MaxRetries           *int               `json:"max_retries,omitempty"`
	MaxLosses            int                `json:"max_losses,omitzero"`
	ReplySchema          string             `json:"reply_schema,omitempty"`
	ResultSchema         json.RawMessage    `json:"result_schema,omitzero"`
	SessionID            subjects.SessionID `json:"session_id,omitempty"`
	RunID                subjects.RunID     `json:"run_id,omitempty"`
	Alternatives         []subjects.AgentID `json:"alternatives,omitempty"`
	OnBlocked            string             `json:"on_blocked,omitempty"`
	Escalate             string             `json:"escalate,omitempty"`
	IdempotencyKey       string             `json:"idempotency_key,omitempty"`
}

// readContract reads the contract of a message; nil when it has none.
func readContract(meta *structpb.Struct) (*Contract, error) {
	v, ok := meta.GetFields()[ContractURI]
	if !ok {
		return nil, nil //nolint:nilnil // none is a value here
	}
	const at = "message.metadata[" + ContractURI + "]"
	if v.GetStructValue() == nil {
		return nil, badField(at, "expected an object")
	}
	data, err := structJSON(v)
	if err != nil {
		return nil, badField(at, "not JSON")
	}
	c := new(Contract)
	if err := gojson.Unmarshal(data, c, gojson.RejectUnknownMembers(true)); err != nil {
		if s, ok := errors.AsType[*gojson.SemanticError](err); ok {
			return nil, badField(at+string(s.JSONPointer), "it is not a member of the contract, or of another type")
		}
		return nil, badField(at, "it does not follow the extension")
	}
	return c, nil
}

// apply puts the terms into a dispatch, which checks them.
func (c *Contract) apply(d *fleet.Dispatch) {
	t, r := &d.Task, &d.Requirements
	t.Priority, t.TokenBudget, t.TimeoutSeconds, t.MaxRetries = c.Priority, c.TokenBudget, c.TimeoutSeconds, c.MaxRetries
	t.MaxLosses = c.MaxLosses
	t.ReplySchema, t.ResultSchema, t.SessionID, t.RunID = c.ReplySchema, c.ResultSchema, c.SessionID, c.RunID
	t.Alternatives, t.OnBlocked, t.Escalate = c.Alternatives, c.OnBlocked, c.Escalate
	r.RequiredMCP, r.RequiredCapabilities, r.ModelTier = c.RequiredMCP, c.RequiredCapabilities, c.ModelTier
	r.CleanRepo, r.Labels = c.CleanRepo, c.Labels
	d.Deadline = c.Deadline
}

// activated are the extensions that we declare and a request asks for, by header or by
// what its message holds, in the order in which we declare them. required are those
// that it must ask for.
func activated(asked []string, meta *structpb.Struct, named, required []string) (uris []string, err error) {
	declared := []string{ContractURI}
	for _, uri := range required {
		if !slices.Contains(declared, uri) {
			declared = append(declared, uri)
		}
	}
	for _, uri := range declared {
		_, used := meta.GetFields()[uri]
		switch {
		case used || slices.Contains(asked, uri) || slices.Contains(named, uri):
			uris = append(uris, uri)
		case slices.Contains(required, uri):
			return nil, faultf(kindExtension, "a message must activate the extension "+uri+": name it in the header "+headerExtensions)
		}
	}
	return uris, nil
}
