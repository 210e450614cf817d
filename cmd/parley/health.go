package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"parley/workers"
)

// healthChecks is what the health pages look at.
type healthChecks struct {
	workers   []workers.Worker
	connected func() bool
	store     func() error    // whether it takes writes, see canary; nil: nobody asks
	unsafe    func() []string // what is, or not known to be safe; nil: nobody looks
	stopping  <-chan struct{} // closed when the process drains
}

// health serves the process's HTTP port: /healthz (this process lives), /readyz
// (it serves: every worker does, the store takes a write and gives it back, the
// bus is connected, and it is not draining; it says what is unsafe besides), and
// the workers' pages.
type health struct {
	listener net.Listener
	checks   healthChecks
	pages    map[string]http.Handler // what else is served, by pattern
	secure   bool                    // TLS
}

// listenHealth takes the address at once, so that a taken port is an error
// before anything runs. It returns nil for the address off.
func (a *app) listenHealth(address string, checks healthChecks) (*health, error) {
	if address == "off" || address == "" {
		return nil, nil //nolint:nilnil // off is a valid setting
	}
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &problem{
			what: "cannot serve health pages: " + address + " is taken", exit: exitFailed, err: err,
			where: "another process listens there: " + err.Error(), then: "repeat with --http " + nextPort(address) + "  or  --http off",
		}
	}
	if err != nil {
		return nil, usage("--http %q: %w", address, err).next("give an address such as 127.0.0.1:7411, or off")
	}
	h := &health{listener: l, checks: checks, pages: make(map[string]http.Handler)}
	if a.conf.HTTPCert == "" {
		return h, nil
	}
	conf, err := a.conf.httpTLS()
	if err != nil {
		_ = l.Close()
		return nil, usage("the HTTP port's TLS: %w", err).next("see --http-cert, --http-key and --http-client-ca")
	}
	h.listener, h.secure = tls.NewListener(l, conf), true
	return h, nil
}

// nextPort is the address with the port after its own.
func nextPort(address string) string {
	host, port, err := net.SplitHostPort(address)
	n, nerr := strconv.Atoi(port)
	if err != nil || nerr != nil {
		return "127.0.0.1:7412"
	}
	return net.JoinHostPort(host, strconv.Itoa(n+1))
}

// address is where the pages are; "" for nil.
func (h *health) address() string {
	if h == nil {
		return ""
	}
	if h.secure {
		return "https://" + h.listener.Addr().String()
	}
	return "http://" + h.listener.Addr().String()
}

// serve adds pages; call it before Run. Without an address nothing is served.
func (h *health) serve(pattern string, pages http.Handler) {
	if h != nil {
		h.pages[pattern] = pages
	}
}

// close frees the address, if Run did not.
func (h *health) close() {
	if h != nil {
		_ = h.listener.Close() // Run may have closed it
	}
}

// maxHeader is how long the header of a request may be: tokens are the longest
// part of one, and anybody may send it.
const maxHeader = 64 << 10

// Run serves until ctx ends, and finishes what is in hand then as long as the
// grace time of workers.Run allows.
func (h *health) Run(ctx context.Context) error {
	mux := http.NewServeMux()
	for pattern, pages := range h.pages {
		mux.Handle(pattern, pages)
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"status": "ok", "version": version})
	})
	mux.HandleFunc("GET /readyz", h.ready)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: maxHeader, Protocols: new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(h.secure)
	server.Protocols.SetUnencryptedHTTP2(!h.secure) // gRPC
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(h.listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	// The workers have stopped. What is still in hand has the rest of the grace time,
	// but for a second: others stop after this one.
	over, cancel := context.WithDeadline(context.WithoutCancel(ctx), workers.Until(ctx).Add(-time.Second))
	defer cancel()
	err := server.Shutdown(over)
	<-failed //nolint:errcheck // Serve has returned, as it was told to
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close()
	}
	return err
}

func (h *health) ready(w http.ResponseWriter, _ *http.Request) {
	status, code := "ok", http.StatusOK
	notReady := func(s string) { status, code = s, http.StatusServiceUnavailable }
	states := make(map[string]string)
	for _, worker := range h.checks.workers {
		states[worker.Name] = "ok"
		if worker.Ready == nil {
			continue
		}
		if err := worker.Ready(); err != nil {
			states[worker.Name] = err.Error()
			notReady("not ready")
		}
	}
	if h.checks.store != nil {
		states["store"] = "ok"
		if err := h.checks.store(); err != nil {
			states["store"] = oneLine(err.Error())
			notReady("the store takes no writes")
		}
	}
	if !h.checks.connected() {
		notReady("not connected to NATS")
	}
	select {
	case <-h.checks.stopping:
		notReady("draining")
	default:
	}
	body := map[string]any{"status": status, "workers": states}
	if h.checks.unsafe != nil {
		if found := h.checks.unsafe(); len(found) > 0 {
			body["unsafe"] = found
		}
	}
	answer(w, code, body)
}

func answer(w http.ResponseWriter, code int, body map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) //nolint:errchkjson // nobody is left to be told
}
