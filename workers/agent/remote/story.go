package remote

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"
	gojson "github.com/go-json-experiment/json"

	"parley/subjects/fleet"
)

// This file turns what a remote agent tells of a task into what an agent of the
// fleet tells. It does no I/O.

// maxKept is how much output of one attempt is kept to make its result of.
const maxKept = 8 << 20

// maxChunk is how large a piece of an artifact is handed in at once.
const maxChunk = 256 << 10

// errMalformed: what the agent tells does not follow the protocol.
var errMalformed = errors.New("the remote agent does not follow the protocol")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
}

// told is what is to be told on: one of these.
type told struct {
	progress string
	tokens   int64
	artifact *fleet.Artifact
}

// piece is an artifact as far as it has come.
type piece struct {
	id, name string
	parts    []fleet.Part
}

// story is what has been told of one attempt. The zero value is the beginning.
type story struct {
	task    a2a.TaskID
	context string
	state   a2a.TaskState
	status  *a2a.Message   // of the latest status
	answer  *a2a.Message   // instead of a task
	last    *a2a.Message   // of the agent, in the history
	sent    []string       // ids of messages that the history has
	meta    map[string]any // of the task, then of its statuses
	pieces  []*piece
	kept    int // bytes of pieces
	tokens  int64
}

// over reports whether nothing more will come.
func (s *story) over() bool { return s.answer != nil || s.state.Terminal() }

// asks reports whether the agent waits for somebody.
func (s *story) asks() bool {
	return s.state == a2a.TaskStateInputRequired || s.state == a2a.TaskStateAuthRequired
}

// add takes in an event. It panics on nothing, whatever a stranger sends.
func (s *story) add(e a2a.Event) ([]told, error) {
	if s.over() {
		return nil, nil
	}
	switch e := e.(type) {
	case *a2a.Message:
		switch {
		case e == nil || len(e.Parts) == 0:
			return nil, malformed("a message without parts")
		case s.task != "":
			s.last = e // a remark beside the task
			return []told{{progress: textOf(e)}}, nil
		}
		s.answer = e
		s.learn(e.Metadata)
		return nil, nil
	case *a2a.Task:
		if e == nil {
			return nil, malformed("an event without content")
		}
		return s.snapshot(e)
	case *a2a.TaskStatusUpdateEvent:
		if e == nil {
			return nil, malformed("an event without content")
		}
		if err := s.belongs(e.TaskID, e.ContextID); err != nil {
			return nil, err
		}
		s.learn(e.Metadata)
		return s.update(e.Status)
	case *a2a.TaskArtifactUpdateEvent:
		if e == nil || e.Artifact == nil {
			return nil, malformed("an artifact update without an artifact")
		}
		if err := s.belongs(e.TaskID, e.ContextID); err != nil {
			return nil, err
		}
		return s.artifact(e.Artifact, e.Append, e.LastChunk)
	}
	return nil, malformed("an event that is none of the four")
}

// belongs refuses what is about another task.
func (s *story) belongs(task a2a.TaskID, context string) error {
	switch {
	case task == "" || len(task) > maxEventID:
		return malformed("a task without an id, or with one that is too long")
	case s.task == "":
		s.task, s.context = task, context
	case s.task != task:
		return malformed("an event of the task %.80q in the stream of %.80q", string(task), string(s.task))
	}
	return nil
}

// learn takes in metadata.
func (s *story) learn(meta map[string]any) {
	if len(meta) == 0 {
		return
	}
	merged := map[string]any{}
	for _, m := range []map[string]any{s.meta, meta} {
		for k, v := range m {
			merged[k] = v
		}
	}
	s.meta = merged
	s.tokens = max(s.tokens, tokensOf(meta))
}

// snapshot takes in the task as it is: of what it has, only the news are told.
func (s *story) snapshot(t *a2a.Task) ([]told, error) {
	if err := s.belongs(t.ID, t.ContextID); err != nil {
		return nil, err
	}
	s.learn(t.Metadata)
	for _, m := range t.History {
		switch {
		case m == nil:
		case m.Role == a2a.MessageRoleAgent:
			s.last = m
		case !slices.Contains(s.sent, m.ID):
			s.sent = append(s.sent, m.ID)
		}
	}
	var out []told
	for _, a := range t.Artifacts {
		if a == nil {
			return out, malformed("an artifact without content")
		}
		news, err := s.catchUp(a)
		out = append(out, news...)
		if err != nil {
			return out, err
		}
	}
	news, err := s.update(t.Status)
	return append(out, news...), err
}

// update takes in a status.
func (s *story) update(st a2a.TaskStatus) ([]told, error) {
	switch st.State {
	case a2a.TaskStateSubmitted, a2a.TaskStateWorking, a2a.TaskStateInputRequired, a2a.TaskStateAuthRequired,
		a2a.TaskStateCompleted, a2a.TaskStateFailed, a2a.TaskStateCanceled, a2a.TaskStateRejected:
	default:
		return nil, malformed("a task in no state that is known, %.40q", string(st.State))
	}
	same := s.state == st.State && s.status != nil && st.Message != nil && s.status.ID == st.Message.ID
	s.state, s.status = st.State, st.Message
	if m := st.Message; m != nil {
		s.learn(m.Metadata)
	}
	text := textOf(st.Message)
	if same || s.over() || s.asks() || text == "" && s.tokens == 0 {
		return nil, nil
	}
	return []told{{progress: text, tokens: s.tokens}}, nil
}

func (s *story) find(id string) *piece {
	for _, p := range s.pieces {
		if p.id == id {
			return p
		}
	}
	return nil
}

// artifact takes in an artifact, whole or a chunk.
func (s *story) artifact(a *a2a.Artifact, more, last bool) ([]told, error) {
	parts, err := s.keep(a)
	if err != nil {
		return nil, err
	}
	p := s.find(string(a.ID))
	switch {
	case p == nil:
		p, more = &piece{id: string(a.ID), name: a.Name}, false
		s.pieces = append(s.pieces, p)
	case !more:
		p.parts = nil
	}
	p.parts = append(p.parts, parts...)
	return s.chunks(p, parts, more, last), nil
}

// catchUp takes in an artifact as it is by now; what has come of it before is
// not told again.
func (s *story) catchUp(a *a2a.Artifact) ([]told, error) {
	p := s.find(string(a.ID))
	if p == nil {
		return s.artifact(a, false, false)
	}
	was := s.kept
	parts, err := s.keep(a)
	if err != nil {
		return nil, err
	}
	before, news, more := p.parts, parts, false
	if rest, ok := beyond(before, parts); ok {
		news, more = rest, true
		s.kept = was + sizeOf(rest)
	}
	p.parts = parts
	if len(news) == 0 {
		return nil, nil
	}
	return s.chunks(p, news, more, false), nil
}

// beyond is what now has more than before; false if it is something else. The
// chunks of a text may have been put together meanwhile.
func beyond(before, now []fleet.Part) (rest []fleet.Part, ok bool) {
	if len(now) >= len(before) && slices.EqualFunc(before, now[:len(before)], samePart) {
		return now[len(before):], true
	}
	a, plainA := plain(before)
	b, plainB := plain(now)
	if after, is := strings.CutPrefix(b, a); plainA && plainB && is {
		if after == "" {
			return nil, true
		}
		return []fleet.Part{{Text: &after}}, true
	}
	return nil, false
}

func samePart(a, b fleet.Part) bool {
	x, errX := gojson.Marshal(a, gojson.Deterministic(true))
	y, errY := gojson.Marshal(b, gojson.Deterministic(true))
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// plain is the text of parts, if they are nothing else.
func plain(parts []fleet.Part) (string, bool) {
	var b strings.Builder
	for _, p := range parts {
		if p.Text == nil {
			return "", false
		}
		b.WriteString(*p.Text)
	}
	return b.String(), true
}

// keep reads the parts of an artifact and counts them.
func (s *story) keep(a *a2a.Artifact) ([]fleet.Part, error) {
	if a.ID == "" || len(a.ID) > maxEventID {
		return nil, malformed("an artifact without an id, or with one that is too long")
	}
	parts, err := fleetParts(a.Parts)
	if err != nil {
		return nil, err
	}
	if s.kept += sizeOf(parts); s.kept > maxKept {
		return nil, errTooLong
	}
	return parts, nil
}

func sizeOf(parts []fleet.Part) (n int) {
	for _, p := range parts {
		n += len(p.Data) + len(p.Raw) + len(p.URL)
		if p.Text != nil {
			n += len(*p.Text)
		}
	}
	return n
}

// chunks are the artifacts that hand parts of p in. The output of another fleet
// is its result, and no artifact of its agent's.
func (s *story) chunks(p *piece, parts []fleet.Part, more, last bool) (out []told) {
	if p.isResult(s) {
		return nil
	}
	var groups [][]fleet.Part
	size := 0
	for _, part := range split(parts) {
		n := sizeOf([]fleet.Part{part})
		if size += n; len(groups) == 0 || size > maxChunk {
			groups, size = append(groups, nil), n
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], part)
	}
	for i, g := range groups {
		out = append(out, told{artifact: &fleet.Artifact{
			ArtifactID: p.id, Name: p.name, Parts: g, Append: more || i > 0, LastChunk: last && i == len(groups)-1,
		}})
	}
	return out
}

// split divides long texts.
func split(parts []fleet.Part) (out []fleet.Part) {
	for _, p := range parts {
		for p.Text != nil && len(*p.Text) > maxChunk {
			n := maxChunk
			for n > maxChunk-4 && (*p.Text)[n]&0xC0 == 0x80 { // not within a rune
				n--
			}
			head, tail := p, p
			head.Text, tail.Text = new((*p.Text)[:n]), new((*p.Text)[n:])
			out, p = append(out, head), tail
		}
		out = append(out, p)
	}
	return out
}

// isResult reports whether the artifact is the output of a task of a fleet.
func (p *piece) isResult(s *story) bool {
	return s.meta[fleet.ContractURI] != nil && (p.id == "result" || strings.HasPrefix(p.id, "result-")) && p.name == "result"
}

// fleetParts are parts of A2A as the fleet has them: their JSON is the same.
func fleetParts(in a2a.ContentParts) ([]fleet.Part, error) {
	out := make([]fleet.Part, 0, len(in))
	for _, p := range in {
		if p == nil || p.Content == nil {
			return nil, malformed("a part without content")
		}
		if t, ok := p.Content.(a2a.Text); ok {
			p = &a2a.Part{Content: a2a.Text(strings.ToValidUTF8(string(t), "\uFFFD")), Filename: p.Filename, MediaType: p.MediaType, Metadata: p.Metadata}
		}
		data, err := json.Marshal(p)
		if err != nil {
			return nil, malformed("a part that is not JSON: %v", err)
		}
		var f fleet.Part
		if err := gojson.Unmarshal(data, &f); err != nil {
			return nil, malformed("a part that cannot be read: %v", err)
		}
		out = append(out, f)
	}
	return out, nil
}

// a2aParts are parts of the fleet as A2A has them.
func a2aParts(in []fleet.Part) (out []*a2a.Part) {
	for _, f := range in {
		data, err := gojson.Marshal(f)
		if err != nil {
			continue
		}
		p := new(a2a.Part)
		if json.Unmarshal(data, p) == nil {
			out = append(out, p)
		}
	}
	return out
}

// textOf is the text of a message.
func textOf(m *a2a.Message) string {
	if m == nil {
		return ""
	}
	var lines []string
	for _, p := range m.Parts {
		if p == nil {
			continue
		}
		if t := p.Text(); t != "" {
			lines = append(lines, strings.ToValidUTF8(t, "\uFFFD"))
		}
	}
	return strings.Join(lines, "\n")
}

// tokensOf is what metadata tells of spent tokens, in the ways that are about:
// Parley's, the Agent Development Kit's, and those of the model providers.
func tokensOf(meta map[string]any) int64 {
	in := func(m map[string]any, names ...string) (sum int64) {
		for _, n := range names {
			if v, ok := m[n].(float64); ok && v > 0 && v < 1<<53 {
				sum += int64(v)
			}
		}
		return sum
	}
	var most int64
	for _, key := range []string{fleet.ContractURI, "adk_usage_metadata", "usage_metadata", "usageMetadata", "usage"} {
		m, _ := meta[key].(map[string]any)
		total := in(m, "tokens_spent")
		for _, names := range [][]string{
			{"totalTokenCount"}, {"total_token_count"}, {"total_tokens"}, {"totalTokens"}, {"input_tokens", "output_tokens"}, {"inputTokens", "outputTokens"},
		} {
			total = max(total, in(m, names...))
		}
		most = max(most, total)
	}
	return max(most, in(meta, "tokens_spent"))
}
