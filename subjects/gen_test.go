package subjects_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
)

var update = flag.Bool("update", false, "write the reference pages")

const generated = "<!-- Generated from package subjects by `go generate ./subjects`. Do not edit. -->\n\n"

// TestReference compares docs/reference with the tables, or writes it.
func TestReference(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"subjects.md": subjectsPage(), "errors.md": errorsPage()} {
		path := filepath.Join("..", "docs", "reference", name)
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s differs from the tables; run go generate ./subjects (-want +got):\n%s", path, diff)
		}
	}
}

func subjectsPage() string {
	var b strings.Builder
	b.WriteString("# Subjects\n\n" + generated)
	b.WriteString("`<name>` stands for one token, `[A-Za-z0-9_-]{1,64}`. `→` separates a request from its reply; every reply\n" +
		"may instead be `{\"error\": …}` (see [errors](errors.md)). The token that names the writer is what proves it: the\n" +
		"server lets nobody publish under another's name.\n\n")
	b.WriteString("| subject | message | writer → readers | kept |\n| --- | --- | --- | --- |\n")
	for _, e := range subjects.Catalogue() {
		kept := e.Kept
		if e.Stream != "" {
			kept = fmt.Sprintf("`%s`: %s", e.Stream, kept)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s → %s | %s |\n", e.Pattern, e.Message, e.Writer, e.Readers, kept)
	}
	b.WriteString("\n## What they are for\n\n")
	for _, e := range subjects.Catalogue() {
		fmt.Fprintf(&b, "- `%s`: %s\n", e.Pattern, e.Description)
	}
	b.WriteString("\n## Permissions\n\nWhat the server allows an identity `bob` in each role.\n")
	for _, role := range []string{subjects.RoleAgent, subjects.RoleLeaf, subjects.RoleOrchestrator, subjects.RoleOperator, subjects.RoleWorker} {
		publish, subscribe := subjects.Permissions(role, "bob")
		fmt.Fprintf(&b, "\n### %s\n\n- publish: `%s`\n- subscribe: `%s`\n", role,
			strings.Join(publish, "` `"), strings.Join(subscribe, "` `"))
		if subjects.Responds(role) {
			b.WriteString("- `allow_responses`: it answers requests\n")
		}
	}
	b.WriteString("\n## Headers\n\n| header | says |\n| --- | --- |\n")
	for _, h := range [][2]string{
		{"Nats-Msg-Id", "the deduplication id, where a stream keeps the message"},
		{"traceparent", "the W3C trace context"},
		{subjects.HeaderKind, "what a record says has happened"},
		{subjects.HeaderWriteID, "which write a record is"},
		{subjects.HeaderWriter, "the worker that wrote a record"},
		{subjects.HeaderLevel, "the level of escalation, on a record that is one"},
		{subjects.HeaderTask, "the task whose result it brings"},
		{subjects.HeaderAgent, "who sends; the subject proves it"},
		{subjects.HeaderSession, "the session it belongs to"},
		{subjects.HeaderTimestamp, "the time that the signature covers"},
		{subjects.HeaderNonce, "what makes a signed message unlike every other"},
		{subjects.HeaderSignature, "the signature over agent, session, timestamp, nonce, subject and the payload's hash"},
	} {
		fmt.Fprintf(&b, "| `%s` | %s |\n", h[0], h[1])
	}
	return b.String()
}

func errorsPage() string {
	var b strings.Builder
	b.WriteString("# Errors\n\n" + generated)
	b.WriteString("One code, one meaning, at every door. An error says what was wrong (`message`), where (`pointer`, a JSON\n" +
		"pointer), and what to do (`remedy`); `also` lists further problems of the same message. Exit status 0 is\n" +
		"success; a failure that has none of these codes exits with 1.\n\n")
	b.WriteString("| code | exit | HTTP | meaning | what to do |\n| --- | --- | --- | --- | --- |\n")
	for _, code := range subjects.Codes() {
		meaning, remedy, exit, status := subjects.CodeInfo(code)
		fmt.Fprintf(&b, "| `%s` | %d | %d | %s | %s |\n", code, exit, status, meaning, remedy)
	}
	return b.String()
}
