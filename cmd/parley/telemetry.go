package main

import (
	"log/slog"
	"strings"

	"parley/bus"
	"parley/workers"
	"parley/workers/telemetry"
)

// telemetry makes the worker of metrics and traces as the settings say; its
// page goes to h.
func (a *app) telemetry(b *bus.Bus, log *slog.Logger, h *health) (workers.Worker, error) {
	cfg := telemetry.Config{Bus: b, Version: semver(), Log: log, Unsafe: a.safety.figures}
	if a.conf.OTLPEndpoint != "" {
		headers, err := readPairs("--otlp-headers", a.conf.OTLPHeaders)
		if err != nil {
			return workers.Worker{}, err
		}
		cfg.OTLP = &telemetry.OTLP{Endpoint: a.conf.OTLPEndpoint, Headers: headers}
	}
	w, err := telemetry.New(cfg)
	if err != nil {
		return workers.Worker{}, usage("%w", err).next("see --otlp-endpoint")
	}
	h.serve("GET "+telemetry.Path, w.Handler())
	return wired(w, nil)
}

// readPairs reads NAME=VALUE,NAME=VALUE. Errors do not show values, which may
// be secret.
func readPairs(flag, s string) (map[string]string, error) {
	if s == "" {
		return nil, nil
	}
	pairs := make(map[string]string)
	for pair := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(pair, "=")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, usage("%s: expected NAME=VALUE,NAME=VALUE", flag)
		}
		pairs[name] = strings.TrimSpace(value)
	}
	return pairs, nil
}
