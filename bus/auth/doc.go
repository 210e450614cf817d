// Package auth makes the identities of a fleet and keeps them in one directory:
// the operator's key, the accounts of every tenant, and a credentials file for
// everybody who may connect. nats-server understands all of it by itself; no
// process of the fleet is asked when somebody connects.
//
// # Two accounts per tenant
//
// A tenant is walled off by NATS accounts: nothing of one is heard in another.
// It has two of them. The workers and their streams are in the first one;
// everybody else (agents, orchestrators, humans, leaf nodes) is in the second,
// its clients' account. What passes between the two is what the catalogue says
// that a client writes or reads, and nothing else. A client cannot name a
// subject of the workers' account, not even as the reply subject of a request:
// so nobody can have an answer or an acknowledgement, which is written with the
// rights of who answers, land in a record or at JetStream's API.
//
// # Roles
//
// Each role of package subjects is a signing key of its account. The key's
// scope holds the role's permissions, written for whoever is named, so a user
// has no permissions of its own: they all follow the catalogue once the
// accounts are written again (Refresh) and the servers have them (Push). A
// signing key that leaks makes users of its role alone.
//
// # Files
//
// Keys are in files of mode 0600 in directories of mode 0700. The directory
// keys is needed to change something, and by no server: it can be kept
// elsewhere.
package auth
