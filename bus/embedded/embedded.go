// Package embedded runs a NATS server with JetStream inside this process.
//
// It is a package of its own so that clients do not link the server. One
// directory belongs to one server at a time; a second one on the same
// directory is refused. With SyncAlways (the default) a write is on the disk
// before it is acknowledged.
package embedded

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Options of a server. The zero value of each field is its default.
type Options struct {
	Dir  string // where the data is; required
	Name string // server name, default "parley"
	Host string // default 127.0.0.1
	Port int    // default 4222, -1 = any free one
	HTTP int    // monitoring port, 0 = off, -1 = any free one

	// NoSyncAlways lets the server acknowledge before it is on the disk; it
	// flushes every SyncInterval (default 2 min).
	NoSyncAlways bool
	SyncInterval time.Duration

	StoreLimit int64 // bytes on disk, 0 = three quarters of what is free
	MaxPayload int32 // bytes of a message with its headers, default 4 MiB
	DontListen bool  // in-process connections only

	// Callout makes the server ask who may connect; nil: everybody may.
	Callout *Callout
	// Trust says whom the server lets in; nil: everybody.
	Trust *Trust
	// Refused hears of whom the server does not let in, or do; nil: only Log
	// does. It must not block.
	Refused func(Refusal)

	Log   *slog.Logger // nil discards
	Quiet bool         // only warnings and errors to Log
}

// Trust is what a server needs to know identities (see package auth).
type Trust struct {
	Operator string // its JWT
	System   string // the public key of the system's account
	Accounts string // directory of the accounts' JWTs
}

// defaultMaxPayload leaves room for a message of 1 MiB in a record.
const defaultMaxPayload = 4 << 20

// ready bounds the start.
const ready = 30 * time.Second

// Server is a running server.
type Server struct {
	ns   *server.Server
	opts *server.Options
	lock *os.File
	once sync.Once
}

// ErrPortTaken is wrapped by Start's error when another process listens on the
// address.
var ErrPortTaken = errors.New("port is taken")

// ErrDirInUse is wrapped by Start's error when another server uses the
// directory.
var ErrDirInUse = errors.New("directory is in use by another server")

// Start starts a server and returns when it takes connections. The errors say
// what to do; they wrap ErrPortTaken or ErrDirInUse where one of these is it.
func Start(o Options) (*Server, error) {
	if o.Dir == "" {
		return nil, errors.New("embedded server: no data directory given")
	}
	o.Name = cmp.Or(o.Name, "parley")
	o.Host = cmp.Or(o.Host, "127.0.0.1")
	o.Port = cmp.Or(o.Port, 4222)
	o.MaxPayload = cmp.Or(o.MaxPayload, defaultMaxPayload)
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded server: make data directory: %w", err)
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("embedded server: %w", err)
	}
	s := &Server{lock: lock}
	if err := s.start(o); err != nil {
		s.Close()
		return nil, fmt.Errorf("embedded server: %w", err)
	}
	return s, nil
}

func (s *Server) start(o Options) error {
	if !o.DontListen {
		if err := probe(o.Host, o.Port); err != nil {
			return err
		}
	}
	s.opts = &server.Options{
		ServerName: o.Name, Host: o.Host, Port: o.Port, DontListen: o.DontListen,
		HTTPHost: o.Host, HTTPPort: o.HTTP,
		NoSigs: true, NoLog: o.Log == nil && o.Refused == nil,
		MaxPayload: o.MaxPayload, MaxPending: 256 << 20,
		JetStream: true, StoreDir: o.Dir, JetStreamMaxStore: cmp.Or(o.StoreLimit, -1),
		SyncAlways: !o.NoSyncAlways, SyncInterval: o.SyncInterval,
	}
	if o.Callout != nil {
		o.Callout.options(s.opts)
	}
	if err := s.trust(o.Trust); err != nil {
		return err
	}
	ns, err := server.NewServer(s.opts)
	if err != nil {
		return err
	}
	if o.Log != nil {
		ns.SetLogger(logger{log: o.Log, quiet: o.Quiet, refused: o.Refused}, false, false)
	}
	s.ns = ns
	ns.Start()
	if !ns.ReadyForConnections(ready) {
		return fmt.Errorf("not ready after %s, see the log; is %s readable?", ready, o.Dir)
	}
	if !ns.JetStreamEnabled() {
		return fmt.Errorf("JetStream did not start, see the log; is %s writable?", o.Dir)
	}
	if o.Callout != nil {
		return wall(ns)
	}
	return nil
}

// trust makes the server ask who connects.
func (s *Server) trust(t *Trust) error {
	if t == nil {
		return nil
	}
	operator, err := jwt.DecodeOperatorClaims(t.Operator)
	if err != nil {
		return fmt.Errorf("the operator's JWT: %w", err)
	}
	accounts, err := server.NewDirAccResolver(t.Accounts, 0, 0, server.NoDelete)
	if err != nil {
		return fmt.Errorf("the accounts in %s: %w", t.Accounts, err)
	}
	s.opts.TrustedOperators, s.opts.SystemAccount, s.opts.AccountResolver = []*jwt.OperatorClaims{operator}, t.System, accounts
	return nil
}

// URL is where clients connect: nats://host:port.
func (s *Server) URL() string { return s.ns.ClientURL() }

// InProcessConn connects without a socket (nats.InProcessConnProvider).
func (s *Server) InProcessConn() (net.Conn, error) { return s.ns.InProcessConn() }

var _ nats.InProcessConnProvider = (*Server)(nil)

// SyncAlways reports whether the server syncs before it acknowledges; it is
// what bus.Config.SyncAlways wants to know.
func (s *Server) SyncAlways() bool {
	c := s.ns.JetStreamConfig()
	return c != nil && c.SyncAlways
}

// Room is how many bytes the server may reserve for its streams:
// Options.StoreLimit, or three quarters of what was free at its start. It is
// what bus.Provisioning.Room wants to know.
func (s *Server) Room() int64 {
	if c := s.ns.JetStreamConfig(); c != nil {
		return c.MaxStore
	}
	return 0
}

// HTTPAddr is the address of the monitoring endpoint, "" when it is off.
func (s *Server) HTTPAddr() string {
	if a := s.ns.MonitorAddr(); a != nil {
		return a.String()
	}
	return ""
}

// Close stops the server, flushes its files and frees the directory.
func (s *Server) Close() {
	s.once.Do(func() {
		if s.ns != nil {
			s.ns.Shutdown()
			s.ns.WaitForShutdown()
		}
		unlockDir(s.lock)
	})
}

// probe finds a taken port, or an address that is not of this machine, before the
// server does, which only logs it.
func probe(host string, port int) error {
	port = max(port, 0) // any that is free
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: another process listens on %s: stop it, or choose another port (-1 takes any free one)",
			ErrPortTaken, net.JoinHostPort(host, strconv.Itoa(port)))
	case err != nil:
		return fmt.Errorf("listen on %s: %w", net.JoinHostPort(host, strconv.Itoa(port)), err)
	}
	return l.Close()
}

// lockDir takes the directory's lock, which ends with the process.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "parley.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := tryLock(f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%w: %s: stop the other one, or choose another directory (%w)", ErrDirInUse, dir, err)
	}
	return f, nil
}

func unlockDir(f *os.File) {
	if f != nil {
		_ = f.Close() // frees the lock
	}
}
