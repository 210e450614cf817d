package escalation_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// TestLadders runs every ladder of testdata: what goes wrong, line by line, and
// below each line, indented, what the ladder answers.
func TestLadders(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.ladder")
	if err != nil || len(files) == 0 {
		t.Fatalf("no ladders: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".ladder"), func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := climb(t, string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("run with -update if this is meant (-want +got):\n%s", diff)
			}
		})
	}
}

// ladder is one climb under way.
type ladder struct {
	escalation.State
	now time.Time
}

// climb copies the script, with the answers as they are now.
func climb(t *testing.T, script string) string {
	t.Helper()
	var out strings.Builder
	var l *ladder
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "    ") {
			continue // an answer
		}
		out.WriteString(line + "\n")
		verb, rest, _ := strings.Cut(line, " ")
		switch verb {
		case "", "#":
		case "task":
			l = newLadder(t, strings.Fields(rest))
		default:
			for _, answer := range l.step(t, verb, rest) {
				out.WriteString("    " + answer + "\n")
			}
		}
	}
	return out.String()
}

func newLadder(t *testing.T, words []string) *ladder {
	t.Helper()
	l := &ladder{now: start}
	l.Deadline = start.Add(time.Hour)
	l.Seed = 42
	l.Policy.MaxRetries = fleet.DefaultMaxRetries
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		var err error
		switch k {
		case "pin":
			l.Policy.Agent = subjects.AgentID(v)
		case "alternatives":
			l.Policy.Alternatives = agents(v)
		case "retries":
			l.Policy.MaxRetries, err = strconv.Atoi(v)
		case "losses":
			l.Policy.MaxLosses, err = strconv.Atoi(v)
		case "on_blocked":
			l.Policy.OnBlocked = v
		case "escalate":
			l.Policy.Escalate = v
		case "human":
			l.HumanContact = true
		case "budget":
			l.TokenBudget, err = strconv.ParseInt(v, 10, 64)
		case "deadline":
			var d time.Duration
			d, err = time.ParseDuration(v)
			l.Deadline = start.Add(d)
		default:
			t.Fatalf("task: unknown word %q", w)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func agents(list string) []subjects.AgentID {
	var out []subjects.AgentID
	for id := range strings.SplitSeq(list, ",") {
		out = append(out, subjects.AgentID(id))
	}
	return out
}

// step does one line of a script and tells the answer.
func (l *ladder) step(t *testing.T, verb, rest string) []string {
	t.Helper()
	l.Nobody, l.Away, l.RetryAfter = nil, false, 0
	switch verb {
	case "pass": // time passes
		d, err := time.ParseDuration(rest)
		if err != nil {
			t.Fatal(err)
		}
		l.now = l.now.Add(d)
		return nil
	case "nobody": // nobody who may could ever do it
		l.Nobody = []fleet.Reason{}
		for m := range strings.SplitSeq(rest, " | ") {
			l.Nobody = append(l.Nobody, fleet.Reason{Code: subjects.CodeNoCapableAgent, Message: m})
		}
	case "away": // none of the candidates is there
		l.Away = true
	case "artifact": // the attempt stored something new
		l.Counters.Losses = 0
		return nil
	default: // an agent's attempt ended
		l.ended(t, verb, strings.Fields(rest))
	}
	var action escalation.Action
	l.State, action = escalation.Next(l.State, l.now)
	answer := describe(action, l.now)
	answers := []string{answer, "levels" + levels(l.Attempts)}
	if c := *l.Counters; c != (fleet.Counters{}) {
		answers = append(answers, fmt.Sprintf("retries %d, losses %d of %d", c.Retries, c.Losses, c.LossesTotal))
	}
	if c := escalation.CandidatesOf(l.Policy, l.Attempts, l.Widened, nil); len(c.Exclude)+len(c.Only) > 0 {
		answers = append(answers, fmt.Sprintf("from here on: not %s only %v%s", l.excluded(c.Exclude), c.Only, map[bool]string{true: ", then others"}[c.Wider]))
	}
	if r, ok := action.(escalation.Retry); ok {
		l.now = r.At
	}
	return answers
}

func (l *ladder) ended(t *testing.T, agent string, words []string) {
	t.Helper()
	a := fleet.Attempt{
		Attempt: len(l.Attempts) + 1, AgentID: subjects.AgentID(agent), Ended: l.now,
		Code: subjects.Code(words[0]), Message: "it went wrong",
	}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		switch k {
		case "retryable":
			a.Retryable = true
		case "instance":
			a.InstanceID = subjects.InstanceID(v)
		case "tokens":
			n, err := strconv.ParseInt(v, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			a.Tokens = n
			l.TokensSpent += n
		case "after":
			d, err := time.ParseDuration(v)
			if err != nil {
				t.Fatal(err)
			}
			l.RetryAfter = d
		default:
			t.Fatalf("%s: unknown word %q", agent, w)
		}
	}
	l.Attempts = append(l.Attempts, a)
	l.Made++
}

func (l *ladder) excluded(list []escalation.Exclusion) string {
	var out []string
	for _, e := range list {
		s := string(e.Agent)
		if e.Instance != "" {
			s += "/" + string(e.Instance)
		}
		if !e.Until.IsZero() {
			s += " for " + e.Until.Sub(l.now).String()
		}
		out = append(out, s)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func levels(attempts []fleet.Attempt) string {
	var b strings.Builder
	for _, a := range attempts {
		fmt.Fprintf(&b, " %s:%d", a.AgentID, a.Level)
	}
	return b.String()
}

func describe(a escalation.Action, now time.Time) string {
	switch a := a.(type) {
	case escalation.Retry:
		return fmt.Sprintf("retry by %s in %s", a.Agent, a.At.Sub(now).Round(time.Millisecond))
	case escalation.Reassign:
		return "reassign"
	case escalation.Requeue:
		if !a.At.IsZero() {
			return fmt.Sprintf("queue again in %s", a.At.Sub(now).Round(time.Millisecond))
		}
		return "queue again"
	case escalation.Widen:
		return "widen"
	case escalation.Wait:
		return "wait"
	case escalation.AskHuman:
		return fmt.Sprintf("ask a human: %s: %s", a.Code, a.Message)
	case escalation.GiveUp:
		return fmt.Sprintf("give up as %s: %s: %s", a.State, a.Code, a.Message)
	case escalation.Expire:
		return "expire"
	}
	return fmt.Sprintf("unknown action %T", a)
}
