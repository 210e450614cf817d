// Command chaos proves the fleet: it starts a cluster of three NATS servers
// and several of every worker as processes of their own, gives them work, and
// does to them what machines and networks do. Then a checker that believes
// nothing but journals and streams says what does not hold. See
// docs/reference/reliability.md; make chaos runs it for long, TestChaos for
// short.
//
// Everything random comes from one seed, which is printed; the plan of faults
// is the same for the same seed and time.
//
// world.go is the machine (networks, disks), process.go what runs on it,
// cluster.go and fleet.go the servers and workers, load_*.go who gives work, sends
// copies, and keeps the clients' journal, hooks.go who is called by webhooks, plan.go and
// faults.go what is done to them, dump.go reads the streams, check_*.go judge,
// linear.go holds histories against models.
package main
