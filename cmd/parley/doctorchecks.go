package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// How bad a finding is, the worst first.
const (
	critical = "critical" // what was acknowledged may be lost, or done by somebody who may not
	major    = "major"    // work stands still, or will
	minor    = "minor"    // see to it in working hours
)

// badness is how bad it is when a check fails.
func badness(check string) string {
	switch check {
	case "connection", "streams", "writes", "sync", "access", "doors", "records", "contexts", "audit":
		return critical
	case "server", "copies", "replicas", "consumers", "disk", "store", "router", "workers", "escalation", "contacts", "told", "waits", "stuck work", "overdue", "runs":
		return major
	}
	return minor
}

// Limits beyond which the doctor says something.
const (
	skewed    = 2 * time.Second  // between clocks
	waitsLong = 15 * time.Minute // for an agent
	inboxLong = time.Minute      // at the raw door
	behind    = 10_000           // messages that a consumer has yet to see
	nearlyAll = 0.8              // of a limit; above it the routers take no new tasks
	overdue   = time.Minute      // past its time, in which a worker that was lost is replaced
)

// unknown is a check that these credentials may not make.
func unknown(check string, err error) (finding, bool) {
	if errors.Is(err, bus.ErrDenied) {
		return finding{Check: check, OK: true, Found: "not known: these credentials may not look; a worker's may"}, true
	}
	return finding{}, false
}

// judgeSeen is judge, of what these credentials may not be allowed to see.
func judgeSeen(check string, err error, found, then string) finding {
	if f, ok := unknown(check, err); ok {
		return f
	}
	return judge(check, err, found, then)
}

// serverFinding is whether the server that we are connected to is new enough.
// Nobody has asked the servers at so many other addresses.
func serverFinding(s bus.Server, err error, unasked int) finding {
	f := judgeSeen("server", err, fmt.Sprintf("version %s, JetStream API level %d", s.Version, s.APILevel), "nats account info  says whether JetStream answers")
	if err != nil {
		return f
	}
	if s.Old() {
		f.OK, f.Then = false, "a nats-server of "+s.LeastVersion+" or later on one server after the other, and each time  systemctl restart nats"
		f.Found += fmt.Sprintf("; at least %s and level %d are needed", s.LeastVersion, s.LeastAPILevel)
	}
	if unasked > 0 {
		f.Found += fmt.Sprintf("; %d other addresses of servers are known, and were not asked: --monitor names their pages", unasked)
	}
	return f
}

// doors is whether workers let everybody in who reaches their HTTP port.
func doors(list []bus.ServiceInfo, err error) finding {
	if f, ok := unknown("doors", err); ok {
		return f
	}
	if err != nil {
		return judge("doors", err, "", seeServers)
	}
	var open []string
	for _, s := range list {
		if s.Open != "" {
			open = append(open, s.Open)
		}
	}
	slices.Sort(open)
	if len(open) > 0 {
		return finding{
			Check: "doors", Found: "whoever reaches " + strings.Join(slices.Compact(open), ", ") + " may use the fleet: --a2a-open asks nobody",
			Then: "parley serve --a2a-tokens FILE  (or --a2a-issuer, or --http-client-ca) instead of --a2a-open; or --http 127.0.0.1:7411 behind something that asks",
		}
	}
	return finding{Check: "doors", OK: true, Found: "no worker lets other machines in without asking who they are"}
}

// versions is whether all servers that are known are of one version, and all
// workers.
func versions(list []bus.ServiceInfo, err error, pages []*varz) finding {
	if f, ok := unknown("versions", err); ok {
		return f
	}
	f := judge("versions", err, "", seeServers)
	if err != nil {
		return f
	}
	by := map[string][]string{}
	for _, s := range list {
		by["workers "+s.Version] = append(by["workers "+s.Version], s.Name)
	}
	workers, servers := len(by), map[string]bool{}
	for _, v := range pages {
		servers[v.Version] = true
		by["servers "+v.Version] = append(by["servers "+v.Version], v.Name)
	}
	var said []string
	for what, names := range by {
		slices.Sort(names)
		said = append(said, what)
		if workers > 1 || len(servers) > 1 {
			said[len(said)-1] += " (" + strings.Join(slices.Compact(names), ", ") + ")"
		}
	}
	slices.Sort(said)
	f.Found = cmp.Or(strings.Join(said, "; "), "no worker runs")
	if workers > 1 || len(servers) > 1 {
		f.OK, f.Then = false, "parley version  on each machine; where it is older, install the newer one, then  systemctl restart parley"
		if len(servers) > 1 {
			f.Then += "  (of servers  systemctl restart nats  on one after the other)"
		}
	}
	return f
}

// storage looks at the streams: copies, consumers, room and clocks. To ask for
// them took so long. What err names did not answer, and is not in list.
func storage(list []bus.StreamFigures, err error, now time.Time, took time.Duration) []finding {
	const then = "parley serve --provision create  makes what is missing"
	checks := []string{"copies", "replicas", "consumers", "disk", "clocks"}
	if len(list) == 0 || errors.Is(err, bus.ErrDenied) {
		out := make([]finding, len(checks))
		for i, check := range checks {
			out[i] = judgeSeen(check, cmp.Or(err, errors.New("there are no streams")), "", then)
		}
		return out
	}
	found := []finding{copies(list), replicas(list), consumers(list, now), disk(list), clocks(list, now, took)}
	if err != nil {
		found[1] = judge("replicas", err, "", "start the servers that are away; nats server report jetstream")
		if found[2].OK {
			found[2] = judge("consumers", err, "", found[1].Then)
		}
	}
	return found
}

// copies is on how many servers what is acknowledged lies.
func copies(list []bus.StreamFigures) finding {
	few, least := fewCopies(list)
	switch {
	case few > 0:
		return finding{
			Check: "copies", Found: fmt.Sprintf("%d streams have fewer than %d copies, %s has %d, though the servers are a cluster: while one is away work stands still, and what was acknowledged is lost with its disk",
				few, enough, least.Name, least.Replicas),
			Then: "parley serve --provision create --replicas 3  copies what is there; PARLEY_REPLICAS=3 for every worker keeps it so",
		}
	case least.Replicas < enough:
		return finding{Check: "copies", OK: true, Found: "1 of every record: what is on that disk is lost with it", Then: "on three servers or more: parley serve --replicas 3"}
	}
	return finding{Check: "copies", OK: true, Found: fmt.Sprintf("%d of every record", least.Replicas)}
}

// replicas is whether every copy is up to date.
func replicas(list []bus.StreamFigures) finding {
	late := map[string]bool{}
	var headless []string
	for i := range list {
		stream := &list[i]
		for _, name := range stream.Behind {
			late[name] = true
		}
		if stream.Replicas > 1 && stream.Leader == "" {
			headless = append(headless, stream.Name)
		}
	}
	switch {
	case len(headless) > 0:
		return finding{
			Check: "replicas", Found: "no leader: " + strings.Join(headless, ", ") + ": nothing is taken there",
			Then: "nats server report jetstream  names the servers that are away; there  systemctl start nats; where all are there: docs/guide/operations.md, A stream has no leader",
		}
	case len(late) > 0:
		names := make([]string, 0, len(late))
		for name := range late {
			names = append(names, name)
		}
		slices.Sort(names)
		return finding{
			Check: "replicas", Found: "not up to date, or away: " + strings.Join(names, ", ") + "; one more loss may stop the fleet",
			Then: "nats server report jetstream; systemctl status nats  and  journalctl -u nats  on that server",
		}
	}
	return finding{Check: "replicas", OK: true, Found: "every copy is up to date"}
}

// consumers is whether anybody takes what there is to take.
func consumers(list []bus.StreamFigures, now time.Time) finding {
	var bad []string
	for i := range list {
		s := &list[i]
		for _, c := range s.Consumers {
			name := s.Name + " > " + c.Name
			switch {
			case c.MaxUnacked > 0 && c.Unacked >= c.MaxUnacked:
				bad = append(bad, fmt.Sprintf("%s: %d messages are in hand and not acknowledged, so it gets no more", name, c.Unacked))
			case c.Pending > behind:
				bad = append(bad, fmt.Sprintf("%s is %d messages behind", name, c.Pending))
			case s.Name == subjects.StreamInbox && c.Pending+uint64(c.Unacked) > 0 && now.Sub(later(s.First, c.Moved)) > inboxLong:
				bad = append(bad, fmt.Sprintf("%s: no dispatch has become a task for %s, and %d wait", name, roughly(now.Sub(later(s.First, c.Moved))), c.Pending+uint64(c.Unacked)))
			}
		}
	}
	if len(bad) > 0 {
		return finding{Check: "consumers", Found: strings.Join(bad, "; "), Then: "parley serve --workers router,escalation  runs more of those that take them; journalctl -u parley  has their log"}
	}
	return finding{Check: "consumers", OK: true, Found: "none is behind"}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// disk is whether there is room.
func disk(list []bus.StreamFigures) finding {
	var bad, then []string
	worst, name := 0.0, ""
	for i := range list {
		s := &list[i]
		if s.MaxBytes <= 0 || s.DropsOld {
			continue
		}
		part := float64(s.Bytes) / float64(s.MaxBytes)
		if part > worst || name == "" {
			worst, name = part, s.Name
		}
		if part >= nearlyAll {
			bad, then = append(bad, fmt.Sprintf("%s is %.0f %% full", s.Name, part*100)), append(then, widen(s.Name))
		}
	}
	if len(bad) > 0 {
		return finding{Check: "disk", Found: strings.Join(bad, "; ") + ": new work is refused there", Then: strings.Join(then, "; ") + " where the disk has room"}
	}
	return finding{Check: "disk", OK: true, Found: fmt.Sprintf("every stream has room; the fullest is %s, %.0f %%", name, worst*100)}
}

// widen is what gives a stream more room. That of the task records is a setting
// of the workers, which set it anew.
func widen(stream string) string {
	if stream == subjects.StreamTasks {
		return "parley serve --max-store SIZE  (PARLEY_MAX_STORE) for every worker,"
	}
	return "nats stream edit " + stream + " --max-bytes SIZE "
}

// store is whether the servers that say what they keep have room for more.
func store(pages []*varz) finding {
	var bad []string
	worst, name := 0.0, ""
	for _, v := range pages {
		most := v.JetStream.Config.MaxStorage
		if most <= 0 {
			continue
		}
		part := float64(v.JetStream.Stats.Storage) / float64(most)
		if part > worst || name == "" {
			worst, name = part, v.Name
		}
		if part >= nearlyAll {
			bad = append(bad, fmt.Sprintf("%s has used %.0f %% of its max_file_store", v.Name, part*100))
		}
	}
	switch {
	case len(bad) > 0:
		return finding{Check: "store", Found: strings.Join(bad, "; ") + ": beyond it nothing is stored there", Then: "a larger max_file_store in that server's jetstream block, where the disk has room, then  systemctl reload nats"}
	case name == "":
		return finding{Check: "store", OK: true, Found: "not known: no monitoring page tells of a max_file_store"}
	}
	return finding{Check: "store", OK: true, Found: fmt.Sprintf("every server has room; the fullest is %s, %.0f %%", name, worst*100)}
}

// clocks is whether this machine and the servers agree on the time. What was
// asked took so long.
func clocks(list []bus.StreamFigures, now time.Time, took time.Duration) finding {
	worst, where := time.Duration(0), ""
	for i := range list {
		if list[i].Asked.IsZero() {
			continue
		}
		if d := now.Sub(list[i].Asked); d.Abs() > worst.Abs() {
			worst, where = d, cmp.Or(list[i].Leader, "the server")
		}
	}
	if worst.Abs() > skewed+took {
		return finding{
			Check: "clocks", Found: fmt.Sprintf("the clock of %s and the one here are %s apart: deadlines and tokens are judged wrongly", where, roughly(worst.Abs())),
			Then: tellTime,
		}
	}
	return finding{Check: "clocks", OK: true, Found: "this machine and the servers agree"}
}

// tellTime is what mends clocks.
const tellTime = "chronyc tracking  on every machine: run a time service such as chrony"

// workerClocks is whether the workers' machines have the servers' time. They go
// by the servers' themselves; what else runs there does not.
func workerClocks(list []bus.ServiceInfo, err error) finding {
	const check = "worker clocks"
	if f, ok := unknown(check, err); ok {
		return f
	}
	if err != nil {
		return judge(check, err, "", seeServers)
	}
	var worst bus.ServiceInfo
	for _, s := range list {
		if s.ClockAhead.Abs() > worst.ClockAhead.Abs() {
			worst = s
		}
	}
	if worst.ClockAhead.Abs() <= skewed {
		return finding{Check: check, OK: true, Found: "workers and servers agree"}
	}
	side := "ahead of"
	if worst.ClockAhead < 0 {
		side = "behind"
	}
	return finding{
		Check: check, Found: fmt.Sprintf("that of %s %s is %s %s the servers': workers go by those, agents there do not", worst.Name, worst.ID, roughly(worst.ClockAhead.Abs()), side),
		Then: tellTime,
	}
}

// stuck is work that nobody takes.
func stuck(ctx context.Context, c *client) finding {
	const then = "parley task ls --state queued; parley task explain TASK  says why nobody takes it"
	f, err := fleetFigures(ctx, c)
	if err != nil {
		return judge("stuck work", err, "", "parley serve --workers router")
	}
	var bad []string
	for _, q := range f.Classes {
		if q.Why == fleet.WaitLimited {
			continue // "waits" says whether that is noticed
		}
		if age := time.Duration(q.OldestSeconds * float64(time.Second)); age > waitsLong {
			bad = append(bad, fmt.Sprintf("%d tasks that need %s, for %s", q.Depth, q.Class, roughly(age)))
		}
	}
	if len(bad) > 0 {
		const most = 5
		return finding{Check: "stuck work", Found: "nobody takes " + strings.Join(bad[:min(len(bad), most)], "; "), Then: then}
	}
	return finding{Check: "stuck work", OK: true, Found: fmt.Sprintf("%d tasks wait, none for longer than %s but for limits of accounts", f.Queued, waitsLong)}
}

// access is whether strangers may come in.
func (a *app) access(ctx context.Context) finding {
	if a.conf.Context != "" {
		return finding{Check: "access", OK: true, Found: "not known: the address is in the context " + a.conf.Context, Then: "parley doctor --server URL  tries it without credentials"}
	}
	nobody := bus.Config{URL: a.conf.Server, CA: a.conf.TLSCA, TLSFirst: a.conf.TLSFirst, Name: "parley doctor", ConnectTimeout: time.Duration(a.conf.Timeout)}
	b, err := bus.Connect(ctx, nobody)
	if err == nil {
		b.Close()
	}
	return uninvited(err, a.conf.TLSCert != "", loopbackOnly(a.conf.Server))
}

// uninvited is what it means that somebody without credentials has tried to
// connect, with what came of it, where we came in with a certificate or without.
// Only a refusal keeps anybody out.
func uninvited(err error, certified, local bool) finding {
	const then = "parley auth init  makes accounts and credentials; docs/guide/security.md"
	switch {
	case errors.Is(err, bus.ErrDenied):
		return finding{Check: "access", OK: true, Found: "the server takes nobody without credentials"}
	case errors.Is(err, bus.ErrTLS) && certified:
		return finding{Check: "access", OK: true, Found: "the server takes nobody without a certificate"}
	case err != nil:
		return finding{Check: "access", Found: "not known: whoever tries it without credentials is not refused, and does not come in: " + oneLine(err.Error()), Then: "repeat  parley doctor  once the servers answer at once"}
	case local:
		return finding{Check: "access", OK: true, Found: "no credentials are asked for: whoever is on this machine may do everything", Then: then}
	}
	return finding{Check: "access", Found: "whoever reaches the server may connect without credentials", Then: then}
}

// loopbackOnly reports whether all addresses are of this machine.
func loopbackOnly(servers string) bool {
	for s := range strings.SplitSeq(servers, ",") {
		u, err := url.Parse(strings.TrimSpace(s))
		if err != nil {
			return false
		}
		if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}
