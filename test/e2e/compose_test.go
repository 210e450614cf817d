package e2e_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"parley/test/deploy"
)

// composed is a service of deploy/container/compose.yaml.
type composed struct {
	Image       string
	Command     []string
	Environment map[string]string
	Deploy      struct{ Replicas int }
}

// compose reads compose.yaml as docker compose does, for a person who has set
// the variables given.
func compose(t *testing.T, set map[string]string) map[string]composed {
	t.Helper()
	data, err := os.ReadFile("../../deploy/container/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`\$\{([A-Z0-9_]+):-([^}]*)\}`).ReplaceAllStringFunc(string(data), func(s string) string {
		name, otherwise, _ := strings.Cut(strings.Trim(s, "${}"), ":-")
		if v, ok := set[name]; ok {
			return v
		}
		return otherwise
	})
	var file struct{ Services map[string]composed }
	if err := yaml.UnmarshalWithOptions([]byte(text), &file, yaml.AllowDuplicateMapKey()); err != nil {
		t.Fatal(err)
	}
	return file.Services
}

// composedSite is what runs of compose.yaml.
type composedSite struct {
	siteUnderTest
	brokers map[string]*process // by the names of their files
	pages   map[string][]string // by service: addresses of its processes
	started []*process          // of parley
}

// compose starts what compose.yaml says as processes: the same commands, the same
// variables. What differs is where things are.
func (s siteUnderTest) compose(t *testing.T, set map[string]string) *composedSite {
	t.Helper()
	c := &composedSite{siteUnderTest: s, brokers: map[string]*process{}, pages: map[string][]string{}}
	services := compose(t, s.all(set))
	config := regexp.MustCompile(`^/etc/nats/(cluster-\d)\.conf$`)
	for name, service := range services {
		if m := config.FindStringSubmatch(service.Command[len(service.Command)-1]); m != nil {
			if service.Command[0] != "-c" || m[1] != "cluster-"+strings.TrimPrefix(name, "n") {
				t.Errorf("%s runs %q", name, service.Command)
			}
			if at := service.Environment["NATS_MONITOR"]; at != "0.0.0.0:8222" {
				t.Errorf("%s has its pages at %q, where no worker looks", name, at)
			}
			own := *s.Site
			own.Env = nil
			for k, v := range service.Environment {
				own.Env = append(own.Env, k+"="+v)
			}
			c.brokers[m[1]] = siteUnderTest{&own, s.tb, s.dir}.broker(m[1])
		}
	}
	if len(c.brokers) != 3 {
		t.Fatalf("compose.yaml has %d servers, want 3", len(c.brokers))
	}
	for node := range c.brokers {
		s.well(s.Monitor(node) + "/healthz")
	}
	for name, service := range services {
		if !strings.HasPrefix(service.Image, "parley:") {
			continue
		}
		for i := range max(service.Deploy.Replicas, 1) {
			page := deploy.FreeAddress(t)
			dir := filepath.Join(s.dir, fmt.Sprint(name, i))
			env := []string{"PARLEY_TIMEOUT=30s", "HOME=" + dir, "PARLEY_DATA=" + dir} // as the Containerfile has /data
			here := strings.NewReplacer(
				"tls://n1:4222", s.URL("cluster-1"), "tls://n2:4222", s.URL("cluster-2"), "tls://n3:4222", s.URL("cluster-3"),
				"http://n1:8222", s.Monitor("cluster-1"), "http://n2:8222", s.Monitor("cluster-2"), "http://n3:8222", s.Monitor("cluster-3"),
				"/tls/ca.crt", s.CA, "0.0.0.0:7411", page,
			)
			for k, v := range service.Environment {
				env = append(env, k+"="+here.Replace(v))
			}
			c.started = append(c.started, s.parley(fmt.Sprint(name, i), env, service.Command...))
			if service.Command[0] == "serve" {
				c.pages[name] = append(c.pages[name], "http://"+page)
			}
		}
	}
	for _, pages := range c.pages {
		for _, page := range pages {
			s.well(page + "/readyz")
		}
	}
	return c
}

// all are the variables that a person sets, and the others that servers need: keys
// of this site, and passwords as clients have them.
func (s siteUnderTest) all(set map[string]string) map[string]string {
	all := map[string]string{}
	for _, kv := range s.Env {
		name, value, _ := strings.Cut(kv, "=")
		if user, ok := strings.CutSuffix(strings.TrimPrefix(name, "NATS_"), "_PASSWORD"); ok {
			value = deploy.Password(strings.ToLower(user))
		}
		all[name] = value
	}
	maps.Copy(all, set)
	return all
}

// workers are the workers that run, each once.
func (c *composedSite) workers() (names []string) {
	for name := range c.pages {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
