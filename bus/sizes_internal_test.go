package bus

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestTheGuideKnowsTheSizes holds what operators are told that the streams take
// against what they take.
func TestTheGuideKnowsTheSizes(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../docs/guide/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	s, _ := Provisioning{}.sizes()
	rest := s.inbox + s.announce + s.deadLetters + s.webhooks + s.escalations + s.audit + s.mesh + s.runs + buckets*s.bucket
	gib := func(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }
	for _, want := range []string{
		"about " + gib(rest+s.tasks) + " with the defaults", "the rest is " + gib(rest),
		"`max_file_store` of 12 GiB or more", // in which they have room
	} {
		if !strings.Contains(string(guide), want) {
			t.Errorf("the guide does not say %q", want)
		}
	}
	if rest+s.tasks > 12<<30 {
		t.Errorf("the streams take %s, and the guide says that 12 GiB do", gib(rest+s.tasks))
	}
}
