package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
)

// TestShippedPermissions compares the permissions that ship with what this
// program prints for them, or writes them (-update).
func TestShippedPermissions(t *testing.T) {
	t.Parallel()
	roles := map[string]string{
		"worker": subjects.RoleWorker, "operator": subjects.RoleOperator, "ci": subjects.RoleOrchestrator,
		"claude": subjects.RoleAgent, "edge1": subjects.RoleLeaf,
	}
	files, err := filepath.Glob("../../deploy/nats/permissions/*.conf")
	if err != nil || len(files) != len(roles) {
		t.Errorf("%q (%v), want one file for each of %v", files, err, roles)
	}
	for id, role := range roles {
		shipped(t, filepath.Join("../../deploy/nats/permissions", id+".conf"), "subjects", "--permissions", role, id)
	}
}

// TestShippedPassages does the same for what passes between the accounts.
func TestShippedPassages(t *testing.T) {
	t.Parallel()
	for _, side := range []string{sideWorkers, sideClients} {
		shipped(t, filepath.Join("../../deploy/nats/passages", side+".conf"), "subjects", "--passages", side, "FLEET", "CLIENTS")
	}
}

// shipped compares a file with what a command prints.
func shipped(t *testing.T, path string, args ...string) {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(t.Context(), process{args: args, stdin: strings.NewReader(""), stdout: &out, stderr: &errs}); code != 0 {
		t.Fatalf("parley %q: %s", args, errs.String())
	}
	if *update {
		if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(out.String(), string(got)); diff != "" {
		t.Errorf("%s differs; run go test ./cmd/parley -run Shipped -update (-want +got):\n%s", path, diff)
	}
}

// Every PARLEY_ variable that a file of the folder deploy sets is one.
func TestShippedSettingsExist(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`\bPARLEY_[A-Z0-9_]*\b`)
	seen := 0
	err := filepath.WalkDir("../../deploy", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, n := range name.FindAllString(string(data), -1) {
			seen++
			if n == "PARLEY_" {
				continue // speaks of them all
			}
			for _, w := range strangers([]string{n + "=x"}) {
				t.Errorf("%s: %s", path, w)
			}
		}
		return nil
	})
	if err != nil || seen == 0 {
		t.Errorf("%d settings seen: %v", seen, err)
	}
}
