package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAgentLabels(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	home, other := t.TempDir(), t.TempDir()
	for file, text := range map[string]string{
		filepath.Join(home, ".claude.json"):        `{"oauthAccount":{"accountUuid":"6f1c","emailAddress":"a@example.org"}}`,
		filepath.Join(home, ".codex", "auth.json"): `{"tokens":{"account_id":"acc","access_token":"secret"}}`,
		filepath.Join(other, ".claude.json"):       `{"oauthAccount":{"accountUuid":"77aa"}}`,
		filepath.Join(other, "auth.json"):          `{not json`,
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := &app{process: process{environ: []string{"HOME=" + home, "ANTHROPIC_API_KEY=k", "CODEX_HOME=" + other, "CLAUDE_CONFIG_DIR=" + other}}}
	for name, c := range map[string]struct {
		flags agentFlags
		want  map[string]string
	}{
		"nothing":            {agentFlags{}, map[string]string{"host": host}},
		"claude's login":     {agentFlags{usage: "claude"}, map[string]string{"host": host, "account": "claude-4d482d944eb0"}},
		"codex's login":      {agentFlags{usage: "codex"}, map[string]string{"host": host, "account": "codex-414322309db5"}},
		"another home":       {agentFlags{usage: "claude", env: []string{"CLAUDE_*"}}, map[string]string{"host": host, "account": "claude-499f8504ed3a"}},
		"a key":              {agentFlags{usage: "claude", env: []string{"ANTHROPIC_*"}}, map[string]string{"host": host}},
		"a key that is set":  {agentFlags{usage: "codex", set: []string{"OPENAI_API_KEY=x"}}, map[string]string{"host": host}},
		"a file that broke":  {agentFlags{usage: "codex", env: []string{"CODEX_HOME"}}, map[string]string{"host": host}},
		"said so":            {agentFlags{usage: "claude", account: "team"}, map[string]string{"host": host, "account": "team"}},
		"labels of a person": {agentFlags{usage: "claude", labels: map[string]string{"host": "h", "account": "x", "k": "v"}}, map[string]string{"host": "h", "account": "x", "k": "v"}},
	} {
		if diff := cmp.Diff(c.want, a.agentLabels(&c.flags)); diff != "" {
			t.Errorf("%s: labels (-want +got):\n%s", name, diff)
		}
	}
}
