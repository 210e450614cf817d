package main

import (
	"context"
	"strings"

	"parley/subjects"
	"parley/subjects/fleet"
	runwire "parley/subjects/run"
)

// leastPart is how much of an id is enough, and maxMatches how many of those that
// match are named.
const (
	leastPart  = 4
	maxMatches = 5
)

// byPart calls f with an id as it was typed. Where there is no such thing, it
// calls f with the one id that begins or ends so.
func byPart[ID ~string, T any](kind, typed string, f func(ID) (T, error), list func() ([]ID, error)) (T, error) {
	v, err := f(ID(typed))
	if !isNotFound(err) {
		return v, err
	}
	none := subjects.Errorf(subjects.CodeNotFound, "there is no %s %q", kind, typed).
		WithRemedy("parley " + kind + " ls  shows those that live and those that ended lately")
	if len(typed) < leastPart {
		return v, none
	}
	all, lerr := list()
	if lerr != nil {
		return v, err
	}
	var matches []string
	for _, id := range all {
		if strings.HasPrefix(string(id), typed) || strings.HasSuffix(string(id), typed) {
			matches = append(matches, string(id))
		}
	}
	switch {
	case len(matches) == 0:
		return v, none
	case len(matches) > 1:
		return v, usage("%q is the id of more than one %s: %s", typed, kind, strings.Join(matches[:min(len(matches), maxMatches)], ", ")).
			next("give more of it")
	}
	return f(ID(matches[0]))
}

// byTask calls f with the task that was typed, in full or in part.
func byTask[T any](ctx context.Context, c *client, typed string, f func(subjects.TaskID) (T, error)) (T, error) {
	return byPart("task", typed, f, func() ([]subjects.TaskID, error) {
		r, err := call[fleet.TaskListReply](ctx, c, "task", "list", fleet.TaskList{IDPart: typed, Limit: maxMatches})
		var ids []subjects.TaskID
		for i := range r.value.Tasks {
			ids = append(ids, r.value.Tasks[i].TaskID)
		}
		return ids, err
	})
}

// onTask asks a verb about the task that was typed; request makes the request.
func onTask[T any](ctx context.Context, c *client, verb, typed string, request func(subjects.TaskID) any) (reply[T], error) {
	return byTask(ctx, c, typed, func(id subjects.TaskID) (reply[T], error) {
		return call[T](ctx, c, "task", verb, request(id))
	})
}

// onRun asks a verb about the run that was typed, in full or in part.
func onRun[T any](ctx context.Context, c *client, verb, typed string, request func(subjects.RunID) any) (reply[T], error) {
	return byRun(ctx, c, typed, func(id subjects.RunID) (reply[T], error) {
		return call[T](ctx, c, "run", verb, request(id))
	})
}

// byRun calls f with the run that was typed, in full or in part.
func byRun[T any](ctx context.Context, c *client, typed string, f func(subjects.RunID) (T, error)) (T, error) {
	return byPart("run", typed, f, func() ([]subjects.RunID, error) {
		r, err := call[runwire.List](ctx, c, "run", "list", struct{}{})
		var ids []subjects.RunID
		for i := range r.value.Runs {
			ids = append(ids, r.value.Runs[i].RunID)
		}
		return ids, err
	})
}

// shortIDs are the last letters of ids that are UUIDs, where they tell them apart;
// any other id is as it is. Commands take either.
func shortIDs(tasks []fleet.TaskView) map[subjects.TaskID]string {
	const length, letters = 36, 8
	seen := map[string]int{}
	for i := range tasks {
		if id := string(tasks[i].TaskID); len(id) == length {
			seen[id[length-letters:]]++
		}
	}
	short := map[subjects.TaskID]string{}
	for i := range tasks {
		id := string(tasks[i].TaskID)
		if short[tasks[i].TaskID] = id; len(id) == length && strings.Count(id, "-") == 4 && seen[id[length-letters:]] == 1 {
			short[tasks[i].TaskID] = id[length-letters:]
		}
	}
	return short
}
