package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"parley/bus"
	"parley/bus/auth"
	"parley/subjects"
	"parley/workers/webhooks"
)

// humanEndpoint is the endpoint that PARLEY_WEBHOOK_URL configures.
const humanEndpoint = "human"

// webhooksFile is the file that names endpoints.
type webhooksFile struct {
	Endpoints []endpointFile `json:"endpoints"`
	Allow     []string       `json:"allow"` // for deliveries with a URL and no endpoint
}

// endpointFile is one endpoint of the file. What may be secret is given as it
// is, or by the name of a variable of the environment, or of a file.
type endpointFile struct {
	Name       string        `json:"name"`
	URL        string        `json:"url"`
	URLEnv     string        `json:"url_env"`
	Secret     string        `json:"secret"` // several, separated by spaces, while one is being replaced
	SecretEnv  string        `json:"secret_env"`
	SecretFile string        `json:"secret_file"`
	Headers    []headerFile  `json:"headers"`
	Allow      []string      `json:"allow"`
	Timeout    span          `json:"timeout"`
	Push       *scheduleFile `json:"push"`
	Human      *scheduleFile `json:"human"`
}

type headerFile struct {
	Name     string `json:"name"`
	Value    string `json:"value"`
	ValueEnv string `json:"value_env"`
}

type scheduleFile struct {
	Attempts int    `json:"attempts"`
	Base     span   `json:"base"`
	Steps    []span `json:"steps"`
}

func (s *scheduleFile) schedule(refused bool) (out webhooks.Schedule) {
	if s == nil {
		return out
	}
	out = webhooks.Schedule{Attempts: s.Attempts, Base: time.Duration(s.Base), Refused: refused}
	for _, d := range s.Steps {
		out.Steps = append(out.Steps, time.Duration(d))
	}
	return out
}

// newWebhooks makes the webhooks worker of the settings.
func (a *app) newWebhooks(b *bus.Bus, log *slog.Logger) (*webhooks.Worker, error) {
	c := a.conf
	cfg := webhooks.Config{
		Bus: b, Version: semver(), Log: log, Timeout: time.Duration(c.WebhookTimeout), CheckReach: c.WebhookCheck,
		Push: webhooks.Schedule{Attempts: c.WebhookRetries, Base: time.Duration(c.WebhookBase)}, Allow: c.WebhookAllow,
	}
	for _, id := range c.Operators {
		cfg.Operators = append(cfg.Operators, subjects.AgentID(id))
	}
	if c.WebhooksFile != "" {
		if err := a.readWebhooks(c.WebhooksFile, &cfg); err != nil {
			return nil, usage("%s: %w", c.WebhooksFile, err).next("see docs/guide/webhooks.md for what the file holds")
		}
	}
	if c.WebhookURL != "" {
		e := webhooks.Endpoint{Name: humanEndpoint, URL: c.WebhookURL, Secrets: strings.Fields(c.WebhookSecret), Allow: c.WebhookAllow}
		if c.WebhookHeader != "" {
			name, value, ok := strings.Cut(c.WebhookHeader, ":")
			if !ok {
				return nil, usage("PARLEY_WEBHOOK_HEADER: expected a name, a colon and a value")
			}
			e.Headers = map[string]string{strings.TrimSpace(name): strings.TrimSpace(value)}
		}
		cfg.Endpoints = append(cfg.Endpoints, e)
	}
	w, err := webhooks.New(cfg)
	if err != nil {
		return nil, usage("%w", err).next("see docs/guide/webhooks.md; parley help env lists the settings")
	}
	return w, nil
}

// readWebhooks adds what the file says.
func (a *app) readWebhooks(path string, cfg *webhooks.Config) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	others := auth.Private(path) // an error where they may read it
	var f webhooksFile
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return err
	}
	for i := range f.Endpoints {
		if err := a.addEndpoint(&f.Endpoints[i], others, cfg); err != nil {
			return fmt.Errorf("endpoint %q: %w", f.Endpoints[i].Name, err)
		}
	}
	cfg.Allow = append(cfg.Allow, f.Allow...)
	return nil
}

func (a *app) addEndpoint(f *endpointFile, others error, cfg *webhooks.Config) error {
	e := webhooks.Endpoint{
		Name: f.Name, Allow: f.Allow, Timeout: time.Duration(f.Timeout), Push: f.Push.schedule(false), Human: f.Human.schedule(true),
	}
	holds := f.Secret != ""
	var errs []error
	variable := func(what, value, name string) string {
		switch {
		case name == "":
			return value
		case value != "":
			errs = append(errs, fmt.Errorf("%s and %s_env: use one of them", what, what))
		case a.getenv(name) == "":
			errs = append(errs, fmt.Errorf("%s_env: the environment has no %s", what, name))
		}
		return a.getenv(name)
	}
	e.URL = variable("url", f.URL, f.URLEnv)
	secret := variable("secret", f.Secret, f.SecretEnv)
	if f.SecretFile != "" {
		if secret != "" {
			errs = append(errs, errors.New("secret_file beside another secret: use one of them"))
		}
		text, err := readSecret("secret_file", f.SecretFile)
		if err != nil {
			errs = append(errs, err)
		}
		secret = text
	}
	e.Secrets = strings.Fields(secret)
	for _, h := range f.Headers {
		holds = holds || h.Value != ""
		if e.Headers == nil {
			e.Headers = make(map[string]string)
		}
		e.Headers[h.Name] = variable("value", h.Value, h.ValueEnv)
	}
	if holds && others != nil {
		errs = append(errs, fmt.Errorf("%w, or use secret_env, secret_file and value_env", others))
	}
	cfg.Endpoints = append(cfg.Endpoints, e)
	return errors.Join(errs...)
}
