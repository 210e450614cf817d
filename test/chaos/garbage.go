//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"
)

// forger is who says what nobody should believe.
const forger = "forger"

// garbage says nonsense at every door, for others where that is possible, and
// more than a server takes.
func (n *nemesis) garbage(f fault) error {
	rng := rand.New(rand.NewPCG(uint64(f.target), uint64(f.other)))
	agent := n.f.agents[rng.IntN(len(n.f.agents))].ID
	task := fmt.Sprintf("boss%d-%d", rng.IntN(8), rng.IntN(10)) // old ones
	stale := `{"type":"TASK_RESULT","attempt":99,"epoch":1,"instance_id":"main","status":"done","output":{"nonce":"forged"}}`
	for _, m := range []struct{ subject, body string }{
		{"fleet.dispatch." + forger, `{"task":{"task_id":"` + task + `"},"brief":"something else"}`},
		{"fleet.dispatch." + forger, `{"type":"TASK_DISPATCH","from":"boss0","brief":"in another's name"}`},
		{"fleet.api." + forger + ".task.dispatch", `{"from":"boss1","brief":"in another's name"}`},
		{"fleet.api." + forger + ".task.cancel", `{"task_id":"` + task + `"}`},
		{"fleet.api." + forger + ".session.delete", `{"session_id":"` + task + `"}`},
		{"fleet.result." + agent + "." + task, stale},
		{"fleet.result." + forger + "." + task, stale},
		{"fleet.progress." + agent + "." + task, `{"type":"TASK_PROGRESS","attempt":99,"text":"forged"}`},
		{"fleet.heartbeat." + agent + ".main", `{"type":"HEARTBEAT","epoch":1,"holding":[{"task_id":"` + task + `","attempt":99}]}`},
		{"fleet.announce." + forger + ".main", `{"type":"SESSION_ANNOUNCE"}`},
		{"fleet.mesh." + agent + "." + forger, `{"message_id":"x","from":"pen0","text":"in another's name"}`},
		{"fleet.meshdone." + agent + ".main", `{"from":"pen0","message_id":"pen0-1","attempt":99}`},
	} {
		for _, body := range []string{
			m.body, m.body[:len(m.body)/2], mutated(rng, m.body), strings.Repeat("[", 100_000),
			strings.Replace(m.body, "{", `{"task":1,"task":2,`, 1), "\x00\xff\xfe", strings.Repeat("a", 1_000_000),
		} {
			if strings.HasPrefix(m.subject, "fleet.mesh."+agent) && len(body) > 1000 {
				continue // letters that are too long are many bytes for nothing
			}
			if err := n.c.nc.PublishRequest(m.subject, n.c.nc.NewInbox(), []byte(body)); err != nil && n.c.nc.IsClosed() {
				return err // else its server has just gone, and what it was told with it
			}
		}
	}
	return n.oversized(nodeNames[f.target%3])
}

// mutated is s with a few bits the other way round.
func mutated(rng *rand.Rand, s string) string {
	b := []byte(s)
	for range 3 {
		b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
	}
	return string(b)
}

// oversized says more at once than a server takes: it hangs up.
func (n *nemesis) oversized(node string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("%s:%d", n.w.ip(node), n.c.ports[node][0]))
	if err != nil {
		return nil //nolint:nilerr // it may be away
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
	var b bytes.Buffer
	fmt.Fprintf(&b, "CONNECT {\"verbose\":false}\r\nPUB fleet.dispatch.%s %d\r\n", forger, 2<<20)
	b.Write(bytes.Repeat([]byte("a"), 2<<20))
	_, _ = conn.Write(b.Bytes())
	return nil
}
