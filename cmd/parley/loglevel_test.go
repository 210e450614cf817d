package main

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestLogLevelAtRunTime(t *testing.T) {
	t.Parallel()
	var level slog.LevelVar
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: &level}))
	page := levelPage(&level, log)
	for _, c := range []struct {
		method, from, body, forwarded string
		code                          int
		level                         slog.Level // afterwards
	}{
		{"GET", "127.0.0.1:5", "", "", 200, slog.LevelInfo},
		{"PUT", "127.0.0.1:5", `{"level":"debug"}`, "", 200, slog.LevelDebug},
		{"PUT", "10.0.0.7:5", `{"level":"error"}`, "", 403, slog.LevelDebug},
		{"PUT", "127.0.0.1:5", `{"level":"error"}`, "10.0.0.7", 403, slog.LevelDebug},
		{"GET", "10.0.0.7:5", "", "", 403, slog.LevelDebug},
		{"PUT", "[::1]:5", `{"level":"loud"}`, "", 400, slog.LevelDebug},
		{"PUT", "[::1]:5", `{}`, "", 400, slog.LevelDebug},
		{"PUT", "[::1]:5", strings.Repeat(" ", 2000) + `{"level":"warn"}`, "", 400, slog.LevelDebug},
		{"POST", "[::1]:5", `{"level":"warn"}`, "", 405, slog.LevelDebug},
		{"PUT", "[::1]:5", `{"level":"WARN"}`, "", 200, slog.LevelWarn},
	} {
		r := httptest.NewRequest(c.method, levelPath, strings.NewReader(c.body))
		r.RemoteAddr = c.from
		if c.forwarded != "" {
			r.Header.Set("X-Forwarded-For", c.forwarded)
		}
		rec := httptest.NewRecorder()
		page.ServeHTTP(rec, r)
		if rec.Code != c.code || level.Level() != c.level {
			t.Errorf("%s from %s with %.30q = %d, level %s; want %d, %s", c.method, c.from, c.body, rec.Code, level.Level(), c.code, c.level)
		}
		if want := `{"level":"` + c.level.String() + `"}`; c.code == 200 && strings.TrimSpace(rec.Body.String()) != want {
			t.Errorf("it answers %s, want %s", rec.Body, want)
		}
	}
	if !strings.Contains(out.String(), "level=DEBUG was=INFO") {
		t.Errorf("the log does not tell: %s", out.String())
	}
}
