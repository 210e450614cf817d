package embedded

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
)

// logger hands the server's log lines to slog, and what it refuses to refused.
type logger struct {
	log     *slog.Logger
	quiet   bool
	refused func(Refusal)
}

func (l logger) Noticef(format string, v ...any) {
	if !l.quiet {
		l.log.Info("nats-server", slog.String("text", text(format, v)))
	}
}

func (l logger) Warnf(format string, v ...any) {
	l.log.Warn("nats-server", slog.String("text", text(format, v)))
}

func (l logger) Errorf(format string, v ...any) {
	line := text(format, v)
	if l.refused != nil {
		if r, ok := parseRefusal(line); ok {
			l.refused(r)
		}
	}
	l.log.Error("nats-server", slog.String("text", line))
}

func (l logger) Fatalf(format string, v ...any) {
	l.log.Error("nats-server", slog.String("text", text(format, v)))
}

func (l logger) Debugf(format string, v ...any) {
	l.log.Debug("nats-server", slog.String("text", text(format, v)))
}

func (l logger) Tracef(format string, v ...any) { l.Debugf(format, v...) }

func text(format string, v []any) string { return strings.TrimSpace(fmt.Sprintf(format, v...)) }

// Refusal is something that the server did not let a client do. Its log is the
// only place where a server tells of it.
type Refusal struct {
	Key     string // public key of the user; "" where it is not known
	User    string // name of a user without a key, which the callout has proven if there is one
	Action  string // connect, publish or subscribe
	Subject string // what it was about; "" for connect
	Address string // of the client
}

// What a line of the log is made of: the client's address and number, its
// version and name, its account and user, and what was refused.
var (
	violation = regexp.MustCompile(`(Publish|Subscription) Violation(?: Too Many Tokens)? - (?:Subject|Reply) ("(?:[^"\\]|\\.)*")`)
	rejected  = regexp.MustCompile(`(?i) - authentication error`)
	address   = regexp.MustCompile(`^(\S+) - [a-z]+:\d+`)
	label     = regexp.MustCompile(`/(?:jwt:(U[A-Z2-7]{55})|user:([A-Za-z0-9_-]+))"`)
	nkeyUser  = regexp.MustCompile(`\b(U[A-Z2-7]{55})\b`)
)

func parseRefusal(line string) (Refusal, bool) {
	r := Refusal{}
	if m := address.FindStringSubmatch(line); m != nil {
		r.Address = m[1]
	}
	at := violation.FindStringSubmatchIndex(line)
	switch {
	case at != nil:
		r.Action = map[string]string{"Publish": "publish", "Subscription": "subscribe"}[line[at[2]:at[3]]]
		r.Subject = strings.Trim(line[at[4]:at[5]], `"`)
		// Before what the client says of itself ends; the last one is the server's.
		if all := label.FindAllStringSubmatch(line[:at[0]], -1); all != nil {
			r.Key, r.User = all[len(all)-1][1], all[len(all)-1][2]
		}
	case rejected.MatchString(line):
		r.Action = "connect"
		if all := nkeyUser.FindAllStringSubmatch(line, -1); all != nil {
			r.Key = all[len(all)-1][1]
		}
	default:
		return Refusal{}, false
	}
	return r, true
}
