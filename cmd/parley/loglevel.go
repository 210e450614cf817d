package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
)

// levelPath is where the level of the log is read and set while workers run.
const levelPath = "/loglevel"

// workerLog is the logger of workers, whose level levelPage changes.
func (a *app) workerLog() *slog.Logger {
	a.level.Set(a.conf.level())
	return a.logAt(&a.level)
}

// levelPage tells the level of the log, and sets it for programs on this
// machine. What a proxy brings from elsewhere is refused.
func levelPage(level *slog.LevelVar, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		switch {
		case err != nil || !loopback(host) || r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("Forwarded") != "":
			answer(w, http.StatusForbidden, map[string]any{"error": "only from this machine"})
			return
		case r.Method == http.MethodGet:
		case r.Method == http.MethodPut:
			var body struct {
				Level *slog.Level `json:"level"`
			}
			data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1024))
			if err == nil {
				err = json.Unmarshal(data, &body)
			}
			if err != nil || body.Level == nil {
				answer(w, http.StatusBadRequest, map[string]any{"error": `expected {"level":"debug"}, or info, warn or error`})
				return
			}
			was := level.Level()
			level.Set(min(was, *body.Level)) // so that the log tells of it
			log.Warn("log level set", slog.String("level", body.Level.String()), slog.String("was", was.String()))
			level.Set(*body.Level)
		default:
			w.Header().Set("Allow", "GET, PUT")
			answer(w, http.StatusMethodNotAllowed, map[string]any{"error": "GET or PUT"})
			return
		}
		answer(w, http.StatusOK, map[string]any{"level": level.Level()})
	})
}
