package webhooks

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
)

func TestPublic(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.9.9.9", "169.254.169.254", "172.16.0.1",
		"172.31.255.255", "192.0.0.8", "192.0.2.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.9", "224.0.0.1", "239.1.1.1",
		"240.0.0.1", "255.255.255.255", "168.63.129.16", "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
		"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:1::1", "2001:db8::1",
		"fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "100::1", "2606:4700::1%eth0",
	} {
		if public(netip.MustParseAddr(s)) {
			t.Errorf("public(%s), want not", s)
		}
	}
	for _, s := range []string{"8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"} {
		if !public(netip.MustParseAddr(s)) {
			t.Errorf("%s is not public, want it is", s)
		}
	}
	if public(netip.Addr{}) {
		t.Error("no address at all is public")
	}
}

// scripted answers each lookup with the next list, the last one for ever.
type scripted struct {
	answers [][]netip.Addr
	asked   atomic.Int64
}

func (s *scripted) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	n := int(s.asked.Add(1)) - 1
	return s.answers[min(n, len(s.answers)-1)], nil
}

func addrs(list ...string) []netip.Addr {
	out := make([]netip.Addr, len(list))
	for i, s := range list {
		out[i] = netip.MustParseAddr(s)
	}
	return out
}

func listen(t *testing.T) (port string, accepted *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted = new(atomic.Int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port, accepted
}

func TestGuardRefuses(t *testing.T) {
	t.Parallel()
	port, accepted := listen(t)
	for name, answers := range map[string][]netip.Addr{
		"loopback": addrs("127.0.0.1"), "mapped": addrs("::ffff:127.0.0.1"), "one of several": addrs("8.8.8.8", "127.0.0.1"),
		"metadata": addrs("169.254.169.254"), "nat64": addrs("64:ff9b::7f00:1"), "this network": addrs("0.0.0.0"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := &guard{resolver: &scripted{answers: [][]netip.Addr{answers}}}
			if _, err := g.dial(t.Context(), "tcp", net.JoinHostPort("hook.example", port)); !errors.Is(err, errForbidden) {
				t.Errorf("dial = %v, want %v", err, errForbidden)
			}
		})
	}
	for _, literal := range []string{"127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"} {
		g := &guard{resolver: net.DefaultResolver}
		if _, err := g.dial(t.Context(), "tcp", literal+":"+port); !errors.Is(err, errForbidden) {
			t.Errorf("dial %s = %v, want %v", literal, err, errForbidden)
		}
	}
	if n := accepted.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
}

// The name means something public when it is checked and something private a
// moment later: the connection goes to what was checked, or nowhere.
func TestGuardRebinding(t *testing.T) {
	t.Parallel()
	port, accepted := listen(t)
	// TEST-NET-3 stands for the public address; nobody is there.
	allow, err := parseAllow([]string{"203.0.113.7"})
	if err != nil {
		t.Fatal(err)
	}
	r := &scripted{answers: [][]netip.Addr{addrs("203.0.113.7"), addrs("127.0.0.1")}}
	g := &guard{allow: allow, resolver: r}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the address is checked and chosen; no packet needs to leave
	if _, err := g.dial(ctx, "tcp", net.JoinHostPort("hook.example", port)); err == nil || errors.Is(err, errForbidden) {
		t.Errorf("first dial = %v, want a failure to connect", err)
	}
	if got := r.asked.Load(); got != 1 {
		t.Errorf("the name was resolved %d times for one connection, want once", got)
	}
	if _, err := g.dial(t.Context(), "tcp", net.JoinHostPort("hook.example", port)); !errors.Is(err, errForbidden) {
		t.Errorf("dial after the name has moved = %v, want %v", err, errForbidden)
	}
	if n := accepted.Load(); n != 0 {
		t.Errorf("%d connections were made to the private address", n)
	}
}

func TestGuardAllows(t *testing.T) {
	t.Parallel()
	port, _ := listen(t)
	for name, tt := range map[string]struct {
		allow []string
		host  string
		plain bool
		ok    bool
	}{
		"network":       {[]string{"127.0.0.0/8"}, "hook.example", false, true},
		"address":       {[]string{"127.0.0.1"}, "hook.example", false, true},
		"host":          {[]string{"Hook.Example."}, "hook.example", false, true},
		"other host":    {[]string{"other.example"}, "hook.example", false, false},
		"other network": {[]string{"10.0.0.0/8"}, "hook.example", false, false},
		"subdomain":     {[]string{"example"}, "hook.example", false, false},
		"http, allowed": {[]string{"hook.example"}, "hook.example", true, true},
		"http, not":     {nil, "hook.example", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			allow, err := parseAllow(tt.allow)
			if err != nil {
				t.Fatal(err)
			}
			g := &guard{allow: allow, plain: tt.plain, resolver: &scripted{answers: [][]netip.Addr{addrs("127.0.0.1")}}}
			conn, err := g.dial(t.Context(), "tcp", net.JoinHostPort(tt.host, port))
			if err == nil {
				_ = conn.Close()
			}
			if (err == nil) != tt.ok || err != nil && !errors.Is(err, errForbidden) {
				t.Errorf("dial = %v, want ok %v", err, tt.ok)
			}
		})
	}
	// Plain http to a public address that is not allow-listed: refused too.
	g := &guard{plain: true}
	if err := g.check("hook.example", netip.MustParseAddr("8.8.8.8")); !errors.Is(err, errForbidden) {
		t.Errorf("http to a public address = %v, want %v", err, errForbidden)
	}
	for _, bad := range []string{"", "http://x", "a b", "10.0.0.0/99", "fe80::1%eth0", "*.example"} {
		if _, err := parseAllow([]string{bad}); err == nil {
			t.Errorf("allow %q is accepted", bad)
		}
	}
}
