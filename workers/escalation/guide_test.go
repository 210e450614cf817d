package escalation_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	policy "parley/escalation"
	"parley/subjects/fleet"
	"parley/workers/escalation"
)

// short is d as the guide writes it: in its largest unit.
func short(d time.Duration) string {
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}

// TestGuide checks that the guide's table of defaults is what the code does.
func TestGuide(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/guide/escalation.md")
	if err != nil {
		t.Fatal(err)
	}
	c := policy.Chain{}.WithDefaults()
	want := map[string]string{
		"PARLEY_GROUP_WAIT": short(c.GroupWait), "PARLEY_GROUP_INTERVAL": short(c.GroupInterval),
		"PARLEY_ALERT_NEXT": short(c.CallNext), "PARLEY_ACK_TIMEOUT": short(c.AckTimeout),
		"PARLEY_ALERT_REPEAT": short(fleet.DefaultAlertRepeat), "PARLEY_GIVE_UP_AFTER": short(fleet.DefaultGiveUpAfter),
		"PARLEY_LINK_TTL": short(escalation.DefaultLinkTTL), "PARLEY_HEARTBEAT_EACH": short(escalation.DefaultHeartbeat),
		"PARLEY_GROUP_BY": strings.Join(escalation.DefaultGroupBy(), ","), "PARLEY_MAX_RETRIES": strconv.Itoa(fleet.DefaultMaxRetries),
		"PARLEY_WAIT_ALERT": short(escalation.DefaultWaitAlert), "PARLEY_MAX_LOSSES": strconv.Itoa(fleet.DefaultMaxLosses),
	}
	_, table, _ := strings.Cut(string(page), "## Defaults")
	table, _, _ = strings.Cut(table, "\n\nA dispatch")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 || strings.Contains(line, "---") || strings.Contains(line, "| what |") {
			continue
		}
		rows++
		found := false
		for name, value := range want {
			if strings.Contains(cells[1], "`"+name+"`") {
				found = true
				if got := strings.TrimSpace(cells[2]); got != value {
					t.Errorf("the guide says %s = %s, the code %s", name, got, value)
				}
			}
		}
		if !found {
			t.Errorf("nothing checks the row %q", line)
		}
	}
	if rows != len(want) {
		t.Errorf("the table has %d rows, want %d", rows, len(want))
	}
}
