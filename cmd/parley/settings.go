package main

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"parley/subjects"
)

// Groups of settings, by the names of their flags.
var (
	connectionFlags = []string{
		"server", "context", "creds", "nkey", "user", "password", "token",
		"tlsca", "tlscert", "tlskey", "tlsfirst", "inbox-prefix", "timeout", "identity", "identity-key",
	}
	workerFlags = []string{
		"workers", "operators", "max-queued", "keep-ended", "max-store", "max-output", "audit-keep", "http", "grace",
		"webhooks-file", "webhook-url", "webhook-secret", "webhook-header", "webhook-allow", "webhook-retries", "webhook-base",
		"webhook-timeout", "webhook-check",
		"http-cert", "http-key", "http-client-ca", "a2a-url", "a2a-nats-url", "a2a-name", "a2a-tokens", "a2a-issuer", "a2a-audience",
		"a2a-open", "a2a-origins", "a2a-rate", "a2a-push-endpoint", "a2a-without", "a2a-require", "a2a-key", "a2a-registry", "a2a-registry-token", "a2a-registry-each", "a2e-listen", "a2e-tokens", "a2e-max-parallel", "serve-mcp", "mcp-escalations", "metrics-log", "metrics-interval", "otlp-endpoint", "otlp-headers",
		"max-retries", "max-losses", "on-blocked", "escalate", "alert-repeat", "give-up-after", "alert-contacts", "alert-next", "wait-alert", "ack-timeout",
		"group-by", "group-wait", "group-interval", "change-log", "public-url", "link-key", "link-ttl", "heartbeat-to", "heartbeat-each",
		"require-signatures", "require-identity", "seal-key", "callout-issuer", "callout-xkey", "callout-account", "callout-ttl",
		"run-output", "mesh-hops", "mesh-pair-rate", "mesh-agent-rate",
	}
	secretFlags = []string{
		"a2a-registry-token", "otlp-headers",
		"password", "token", "session-token", "webhook-url", "webhook-secret", "webhook-header", "link-key",
		"identity-key", "seal-key", "callout-issuer", "callout-xkey",
	}
	brokerFlags = []string{"host", "port", "auth", "tenant", "callout", "insecure", "data", "sync"}
)

// setting is one field of config.
type setting struct {
	flag, short, env, nats, desc string
	value                        reflect.Value
}

// settings lists the fields of config in order.
func settings(c *config) []setting {
	v := reflect.ValueOf(c).Elem()
	var all []setting
	for i, f := range reflect.VisibleFields(v.Type()) {
		all = append(all, setting{
			flag: f.Tag.Get("flag"), short: f.Tag.Get("short"), env: f.Tag.Get("envconfig"),
			nats: f.Tag.Get("nats"), desc: f.Tag.Get("desc"), value: v.Field(i),
		})
	}
	return all
}

// text is the setting's value as one would type it.
func (s setting) text() string {
	switch v := s.value.Addr().Interface().(type) {
	case fmt.Stringer:
		return v.String()
	case *[]string:
		return strings.Join(*v, ",")
	}
	return fmt.Sprint(s.value.Interface())
}

// otherVariables are PARLEY_ variables that are no settings: the file of
// settings, what an agent's command is told of its task, and what tests use.
var otherVariables = []string{
	"PARLEY_CONFIG",
	"PARLEY_TASK_ID", "PARLEY_TASK_MARK", "PARLEY_ATTEMPT", "PARLEY_FROM", "PARLEY_PRIORITY", "PARLEY_REPLY_SCHEMA",
	"PARLEY_SESSION_ID", "PARLEY_CONTRACT", "PARLEY_DEADLINE", "PARLEY_TOKEN_BUDGET", "PARLEY_MESSAGE_ID", "PARLEY_THREAD_ID",
	"PARLEY_CRASH_AT", "PARLEY_NATS_CLI",
}

// strangers warns of each PARLEY_ variable in environ that nobody reads: it is
// misspelt, most likely.
func strangers(environ []string) (warnings []string) {
	const prefix = "PARLEY_"
	known := slices.Clone(otherVariables)
	for _, s := range settings(&config{}) {
		known = append(known, s.env)
		if slices.Contains(secretFlags, s.flag) {
			known = append(known, fileVariable(s.env))
		}
	}
	for i, name := range known {
		known[i] = strings.TrimPrefix(name, prefix)
	}
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, prefix) || slices.Contains(known, strings.TrimPrefix(name, prefix)) {
			continue
		}
		warning := "parley: warning: " + name + " is no setting and changes nothing"
		if near := subjects.Nearest(strings.TrimPrefix(name, prefix), known); near != "" {
			warning += "; did you mean " + prefix + near + "?"
		} else {
			warning += "; parley help env  lists them all"
		}
		warnings = append(warnings, warning)
	}
	return warnings
}

// bind makes flags of the named settings. What file and environment said is
// the flags' default. An unknown name is a mistake in this program.
func bind(fs *pflag.FlagSet, c *config, names ...string) {
	byFlag := make(map[string]setting)
	for _, s := range settings(c) {
		byFlag[s.flag] = s
	}
	for _, name := range names {
		s, ok := byFlag[name]
		if !ok {
			panic("no setting has the flag " + name)
		}
		switch p := s.value.Addr().Interface().(type) {
		case pflag.Value:
			fs.VarP(p, name, s.short, s.desc)
		case *string:
			fs.StringVarP(p, name, s.short, *p, s.desc)
		case *int:
			fs.IntVarP(p, name, s.short, *p, s.desc)
		case *float64:
			fs.Float64VarP(p, name, s.short, *p, s.desc)
		case *bool:
			fs.BoolVarP(p, name, s.short, *p, s.desc)
		case *[]string:
			fs.StringSliceVarP(p, name, s.short, *p, s.desc)
		default:
			panic("no kind of flag holds the setting " + name)
		}
		if slices.Contains(secretFlags, s.flag) {
			fs.Lookup(name).DefValue = "" // help shows no secrets
		}
	}
}

// writeSettings prints the table of settings with c's values as defaults, as
// Markdown that is legible as it stands.
func writeSettings(w io.Writer, c *config) {
	rows := [][]string{{"Environment", "Flag", "Default", "Meaning"}}
	for _, s := range settings(c) {
		desc := s.desc
		if s.nats != "" {
			desc += "; or " + s.nats
		}
		if slices.Contains(secretFlags, s.flag) {
			desc += "; or " + fileVariable(s.env) + ", a file with it"
		}
		value := s.text()
		if s.flag == "data" {
			value = "$XDG_DATA_HOME/parley"
		}
		rows = append(rows, []string{s.env, "--" + s.flag, value, desc})
	}
	rows = append(rows, []string{"PARLEY_CONFIG", "", "$XDG_CONFIG_HOME/parley/config.json", "file of settings, named like the flags with _ for -"})
	rows = append(rows, []string{"NO_COLOR", "", "", "set to anything: no colours"})
	markdownTable(w, rows)
}

// markdownTable prints rows in columns of equal width, the first as header.
func markdownTable(w io.Writer, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row[:len(row)-1] {
			width[i] = max(width[i], len(cell))
		}
	}
	for n, row := range rows {
		for i, cell := range row {
			fmt.Fprintf(w, "| %-*s ", width[i], cell)
		}
		fmt.Fprintln(w, "|")
		if n == 0 {
			for i := range row {
				fmt.Fprint(w, "| ", strings.Repeat("-", max(width[i], 3)), " ")
			}
			fmt.Fprintln(w, "|")
		}
	}
}
