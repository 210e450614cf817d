package callout

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// lookupLife is how long the addresses of a name are remembered.
const lookupLife = 30 * time.Second

// hosts tells whether an address is one of those that a record names.
type hosts struct {
	resolver Resolver

	mu    sync.Mutex
	names map[string]lookup // guarded by mu
}

type lookup struct {
	addrs []netip.Addr
	until time.Time
}

func newHosts(r Resolver) *hosts { return &hosts{resolver: r, names: map[string]lookup{}} }

// allow says whether host, an address, is among allowed: addresses, networks
// and names. A name that cannot be resolved allows nothing.
func (h *hosts) allow(ctx context.Context, allowed []string, host string) bool {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return false // in-process, or a socket without an address
	}
	addr = addr.Unmap().WithZone("")
	var names []string
	for _, entry := range allowed {
		if a, err := netip.ParseAddr(entry); err == nil {
			if a.Unmap() == addr {
				return true
			}
			continue
		}
		if p, err := netip.ParsePrefix(entry); err == nil {
			if p.Contains(addr) {
				return true
			}
			continue
		}
		names = append(names, entry)
	}
	found := make(chan bool, len(names))
	for _, name := range names {
		go func() { found <- slices.Contains(h.lookup(ctx, name), addr) }()
	}
	ok := false
	for range names {
		ok = <-found || ok // all of them end with ctx, at the latest
	}
	return ok
}

// lookup gives the addresses of a name.
func (h *hosts) lookup(ctx context.Context, name string) []netip.Addr {
	now := time.Now()
	h.mu.Lock()
	l := h.names[name]
	h.mu.Unlock()
	if now.Before(l.until) {
		return l.addrs
	}
	addrs, err := h.resolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return nil
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap().WithZone("")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.names) > 10_000 {
		clear(h.names)
	}
	h.names[name] = lookup{addrs, now.Add(lookupLife)}
	return addrs
}
