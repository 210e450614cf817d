package run

import (
	"bytes"
	"cmp"
	"encoding/json"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"

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
	Brief        string              `json:"brief,omitempty"` // ${node} stands for that node's output, $${node} for ${node}
	Requirements *fleet.Requirements `json:"requirements,omitempty"`
	Alternatives []subjects.AgentID  `json:"alternatives,omitempty"`
	MaxRetries   *int                `json:"max_retries,omitempty"`
	MaxLosses    int                 `json:"max_losses,omitzero"` // as in a dispatch
	TokenBudget  int64               `json:"token_budget,omitzero"`
	ResultSchema json.RawMessage     `json:"result_schema,omitzero"`
	OnBlocked    string              `json:"on_blocked,omitempty"` // as in a dispatch
	OnFailure    string              `json:"on_failure,omitempty"` // fail | continue | escalate
	When         string              `json:"when,omitempty"`       // a condition on what came before
	FanOut       *FanOut             `json:"fan_out,omitempty"`
	Unknown      fleet.Unknown       `json:",unknown"`
}

// FanOut makes of a node one task for each item of a list: the one given, or
// the one in the output of a node that it depends on.
type FanOut struct {
	Items       []json.RawMessage `json:"items,omitzero"`
	From        NodeID            `json:"from,omitempty"`
	Pointer     string            `json:"pointer,omitempty"`    // into From's output, RFC 6901
	Concurrency int               `json:"concurrency,omitzero"` // of tasks at a time; absent: all
	Unknown     fleet.Unknown     `json:",unknown"`
}

// Values of Node.OnFailure and Definition.TaskType.
const (
	OnFailureFail     = "fail"     // the run fails, once what is under way has ended
	OnFailureContinue = "continue" // what depends on it goes on without its result
	OnFailureEscalate = "escalate" // a human is asked; the run fails when that does not help

	MultiAgentRun = "multi-agent-run"
	SingleAgent   = "single-agent"
	Orchestration = "orchestration"
)

// Bounds of a definition. With them a record, which holds the definition and
// about a kilobyte for each node, is a message that the bus takes.
const (
	MaxNodes   = 1000
	MaxItems   = 10_000 // of a fan-out
	maxEdges   = 10_000
	maxTimeout = 30 * 24 * 3600 // seconds
)

// DefaultTimeout is what a run may take that does not say, in seconds.
const DefaultTimeout = 24 * 3600

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
	if err := plain(data); err != nil {
		return nil, err
	}
	j, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "not YAML: %w", err)
	}
	return Decode(j)
}

// plain refuses YAML that costs more to read than its size tells.
func plain(data []byte) error {
	depth, line, entries := 0, 0, 0
	for _, t := range lexer.Tokenize(string(data)) {
		if t.Position.Line != line {
			line, entries = t.Position.Line, 0
		}
		switch t.Type {
		case token.AliasType, token.MergeKeyType:
			return subjects.Errorf(subjects.CodeInvalidMessage, "line %d: aliases are not taken", line).WithRemedy("write out what it stands for")
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.SequenceEntryType, token.MappingKeyType:
			entries++
		default:
		}
		if depth > fleet.MaxDepth || entries > fleet.MaxDepth {
			return subjects.Errorf(subjects.CodeInvalidMessage, "line %d: nested deeper than %d", line, fleet.MaxDepth)
		}
	}
	return nil
}

// Check adds every problem of d and settles its defaults.
func (d *Definition) Check(p *fleet.Problems) {
	p.UnknownMembers(&d.Header, "", d.Unknown, d)
	identifier(p, "/task_id", string(d.TaskID), false)
	p.OneOf("/task_type", d.TaskType, MultiAgentRun, SingleAgent, Orchestration)
	p.OneOf("/priority", string(d.Priority), string(fleet.Critical), "urgent", string(fleet.High), string(fleet.Normal), string(fleet.Low))
	p.Between("/timeout", d.Timeout, 0, maxTimeout)
	p.Between("/token_budget", float64(d.TokenBudget), 0, 1<<53-1)
	if at := d.OutputLocation; at != "" && (!filepath.IsLocal(filepath.FromSlash(at)) || path.Clean(at) == ".") {
		p.Add(subjects.Errorf(subjects.CodeInvalidMessage, "%.200q leads out of the output directory", at).At("/output_location").
			WithRemedy("give a path below it, such as results/run.json"))
	}
	if len(d.Agents) == 0 || len(d.Agents) > MaxNodes {
		p.Invalid("/agents", "expected 1 to %d nodes, got %d", MaxNodes, len(d.Agents))
		return
	}
	if raw := bytes.TrimSpace(d.SharedData); string(raw) == "null" {
		d.SharedData = nil
	} else if len(raw) > 0 && raw[0] != '{' {
		p.Invalid("/shared_data", "expected an object")
	}
	names := map[NodeID]int{}
	for i := range d.Agents {
		d.check(p, &d.Agents[i], "/agents/"+strconv.Itoa(i))
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
	for i := range d.Agents {
		d.Agents[i].checkWords(p, "/agents/"+strconv.Itoa(i), names)
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

// check checks what a node says of itself. What it has of a dispatch is judged
// as the dispatch is.
func (d *Definition) check(p *fleet.Problems, n *Node, at string) {
	p.UnknownMembers(&d.Header, at, n.Unknown, n)
	if n.Requirements != nil {
		p.UnknownMembers(&d.Header, at+"/requirements", n.Requirements.Unknown, n.Requirements)
	}
	identifier(p, at+"/id", string(n.ID), false)
	if n.AgentID == "" && n.ID == "" {
		p.Invalid(at+"/id", "expected an id or an agent_id, got nothing")
	}
	if most := cmp.Or(d.Timeout, DefaultTimeout); most > 0 && n.Timeout > most {
		p.Invalid(at+"/timeout", "expected at most %gs, the run's, got %gs", most, n.Timeout)
	}
	p.OneOf(at+"/on_failure", n.OnFailure, OnFailureFail, OnFailureContinue, OnFailureEscalate)
	if n.FanOut != nil {
		p.UnknownMembers(&d.Header, at+"/fan_out", n.FanOut.Unknown, n.FanOut)
		n.FanOut.check(p, at+"/fan_out")
	}
	sample := n.Dispatch(d)
	sample.Task.Priority, sample.Brief = "", "x" // the run's, and what is quoted in it
	if _, err := fleet.DecodeDispatch(fleet.MustEncode(sample)); err != nil {
		e := subjects.AsError(err)
		for _, problem := range append([]*subjects.Error{e}, e.Also...) {
			problem.Also = nil
			p.Add(problem.At(at + inNode(problem.Pointer)))
		}
	}
}

// inNode is where a member of a dispatch stands in a node.
func inNode(pointer string) string {
	pointer = strings.TrimPrefix(pointer, "/task")
	for _, names := range [][2]string{{"/agent", "/agent_id"}, {"/timeout_seconds", "/timeout"}} {
		if pointer == names[0] {
			return names[1]
		}
	}
	return pointer
}

func (f *FanOut) check(p *fleet.Problems, at string) {
	switch {
	case f.From == "" && f.Items == nil:
		p.Invalid(at, "expected items, or from, got neither")
	case f.From != "" && f.Items != nil:
		p.Invalid(at, "expected items, or from, got both")
	case len(f.Items) > MaxItems:
		p.Invalid(at+"/items", "expected at most %d items, got %d", MaxItems, len(f.Items))
	}
	if f.From == "" && f.Pointer != "" {
		p.Invalid(at+"/pointer", "it points into nothing, as there is no from")
	}
	if f.Pointer != "" && f.Pointer[0] != '/' {
		p.Invalid(at+"/pointer", "expected a JSON pointer such as /files, got %.80q", f.Pointer)
	}
	p.Between(at+"/concurrency", float64(f.Concurrency), 0, MaxItems)
}

// checkWords checks what a node says about others.
func (n *Node) checkWords(p *fleet.Problems, at string, names map[NodeID]int) {
	depends := func(pointer string, on NodeID) {
		if !slices.Contains(n.Dependencies, on) {
			p.Add(subjects.Errorf(subjects.CodeInvalidMessage, "it speaks of %.80q, which it does not depend on", on).At(at + pointer).
				WithRemedy("add it to the dependencies"))
		}
	}
	if n.FanOut != nil && n.FanOut.From != "" {
		depends("/fan_out/from", n.FanOut.From)
	}
	for q := range quotes(n.Brief) {
		if q.escaped || n.FanOut != nil && (q.name == quoteItem || q.name == quoteIndex) {
			continue
		}
		if _, known := names[q.name]; known {
			depends("/brief", q.name)
			continue
		}
		remedy := "write $${" + string(q.name) + "} for the text itself"
		if near := subjects.Nearest(string(q.name), n.quotable()); near != "" {
			remedy = "did you mean ${" + near + "}? " + remedy
		}
		p.Add(subjects.Errorf(subjects.CodeInvalidMessage, "${%s} names no node", q.name).At(at + "/brief").WithRemedy(remedy))
	}
	if n.When == "" {
		return
	}
	c, err := Compile(n.When)
	if err != nil {
		p.Invalid(at+"/when", "%s", err)
		return
	}
	for _, on := range c.Nodes() {
		depends("/when", on)
	}
}

// quotable are the names that the node's brief can quote.
func (n *Node) quotable() []string {
	var all []string
	for _, on := range n.Dependencies {
		all = append(all, string(on))
	}
	if n.FanOut != nil {
		all = append(all, string(quoteItem), string(quoteIndex))
	}
	return all
}

// Dispatch is the task of a node, without its id, what it is told of others,
// and what holds for the run as it goes.
func (n *Node) Dispatch(d *Definition) *fleet.Dispatch {
	out := &fleet.Dispatch{
		Header: fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version}, Brief: n.Brief,
		Task: fleet.Task{
			Priority: d.Priority, TokenBudget: n.TokenBudget, Type: d.TaskType, TimeoutSeconds: n.Timeout,
			MaxRetries: n.MaxRetries, MaxLosses: n.MaxLosses, Agent: n.AgentID, Alternatives: n.Alternatives, OnBlocked: n.OnBlocked,
			ResultSchema: n.ResultSchema, Escalate: fleet.EscalateNever,
		},
	}
	if n.OnFailure == OnFailureEscalate {
		out.Task.Escalate = fleet.EscalateAlways
	}
	if n.Requirements != nil {
		out.Requirements = *n.Requirements
	}
	return out
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

func identifier(p *fleet.Problems, pointer, s string, required bool) {
	if s == "" && !required || subjects.ValidToken(s) {
		return
	}
	p.Add(subjects.Errorf(subjects.CodeInvalidID, "%.80q is not an identifier", s).At(pointer).
		WithRemedy("use 1 to 64 of the characters A-Z a-z 0-9 _ -"))
}
