package main

import (
	"bytes"
	"os"
	"path/filepath"
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
		var out, errs bytes.Buffer
		p := process{args: []string{"subjects", "--permissions", role, id}, stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
		if code := run(t.Context(), p); code != 0 {
			t.Fatalf("%s %s: %s", role, id, errs.String())
		}
		path := filepath.Join("../../deploy/nats/permissions", id+".conf")
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
			t.Errorf("%s differs; run go test ./cmd/parley -run ShippedPermissions -update (-want +got):\n%s", path, diff)
		}
	}
}
