package subjects

import "strings"

// Buckets of identities.
const (
	BucketIdentities = "FLEET_IDENTITIES" // who may connect and sign, with which keys
	BucketNonces     = "FLEET_NONCES"     // what was used once and must not be again
)

// HeaderNonce makes a signed message unlike every other.
const HeaderNonce = "Fleet-Nonce"

// signedByWorkers is the author of what workers say to each other: a name that no
// agent can have, so that only the workers' key signs it.
const signedByWorkers AgentID = "registry"

// Author is who alone may write subject, by its tokens; false for a subject
// that only streams write, for what workers store, and for what workers say to
// others.
func Author(subject string) (AgentID, bool) {
	rest, ours := strings.CutPrefix(subject, "fleet.")
	if !ours {
		return "", false
	}
	kind, rest, _ := strings.Cut(rest, ".")
	first, rest, _ := strings.Cut(rest, ".")
	switch kind {
	case "announce", "heartbeat", "progress", "result", "api", "dispatch", "a2a":
		return AgentID(first), true
	case "mesh":
		return AgentID(rest), true
	case "worker", "agent":
		return signedByWorkers, true
	}
	return "", false
}

// Republished reports whether subject is one at which JetStream itself tells what
// was stored: nobody can sign that.
func Republished(subject string) bool {
	rest, _ := strings.CutPrefix(subject, "fleet.")
	kind, _, _ := strings.Cut(rest, ".")
	switch kind {
	case "event", "runevent", "contextnews", "meshack", "webhookevent", "tick":
		return true
	}
	return false
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
