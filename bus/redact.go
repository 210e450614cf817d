package bus

import "strings"

// Redacted is a list of servers without their users, passwords and tokens, as it
// may be shown.
func Redacted(servers string) string { return withoutUsers(servers, servers) }

// withoutUsers takes out of text what stands for the users of servers.
func withoutUsers(servers, text string) string {
	for s := range strings.SplitSeq(servers, ",") {
		s = strings.TrimSpace(s)
		if _, rest, ok := strings.Cut(s, "://"); ok {
			s = rest
		}
		if at := strings.LastIndexByte(s, '@'); at > 0 {
			text = strings.ReplaceAll(text, s[:at+1], "…@")
		}
	}
	return text
}

// redactedError is an error whose text might show who connects.
type redactedError struct {
	servers string
	err     error
}

// Error gives the text without users.
func (e redactedError) Error() string { return withoutUsers(e.servers, e.err.Error()) }

// Unwrap returns the error as it is.
func (e redactedError) Unwrap() error { return e.err }
