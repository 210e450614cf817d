package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// page is what comes out: a Markdown page, or JSON lines.
type page struct {
	out, progress io.Writer
	json          bool
	targets       []target
}

// target is a figure that is to be reached.
type target struct {
	What string
	Got  string
	Want string
	Pass bool
}

func newPage(out, progress io.Writer, asJSON bool) *page {
	return &page{out: out, progress: progress, json: asJSON}
}

// say tells who waits what goes on.
func (p *page) say(format string, args ...any) {
	fmt.Fprintf(p.progress, format+"\n", args...)
}

func (p *page) section(title string) {
	if !p.json {
		fmt.Fprintf(p.out, "\n## %s\n\n", title)
	}
}

func (p *page) note(format string, args ...any) {
	if !p.json {
		fmt.Fprintf(p.out, "\n"+format+"\n", args...)
	}
}

// record is one JSON line.
func (p *page) record(part string, fields map[string]any) {
	if p.json {
		fields["part"] = part
		_ = json.NewEncoder(p.out).Encode(fields)
	}
}

// table prints rows under head, the first of which is left-aligned.
func (p *page) table(head []string, rows [][]string) {
	if p.json {
		return
	}
	widths := make([]int, len(head))
	for _, row := range append([][]string{head}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	line := func(row []string) {
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-len([]rune(cell)))
			if i == 0 {
				fmt.Fprintf(p.out, "| %s%s ", cell, pad)
			} else {
				fmt.Fprintf(p.out, "| %s%s ", pad, cell)
			}
		}
		fmt.Fprintln(p.out, "|")
	}
	line(head)
	for i, w := range widths {
		if i == 0 {
			fmt.Fprintf(p.out, "|%s", strings.Repeat("-", w+2))
		} else {
			fmt.Fprintf(p.out, "|%s:", strings.Repeat("-", w+1))
		}
	}
	fmt.Fprintln(p.out, "|")
	for _, row := range rows {
		line(row)
	}
}

// target notes how a figure compares with what is to be reached.
func (p *page) target(what, got, want string, pass bool) {
	p.targets = append(p.targets, target{what, got, want, pass})
}

func (t target) mark() string {
	if t.Pass {
		return "PASS"
	}
	return "MISS"
}

// verdicts prints all targets.
func (p *page) verdicts() {
	p.section("Targets")
	var rows [][]string
	for _, t := range p.targets {
		rows = append(rows, []string{t.What, t.Got, t.Want, t.mark()})
		p.record("target", map[string]any{"what": t.What, "got": t.Got, "want": t.Want, "pass": t.Pass})
	}
	p.table([]string{"what", "measured", "target", ""}, rows)
}

// machine says where this ran.
func (p *page) machine(o options) {
	commit, _ := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	load, _ := os.ReadFile("/proc/loadavg")
	model := field("/proc/cpuinfo", "model name")
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	if !p.json {
		fmt.Fprintf(p.out, "# Parley beside the lean floor\n\n%d cores (%s), Linux %s, %s, nats-server %s, nats.go %s, commit %s, load before %s\n",
			runtime.NumCPU(), model, strings.TrimSpace(string(kernel)), runtime.Version(), server.VERSION, nats.Version,
			cmp.Or(strings.TrimSpace(string(commit)), "none"), strings.TrimSpace(string(load)))
		fmt.Fprintf(p.out, "%d tasks of %d B with results of %d B, %d in flight, %d router(s), %d agent(s), %d round(s)\n",
			o.tasks, taskBytes, resultBytes, o.inFlight, o.routers, o.agents, o.rounds)
	}
	p.record("machine", map[string]any{
		"cores": runtime.NumCPU(), "cpu": model, "kernel": strings.TrimSpace(string(kernel)), "go": runtime.Version(),
		"server": server.VERSION, "client": nats.Version, "commit": strings.TrimSpace(string(commit)), "load": strings.TrimSpace(string(load)),
		"tasks": o.tasks, "rounds": o.rounds, "in_flight": o.inFlight, "routers": o.routers, "agents": o.agents,
	})
}

// field is the value of the first line "name : value" of a file.
func field(file, name string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// spread is several measurements of one thing.
type spread []float64

func (s spread) median() float64 {
	if len(s) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(s))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// String is the median with the least and the most.
func (s spread) String() string {
	if len(s) < 2 {
		return thousands(s.median())
	}
	return fmt.Sprintf("%s [%s–%s]", thousands(s.median()), thousands(slices.Min(s)), thousands(slices.Max(s)))
}

// thousands writes a whole number with separators.
func thousands(f float64) string {
	s := fmt.Sprintf("%.0f", f)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

func percent(f float64) string { return fmt.Sprintf("%.0f %%", f*100) }
func ms(f float64) string      { return fmt.Sprintf("%.2f", f) }
func mib(n int64) string       { return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20)) }
