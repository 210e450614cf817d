package webhooks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
)

// errForbidden is returned for an address that no webhook may reach.
var errForbidden = errors.New("not allowed")

// resolver looks names up; net.Resolver is one.
type resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// guard makes connections to public addresses only, so that nobody who can
// name a URL reaches what is inside: it resolves the name once, refuses if any
// of the addresses is not public, and connects to one of those it has checked,
// whatever the name means a moment later. What is allow-listed is excepted.
type guard struct {
	allow    allowList
	plain    bool // for http: what is allow-listed, and nothing else
	resolver resolver
}

// allowList names hosts and networks that need not be public.
type allowList struct {
	hosts []string // lower case
	nets  []netip.Prefix
}

// parseAllow reads hosts, addresses and networks in CIDR notation.
func parseAllow(entries []string) (allowList, error) {
	var a allowList
	for _, s := range entries {
		s = strings.ToLower(strings.TrimSpace(s))
		if p, err := netip.ParsePrefix(s); err == nil {
			a.nets = append(a.nets, p.Masked())
		} else if ip, err := netip.ParseAddr(s); err == nil && ip.Zone() == "" {
			a.nets = append(a.nets, netip.PrefixFrom(ip, ip.BitLen()))
		} else if s != "" && !strings.ContainsAny(s, "/:@ *?") {
			a.hosts = append(a.hosts, strings.TrimSuffix(s, "."))
		} else {
			return allowList{}, fmt.Errorf("allow %q is neither a host, an address nor a network such as 10.1.0.0/16", s)
		}
	}
	return a, nil
}

func (a allowList) host(name string) bool {
	return slices.Contains(a.hosts, strings.TrimSuffix(strings.ToLower(name), "."))
}

func (a allowList) addr(ip netip.Addr) bool {
	return slices.ContainsFunc(a.nets, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// check refuses an address that host may not mean.
func (g *guard) check(host string, ip netip.Addr) error {
	ip = ip.Unmap()
	switch {
	case g.allow.host(host), g.allow.addr(ip):
		return nil
	case g.plain:
		return fmt.Errorf("%w: http without TLS needs %s in the endpoint's allow list", errForbidden, host)
	case !public(ip):
		return fmt.Errorf("%w: %s is %s, which is not a public address; add it to the endpoint's allow list if it is meant",
			errForbidden, host, ip)
	}
	return nil
}

// dial is a DialContext.
func (g *guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	addrs, err := g.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, ip := range addrs {
		if err := g.check(host, ip); err != nil {
			return nil, err
		}
	}
	dialer := net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return g.check(host, ap.Addr()) // what is dialled, not what was meant
	}}
	var errs []error
	for _, ip := range addrs {
		conn, err := dialer.DialContext(ctx, network, net.JoinHostPort(ip.Unmap().String(), port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func (g *guard) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	addrs, err := g.resolver.LookupNetIP(ctx, "ip", host)
	if err == nil && len(addrs) == 0 {
		err = fmt.Errorf("%s has no address", host)
	}
	return addrs, err
}

// special are the networks that are not public (IANA's special-purpose
// registries), metadata services of clouds among them.
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32", // the last: Azure's host
	"::/96", "::1/128", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16",
	"fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)

// embedding are networks whose addresses stand for an IPv4 address that begins
// at the given byte: NAT64 and 6to4.
var embedding = []struct {
	net  netip.Prefix
	from int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},
	{netip.MustParsePrefix("2002::/16"), 2},
}

func prefixes(list ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(list))
	for i, s := range list {
		all[i] = netip.MustParsePrefix(s)
	}
	return all
}

// public reports whether ip is an address of the Internet at large.
func public(ip netip.Addr) bool {
	ip = ip.Unmap()
	if !ip.IsValid() || ip.Zone() != "" {
		return false
	}
	for _, e := range embedding {
		if e.net.Contains(ip) {
			b := ip.As16()
			return public(netip.AddrFrom4([4]byte(b[e.from : e.from+4])))
		}
	}
	return !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(ip) })
}
