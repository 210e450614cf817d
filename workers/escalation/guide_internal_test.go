package escalation

import (
	"os"
	"strings"
	"testing"

	"parley/subjects"
)

// TestRestoreCursor: whoever restores a backup takes this away, as the guide says.
func TestRestoreCursor(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../docs/guide/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := "\nnats kv del " + subjects.BucketAlerts + " " + cursorKey + " --force\n"; !strings.Contains(string(guide), want) {
		t.Errorf("the guide does not have %q", want)
	}
}
