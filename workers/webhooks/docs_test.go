package webhooks_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"parley/subjects/fleet"
	"parley/workers/webhooks"
)

// short is d as the guide writes it: in its largest unit.
func short(d time.Duration) string {
	switch {
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

func percent(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }

// TestGuide checks that the guide's table of defaults is what the code does.
func TestGuide(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/guide/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	human, push := webhooks.Human(), webhooks.Push()
	var waits []string
	for _, d := range human.Steps {
		waits = append(waits, short(d))
	}
	last := len(waits) - 1
	waits[last] = "then every " + waits[last]
	for what, value := range map[string]string{
		"time-out of a whole exchange (`PARLEY_WEBHOOK_TIMEOUT`)":                short(webhooks.DefaultTimeout),
		"schedule `human`: waits after each attempt":                             strings.Join(waits, ", "),
		"schedule `push`: attempts (`PARLEY_WEBHOOK_RETRIES`)":                   strconv.Itoa(push.Attempts),
		"schedule `push`: first wait (`PARLEY_WEBHOOK_BASE`), doubled each time": short(push.Base),
		"jitter of every wait":                                                   fmt.Sprintf("± %.0f %%", 100*webhooks.Jitter),
		"longest `Retry-After` that is honoured":                                 short(webhooks.MaxRetryAfter),
		"a delivery ends as a dead letter, if it does not say when":              short(fleet.DefaultNotAfter) + " after it was stored",
		"exchanges with one endpoint at a time":                                  strconv.Itoa(webhooks.DefaultPerEndpoint),
		"exchanges of one worker at a time":                                      strconv.Itoa(webhooks.DefaultConcurrency),
		"of them with receivers that subscribers have named":                     strconv.Itoa(webhooks.GuestsOf(webhooks.DefaultConcurrency)),
		"failures in a row that open an endpoint's circuit":                      strconv.Itoa(webhooks.DefaultOpenAfter),
		"a probe while the circuit is open, every":                               short(webhooks.DefaultProbeEvery),
		"a delivered one is known for":                                           short(webhooks.KeepDelivered),
		"of more delivered ones than this, those older than 1h may be forgotten": strconv.Itoa(webhooks.KeepMost),
		"a dead letter is kept for":                                              short(webhooks.KeepDead),

		"of more dead pushes to one receiver than this, the oldest are forgotten":             strconv.Itoa(webhooks.KeepDeadOf),
		"beyond this part of the outbox in use, dead pushes are forgotten":                    percent(webhooks.TightAt),
		"but before any of them, delivered ones that are known for longer than":               short(webhooks.KeepBriefly),
		"and those given up that wait for a receiver whose circuit is open, the oldest first": percent(webhooks.FullAt),
	} {
		if row := "| " + what + " | " + value + " |\n"; !strings.Contains(string(page), row) {
			t.Errorf("the guide lacks the row %s", row)
		}
	}
}
