package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"parley/subjects/fleet"
	"parley/workers/agent"
)

// agentLabels are the labels that an agent announces: those that are given, the
// machine's name, and the account that the limits of its tool hold for.
func (a *app) agentLabels(f *agentFlags) map[string]string {
	labels := maps.Clone(f.labels)
	if labels == nil {
		labels = map[string]string{}
	}
	add := func(name, value string) {
		if _, given := labels[name]; !given && value != "" {
			labels[name] = value
		}
	}
	if host, err := os.Hostname(); err == nil {
		add(fleet.LabelHost, host)
	}
	if f.account != "" {
		labels[fleet.LabelAccount] = f.account
	} else {
		add(fleet.LabelAccount, loginOf(agent.Usage(f.usage), a.toolEnv(f)))
	}
	return labels
}

// toolEnv looks up what a command of the driver exec sees of a variable.
func (a *app) toolEnv(f *agentFlags) func(name string) string {
	return func(name string) string {
		for _, kv := range slices.Backward(f.set) {
			if value, ok := strings.CutPrefix(kv, name+"="); ok {
				return value
			}
		}
		allowed := name == "HOME" || slices.ContainsFunc(f.env, func(p string) bool {
			prefix, star := strings.CutSuffix(p, "*")
			return name == p || star && strings.HasPrefix(name, prefix)
		})
		if !allowed {
			return ""
		}
		for _, kv := range slices.Backward(a.environ) {
			if value, ok := strings.CutPrefix(kv, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

// loginOf names the account that a tool is logged in to, "" where its files do
// not say it, or a key of the environment counts instead. The name is a hash of
// what the vendor calls the account: agents with one login have the same.
func loginOf(u agent.Usage, env func(string) string) string {
	home := env("HOME")
	var id string
	switch u {
	case agent.UsageClaude:
		if env("ANTHROPIC_API_KEY")+env("ANTHROPIC_AUTH_TOKEN")+env("CLAUDE_CODE_USE_BEDROCK")+env("CLAUDE_CODE_USE_VERTEX") != "" {
			return ""
		}
		file := filepath.Join(home, ".claude.json")
		if dir := env("CLAUDE_CONFIG_DIR"); dir != "" {
			file = filepath.Join(dir, ".claude.json")
		}
		var login struct {
			Account struct {
				ID string `json:"accountUuid"`
			} `json:"oauthAccount"`
		}
		if readJSON(file, &login) {
			id = login.Account.ID
		}
	case agent.UsageCodex:
		if env("OPENAI_API_KEY")+env("CODEX_API_KEY") != "" {
			return ""
		}
		file := filepath.Join(home, ".codex", "auth.json")
		if dir := env("CODEX_HOME"); dir != "" {
			file = filepath.Join(dir, "auth.json")
		}
		var login struct {
			Tokens struct {
				ID string `json:"account_id"`
			} `json:"tokens"`
		}
		if readJSON(file, &login) {
			id = login.Tokens.ID
		}
	case agent.UsageNone:
	}
	if id == "" || home == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(id))
	return string(u) + "-" + hex.EncodeToString(sum[:6])
}

// readJSON reads a file that may not be there.
func readJSON(file string, v any) bool {
	data, err := os.ReadFile(file) //nolint:gosec // the tool's own settings, in the home of whoever runs it
	return err == nil && json.Unmarshal(data, v) == nil
}
