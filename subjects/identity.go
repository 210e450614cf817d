package subjects

import "strings"

// Buckets of identities.
const (
	BucketIdentities = "FLEET_IDENTITIES" // who may connect and sign, with which keys
	BucketNonces     = "FLEET_NONCES"     // what was used once and must not be again
)

// HeaderNonce makes a signed message unlike every other.
const HeaderNonce = "Fleet-Nonce"

// Author is who alone may write subject, by its tokens; false for a subject
// that only workers and streams write.
func Author(subject string) (AgentID, bool) {
	rest, ours := strings.CutPrefix(subject, "fleet.")
	if !ours {
		return "", false
	}
	kind, rest, _ := strings.Cut(rest, ".")
	first, rest, _ := strings.Cut(rest, ".")
	switch kind {
	case "announce", "heartbeat", "progress", "result", "api", "dispatch":
		return AgentID(first), true
	case "mesh":
		return AgentID(rest), true
	}
	return "", false
}

// identityEntries are the endpoints that keep identities.
func identityEntries() []Entry {
	var list []Entry
	for _, e := range []struct{ verb, message, description string }{
		{"add", "Add → Issued", "Let somebody in, or change what they may; answers with a new identity's key, once."},
		{"list", "List → ListReply", "All identities, without their keys."},
		{"get", "Ref → View", "One identity, without its keys."},
		{"rotate", "Rotate → Issued", "Give an identity a new key; the old one counts for a while."},
		{"revoke", "Revoke → View", "Let somebody in no more."},
	} {
		list = append(list, Entry{
			Pattern: "fleet.api.<from>.identity." + e.verb, Message: e.message,
			Writer: "operator", Readers: "callout", Description: e.description,
		})
	}
	return list
}
