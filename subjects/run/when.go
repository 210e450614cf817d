package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/vm"
)

// Condition is the when of a node, ready to be evaluated.
type Condition struct {
	program *vm.Program
	nodes   []NodeID
}

// Before is what a condition can be about: what a node depends on, and the
// run's shared data.
type Before struct {
	Outputs map[NodeID]json.RawMessage // none: null
	Status  map[NodeID]State
	Shared  json.RawMessage
}

// maxWhen bounds the text of a condition.
const maxWhen = 4096

// env is what the names in a condition stand for.
func env() map[string]any {
	return map[string]any{"outputs": map[string]any{}, "status": map[string]string{}, "shared": map[string]any{}}
}

// Compile reads a condition. It knows outputs, status and shared; its result
// must be true or false, and it says the same whenever it is asked.
func Compile(text string) (*Condition, error) {
	if len(text) > maxWhen {
		return nil, fmt.Errorf("expected at most %d bytes, got %d", maxWhen, len(text))
	}
	tree, err := parser.Parse(text)
	if err != nil {
		return nil, errors.New(firstLine(err))
	}
	c := &Condition{}
	ast.Walk(&tree.Node, (*mentions)(c))
	c.program, err = expr.Compile(text, expr.Env(env()), expr.AsBool(), expr.DisableBuiltin("now"))
	if err != nil {
		return nil, errors.New(firstLine(err))
	}
	return c, nil
}

// firstLine is an error without the drawing of where it is.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// Nodes are those that the condition names.
func (c *Condition) Nodes() []NodeID { return c.nodes }

// mentions collects the nodes that are named in outputs.x, outputs["x"] and the
// same of status.
type mentions Condition

// Visit looks at one node of the expression.
func (m *mentions) Visit(n *ast.Node) {
	member, ok := (*n).(*ast.MemberNode)
	if !ok {
		return
	}
	of, ok := member.Node.(*ast.IdentifierNode)
	name, constant := member.Property.(*ast.StringNode)
	if !ok || !constant || of.Value != "outputs" && of.Value != "status" || slices.Contains(m.nodes, NodeID(name.Value)) {
		return
	}
	m.nodes = append(m.nodes, NodeID(name.Value))
}

// Holds evaluates the condition.
func (c *Condition) Holds(b Before) (bool, error) {
	e := env()
	outputs, status := map[string]any{}, map[string]string{}
	for n, raw := range b.Outputs {
		v, err := value(raw)
		if err != nil {
			return false, fmt.Errorf("the output of %s: %w", n, err)
		}
		outputs[string(n)] = v
	}
	for n, s := range b.Status {
		status[string(n)] = string(s)
	}
	shared, err := value(b.Shared)
	if err != nil {
		return false, fmt.Errorf("the shared data: %w", err)
	}
	if object, ok := shared.(map[string]any); ok {
		e["shared"] = object
	}
	e["outputs"], e["status"] = outputs, status
	v, err := expr.Run(c.program, e)
	if err != nil {
		return false, errors.New(firstLine(err))
	}
	holds, ok := v.(bool)
	if !ok {
		return false, fmt.Errorf("it is %v, which is neither true nor false", v)
	}
	return holds, nil
}

// value is JSON as a condition sees it: whole numbers as such.
func value(raw json.RawMessage) (any, error) {
	if len(raw) == 0 {
		return nil, nil //nolint:nilnil // nothing is null
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return numbers(v), nil
}

func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return int(n)
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	}
	return v
}
