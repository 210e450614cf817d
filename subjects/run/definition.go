package run

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"parley/subjects"
	"parley/subjects/fleet"
)

// TypeDefinition is the message type of a Definition.
const TypeDefinition = "TASK_DEFINITION"

// NodeID names a node of a run. One NATS token.
type NodeID string

// Definition is S2's task definition, with Parley's additions marked.
type Definition struct {
	fleet.Header
	TaskID         subjects.RunID  `json:"task_id,omitempty"` // of the run
	TaskType       string          `json:"task_type,omitempty"`
	Description    string          `json:"description,omitempty"`
	Priority       fleet.Priority  `json:"priority,omitempty"`
	Timeout        float64         `json:"timeout,omitzero"` // seconds, of the whole run
	Agents         []Node          `json:"agents"`
	OutputLocation string          `json:"output_location,omitempty"`
	CreatedAt      *time.Time      `json:"created_at,omitempty"`
	TokenBudget    int64           `json:"token_budget,omitzero"` // added; of the whole run
	SharedData     json.RawMessage `json:"shared_data,omitzero"`  // added; every node gets it
	Unknown        fleet.Unknown   `json:",unknown"`
}

// Node is one task of a run.
type Node struct {
	ID           NodeID           `json:"id,omitempty"` // added; absent: the agent's
	AgentID      subjects.AgentID `json:"agent_id,omitempty"`
	Sequence     int              `json:"sequence,omitzero"` // orders what could begin together
	Dependencies []NodeID         `json:"dependencies"`
	Timeout      float64          `json:"timeout,omitzero"` // seconds, of an attempt

	// All below: added.
	Brief        string              `json:"brief,omitempty"` // ${node} stands for that node's output
	Requirements *fleet.Requirements `json:"requirements,omitempty"`
	Alternatives []subjects.AgentID  `json:"alternatives,omitempty"`
	MaxRetries   *int                `json:"max_retries,omitempty"`
	TokenBudget  int64               `json:"token_budget,omitzero"`
	ResultSchema json.RawMessage     `json:"result_schema,omitzero"`
	OnFailure    string              `json:"on_failure,omitempty"` // fail | continue
	Unknown      fleet.Unknown       `json:",unknown"`
}

// Values of Node.OnFailure and Definition.TaskType.
const (
	OnFailureFail     = "fail"     // the run fails, once what is under way has ended
	OnFailureContinue = "continue" // what depends on it goes on without its result

	MultiAgentRun = "multi-agent-run"
	SingleAgent   = "single-agent"
	Orchestration = "orchestration"
)

// Bounds of a definition.
const (
	MaxNodes   = 1000
	maxEdges   = 10_000
	maxTimeout = 30 * 24 * 3600 // seconds
)

// Name is the node's id, or its agent's.
func (n *Node) Name() NodeID {
	if n.ID != "" {
		return n.ID
	}
	return NodeID(n.AgentID)
}

// Decode reads a definition in JSON.
func Decode(data []byte) (*Definition, error) {
	return fleet.DecodeMessage[Definition](data, TypeDefinition)
}

// Read reads a definition in JSON or YAML.
func Read(data []byte) (*Definition, error) {
	if head := bytes.TrimLeft(data, " \t\r\n"); len(head) > 0 && head[0] == '{' {
		return Decode(data)
	}
	if len(data) > fleet.MaxMessage {
		return nil, subjects.Errorf(subjects.CodePayloadTooLarge, "%d bytes; at most %d are allowed", len(data), fleet.MaxMessage)
	}
	j, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "not YAML: %w", err)
	}
	return Decode(j)
}

// Check adds every problem of d and settles its defaults.
func (d *Definition) Check(p *fleet.Problems) {
	token(p, "/task_id", string(d.TaskID), false)
	p.OneOf("/task_type", d.TaskType, MultiAgentRun, SingleAgent, Orchestration)
	p.OneOf("/priority", string(d.Priority), string(fleet.Critical), "urgent", string(fleet.High), string(fleet.Normal), string(fleet.Low))
	p.Between("/timeout", d.Timeout, 0, maxTimeout)
	p.Between("/token_budget", float64(d.TokenBudget), 0, 1<<53-1)
	if len(d.Agents) == 0 || len(d.Agents) > MaxNodes {
		p.Invalid("/agents", "expected 1 to %d nodes, got %d", MaxNodes, len(d.Agents))
		return
	}
	names := map[NodeID]int{}
	for i := range d.Agents {
		d.Agents[i].check(p, "/agents/"+strconv.Itoa(i), d.Timeout)
		name := d.Agents[i].Name()
		if j, twice := names[name]; twice && name != "" {
			p.Invalid("/agents/"+strconv.Itoa(i)+"/id", "%q is the name of node %d too: give one of them an id", name, j)
			continue
		}
		names[name] = i
	}
	edges := 0
	for i := range d.Agents {
		for k, dep := range d.Agents[i].Dependencies {
			at := "/agents/" + strconv.Itoa(i) + "/dependencies/" + strconv.Itoa(k)
			if _, known := names[dep]; !known {
				p.Invalid(at, "there is no node %q", dep)
			} else if slices.Contains(d.Agents[i].Dependencies[:k], dep) {
				p.Invalid(at, "%q is there twice", dep)
			}
			edges++
		}
	}
	if edges > maxEdges {
		p.Invalid("/agents", "expected at most %d dependencies, got %d", maxEdges, edges)
		return
	}
	if cycle := d.cycle(names); cycle != nil {
		var b strings.Builder
		for _, n := range cycle {
			b.WriteString(string(n) + " → ")
		}
		p.Add(subjects.Errorf(subjects.CodeCycle, "the dependencies form a circle: %s%s", b.String(), cycle[0]).
			At("/agents/" + strconv.Itoa(names[cycle[0]]) + "/dependencies").WithRemedy("remove one of these dependencies"))
	}
}

func (n *Node) check(p *fleet.Problems, at string, runTimeout float64) {
	token(p, at+"/id", string(n.ID), false)
	if n.AgentID != "" {
		_, err := subjects.ParseAgentID(string(n.AgentID))
		p.ID(at+"/agent_id", err)
	} else if n.ID == "" {
		p.Invalid(at+"/id", "expected an id or an agent_id, got nothing")
	}
	p.Between(at+"/timeout", n.Timeout, 0, maxTimeout)
	if runTimeout > 0 && n.Timeout > runTimeout {
		p.Invalid(at+"/timeout", "expected at most %gs, the run's, got %gs", runTimeout, n.Timeout)
	}
	p.Between(at+"/token_budget", float64(n.TokenBudget), 0, 1<<53-1)
	p.OneOf(at+"/on_failure", n.OnFailure, OnFailureFail, OnFailureContinue)
	for i, a := range n.Alternatives {
		_, err := subjects.ParseAgentID(string(a))
		p.ID(at+"/alternatives/"+strconv.Itoa(i), err)
	}
}

// cycle finds a circle of dependencies: each one depends on the next.
func (d *Definition) cycle(names map[NodeID]int) []NodeID {
	const (
		unseen = iota
		open
		closed
	)
	state := make([]int, len(d.Agents))
	var path []NodeID
	var visit func(i int) []NodeID
	visit = func(i int) []NodeID {
		state[i] = open
		path = append(path, d.Agents[i].Name())
		for _, dep := range d.Agents[i].Dependencies {
			j, known := names[dep]
			switch {
			case !known || state[j] == closed:
			case state[j] == open:
				return slices.Clone(path[slices.Index(path, d.Agents[j].Name()):])
			default:
				if c := visit(j); c != nil {
					return c
				}
			}
		}
		state[i] = closed
		path = path[:len(path)-1]
		return nil
	}
	for i := range d.Agents {
		if state[i] == unseen {
			if c := visit(i); c != nil {
				return c
			}
		}
	}
	return nil
}

func token(p *fleet.Problems, pointer, s string, required bool) {
	if s == "" && !required || subjects.ValidToken(s) {
		return
	}
	p.Add(subjects.Errorf(subjects.CodeInvalidID, "%.80q is not an identifier", s).At(pointer).
		WithRemedy("use 1 to 64 of the characters A-Z a-z 0-9 _ -"))
}
