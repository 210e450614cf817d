package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"parley/bus"
)

func TestReadTokens(t *testing.T) {
	t.Parallel()
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	got, err := readTokens("--a2a-tokens", write("# callers\nalice 0123456789abcdef\n\nbob  fedcba9876543210\n"))
	if err != nil || len(got) != 2 || got["0123456789abcdef"] != "alice" || got["fedcba9876543210"] != "bob" {
		t.Errorf("readTokens = %v, %v", got, err)
	}
	for text, want := range map[string]string{
		"":                                       "names nobody",
		"alice short":                            "line 1",
		"not.an.id 0123456789abcdef":             "line 1",
		"a 0123456789abcdef\nb 0123456789abcdef": "there twice",
	} {
		if _, err := readTokens("--a2a-tokens", write(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "0123456789abcdef") {
			t.Errorf("%q: %v, want %q and no token", text, err, want)
		}
	}
	if _, err := readTokens("--a2a-tokens", "/nowhere"); err == nil {
		t.Error("a file that is not there is taken")
	}
}

func TestGatewayAsksWhoCallsFromOutside(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"127.0.0.1:7411": true, "localhost:1": true, "[::1]:1": true, "off": true, "": true,
		"0.0.0.0:7411": false, ":7411": false, "10.0.0.1:7411": false, "[::]:1": false,
	} {
		if got := localOnly(address); got != want {
			t.Errorf("localOnly(%q) = %t, want %t", address, got, want)
		}
	}
	s := newShell(t)
	s.run(t, "up", "--port", "-1", "--http", "0.0.0.0:0", "--sync=1m").check(t, exitUsage, "", "--a2a-tokens")
}

// TestCardKeyNeedsURL: without an address of its own a signed card would name the
// host of each request.
func TestCardKeyNeedsURL(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.run(t, "up", "--port", "-1", "--http", "127.0.0.1:0", "--sync=1m", "--a2a-key", "/nowhere").check(t, exitUsage, "", "--a2a-url")
}

// TestIssuerNeedsAudience: a provider's tokens are refused, all of them, where nobody
// says whom they must be for; so that is said at the start.
func TestIssuerNeedsAudience(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ issuer, audience, want string }{
		"both":           {"https://id.example", "fleet", ""},
		"issuer alone":   {"https://id.example", "", "--a2a-audience"},
		"audience alone": {"", "fleet", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &app{conf: &config{A2AIssuer: tt.issuer, A2AAud: tt.audience}}
			_, err := a.gatewayAuth("127.0.0.1:0", "A2A", &bus.Bus{}, slog.New(slog.DiscardHandler))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
