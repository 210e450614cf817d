// Package deploy puts a site together from the very files of the folder deploy,
// for tests. What differs from a real one is where things are: directories,
// addresses and ports, and the certificates and passwords that every site has
// of its own. Nothing else of the files is changed.
package deploy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"golang.org/x/crypto/bcrypt"
)

// Names of the users in accounts.conf who have a password.
const (
	Worker   = "worker"
	Operator = "operator"
	CI       = "ci"
	Claude   = "claude"
	System   = "sys"
)

// Site is where the servers of a fleet are, and how they are reached.
type Site struct {
	tb   testing.TB
	dir  string
	repl map[string]*strings.Replacer // by node
	want map[string][]string          // by node, in pairs: what the files have, and what it has instead
	held []net.Listener

	Env []string // of the servers' processes: passwords and keys
	CA  string   // path of the authority's certificate

	Issuer string // seed of the key by which answers of the worker callout are known
}

// nodes are the servers that a site can have, by the names of their files
// without .conf.
var nodes = []string{"cluster-1", "cluster-2", "cluster-3", "single", "leaf"}

// Password is what a user is let in with.
func Password(user string) string { return "secret-of-" + user }

// NewSite makes directories, certificates, passwords and ports in dir, which
// the test removes.
func NewSite(tb testing.TB, dir string) *Site {
	tb.Helper()
	s := &Site{tb: tb, dir: dir, repl: map[string]*strings.Replacer{}, want: map[string][]string{}, CA: filepath.Join(dir, "tls", "ca.crt")}
	certificates(tb, filepath.Dir(s.CA))
	s.secrets()
	// In their order, as the names that they stand for: a server that reloads sorts
	// its routes in place, while others of its goroutines read them.
	routes := []string{s.free(), s.free(), s.free()}
	slices.Sort(routes)
	var all []string // known to every node: how they find each other
	for i := range 3 {
		all = append(all, fmt.Sprintf("nats://n%d:6222", i+1), "nats://"+routes[i],
			fmt.Sprintf("tls://n%d:7422", i+1), "tls://"+s.free())
	}
	for i, node := range nodes {
		own := []string{
			"/etc/nats/tls", filepath.Dir(s.CA), "/var/lib/nats", s.Data(node), "host: 0.0.0.0", "host: 127.0.0.1",
			"port: 4222", "port: " + port(s.free()), monitor(node), "http: " + s.free(),
		}
		if i < 3 {
			own = append(own, "port: 6222", "port: "+port(all[4*i+1]), "port: 7422", "port: "+port(all[4*i+3]))
		}
		s.want[node] = slices.Concat(own, all)
		s.repl[node] = strings.NewReplacer(s.want[node]...)
		s.copy(node)
	}
	for _, l := range s.held {
		_ = l.Close()
	}
	return s
}

// Ask has a node ask who may connect, as callout.conf tells to.
func (s *Site) Ask(node string) {
	s.tb.Helper()
	const accounts = "\ninclude accounts.conf\n"
	for _, name := range []string{node, "cluster"} { // the file that has the line
		path := filepath.Join(s.dir, node, name+".conf")
		data, err := os.ReadFile(path)
		if err != nil {
			s.tb.Fatal(err)
		}
		if !strings.Contains(string(data), accounts) {
			continue
		}
		text := strings.Replace(string(data), accounts, accounts+"include callout.conf\n", 1)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			s.tb.Fatal(err)
		}
		return
	}
	s.tb.Fatalf("no file of %s has the line %q", node, accounts)
}

// Data is where a node keeps its streams.
func (s *Site) Data(node string) string { return filepath.Join(s.dir, node, "data") }

// Config is the path of a node's configuration.
func (s *Site) Config(node string) string { return filepath.Join(s.dir, node, node+".conf") }

// At tells where a server is that the test has started by other files.
func (s *Site) At(node, url string) {
	s.want[node] = []string{"port: 4222", "port: " + port(url)}
}

// URL is where clients reach a node.
func (s *Site) URL(node string) string {
	scheme := "nats://"
	if strings.HasPrefix(node, "cluster") {
		scheme = "tls://"
	}
	return scheme + "127.0.0.1:" + strings.TrimPrefix(s.place(node, "port: 4222"), "port: ")
}

// Monitor is the address of a node's monitoring pages.
func (s *Site) Monitor(node string) string {
	return "http://" + strings.TrimPrefix(s.place(node, monitor(node)), "http: ")
}

// monitor is what the files say of a node's monitoring pages.
func monitor(node string) string {
	if strings.HasPrefix(node, "cluster") {
		return "http: $NATS_MONITOR"
	}
	return "http: 127.0.0.1:8222"
}

// place is what a node has instead of what the files say.
func (s *Site) place(node, shipped string) string {
	return s.want[node][slices.Index(s.want[node], shipped)+1]
}

// copy writes the files of deploy/nats for a node.
func (s *Site) copy(node string) {
	s.tb.Helper()
	root := filepath.Join("..", "..", "deploy", "nats")
	if err := os.CopyFS(filepath.Join(s.dir, node), os.DirFS(root)); err != nil {
		s.tb.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(s.dir, node, "*.conf"))
	if err != nil || len(files) == 0 {
		s.tb.Fatalf("no configurations in %s: %v", root, err)
	}
	var before strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			s.tb.Fatal(err)
		}
		before.Write(data)
		if err := os.WriteFile(f, []byte(s.repl[node].Replace(string(data))), 0o600); err != nil {
			s.tb.Fatal(err)
		}
	}
	for i := 0; i < len(s.want[node]); i += 2 {
		if !strings.Contains(before.String(), s.want[node][i]) {
			s.tb.Fatalf("no file of deploy/nats has %q: this test runs something else than what ships", s.want[node][i])
		}
	}
}

// secrets makes passwords, of which the servers are told the hashes alone, and
// the key of the leaf node.
func (s *Site) secrets() {
	s.tb.Helper()
	for _, user := range []string{Worker, Operator, CI, Claude, System} {
		hash, err := bcrypt.GenerateFromPassword([]byte(Password(user)), bcrypt.MinCost)
		if err != nil {
			s.tb.Fatal(err)
		}
		s.Env = append(s.Env, "NATS_"+strings.ToUpper(user)+"_PASSWORD="+string(hash))
	}
	pair, err := nkeys.CreateUser()
	if err != nil {
		s.tb.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		s.tb.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		s.tb.Fatal(err)
	}
	s.Env = append(s.Env, "NATS_EDGE1_NKEY="+public, "NATS_EDGE1_SEED="+string(seed))
	issuer, err := nkeys.CreateAccount()
	if err != nil {
		s.tb.Fatal(err)
	}
	if public, err = issuer.PublicKey(); err != nil {
		s.tb.Fatal(err)
	}
	if seed, err = issuer.Seed(); err != nil {
		s.tb.Fatal(err)
	}
	s.Env, s.Issuer = append(s.Env, "NATS_CALLOUT_ISSUER="+public), string(seed)
}

// free is FreeAddress, held until the site is put together.
func (s *Site) free() string {
	s.tb.Helper()
	l := listen(s.tb)
	s.held = append(s.held, l) // so that none is given out twice
	return l.Addr().String()
}

// FreeAddress is an address of the loopback that nobody listens on. It is not
// one that the system gives to outgoing connections, so it stays free for a
// server that starts later, or once more.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	l := listen(tb)
	defer l.Close()
	return l.Addr().String()
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	for range 1000 {
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(10_000+mathrand.IntN(20_000))); err == nil {
			return l
		}
	}
	tb.Fatal("no port is free")
	return nil
}

func port(address string) string { return address[strings.LastIndex(address, ":")+1:] }

// NewAuthority makes another authority in dir, and a certificate for the servers,
// as files of the names that a site's have.
func NewAuthority(tb testing.TB, dir string) string {
	tb.Helper()
	certificates(tb, dir)
	return dir
}

// certificates makes an authority, and a certificate of it that serves every
// server of the site.
func certificates(tb testing.TB, dir string) {
	tb.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	caKey, serverKey := key(tb), key(tb)
	ca := &x509.Certificate{
		SerialNumber: number(tb), Subject: pkix.Name{CommonName: "fleet authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: number(tb), Subject: pkix.Name{CommonName: "fleet server"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		DNSNames: []string{"n1", "n2", "n3", "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for name, c := range map[string]struct {
		of  *x509.Certificate
		key *ecdsa.PrivateKey
	}{"ca": {ca, caKey}, "server": {server, serverKey}} {
		der, err := x509.CreateCertificate(rand.Reader, c.of, ca, &c.key.PublicKey, caKey)
		if err != nil {
			tb.Fatal(err)
		}
		writePEM(tb, filepath.Join(dir, name+".crt"), "CERTIFICATE", der)
	}
	der, err := x509.MarshalPKCS8PrivateKey(serverKey)
	if err != nil {
		tb.Fatal(err)
	}
	writePEM(tb, filepath.Join(dir, "server.key"), "PRIVATE KEY", der)
}

func number(tb testing.TB) *big.Int {
	tb.Helper()
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func key(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

func writePEM(tb testing.TB, path, kind string, der []byte) {
	tb.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		tb.Fatal(err)
	}
}
