package agent

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// maxLimit is the longest that a limit is believed to hold.
const maxLimit = 8 * 24 * time.Hour

// limit is what a tool said of a rate or usage limit that it has met. It says
// when the limit ends, how long it lasts, or neither.
type limit struct {
	resetAt time.Time // by the provider's clock
	after   time.Duration
	tier    string // the model tier that it holds for; "" all
}

// limitWords are how tools and providers say that a limit is met.
var limitWords = regexp.MustCompile(`(?i)` + strings.Join([]string{
	`\blimit reached\b`,
	`\b(?:hit|reached) your (?:[\w-]+ ){0,3}limit\b`,
	`\brate[ _-]limit(?:s|ed)?(?: (?:exceeded|reached|error)|_error|_exceeded)\b`,
	`\busage_limit_(?:reached|exceeded)\b`,
	`\btoo many requests\b`,
	`\bresource_exhausted\b`,
	`\bexhausted your (?:[\w-]+ ){0,3}(?:quota|capacity)\b`,
	`\bquota (?:will reset|exceeded)\b`,
	`\bexceeded your current quota\b`,
	`\binsufficient_quota\b`,
	`\boverloaded_error\b`,
	`\b(?:status(?: code)?|code|http|error|failure)"?\W{0,3}(?:429|529)\b`,
	`\((?:429|529)\)`,
}, "|"))

// isLimit reports whether a text says that a limit is met.
func isLimit(text string) bool { return limitWords.MatchString(text) }

var (
	limitTier    = regexp.MustCompile(`(?i)\b(opus|sonnet|haiku)(?: (?:weekly|usage|5-hour|session))? limit\b`)
	limitEpoch   = regexp.MustCompile(`(?i)(?:limit reached\||"?(?:resets?_?at|reset_?time)"?\s*[:=]\s*"?)(\d{10}|\d{13})\b`)
	limitStamp   = regexp.MustCompile(`(?i)(?:reset|again|retry)[^\n\d]{0,40}(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))`)
	limitSeconds = regexp.MustCompile(`(?i)"?(?:resets_in_seconds|retry[_-]after(?:[_-]seconds)?)"?\s*[:=]\s*"?(\d+(?:\.\d+)?)\b`)
	limitLasts   = regexp.MustCompile(`(?i)(?:again|retry|resets?|wait|"?retryDelay"?)(?:\s+(?:in|after|for)\s+|"?\s*[:=]\s*"?)(?:about\s+)?`)
	lastsPiece   = regexp.MustCompile(`(?i)^(?:\s*,\s*|\s+and\s+|\s*)(\d+(?:\.\d+)?)\s*(milliseconds?|ms|days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)(?:[^a-z]|$)`)
	limitMoment  = regexp.MustCompile(`(?i)\b(?:resets?|again)(?:\s+(?:at|on))?\s+` +
		`(?:(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?\s+(\d{1,2})(?:st|nd|rd|th)?(?:,?\s+(\d{4})\b)?(?:,?\s+(?:at\s+)?|\b))?` +
		`(?:(\d{1,2})(?::(\d{2}))?(?::\d{2})?\s*([ap])?\.?(?:m\b\.?)?)?` +
		`(?:\s*\(([\w+/-]+)\)|\s+(UTC|GMT)\b)?`)
)

// readLimit reads when a limit ends from what a tool said at now. Times that
// name no zone are of the zone of now.
func readLimit(text string, now time.Time) limit {
	var l limit
	if m := limitTier.FindStringSubmatch(text); m != nil {
		l.tier = strings.ToLower(m[1])
	}
	if m := limitEpoch.FindStringSubmatch(text); m != nil {
		l.resetAt = epochTime(m[1])
		return l
	}
	if m := limitStamp.FindStringSubmatch(text); m != nil {
		if at, err := time.Parse(time.RFC3339, m[1]); err == nil {
			l.resetAt = at.UTC()
			return l
		}
	}
	if m := limitSeconds.FindStringSubmatch(text); m != nil {
		s, _ := strconv.ParseFloat(m[1], 64)
		l.after = atMost(s * float64(time.Second))
		return l
	}
	if l.after = lasting(text); l.after > 0 {
		return l
	}
	l.resetAt = moment(text, now)
	return l
}

// epochTime is a time in seconds or milliseconds since 1970.
func epochTime(digits string) time.Time {
	n, _ := strconv.ParseInt(digits, 10, 64)
	if len(digits) == 13 {
		return time.UnixMilli(n).UTC()
	}
	return time.Unix(n, 0).UTC()
}

func atMost(d float64) time.Duration { return time.Duration(min(d, float64(maxLimit))) }

// lasting reads "try again in 3 days 4 hours", "reset after 18h45m30s", or
// "retryDelay": "34.07s".
func lasting(text string) time.Duration {
	for _, at := range limitLasts.FindAllStringIndex(text, -1) {
		rest, total := text[at[1]:], 0.0
		if strings.HasPrefix(strings.ToLower(rest), "less than a minute") {
			return time.Minute
		}
		for {
			m := lastsPiece.FindStringSubmatchIndex(rest)
			if m == nil {
				break
			}
			n, _ := strconv.ParseFloat(rest[m[2]:m[3]], 64)
			total += n * unitOf(rest[m[4]:m[5]])
			rest = rest[m[5]:]
		}
		if total > 0 {
			return atMost(total)
		}
	}
	return 0
}

// unitOf is the duration that a word stands for.
func unitOf(word string) float64 {
	switch w := strings.ToLower(word); {
	case w == "ms", strings.HasPrefix(w, "milli"):
		return float64(time.Millisecond)
	case w[0] == 'd':
		return float64(24 * time.Hour)
	case w[0] == 'h':
		return float64(time.Hour)
	case w[0] == 'm':
		return float64(time.Minute)
	default:
		return float64(time.Second)
	}
}

// passed is how long a time of day may be over before the next day's is meant.
const passed = 10 * time.Minute

var months = []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}

// moment reads "resets 3pm (Europe/Berlin)", "try again at 14:05", or "try again
// at Aug 8th, 2026 12:30 PM"; zero when there is no such time, or its zone is
// not known here.
func moment(text string, now time.Time) time.Time {
	for _, m := range limitMoment.FindAllStringSubmatch(text, -1) {
		month, day, year, hour, minute, half := strings.ToLower(m[1]), m[2], m[3], m[4], m[5], strings.ToLower(m[6])
		if month == "" && (hour == "" || minute == "" && half == "") {
			continue // "resets 3 counters" is no time
		}
		zone := now.Location()
		if name := m[7] + m[8]; name != "" {
			var err error
			if zone, err = time.LoadLocation(strings.Replace(name, "GMT", "Etc/GMT", 1)); err != nil {
				zone, err = time.LoadLocation(name)
			}
			if err != nil {
				return time.Time{}
			}
		}
		h, min := atoi(hour), atoi(minute)
		if h > 23 || min > 59 || half != "" && (h < 1 || h > 12) {
			continue
		}
		if half != "" {
			h %= 12
			if half == "p" {
				h += 12
			}
		}
		here := now.In(zone)
		if month == "" {
			at := time.Date(here.Year(), here.Month(), here.Day(), h, min, 0, 0, zone)
			if now.Sub(at) > passed {
				at = time.Date(here.Year(), here.Month(), here.Day()+1, h, min, 0, 0, zone)
			}
			return at.UTC()
		}
		y := here.Year()
		if year != "" {
			y = atoi(year)
		}
		at := time.Date(y, time.Month(slices.Index(months, month)+1), atoi(day), h, min, 0, 0, zone)
		if year == "" && now.Sub(at) > 24*time.Hour {
			at = at.AddDate(1, 0, 0)
		}
		return at.UTC()
	}
	return time.Time{}
}

func atoi(s string) int { n, _ := strconv.Atoi(s); return n }

// limited makes f the failure of a limit: no fault of the task.
func (f *Fail) limited(l limit) {
	f.Code, f.Retryable = subjects.CodeRateLimited, true
	f.ResetAt, f.RetryAfter, f.LimitTier = l.resetAt, l.after, l.tier
}

// heldLimit is a limit that the handler has met and that holds still.
type heldLimit struct {
	until   time.Time // by this machine's clock
	resetAt *time.Time
	tier    string
	message string
}

// holdLimit notes the limit that a result tells of; a task that was done ends it.
func (w *Worker) holdLimit(r *fleet.Result, now time.Time) {
	if !w.cfg.HoldLimits {
		return
	}
	var l *heldLimit
	switch e := r.Error; {
	case succeeded(r):
	case e == nil || e.Code != subjects.CodeRateLimited:
		return
	case e.ResetAt != nil:
		l = &heldLimit{until: *e.ResetAt, resetAt: e.ResetAt, tier: e.LimitTier, message: e.Message}
	case e.RetryAfterSeconds > 0:
		l = &heldLimit{until: now.Add(time.Duration(e.RetryAfterSeconds * float64(time.Second))), tier: e.LimitTier, message: e.Message}
	default:
		return // nobody knows how long
	}
	if l != nil && l.until.Sub(now) > maxLimit {
		l.until = now.Add(maxLimit)
	}
	w.limit.Store(l)
}

// limitNow is why an offer is refused while a limit holds, nil if none does.
func (w *Worker) limitNow(now time.Time) *fleet.ResultError {
	l := w.limit.Load()
	switch {
	case l == nil:
		return nil
	case !now.Before(l.until):
		w.limit.CompareAndSwap(l, nil)
		return nil
	case l.tier != "" && w.cfg.ModelTier != "" && l.tier != w.cfg.ModelTier:
		return nil
	}
	e := &fleet.ResultError{Code: subjects.CodeRateLimited, Message: l.message, ResetAt: l.resetAt, LimitTier: l.tier}
	if e.ResetAt == nil {
		e.RetryAfterSeconds = l.until.Sub(now).Seconds()
	}
	return e
}
