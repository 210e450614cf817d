package secrets_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"parley/workers/sessions/secrets"
)

const (
	token = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"
	aws   = "AKIA" + "IOSFODNN7EXAMPLZ"
)

func TestJSON(t *testing.T) {
	t.Parallel()
	s, err := secrets.New()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, in, want, found string
		named                 bool
	}{
		{"nothing", `{"a":"hello","n":12345678901234567890,"b":[true,null]}`, "", "", false},
		{"in a text", `{"a/b":["x","see ` + token + `"]}`, `{"a/b":["x","see [redacted: github-pat]"]}`, "github-pat at /a~1b/1", false},
		{"a whole value", `"` + aws + `"`, `"[redacted: aws-access-token]"`, "aws-access-token at /", false},
		{"where gitleaks would be told to look away", `{"a":"see ` + token + ` gitleaks:allow"}`, `{"a":"see [redacted: github-pat] gitleaks:allow"}`, "github-pat at /a", false},
		{"in a name", `{"` + token + `":1}`, "", "github-pat at a name in /", true},
		{"numbers stay", `{"n":12345678901234567890,"a":"` + aws + `"}`, `{"a":"[redacted: aws-access-token]","n":12345678901234567890}`, "aws-access-token at /a", false},
	} {
		masked, found, named, err := s.JSON(t.Context(), []byte(c.in))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if len(found) > 0 {
			got = found[0].String()
		}
		if got != c.found || named != c.named {
			t.Errorf("%s: found %q (in a name: %v), want %q", c.name, got, named, c.found)
		}
		if text := strings.TrimSpace(string(masked)); c.want != "" && text != c.want {
			t.Errorf("%s: masked %s, want %s", c.name, text, c.want)
		}
	}
	if _, _, _, err := s.JSON(t.Context(), []byte("{")); err == nil {
		t.Error("what is not JSON is scanned")
	}
}

// TestText finds what lies on the edge of two windows, once.
func TestText(t *testing.T) {
	t.Parallel()
	s, err := secrets.New()
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{0, 1<<20 - 20, 1 << 20} {
		text := strings.Repeat(" ", at) + token + strings.Repeat(" ", 100)
		if found, err := s.Text(t.Context(), text); err != nil || len(found) != 1 || !strings.Contains(found[0].String(), "byte ") {
			t.Errorf("at %d: found %v, want one", at, found)
		}
	}
	if found, err := s.Text(t.Context(), strings.Repeat("nothing to see ", 100_000)); err != nil || len(found) != 0 {
		t.Errorf("found %v in plain text", found)
	}
}

// TestNotScanned: what there was no time to look at is not taken for clean.
func TestNotScanned(t *testing.T) {
	t.Parallel()
	s, err := secrets.New()
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if found, err := s.Text(over, token); !errors.Is(err, context.Canceled) {
		t.Errorf("Text = %v, %v, want that it was not scanned", found, err)
	}
	if _, found, _, err := s.JSON(over, []byte(`"`+token+`"`)); !errors.Is(err, context.Canceled) {
		t.Errorf("JSON = %v, %v, want that it was not scanned", found, err)
	}
}

// TestManyAtOnce is for the race detector.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	s, err := secrets.New()
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if found, err := s.Text(t.Context(), "x "+token); err != nil || len(found) != 1 {
				t.Errorf("found %v, want one", found)
			}
		})
	}
	all.Wait()
}
