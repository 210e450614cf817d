package escalation

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"parley/bus"
	policy "parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

// Keys of the bucket.
const (
	alertKey   = "alert."   // + group: its latest alert
	taskKey    = "task."    // + task: waiting
	silenceKey = "silence." // + id
	archiveKey = "old."     // + id of an alert that another one of its group has replaced
	waitKey    = "wait."    // + group: why tasks wait that no human was asked about
	secretKey  = "key"
)

// waiting is a task that waits for a human, and its group.
type waiting struct {
	Group  string            `json:"group"`
	Labels map[string]string `json:"labels"`
	Task   fleet.AlertTask   `json:"task"`
	// Dispatch is where TASK_DISPATCH is, of which Task's brief is the
	// beginning; that is read when it is to be shown.
	Dispatch uint64 `json:"dispatch,omitzero"`

	rev uint64 // of its entry: grows with every task that comes
}

// after reports whether m began to wait after old: later in the life of its task,
// or in a later one under the same id.
func (m *waiting) after(old *waiting) bool {
	if m.Dispatch != old.Dispatch && m.Dispatch > 0 && old.Dispatch > 0 {
		return m.Dispatch > old.Dispatch
	}
	return m.Task.Seq > old.Task.Seq
}

// group is what waits for one cause.
type group struct {
	id     string
	labels map[string]string
	alert  fleet.Alert
	rev    uint64 // of the alert
	tasks  map[subjects.TaskID]*waiting
	cause  *waitCause    // instead of tasks: why others wait
	repeat time.Duration // the shortest that a task asks for, 0 none; see stale
	stale  bool          // the task that asked for repeat is gone
	newest uint64        // revision of the last task that came
	due    time.Time     // when to look at it; zero: not before it changes
	dirty  bool
	busy   bool // its answer is being carried out here
}

// view is what is in the bucket, as far as this replica has heard.
type view struct {
	groups   map[string]*group
	byTask   map[subjects.TaskID]*group
	silences map[string]fleet.Silence
}

func newView() *view {
	return &view{
		groups: make(map[string]*group), byTask: make(map[subjects.TaskID]*group),
		silences: make(map[string]fleet.Silence),
	}
}

func (v *view) group(id string, labels map[string]string) *group {
	g := v.groups[id]
	if g == nil {
		g = &group{id: id, tasks: make(map[subjects.TaskID]*waiting)}
		v.groups[id] = g
	}
	if labels != nil {
		g.labels = labels
	}
	g.dirty = true
	return g
}

// stirAll has every group looked at: what one is may hold another.
func (v *view) stirAll() {
	for _, g := range v.groups {
		g.dirty = true
	}
}

func (v *view) drop(task subjects.TaskID) {
	if g := v.byTask[task]; g != nil {
		g.stale = g.stale || g.repeat > 0 && g.tasks[task].repeat() == g.repeat
		delete(g.tasks, task)
		delete(v.byTask, task)
		g.dirty = true
	}
}

func (v *view) put(m *waiting) {
	v.drop(m.Task.TaskID)
	g := v.group(m.Group, m.Labels)
	g.tasks[m.Task.TaskID] = m
	g.shorten(m)
	g.newest = max(g.newest, m.rev)
	v.byTask[m.Task.TaskID] = g
}

func (v *view) putAlert(id string, a fleet.Alert, rev uint64) {
	g := v.group(id, a.Group)
	if rev < g.rev {
		return // an older one
	}
	changed := g.alert.State != a.State
	g.alert, g.rev = a, rev
	if changed {
		v.stirAll()
	}
}

// onEntry takes in a change of the bucket.
func (w *Worker) onEntry(e bus.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.stir()
	v := w.view
	var err error
	switch id, ok := strings.CutPrefix(e.Key, taskKey); {
	case ok && e.Deleted:
		v.drop(subjects.TaskID(id))
	case ok:
		var m waiting
		if err = json.Unmarshal(e.Value, &m); err == nil && (string(m.Task.TaskID) != id || m.Group == "") {
			err = subjects.Misplaced("task")
		}
		if err == nil {
			m.rev = e.Revision
			v.put(&m)
		}
	case strings.HasPrefix(e.Key, alertKey):
		id := strings.TrimPrefix(e.Key, alertKey)
		var a fleet.Alert
		if e.Deleted {
			if g := v.groups[id]; g != nil {
				g.alert, g.rev, g.dirty = fleet.Alert{}, e.Revision, true
			}
		} else if err = json.Unmarshal(e.Value, &a); err == nil && (a.State == "" || !strings.HasPrefix(a.AlertID, id)) {
			err = subjects.Misplaced("alert")
		} else if err == nil {
			v.putAlert(id, a, e.Revision)
		}
	case strings.HasPrefix(e.Key, waitKey):
		if e.Deleted {
			v.dropCause(strings.TrimPrefix(e.Key, waitKey))
			break
		}
		var c *waitCause
		if c, err = decodeCause(e); err == nil {
			v.putCause(c)
		}
	case strings.HasPrefix(e.Key, silenceKey):
		id := strings.TrimPrefix(e.Key, silenceKey)
		var s fleet.Silence
		if e.Deleted {
			delete(v.silences, id)
		} else if err = json.Unmarshal(e.Value, &s); err == nil && s.SilenceID != id {
			err = subjects.Misplaced("silence")
		} else if err == nil {
			v.silences[id] = s
		}
		v.stirAll()
	}
	if err != nil {
		w.kv.Skip(e, err)
	}
}

// state is what the policy looks at.
func (v *view) state(g *group, now time.Time) policy.Group {
	if g.stale {
		g.repeat, g.stale = 0, false
		for _, t := range g.tasks {
			g.shorten(t)
		}
	}
	s := policy.Group{ID: g.id, Labels: g.labels, Tasks: len(g.tasks), Newest: g.newest, Held: v.held(g, now), Repeat: g.repeat}
	if g.cause != nil && g.cause.Notify {
		s.Tasks = 1 // however many tasks wait: nobody is called because there are more
	}
	if g.alert.Answer == nil {
		return s
	}
	for _, t := range g.tasks {
		if g.asked(&t.Task) {
			s.Asked++
		}
	}
	return s
}

func (m *waiting) repeat() time.Duration {
	return time.Duration(m.Task.AlertRepeat * float64(time.Second))
}

func (g *group) shorten(m *waiting) {
	if r := m.repeat(); r > 0 && (g.repeat == 0 || r < g.repeat) {
		g.repeat = r
	}
}

// asked reports whether the alert's answer is about t.
func (g *group) asked(t *fleet.AlertTask) bool {
	return g.alert.Answer != nil && !t.Since.After(g.alert.Answer.Time)
}

// held says why nobody is to be called about g.
func (v *view) held(g *group, now time.Time) string {
	for _, id := range slices.Sorted(maps.Keys(v.silences)) {
		if s := v.silences[id]; s.Until.After(now) && matches(s.Match, g.labels) {
			return "silence " + id + " by " + string(s.By)
		}
	}
	agent := g.labels[labelAgent]
	if agent == "" || g.labels[labelCause] != "" {
		return ""
	}
	away := v.groups[newCause(fleet.WaitingCause{Waiting: fleet.Waiting{Why: fleet.WaitAway, Who: agent}}, now).Group]
	if away == nil || !away.open() {
		return ""
	}
	return "agent " + agent + " is away: alert " + away.alert.AlertID
}

func (g *group) open() bool { return g.alert.Number > 0 && g.alert.State != fleet.AlertResolved }

// folded counts the tasks of other groups that are quiet because of g.
func (v *view) folded(g *group) int {
	n := 0
	if g.labels[labelCause] == fleet.WaitAway {
		for _, other := range v.groups {
			if other != g && other.labels[labelAgent] == g.labels[labelAgent] {
				n += len(other.tasks)
			}
		}
	}
	return n
}

func matches(match, labels map[string]string) bool {
	for k, want := range match {
		if labels[k] != want {
			return false
		}
	}
	return true
}

// soonest is when a silence ends next, zero for never.
func (v *view) soonest(now time.Time) time.Time {
	var at time.Time
	for _, s := range v.silences {
		if s.Until.After(now) && (at.IsZero() || s.Until.Before(at)) {
			at = s.Until
		}
	}
	return at
}

// show is the alert of g with its oldest tasks.
func (g *group) show(most int) fleet.Alert {
	a := g.alert
	tasks := slices.SortedFunc(maps.Values(g.tasks), func(x, y *waiting) int {
		if c := x.Task.Since.Compare(y.Task.Since); c != 0 {
			return c
		}
		return strings.Compare(string(x.Task.TaskID), string(y.Task.TaskID))
	})
	a.Count = len(tasks)
	a.Omitted = max(0, len(tasks)-most)
	for _, t := range tasks[:min(most, len(tasks))] {
		a.Tasks = append(a.Tasks, t.Task)
	}
	if g.cause != nil {
		a.Waiting, a.Count = &g.cause.Waiting, g.cause.Waiting.Tasks-g.cause.Waiting.Silent
	}
	return a
}

// groupLabels lists what alerts can be grouped by.
func groupLabels() []string {
	return []string{"code", "agent", "mcp", "from", "session", "run", "task"}
}

// labelsOf is what e has in common with others of its group, and the group.
func labelsOf(e *fleet.Event, t *fleet.AlertTask, by []string) (labels map[string]string, id string) {
	labels = make(map[string]string)
	unwell := t.Code == subjects.CodeMCPUnhealthy
	for _, name := range by {
		switch name {
		case "code":
			labels[name] = string(t.Code)
		case "agent", "mcp":
			if unwell && len(e.Facts.Requirements.RequiredMCP) > 0 {
				labels["mcp"] = strings.Join(slices.Sorted(slices.Values(e.Facts.Requirements.RequiredMCP)), ",")
			} else if name == "agent" {
				labels[name] = string(t.AgentID)
			}
		case "from":
			labels[name] = string(t.From)
		case "session":
			labels[name] = string(t.SessionID)
		case "run":
			labels[name] = string(t.RunID)
		case "task":
			labels[name] = string(t.TaskID)
		}
	}
	maps.DeleteFunc(labels, func(_, v string) bool { return v == "" })
	sum := sha256.Sum256(fleet.MustEncode(labels))
	return labels, hex.EncodeToString(sum[:6])
}

// alertTask is what humans are told of the task whose record is e.
func alertTask(e *fleet.Event) fleet.AlertTask {
	t := fleet.AlertTask{
		TaskID: e.TaskID, Seq: cmp.Or(e.Facts.AskedSeq, e.Seq), From: e.Facts.From, Since: waitsSince(e), SessionID: e.Facts.SessionID, RunID: e.Facts.RunID,
		Tried: fleet.TriedIn(e, 5), TokensSpent: e.Facts.TokensSpent, TokenBudget: e.Facts.TokenBudget,
		AlertRepeat: e.Facts.Policy.AlertRepeat, GiveUpAt: e.Facts.Deadline, Traceparent: e.Called(),
	}
	if e.Facts.GiveUpAt != nil && e.Facts.GiveUpAt.Before(t.GiveUpAt) {
		t.GiveUpAt = *e.Facts.GiveUpAt
	}
	if e.Reason != nil {
		t.Code, t.Message = e.Reason.Code, clip(e.Reason.Message, 500)
	}
	if n := len(e.Facts.Attempts); n > 0 {
		t.AgentID = e.Facts.Attempts[n-1].AgentID
	}
	return t
}

// waitsSince is when the wait began that e is a record of: what others say
// meanwhile, and what was spent before, are records too.
func waitsSince(e *fleet.Event) time.Time {
	if e.Facts.AlertAt == nil {
		return e.Time
	}
	return e.Facts.AlertAt.Add(-e.Facts.Policy.Repeat())
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
