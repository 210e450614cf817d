package remote

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"parley/subjects/fleet"
)

// FuzzStory: whatever a stranger tells, there is no panic, nothing is told after
// the end, and what is over makes a result or an error.
func FuzzStory(f *testing.F) {
	f.Add(`{"task":{"id":"x","contextId":"y","status":{"state":"TASK_STATE_WORKING","message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"a"}]}},"artifacts":[{"artifactId":"a","parts":[{"text":"b"}]}]}}
{"artifactUpdate":{"taskId":"x","contextId":"y","append":true,"artifact":{"artifactId":"a","parts":[{"text":"c"},{"data":{"z":1}},{"raw":"AAA="}]}}}
{"statusUpdate":{"taskId":"x","contextId":"y","status":{"state":"TASK_STATE_COMPLETED"},"metadata":{"usage":{"total_tokens":7}}}}`)
	f.Add(`{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"url":"http://x","filename":"f"}]}}`)
	f.Add(`{"statusUpdate":{"taskId":"x","contextId":"y","status":{"state":"TASK_STATE_FAILED"},"metadata":{"` + fleet.ContractURI + `":{"status":7,"error":{"code":"budget_exhausted"}}}}}`)
	f.Add(`{"task":null}` + "\n" + `{"artifactUpdate":{"artifact":null}}`)
	f.Fuzz(func(t *testing.T, lines string) {
		var s story
		for line := range strings.Lines(lines) {
			var r a2a.StreamResponse
			if json.Unmarshal([]byte(line), &r) != nil {
				continue
			}
			over := s.over()
			news, _ := s.add(r.Event)
			if over && len(news) > 0 {
				t.Errorf("%v is told after the end", news)
			}
			for _, n := range news {
				if n.artifact != nil && (n.artifact.ArtifactID == "" || sizeOf(n.artifact.Parts) > maxChunk && len(n.artifact.Parts) > 1) {
					t.Errorf("artifact %+v", n.artifact)
				}
			}
		}
		s.question("q")
		if !s.over() {
			return
		}
		r, err := s.outcome(&fleet.Dispatch{})
		if err == nil && r.Status != fleet.StatusDone && r.Status != fleet.StatusPartial && r.Status != fleet.StatusBlocked && r.Status != fleet.StatusError {
			t.Errorf("result %+v", r)
		}
	})
}

// TestCatchUp: of a task as it is, only what is new is told.
func TestCatchUp(t *testing.T) {
	t.Parallel()
	artifact := func(parts ...string) *a2a.Artifact {
		a := &a2a.Artifact{ID: "a"}
		for _, p := range parts {
			a.Parts = append(a.Parts, a2a.NewTextPart(p))
		}
		return a
	}
	for _, c := range []struct {
		name          string
		before, after []string
		want          string
	}{
		{"the same", []string{"one", "two"}, []string{"one", "two"}, ""},
		{"one more", []string{"one"}, []string{"one", "two"}, "+two"},
		{"put together", []string{"one", "two"}, []string{"onetwothree"}, "+three"},
		{"put together, no more", []string{"one", "two"}, []string{"onetwo"}, ""},
		{"another one", []string{"one"}, []string{"two"}, "two"},
		{"less", []string{"one", "two"}, []string{"one"}, "one"},
	} {
		s := story{task: "t", state: a2a.TaskStateWorking}
		if _, err := s.artifact(artifact(c.before...), false, false); err != nil {
			t.Fatal(err)
		}
		news, err := s.add(&a2a.Task{ID: "t", Status: a2a.TaskStatus{State: a2a.TaskStateWorking}, Artifacts: []*a2a.Artifact{artifact(c.after...)}})
		got := ""
		for _, n := range news {
			if n.artifact.Append {
				got += "+"
			}
			text, _ := plain(n.artifact.Parts)
			got += text
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
		if text, _ := plain(s.pieces[0].parts); text != strings.Join(c.after, "") {
			t.Errorf("%s: kept %q", c.name, text)
		}
	}
}

// TestEvents: ids of events are those of the events that have data, however the
// bytes come.
func TestEvents(t *testing.T) {
	t.Parallel()
	const in = "id: 1\ndata: a\n\n: comment\n\nid: 2\r\ndata: b\r\ndata: c\r\n\r\ndata: d\n\nid: 4\nevent: x\n\ndata: cut"
	for _, step := range []int{1, 2, 7, 1000} {
		_, p, end := newPulse(t.Context(), maxEventID*1e9)
		e := &events{ReadCloser: io.NopCloser(bytes.NewReader([]byte(in))), pulse: p}
		buf := make([]byte, step)
		for {
			if _, err := e.Read(buf); err != nil {
				break
			}
		}
		if !slices.Equal(p.ids, []string{"1", "2", "2"}) {
			t.Errorf("in steps of %d: ids %q", step, p.ids)
		}
		end()
	}
}

func TestRoute(t *testing.T) {
	t.Parallel()
	d := func(via ...string) *fleet.Dispatch {
		return &fleet.Dispatch{Input: &fleet.Input{Metadata: fleet.MustEncode(map[string]any{fleet.RouteURI: fleet.Route{Via: via}, "x": 1})}}
	}
	if r, err := nextRoute(d("a"), "b"); err != nil || !slices.Equal(r.Via, []string{"a", "b"}) {
		t.Errorf("route %v, %v", r, err)
	}
	if _, err := nextRoute(d("a", "b"), "a"); err == nil || !strings.HasPrefix(err.Error(), "cycle") {
		t.Errorf("a cycle: %v", err)
	}
	if _, err := nextRoute(d("1", "2", "3", "4", "5", "6", "7", "8"), "a"); err == nil || !strings.HasPrefix(err.Error(), "hop_limit") {
		t.Errorf("too far: %v", err)
	}
	if _, err := nextRoute(&fleet.Dispatch{Input: &fleet.Input{Metadata: []byte(`{"` + fleet.RouteURI + `":"x"}`)}}, "a"); err == nil {
		t.Error("a route that is none is taken")
	}
	if r, err := nextRoute(&fleet.Dispatch{}, "a"); err != nil || !slices.Equal(r.Via, []string{"a"}) {
		t.Errorf("route %v, %v", r, err)
	}
}
