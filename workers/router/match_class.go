package router

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"weak"

	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

// tiers are the model tiers that can be compared, least first. Any other tier
// is served by itself alone.
var tiers = []string{"haiku", "sonnet", "opus"}

// Need is what a task asks of the instance that does it.
type Need struct {
	Requirements fleet.Requirements
	Only         []subjects.AgentID // when not empty, no other agent
	Exclude      []subjects.AgentID // none of these
	// LeaveOut are instances that could not begin it, and agents for a while.
	LeaveOut []escalation.Exclusion `json:",omitempty"`
}

// Class is a Need made ready for matching. It does not change, and belongs to
// the Fleet that compiled it.
type Class struct {
	key   string
	hash  uint64
	tools []string // required capabilities
	mcp   []string
	tiers []string // that will do, least first; nil: any
	label []feature
	clean bool
	only  []subjects.AgentID
	not   []subjects.AgentID
	out   []escalation.Exclusion // sorted

	// What Capable said at the generation judged-1; 0 never.
	judged uint64
	could  bool
	why    []fleet.Reason
}

// Key is the canonical form of the need: equal needs have equal keys.
func (c *Class) Key() string { return c.key }

// Hash is the same in every router for equal needs.
func (c *Class) Hash() uint64 { return c.hash }

// Compile makes n ready for matching. Equal needs give the same *Class for as
// long as anybody keeps it.
func (f *Fleet) Compile(n Need) *Class {
	c := newClass(n)
	cache := &f.classes
	if p, ok := cache.byKey[c.key]; ok {
		if kept := p.Value(); kept != nil {
			return kept
		}
	}
	if len(cache.byKey) >= cache.sweep {
		maps.DeleteFunc(cache.byKey, func(_ string, p weak.Pointer[Class]) bool { return p.Value() == nil })
		cache.sweep = max(64, 2*len(cache.byKey))
	}
	cache.byKey[c.key] = weak.Make(c)
	return c
}

func newClass(n Need) *Class {
	r := &n.Requirements
	c := &Class{
		tools: set(r.RequiredCapabilities), mcp: set(r.RequiredMCP), clean: r.CleanRepo,
		only: set(n.Only), not: set(n.Exclude),
	}
	if r.ModelTier != "" {
		c.tiers = []string{r.ModelTier}
		if i := slices.Index(tiers, r.ModelTier); i >= 0 {
			c.tiers = tiers[i:]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Labels)) {
		c.label = append(c.label, feature{hasLabel, name, r.Labels[name]})
	}
	c.out = slices.SortedFunc(slices.Values(n.LeaveOut), func(a, b escalation.Exclusion) int {
		return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Instance, b.Instance), a.Until.Compare(b.Until))
	})
	c.key = c.canonical()
	sum := sha256.Sum256([]byte(c.key))
	c.hash = binary.BigEndian.Uint64(sum[:])
	return c
}

// set sorts, and drops what is there twice; s itself stays as it is.
func set[S ~string](s []S) []S {
	if len(s) == 0 {
		return nil
	}
	return slices.Compact(slices.Sorted(slices.Values(s)))
}

// canonical writes the class as text. Routers of different versions agree on
// classes by it: what is added later must leave the text of needs that do not
// use it as it is.
func (c *Class) canonical() string {
	var b strings.Builder
	if len(c.tiers) > 0 {
		b.WriteString("tier=" + strconv.Quote(c.tiers[0]) + ";")
	}
	if c.clean {
		b.WriteString("clean;")
	}
	writeAll(&b, "cap", c.tools)
	writeAll(&b, "mcp", c.mcp)
	for _, l := range c.label {
		b.WriteString("label=" + strconv.Quote(l.name) + ":" + strconv.Quote(l.value) + ";")
	}
	writeAll(&b, "only", c.only)
	writeAll(&b, "not", c.not)
	for _, x := range c.out {
		b.WriteString("out=" + strconv.Quote(string(x.Agent)) + "/" + strconv.Quote(string(x.Instance)))
		if !x.Until.IsZero() {
			fmt.Fprintf(&b, "@%d-%d", x.Since.UnixNano(), x.Until.UnixNano())
		}
		b.WriteByte(';')
	}
	return b.String()
}

// leavesOut is the exclusion that keeps the instance from a task of the class now,
// or, with ever, for good; nil for none. One that ends is lifted early by what the
// instance has announced since.
func (c *Class) leavesOut(in *Instance, ever bool, now time.Time) *escalation.Exclusion {
	for i := range c.out {
		x := &c.out[i]
		switch {
		case x.Agent != in.Agent || x.Instance != "" && x.Instance != in.ID:
		case x.Until.IsZero():
			return x
		case ever, !x.Until.After(now), in.newsAt.After(x.Since):
		default:
			return x
		}
	}
	return nil
}

// nextLifted is when the next exclusion ends after now, zero for none.
func (c *Class) nextLifted(now time.Time) time.Time {
	var next time.Time
	for i := range c.out {
		if at := c.out[i].Until; at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

func writeAll[S ~string](b *strings.Builder, name string, values []S) {
	for _, v := range values {
		b.WriteString(name + "=" + strconv.Quote(string(v)) + ";")
	}
}

// above is how many tiers the instance is above what is asked: 0 when nothing
// is asked, -1 when it is not enough.
func (c *Class) above(in *Instance) int {
	if c.tiers == nil {
		return 0
	}
	return slices.Index(c.tiers, in.Announce.Worker.ModelTier)
}

// feature is something that an instance has and a task may ask for.
type feature struct {
	kind  featureKind
	name  string
	value string // of a label
}

type featureKind uint8

const (
	hasTool      featureKind = iota + 1 // a tool, or a skill by id or name
	hasMCP                              // an MCP server, healthy or not
	hasHealthy                          // an MCP server that is ok
	hasTier                             // a model tier
	hasLabel                            // a label with its value
	hasCleanRepo                        // a clean work tree
	hasSession                          // the context of a session
	hasAccount                          // an account, whose limits it shares
)

// features says where each feature is.
type features map[feature]*placeSet

// each yields the instance's features, some of them more than once.
func (in *Instance) each(yield func(feature)) {
	if in.session != "" {
		yield(feature{kind: hasSession, name: string(in.session)})
	}
	a := in.Announce
	if a == nil {
		return
	}
	yield(feature{kind: hasAccount, name: in.account})
	if a.Session.ContextID != "" {
		yield(feature{kind: hasSession, name: a.Session.ContextID})
	}
	for _, t := range a.Capabilities.Tools {
		yield(feature{kind: hasTool, name: t})
	}
	for _, s := range in.skills {
		yield(feature{kind: hasTool, name: s})
	}
	for _, s := range a.Capabilities.MCPServers {
		yield(feature{kind: hasMCP, name: s})
	}
	for s, health := range a.MCPHealth {
		yield(feature{kind: hasMCP, name: s})
		if health == fleet.HealthOK {
			yield(feature{kind: hasHealthy, name: s})
		}
	}
	if a.Worker.ModelTier != "" {
		yield(feature{kind: hasTier, name: a.Worker.ModelTier})
	}
	for k, v := range a.Worker.Labels {
		yield(feature{hasLabel, k, v})
	}
	if r := a.Session.RepoState; r != nil && r.Clean {
		yield(feature{kind: hasCleanRepo})
	}
}

func (f *Fleet) addFeatures(in *Instance) {
	in.each(func(x feature) {
		s := f.features[x]
		if s == nil {
			s = new(placeSet)
			f.features[x] = s
		}
		s.add(in.place)
	})
}

func (f *Fleet) dropFeatures(in *Instance) {
	in.each(func(x feature) {
		if s := f.features[x]; s != nil {
			if s.remove(in.place); s.n == 0 {
				delete(f.features, x)
			}
		}
	})
}
