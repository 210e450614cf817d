package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

// print writes data for a person, one line.
func (a *app) print(s string) { fmt.Fprintln(a.stdout, s) }

// printTasks prints the reply to task list.
func (a *app) printTasks(r reply[fleet.TaskListReply], asked fleet.TaskList) error {
	if a.json() {
		return a.printList(r.raw, "tasks")
	}
	if len(r.value.Tasks) == 0 {
		if asked.State == "" && (asked.AgentID != "" || asked.From != "" || asked.RunID != "" || asked.SessionID != "" || len(asked.Labels) > 0 || asked.Text != "" || asked.Since != nil) {
			a.notice("no such tasks; parley task ls  lists all")
			return nil
		}
		if asked.State != "" {
			a.notice("no tasks are %s; parley task ls  lists all", asked.State)
			return nil
		}
		a.notice("no tasks; parley task send BRIEF makes one")
		return nil
	}
	waits := "Reason"
	if asked.Waiting {
		waits = "Waiting"
	}
	header := []string{"Task", "State", "Brief", "Agent", "Age", "Tokens", "Attempt", "Priority", waits}
	if a.wide() {
		header = append(header, "From", "Run", "Session", "Updated", "Deadline", "Seq")
	}
	g := a.grid(tasksTitle(&r.value), header, "Brief", waits)
	ids := shortIDs(r.value.Tasks)
	for i := range r.value.Tasks {
		t := &r.value.Tasks[i]
		id := ids[t.TaskID]
		if a.wide() {
			id = string(t.TaskID)
		}
		row := []any{
			id, a.state(t.State), oneLine(t.Brief), who(t.AgentID, t.InstanceID), a.when(t.Created),
			thousands(t.TokensSpent), t.Attempt, string(t.Priority), oneLine(a.reasonOf(t, asked.Waiting)),
		}
		if a.wide() {
			row = append(row, string(t.From), runAndNode(t), string(t.SessionID), a.when(t.Updated), a.when(t.Deadline), t.Seq)
		}
		g.add(row...)
	}
	g.print()
	if r.value.Searched > 0 {
		a.notice("only the newest %s tasks were searched; --since, --from, --agent or --state narrow it down", thousands(int64(r.value.Searched)))
	}
	return nil
}

// tasksTitle counts the live tasks, and says when the list is not all.
func tasksTitle(r *fleet.TaskListReply) string {
	title := "Tasks"
	var counts []string
	for _, s := range []fleet.State{fleet.StateQueued, fleet.StateWorking, fleet.StateInputRequired} {
		if n := r.Count[s]; n > 0 {
			counts = append(counts, fmt.Sprintf("%s %s", thousands(int64(n)), s))
		}
	}
	if len(counts) > 0 {
		title += ": " + strings.Join(counts, ", ")
	}
	if len(r.Tasks) < r.Total {
		title += fmt.Sprintf(" (%d of %s shown)", len(r.Tasks), thousands(int64(r.Total)))
	}
	return title
}

// runAndNode is what a task is part of.
func runAndNode(t *fleet.TaskView) string {
	return strings.TrimSuffix(string(t.RunID)+" "+t.NodeID, " ")
}

// printTask prints the reply to task get.
func (a *app) printTask(r reply[fleet.TaskView]) error {
	if a.json() {
		return a.printJSON(r.raw)
	}
	t := &r.value
	g := a.card("Task " + string(t.TaskID))
	g.add("State", a.state(t.State))
	g.fact("Reason", reason(t.Reason))
	g.fact("Waiting", a.waits(t.Waiting))
	g.fact("From", string(t.From))
	g.fact("Priority", string(t.Priority))
	g.fact("Agent", who(t.AgentID, t.InstanceID))
	g.fact("Attempt", strconv.Itoa(t.Attempt))
	tokens := thousands(t.TokensSpent)
	if t.TokenBudget > 0 {
		tokens += " of " + thousands(t.TokenBudget)
	}
	g.fact("Tokens", tokens)
	for _, s := range t.Shared {
		g.fact("Of the "+s.Of, thousands(s.TokensSpent)+" of "+thousands(s.TokenBudget))
	}
	g.fact("Created", a.moment(t.Created))
	g.fact("Updated", a.moment(t.Updated))
	g.fact("Deadline", a.moment(t.Deadline))
	if t.NotBefore != nil {
		g.fact("Not before", a.moment(*t.NotBefore))
	}
	g.fact("Brief", oneLine(t.Brief))
	g.fact("Type", t.Type)
	g.fact("Run, node", runAndNode(t))
	g.fact("Session", string(t.SessionID))
	var labels []string
	for _, name := range sortedNames(t.Labels) {
		labels = append(labels, name+"="+t.Labels[name])
	}
	g.fact("Labels", strings.Join(labels, " "))
	cost, session := usageOf(t.Result)
	g.fact("Cost", cost)
	g.fact("Its session", session)
	if t.Await == fleet.AwaitHuman {
		g.fact("Waits for", "a human; parley escalation show "+string(t.TaskID))
		g.fact("Gives up", a.moment(deref(t.GiveUpAt, t.Deadline)))
	}
	if h := t.Human; h != nil {
		g.fact("Human", strings.TrimSpace(h.By+": "+h.Verb+" "+oneLine(string(h.AgentID)+" "+h.Text)))
	}
	if t.Question != nil {
		g.fact("Question", t.Question.Text)
		g.fact("", "parley task answer "+string(t.TaskID)+" TEXT")
	}
	if t.Result != nil {
		g.fact("Output", strings.TrimSpace(output(t.Result)))
		g.fact("Artifacts", artifacts(t.Result))
		g.fact("Remaining", strings.Join(t.Result.Remaining, "\n"))
		g.fact("Next steps", strings.Join(t.Result.NextSteps, "\n"))
	}
	g.print()
	if len(t.Attempts) > 0 {
		g := a.grid("Attempts that ended", []string{"#", "Agent", "Ended", "Code", "Tokens", "Then", "Message"}, "Message")
		for _, at := range t.Attempts {
			g.add(at.Attempt, who(at.AgentID, at.InstanceID), a.when(at.Ended), string(at.Code),
				thousands(at.Tokens), level(at.Level, at.Code), oneLine(at.Message))
		}
		g.print()
	}
	return nil
}

func deref(t *time.Time, otherwise time.Time) time.Time {
	if t == nil || t.After(otherwise) {
		return otherwise
	}
	return *t
}

// level says what escalation answered to an attempt that ended with code.
func level(n int, code subjects.Code) string {
	switch n {
	case 0:
		if class := escalation.ClassOf(code); class == escalation.ClassLoss {
			return "lost, queued again"
		} else if class == escalation.ClassCapacity {
			return "limited, queued again"
		}
		return "handed back"
	case 1:
		return "same agent"
	case 2:
		return "another agent"
	}
	return "human or end"
}

// card begins a table of facts.
func (a *app) card(title string) *grid {
	g := a.grid(title, nil)
	g.t.ResetHeaders()
	return g
}

// fact adds a row, if there is a value.
func (g *grid) fact(name, value string) {
	if value != "" {
		g.add(name, value)
	}
}

// moment is a time, and how far from now it is.
func (a *app) moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339) + "  (" + ago(t, a.now()) + ")"
}

// printOutcome prints how a task ended: its output on standard output, the rest
// as notices.
func (a *app) printOutcome(r reply[fleet.TaskView]) error {
	if a.json() {
		return a.printJSON(r.raw)
	}
	t := &r.value
	line := string(t.State)
	worked := slices.Contains([]fleet.State{fleet.StateDone, fleet.StatePartial, fleet.StateError}, t.State)
	if agent := who(t.AgentID, t.InstanceID); worked && agent != "" {
		line += " by " + agent
	}
	facts := []string{line}
	if t.Attempt > 1 {
		facts = append(facts, fmt.Sprintf("attempt %d", t.Attempt))
	}
	if t.TokensSpent > 0 {
		facts = append(facts, thousands(t.TokensSpent)+" tokens")
	}
	if cost, _ := usageOf(t.Result); strings.HasPrefix(cost, "$") {
		facts = append(facts, cost)
	}
	facts = append(facts, roughly(t.Updated.Sub(t.Created)))
	a.notice("%s", printable(strings.Join(facts, ", ")))
	if t.State != fleet.StateDone {
		part(a.stderr, "why:", printable(why(t)))
	}
	if t.Result != nil {
		if out := strings.TrimSpace(output(t.Result)); out != "" {
			a.print(printable(out))
		}
		part(a.stderr, "left:", printable(strings.Join(t.Result.Remaining, "\n")))
		part(a.stderr, "then:", printable(strings.Join(t.Result.NextSteps, "\n")))
	}
	if slices.Contains([]fleet.State{fleet.StateBlocked, fleet.StateError}, t.State) {
		next := "parley task explain " + string(t.TaskID) + "  or  parley task get " + string(t.TaskID)
		if t.Reason != nil && t.Reason.Code == subjects.CodeNoCapableAgent {
			next = "start an agent that can do it (parley agent run), then  parley task retry " + string(t.TaskID) +
				"\nparley task explain " + string(t.TaskID) + "  says what each agent lacks"
		}
		part(a.stderr, "next:", next)
	}
	return nil
}

// why is the reason of an end that is not done.
func why(t *fleet.TaskView) string {
	switch r := t.Result; {
	case t.Reason != nil:
		return reason(t.Reason)
	case r == nil:
		return ""
	case r.Error != nil:
		return reason(&fleet.Reason{Code: r.Error.Code, Message: r.Error.Message})
	case r.BlockedReason != nil:
		return *r.BlockedReason
	}
	return ""
}

// output is what a result says, as text.
func output(r *fleet.Result) string {
	var text string
	switch {
	case len(r.Output) > 0 && json.Unmarshal(r.Output, &text) == nil:
		return text
	case len(r.Output) > 0 && string(r.Output) != "null":
		return indented(r.Output)
	}
	var parts []string
	for _, p := range r.Parts {
		switch {
		case p.Text != nil:
			parts = append(parts, *p.Text)
		case len(p.Data) > 0:
			parts = append(parts, indented(p.Data))
		case p.URL != "":
			parts = append(parts, p.URL)
		case p.Raw != "":
			parts = append(parts, fmt.Sprintf("(%s, %d bytes in base64)", p.Filename, len(p.Raw)))
		}
	}
	if len(parts) == 0 && len(r.Artifacts) > 0 && !slices.Contains([]string{"null", "{}"}, string(r.Artifacts)) {
		return indented(r.Artifacts)
	}
	return strings.Join(parts, "\n")
}

func indented(raw json.RawMessage) string {
	data, err := json.MarshalIndent(raw, "", "  ")
	if err != nil {
		return string(raw)
	}
	return string(data)
}

// printEvents prints the records of a task.
func (a *app) printEvents(id subjects.TaskID, events []fleet.Event, more bool) error {
	if a.json() {
		raw, err := fleet.Encode(fleet.TaskEventsReply{Events: events, More: more})
		if err != nil {
			return err
		}
		return a.printList(raw, "events")
	}
	g := a.grid("Events of task "+string(id), []string{"#", "Time", "What", "State", "Attempt", "Agent", "Detail"}, "Detail")
	for i := range events {
		e := &events[i]
		g.add(e.Seq, e.Time.UTC().Format("2006-01-02 15:04:05.000"), e.Kind, a.state(e.State), e.Attempt,
			who(e.AgentID, e.InstanceID), oneLine(detail(e)))
	}
	g.print()
	if more && len(events) > 0 {
		a.notice("there are more: --after %d, or --all", events[len(events)-1].Seq)
	}
	return nil
}

// detail is what a record says beside its kind.
func detail(e *fleet.Event) string {
	var s []string
	if r := reason(e.Reason); r != "" {
		s = append(s, r)
	}
	switch e.Kind {
	case fleet.KindQueued:
		s = append(s, string(e.Facts.Priority)+" from "+string(e.Facts.From))
	case fleet.KindArtifact:
		if x := e.Data.Artifact; x != nil {
			s = append(s, strings.TrimSpace(x.ArtifactID+" "+x.Name))
		}
	case fleet.KindQuestion:
		if x := e.Data.Question; x != nil {
			s = append(s, x.Text)
		}
	case fleet.KindAnswer:
		if x := e.Data.Answer; x != nil {
			s = append(s, strings.TrimPrefix(string(x.From)+": "+x.Text, ": "))
		}
	case fleet.KindMessage:
		if x := e.Data.Message; x != nil {
			s = append(s, strings.TrimPrefix(string(x.From)+": "+x.Text, ": "))
		}
	case fleet.KindRetry:
		if at := e.Facts.NotBefore; at != nil {
			s = append(s, "not before "+at.UTC().Format(time.TimeOnly)+" UTC")
		}
	case fleet.KindOutcome:
		if e.Facts.TokensSpent > 0 {
			s = append(s, thousands(e.Facts.TokensSpent)+" tokens")
		}
	}
	return strings.Join(s, "; ")
}

// printExplanation prints the reply to task explain.
func (a *app) printExplanation(r reply[fleet.TaskExplanation]) error {
	if a.json() {
		return a.printJSON(r.raw)
	}
	x := &r.value
	a.notice("task %s: %s", x.TaskID, printable(x.Summary))
	if s := a.waits(x.Waiting); s != "" {
		a.notice("waiting: %s", printable(s))
	}
	if len(x.Agents) == 0 {
		a.notice("no agent has announced itself; parley agent run --id NAME --driver echo starts one")
		return nil
	}
	g := a.grid("Who could do task "+string(x.TaskID), []string{"Order", "Agent", "Verdict", "Why"})
	for _, v := range x.Agents {
		order, verdict := "", a.paint(red, "no")
		if v.Order > 0 {
			order = strconv.Itoa(v.Order)
		}
		switch {
		case v.Holder:
			verdict = a.paint(blue, "holds it")
		case v.Eligible:
			verdict = a.paint(green, "eligible")
		}
		var reasons []string
		for i := range v.Reasons {
			reasons = append(reasons, reason(&v.Reasons[i]))
		}
		g.add(order, who(v.AgentID, v.InstanceID), verdict, strings.Join(reasons, "\n"))
	}
	g.print()
	return nil
}
