package bus_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
)

// selfSigned is a certificate for the loopback that nobody knows.
func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestConnectErrors wants the cause of every failure, and at once where waiting
// does not help.
func TestConnectErrors(t *testing.T) {
	t.Parallel()
	off := bustest.New(t)
	gone := off.URL()
	off.Close()
	asks := bustest.New(t, bustest.Users(bustest.User{Name: "bob", Password: "secret"}))
	secure := bustest.New(t, bustest.TLS(selfSigned(t)))
	noise, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = noise.Close() })
	mutual := selfSigned(t)
	certified := bustest.New(t, bustest.TLS(mutual), bustest.Certified)
	known := filepath.Join(t.TempDir(), "known.pem")
	if err := os.WriteFile(known, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: mutual.Certificate[0]}), 0o600); err != nil {
		t.Fatal(err)
	}
	notPEM := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(notPEM, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	const short = time.Second
	for _, c := range []struct {
		name  string
		cfg   bus.Config
		is    error
		wants []string
		waits bool
	}{
		{"nothing given", bus.Config{}, nil, []string{"set a URL or a NATS context"}, false},
		{"refused", bus.Config{URL: gone}, bus.ErrTimeout, []string{gone, "connection refused"}, true},
		{"silent", bus.Config{URL: "nats://" + noise.Addr().String()}, nil, []string{noise.Addr().String(), "timeout"}, true},
		{"no credentials", bus.Config{URL: asks.URL()}, bus.ErrDenied, []string{"Authorization Violation"}, false},
		{"wrong password", bus.Config{URL: asks.URL(), User: "bob", Password: "x"}, bus.ErrDenied, []string{asks.URL()}, false},
		{"certificate of nobody", bus.Config{URL: secure.URL()}, bus.ErrTLS, []string{"certificate"}, false},
		{"no certificate of one's own", bus.Config{URL: certified.URL(), CA: known}, bus.ErrTLS, []string{"tls"}, false},
		{"TLS where there is none", bus.Config{URL: strings.Replace(asks.URL(), "nats:", "tls:", 1)}, bus.ErrTLS, []string{"not available"}, false},
		{"no such seed", bus.Config{URL: gone, NKey: "/nowhere"}, nil, []string{"/nowhere", "no such file"}, false},
		{"no such credentials", bus.Config{URL: asks.URL(), Creds: "/nowhere"}, nil, []string{"/nowhere"}, false},
		{"no PEM", bus.Config{URL: gone, CA: notPEM}, nil, []string{notPEM}, false},
		{"no URL", bus.Config{URL: "nats://a b"}, nil, []string{"a b"}, false},
		{"no such context", bus.Config{Context: "/nowhere.json"}, nil, []string{"/nowhere.json"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.cfg.ConnectTimeout = bustest.Patience
			if c.waits {
				c.cfg.ConnectTimeout = short
			}
			_, err := bus.Connect(t.Context(), c.cfg)
			if !c.waits && errors.Is(err, bus.ErrTimeout) {
				t.Errorf("Connect = %v, though waiting does not help", err)
			}
			if err == nil || c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("Connect = %v, want %v", err, c.is)
			}
			for _, want := range c.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Connect = %v, want %q in it", err, want)
				}
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := bus.Connect(ctx, bus.Config{URL: gone}); !errors.Is(err, context.Canceled) {
		t.Errorf("Connect with an ended context = %v, want context.Canceled", err)
	}
}

// TestNoJetStream waits for a server that starts, and not for one that will
// never have JetStream.
func TestNoJetStream(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, want string
		option     bustest.Option
	}{
		{"server without", "start it with nats-server -js", bustest.NoJetStream},
		{"account without", "the account of these credentials has no JetStream", bustest.NoJetStreamFor("bob", "secret")},
	} {
		synctest.Test(t, func(t *testing.T) {
			cfg := bustest.NewFake(t, c.option).Config()
			cfg.User, cfg.Password = "bob", "secret"
			b, err := bus.Connect(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.Close)
			begin := time.Now()
			err = b.Provision(t.Context(), bus.Provisioning{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: Provision = %v, want %q", c.name, err, c.want)
			}
			if took := time.Since(begin); took < 5*time.Second || took > 10*time.Second {
				t.Errorf("%s: Provision gave up after %s, want some 5 s", c.name, took)
			}
		})
	}
}
