//go:build linux

package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"parley/test/rig"
)

// judgeTime is how long one history may take to be judged; who does not come to
// an end has not proven anything.
const judgeTime = 20 * time.Second

// checkHistories holds what clients and agents saw against three models.
func (f *findings) checkHistories() {
	f.judge("L contexts", contextModel, contextHistories(f.ops))
	f.judge("L leases", leaseModel, leaseHistories(f.records, f.notes))
	f.judge("L tasks", taskModel, taskHistories(f.ops, f.records))
}

func (f *findings) judge(name string, model porcupine.NondeterministicModel, histories map[string][]porcupine.Operation) {
	m := model.ToModel()
	for about, h := range histories {
		f.counts["operations of "+name] += len(h)
		if r := porcupine.CheckOperationsTimeout(m, h, judgeTime); r != porcupine.Ok {
			f.fault(name, about, "the history of %d operations is %s: %s", len(h), r, tell(h))
		}
	}
}

func tell(h []porcupine.Operation) (s string) {
	slices.SortFunc(h, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	for _, o := range h[:min(len(h), 12)] {
		s += fmt.Sprintf("\n    %+v", o.Input)
	}
	return s
}

// contextOp is an append, or a read, of a context.
type contextOp struct {
	read     bool
	after    *uint64
	version  uint64 // that it got or saw
	conflict bool
	unknown  bool
}

// contextModel: the state is how many versions there are.
var contextModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{uint64(0)} },
	Step: func(state, input, _ any) []any {
		n, o := state.(uint64), input.(contextOp)
		fits := o.after == nil || *o.after == n
		switch {
		case o.read && o.version == n:
			return []any{n}
		case o.read:
			return nil
		case o.conflict && !fits:
			return []any{n}
		case o.conflict:
			return nil
		case o.unknown && fits:
			return []any{n, n + 1}
		case o.unknown:
			return []any{n}
		case fits && o.version == n+1:
			return []any{n + 1}
		}
		return nil
	},
}

func contextHistories(ops []*op) map[string][]porcupine.Operation {
	gone := map[string]int64{}
	for _, o := range ops {
		if o.Op == "delete" {
			gone[o.ID] = o.from
		}
	}
	all := map[string][]porcupine.Operation{}
	for _, o := range ops {
		if o.Op != "append" && o.Op != "read" {
			continue
		}
		over, deleted := gone[o.ID]
		to := o.to
		c := contextOp{read: o.Op == "read", after: o.After, version: o.end.Version}
		switch {
		case deleted && o.to >= over && c.read: // it may have been purged meanwhile
			continue
		case deleted && o.to >= over && !o.ok(): // an earlier try may have been stored before that
			c.unknown = true
			to = math.MaxInt64
		case o.ok():
		case o.end.What == wasInfo && !c.read:
			c.unknown = true
		case o.end.Code == "context_conflict":
			c.conflict = true
		default:
			continue // refused, or a read that told nothing
		}
		all[o.ID] = append(all[o.ID], porcupine.Operation{Input: c, Call: o.from, Return: to})
	}
	return all
}

// leaseOp is an attempt that is taken, or a result of it that is handed in.
type leaseOp struct {
	take     bool
	attempt  int
	accepted bool
	ends     bool
}

// leaseState is the attempt that was taken last, and whether the task ended.
type leaseState struct {
	attempt int
	ended   bool
}

// leaseModel: a lease with a fencing token. Attempts grow; a result counts as
// long as nobody has taken the task since.
var leaseModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{leaseState{}} },
	Step: func(state, input, _ any) []any {
		s, o := state.(leaseState), input.(leaseOp)
		switch {
		case o.take && (s.ended || o.attempt <= s.attempt):
			return nil
		case o.take:
			return []any{leaseState{o.attempt, false}}
		case !o.accepted:
			return []any{s} // anybody may be told that he is late
		case s.attempt != o.attempt:
			return nil
		case o.ends:
			return []any{leaseState{s.attempt, true}}
		case s.ended:
			return nil
		}
		return []any{s}
	},
}

// leaseHistories are of tasks with more than one attempt: the others are
// decided by their records.
func leaseHistories(records rig.History, notes [][]rig.Entry) map[string][]porcupine.Operation {
	type turn struct {
		task, agent, instance string
		epoch                 int64
		attempt               int
	}
	all, offered := map[string][]porcupine.Operation{}, map[turn]int64{}
	many := func(task string) bool { return len(records[task]) > 0 && records.Last(task).Attempt > 1 }
	sent := map[string]int64{}
	for _, list := range notes {
		for i := range list {
			e := &list[i]
			if !many(e.Task) {
				continue
			}
			t := turn{e.Task, e.Agent, e.Instance, e.Epoch, e.Attempt}
			key := fmt.Sprint(t, e.Nonce)
			switch e.What {
			case rig.WasOffered:
				if offered[t] == 0 {
					offered[t] = e.At
				}
			case rig.WasSent:
				sent[key] = e.At
			case rig.WasAnswered:
				all[e.Task] = append(all[e.Task], porcupine.Operation{Call: sent[key], Return: e.At, Input: leaseOp{
					attempt: e.Attempt, accepted: e.Code == "ok", ends: terminal(e.State),
				}})
			}
		}
	}
	for task, list := range records {
		for i := range list {
			r := &list[i]
			if r.Kind == "working" && many(task) {
				call := offered[turn{task, r.AgentID, r.InstanceID, r.Epoch, r.Attempt}]
				all[task] = append(all[task], porcupine.Operation{Input: leaseOp{take: true, attempt: r.Attempt}, Call: call, Return: math.MaxInt64})
			}
		}
	}
	return all
}

// taskOp is a dispatch, the end of a task, or somebody who is told of it.
type taskOp struct {
	begins, ends bool
	state        string
}

// taskModel: a task is, lives, and has one end.
var taskModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{""} },
	Step: func(state, input, _ any) []any {
		s, o := state.(string), input.(taskOp)
		switch {
		case o.begins && s == "":
			return []any{"live"}
		case o.begins:
			return []any{s} // it was given once more
		case o.ends && s == "live":
			return []any{o.state}
		case !o.ends && s == o.state:
			return []any{s}
		}
		return nil
	},
}

func taskHistories(ops []*op, records rig.History) map[string][]porcupine.Operation {
	all := map[string][]porcupine.Operation{}
	for _, o := range ops {
		id := cmp.Or(o.end.ID, o.ID)
		add := func(t taskOp) {
			all[id] = append(all[id], porcupine.Operation{Input: t, Call: o.from, Return: o.to})
		}
		switch {
		case id == "" || !o.ok():
		case o.Op == "dispatch" || o.Op == "again":
			add(taskOp{begins: true})
		case o.Op == "wait" || o.Op == "cancel":
			add(taskOp{state: o.end.State})
		}
	}
	for id, h := range all {
		if last := records.Last(id); last.Terminal() {
			begin := h[0].Call
			for _, o := range h {
				begin = min(begin, o.Call)
			}
			all[id] = append(h, porcupine.Operation{Input: taskOp{ends: true, state: last.State}, Call: begin, Return: math.MaxInt64})
		}
	}
	return all
}
