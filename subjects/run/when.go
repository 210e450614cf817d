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
const maxWhen = 1024

// functions are those that a condition may call. What it costs is bounded: none
// of them makes more of what it is given, there are no ranges and no variables,
// and what goes through a list is not nested.
func functions() []string {
	return []string{
		"all", "none", "any", "one", "filter", "count", "len", "first", "last", "keys", "values", "sum", "min", "max", "abs",
		"int", "float", "string", "trim", "lower", "upper", "indexOf", "fromJSON",
	}
}

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
	look := &reader{}
	ast.Walk(&tree.Node, look)
	if look.refused != "" {
		return nil, errors.New(look.refused)
	}
	options := []expr.Option{expr.Env(env()), expr.AsBool(), expr.DisableAllBuiltins()}
	for _, name := range functions() {
		options = append(options, expr.EnableBuiltin(name))
	}
	program, err := expr.Compile(text, options...)
	if err != nil {
		return nil, errors.New(firstLine(err))
	}
	return &Condition{program: program, nodes: look.nodes}, nil
}

// firstLine is an error without the drawing of where it is.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// Nodes are those that the condition names.
func (c *Condition) Nodes() []NodeID { return c.nodes }

// reader looks through an expression. It collects the nodes that are named in
// outputs.x, outputs["x"] and the same of status, and finds what is not allowed.
type reader struct {
	nodes   []NodeID
	refused string
}

// Visit looks at one node of the expression.
func (r *reader) Visit(n *ast.Node) {
	switch n := (*n).(type) {
	case *ast.MemberNode:
		of, ok := n.Node.(*ast.IdentifierNode)
		name, constant := n.Property.(*ast.StringNode)
		if ok && constant && (of.Value == "outputs" || of.Value == "status") && !slices.Contains(r.nodes, NodeID(name.Value)) {
			r.nodes = append(r.nodes, NodeID(name.Value))
		}
	case *ast.BinaryNode:
		if n.Operator == ".." {
			r.refused = "ranges are not allowed"
		}
	case *ast.VariableDeclaratorNode:
		r.refused = "variables are not allowed"
	case *ast.PredicateNode:
		inner := &loops{}
		if ast.Walk(&n.Node, inner); inner.n > 0 {
			r.refused = "what goes through a list cannot be nested"
		}
	}
}

// loops counts what goes through a list.
type loops struct{ n int }

// Visit looks at one node of the expression.
func (l *loops) Visit(n *ast.Node) {
	if _, ok := (*n).(*ast.PredicateNode); ok {
		l.n++
	}
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
