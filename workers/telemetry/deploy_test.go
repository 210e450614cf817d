package telemetry_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"parley/bus"
	"parley/bus/bustest"
	"parley/workers/telemetry"
)

var update = flag.Bool("update", false, "write the table of metrics in the guide")

const (
	shipped         = "../../deploy/observability/"
	operationsGuide = "../../docs/guide/operations.md"
)

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// selectors finds a metric's name and what stands in braces behind it.
var (
	selectors = regexp.MustCompile(`(parley_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher   = regexp.MustCompile(`(\w+)\s*(=~|!=|!~|=)\s*"((?:[^"\\]|\\.)*)"`)
	grouping  = regexp.MustCompile(`by \(([^)]*)\)`)
)

// metricOf is the metric that a series of that name is of.
func metricOf(series string) (telemetry.Metric, bool) {
	all := telemetry.Metrics()
	i := slices.IndexFunc(all, func(m telemetry.Metric) bool {
		if m.Type == "histogram" {
			return slices.Contains([]string{m.Name + "_bucket", m.Name + "_sum", m.Name + "_count"}, series)
		}
		return m.Name == series
	})
	if i < 0 {
		return telemetry.Metric{}, false
	}
	return all[i], true
}

// streams are those of a fleet.
func streams(t *testing.T) []bus.StreamFigures {
	t.Helper()
	list, err := bustest.New(t).Bus(t).StreamFigures(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// alternatives are what a regular expression of these files matches.
func alternatives(pattern string) []string {
	before, rest, _ := strings.Cut(pattern, "(")
	within, after, grouped := strings.Cut(rest, ")")
	if !grouped {
		return strings.Split(pattern, "|")
	}
	all := strings.Split(within, "|")
	for i := range all {
		all[i] = before + all[i] + after
	}
	return all
}

// checkSelector reports a metric or a label that there is not, and a value that the
// label never has. Beside the page's labels may be those named.
func checkSelector(t *testing.T, where, series, matchers string, kept []bus.StreamFigures, beside ...string) (telemetry.Metric, bool) {
	t.Helper()
	m, ok := metricOf(series)
	if !ok {
		t.Errorf("%s: there is no metric %s", where, series)
		return m, false
	}
	for _, l := range matcher.FindAllStringSubmatch(matchers, -1) {
		name, op, value := l[1], l[2], l[3]
		if slices.Contains(beside, name) {
			continue
		}
		if !slices.Contains(m.Labels, name) {
			t.Errorf("%s: %s has no label %s", where, m.Name, name)
		}
		known := m.Values(name)
		if name == "stream" {
			for _, s := range kept {
				known = append(known, s.Name)
			}
		}
		asked := []string{value}
		if strings.HasSuffix(op, "~") {
			asked = alternatives(value)
		}
		for _, v := range asked {
			if known != nil && !slices.Contains(known, v) {
				t.Errorf("%s: %s of %s is never %q, only one of %q", where, name, m.Name, v, known)
			}
		}
	}
	return m, true
}

// checkExpr reports what an expression names that is not on the page.
func checkExpr(t *testing.T, where, expr string, kept []bus.StreamFigures) {
	t.Helper()
	known := []string{"le"}
	found := selectors.FindAllStringSubmatch(expr, -1)
	if len(found) == 0 {
		t.Errorf("%s: %s names no metric of the fleet", where, expr)
	}
	for _, m := range found {
		metric, ok := checkSelector(t, where, m[1], m[2], kept)
		if !ok {
			continue
		}
		known = append(known, metric.Labels...)
		if metric.Fleet && !regexp.MustCompile(`(max|min|absent)( by \([^)]*\) )?\((rate\()?`+m[1]).MatchString(expr) {
			t.Errorf("%s: %s is the same everywhere, so take its maximum: %s", where, metric.Name, expr)
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(g[1], ", ") {
			if !slices.Contains(known, l) {
				t.Errorf("%s: no metric of %s has the label %s", where, expr, l)
			}
		}
	}
}

// alert is a rule of alerts.yaml.
type alert struct {
	Alert, Expr string
	Labels      map[string]string
	Annotations map[string]string
}

// alerts are those that ship, by the names of their groups.
func alerts(t *testing.T) map[string][]alert {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []alert
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, shipped+"alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	groups := map[string][]alert{}
	for _, g := range file.Groups {
		groups[g.Name] = g.Rules
	}
	return groups
}

// checkForeign reports an expression over what exporters tell that names no job of
// the configuration that ships.
func checkForeign(t *testing.T, where, expr string) {
	t.Helper()
	jobs := regexp.MustCompile(`\{job=~?"([^"]+)"`).FindStringSubmatch(expr)
	if jobs == nil {
		t.Errorf("%s: %s is about no job", where, expr)
		return
	}
	for job := range strings.SplitSeq(jobs[1], "|") {
		if !regexp.MustCompile(`(?m)^  - job_name: ` + job + `( |$)`).MatchString(read(t, shipped+"prometheus-cluster.yaml")) {
			t.Errorf("%s: %s is about %s, which is no job of prometheus-cluster.yaml", where, expr, job)
		}
	}
}

// TestAlertsNameWhatThereIs: rules name metrics and labels that exist, and each
// has its runbook.
func TestAlertsNameWhatThereIs(t *testing.T) {
	t.Parallel()
	operations, n, kept := read(t, operationsGuide), 0, streams(t)
	for group, rules := range alerts(t) {
		for _, r := range rules {
			n++
			if group == "machines" {
				checkForeign(t, r.Alert, r.Expr)
			} else {
				checkExpr(t, r.Alert, r.Expr, kept)
			}
			if want := "docs/guide/operations.md#" + strings.ToLower(r.Alert); r.Annotations["runbook"] != want {
				t.Errorf("%s: runbook %q, want %q", r.Alert, r.Annotations["runbook"], want)
			}
			if !strings.Contains(operations, "\n### "+r.Alert+"\n\n") {
				t.Errorf("docs/guide/operations.md has no heading %s", r.Alert)
			}
			if r.Annotations["summary"] == "" || !slices.Contains([]string{"warning", "critical"}, r.Labels["severity"]) {
				t.Errorf("%s: summary %q, severity %q", r.Alert, r.Annotations["summary"], r.Labels["severity"])
			}
		}
	}
	if runbooks := strings.Count(operations, "\n### Parley"); n != 26 || runbooks != n {
		t.Errorf("%d alerts and %d runbooks, want 26 of each", n, runbooks)
	}
}

// TestStreamsThatDropWhatIsOld: the alert about full streams leaves out those that
// are never full, and no other.
func TestStreamsThatDropWhatIsOld(t *testing.T) {
	t.Parallel()
	var got, want []string
	for _, r := range alerts(t)["parley"] {
		if m := regexp.MustCompile(`\{stream!~"([^"]+)"\}`).FindStringSubmatch(r.Expr); r.Alert == "ParleyStreamFull" && m != nil {
			got = alternatives(m[1])
		}
	}
	for _, s := range streams(t) {
		if s.DropsOld && s.MaxBytes > 0 { // without a limit it is not on the page of limits
			want = append(want, s.Name)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("ParleyStreamFull leaves out %q, and %q drop what is old", got, want)
	}
}

// TestSeriesThatThereAre: what the tests of the alerts make up, and what the guide
// asks for, is such as the page has.
func TestSeriesThatThereAre(t *testing.T) {
	t.Parallel()
	var file struct {
		Tests []struct {
			Input []struct{ Series string } `yaml:"input_series"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, shipped+"alerts_test.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{operationsGuide: read(t, operationsGuide)}
	for _, c := range file.Tests {
		for _, in := range c.Input {
			all["alerts_test.yaml"] += in.Series + "\n"
		}
	}
	kept := streams(t)
	for where, text := range all {
		n := 0
		for _, m := range selectors.FindAllStringSubmatch(text, -1) {
			if m[2] != "" {
				n++
				checkSelector(t, where, m[1], m[2], kept, "instance")
			}
		}
		if n == 0 {
			t.Errorf("%s has no series of the fleet", where)
		}
	}
}

// TestWatchersAreWatched: whoever looks at what Parley does not tell itself is missed
// when it is gone, since its alerts are silent then.
func TestWatchersAreWatched(t *testing.T) {
	t.Parallel()
	var absent string
	for _, r := range alerts(t)["machines"] {
		if r.Alert == "ParleyWatcherAbsent" {
			absent = r.Expr
		}
	}
	for _, r := range alerts(t)["machines"] {
		job := regexp.MustCompile(`\{job="([^"]+)"`).FindStringSubmatch(r.Expr)
		if job != nil && !regexp.MustCompile(`["|]`+job[1]+`["|]`).MatchString(absent) {
			t.Errorf("nobody is told that %s, of which %s is silent then, cannot be scraped: %q", job[1], r.Alert, absent)
		}
	}
}

// TestEveryAlertIsTried: alerts_test.yaml has each alert fire, and be silent where
// all is well.
func TestEveryAlertIsTried(t *testing.T) {
	t.Parallel()
	var file struct {
		Tests []struct {
			Tries []struct {
				Alert string           `yaml:"alertname"`
				Want  []map[string]any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, shipped+"alerts_test.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for i, c := range file.Tests {
		for _, try := range c.Tries {
			fires[try.Alert] = fires[try.Alert] || len(try.Want) > 0
			silent[try.Alert] = i == len(file.Tests)-1 && len(try.Want) == 0
		}
	}
	for _, rules := range alerts(t) {
		for _, r := range rules {
			if !fires[r.Alert] || !silent[r.Alert] {
				t.Errorf("%s: seen to fire: %t, to be silent where all is well: %t", r.Alert, fires[r.Alert], silent[r.Alert])
			}
		}
	}
}

// promtool is the path of Prometheus's own tool.
func promtool(t *testing.T) string {
	t.Helper()
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("PROMTOOL IS NOT INSTALLED: nobody but Prometheus itself has tried the alerts (apt-get install prometheus)")
	}
	return tool
}

// TestPromtool has Prometheus's own tool read and try the rules.
func TestPromtool(t *testing.T) {
	t.Parallel()
	tool := promtool(t)
	for _, args := range [][]string{
		{"check", "rules", "alerts.yaml"},
		{"test", "rules", "alerts_test.yaml"},
		{"check", "config", "prometheus.yaml"},
		{"check", "config", "prometheus-cluster.yaml"},
	} {
		cmd := exec.CommandContext(t.Context(), tool, args...)
		cmd.Dir = shipped
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	cmd := exec.CommandContext(t.Context(), tool, "check", "metrics")
	cmd.Stdin = strings.NewReader(onlyOurs(lintable(t)))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// TestTheScalingRules: what the guide on operating gives to an autoscaler is how many
// tasks wait or are in hand, 0 where none is, and nothing where the fleet does not
// answer. So agents at work are not taken for superfluous once no task waits.
func TestTheScalingRules(t *testing.T) {
	t.Parallel()
	lines := regexp.MustCompile(`(?m)^    metricsQuery: (.*)$`).FindAllStringSubmatch(read(t, operationsGuide), -1)
	classes := []string{`any`, `tier=\"opus\"`} // which they ask for, in their order
	if len(lines) != len(classes) {
		t.Fatalf("the guide has %d queries, want %d", len(lines), len(classes))
	}
	var b strings.Builder
	b.WriteString("evaluation_interval: 1m\ntests:\n")
	for i, class := range classes {
		expr := strings.Replace(lines[i][1], "<<.LabelMatchers>>", `class="`+class+`"`, 1)
		up := func(value string) []string {
			return []string{`parley_source_up{source="router",instance="a"} ` + value, `parley_source_up{source="registry",instance="a"} ` + value}
		}
		answers := append(up("1"), `parley_leases{instance="a"} 0`)
		waits := []string{`parley_queue_depth{class="` + class + `",instance="a"} 4`, `parley_queue_depth{class="` + class + `",instance="b"} 4`}
		inHand := append(up("1"), `parley_leases{instance="a"} 3`, `parley_leases{instance="b"} 3`,
			`parley_agents{state="busy",tier="opus",instance="a"} 3`, `parley_agents{state="busy",tier="opus",instance="b"} 3`, `parley_agents{state="idle",tier="opus",instance="a"} 9`)
		for _, c := range []struct {
			series []string
			want   string
		}{
			{slices.Concat(answers, waits), "4"},
			{slices.Concat(inHand, waits), "7"},
			{inHand, "3"},
			{slices.Concat(answers, []string{`parley_queue_depth{class="other",instance="a"} 4`}), "0"},
			{answers, "0"},
			{up("0"), ""},
			{nil, ""},
		} {
			b.WriteString("  - interval: 1m\n    input_series:\n")
			for _, s := range c.series {
				name, value, _ := strings.Cut(s, "} ")
				fmt.Fprintf(&b, "      - {series: '%s}', values: '%sx10'}\n", name, value)
			}
			fmt.Fprintf(&b, "    promql_expr_test:\n      - expr: '%s'\n        eval_time: 5m\n", expr)
			if c.want != "" {
				fmt.Fprintf(&b, "        exp_samples: [{labels: '{}', value: %s}]\n", c.want)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool(t), "test", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestDashboardShowsWhatThereIs: its expressions name metrics that exist, and
// every metric is somewhere on it.
func TestDashboardShowsWhatThereIs(t *testing.T) {
	t.Parallel()
	text := read(t, shipped+"dashboard.json")
	var d struct {
		UID    string
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	ids, kept := map[int]bool{}, streams(t)
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d %q with %d targets", p.ID, p.Title, len(p.Targets))
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			checkExpr(t, p.Title, target.Expr, kept)
		}
	}
	hidden := []string{"parley_build_info", "parley_stream_replicas", "parley_records_undecoded_total", "parley_messages_skipped_total"}
	for _, m := range telemetry.Metrics() {
		if !strings.Contains(text, m.Name) && !slices.Contains(hidden, m.Name) {
			t.Errorf("the dashboard does not show %s", m.Name)
		}
	}
}

// TestTheGuideListsAllMetrics: -update writes the table.
func TestTheGuideListsAllMetrics(t *testing.T) {
	t.Parallel()
	const path, begin, end = "../../docs/guide/observability.md", "-update -->\n", "<!-- end -->"
	var b strings.Builder
	b.WriteString("\n| metric | type | labels | is |\n| --- | --- | --- | --- |\n")
	for _, m := range telemetry.Metrics() {
		kind, labels := m.Type, ""
		if m.Fleet {
			kind += ", *fleet*"
		}
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, kind, labels, m.Help)
	}
	b.WriteString("\n")
	guide := read(t, path)
	before, rest, ok := strings.Cut(guide, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("the guide has no place for the table")
	}
	want := before + begin + b.String() + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if guide != want {
		t.Error("the table is not that of the metrics: go test ./workers/telemetry -update")
	}
}
