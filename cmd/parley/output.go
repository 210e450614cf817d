package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"parley/subjects"
	"parley/subjects/fleet"
)

// wide reports whether tables show every column, untrimmed.
func (a *app) wide() bool { return a.conf.Output == "wide" }

// printJSON prints one value as it came, so that members which this version
// does not know are not lost: indented, or on one line for jsonl.
func (a *app) printJSON(raw []byte) error {
	var b bytes.Buffer
	var err error
	if a.conf.Output == "jsonl" {
		err = json.Compact(&b, raw)
	} else {
		err = json.Indent(&b, raw, "", "  ")
	}
	if err != nil {
		return failed("print JSON: %w", err)
	}
	fmt.Fprintln(a.stdout, strings.TrimSpace(b.String()))
	return nil
}

// printList prints a reply that holds a list: whole as json, one line per item
// as jsonl.
func (a *app) printList(raw []byte, member string) error {
	if a.conf.Output != "jsonl" {
		return a.printJSON(raw)
	}
	var reply map[string]json.RawMessage
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &reply); err != nil {
		return failed("read the reply: %w", err)
	}
	if list, ok := reply[member]; ok {
		if err := json.Unmarshal(list, &items); err != nil {
			return failed("read the reply: %w", err)
		}
	}
	for _, item := range items {
		if err := a.printJSON(item); err != nil {
			return err
		}
	}
	return nil
}

// printValue prints a value of our own as JSON.
func (a *app) printValue(v any) error {
	raw, err := fleet.Encode(v)
	if err != nil {
		return err
	}
	return a.printJSON(raw)
}

// grid is a table under a title, as natscli draws them.
type grid struct {
	app     *app
	t       table.Writer
	configs []table.ColumnConfig
	rows    []table.Row
}

// numbers are the columns that stand at the right.
var numbers = []string{"#", "Seq", "Order", "Load", "Attempt", "Tokens", "Bytes"}

// grid begins a table. The columns named in trimmed are cut to 40 characters
// unless everything is to be shown.
func (a *app) grid(title string, header []string, trimmed ...string) *grid {
	t := table.NewWriter()
	style := table.StyleRounded
	style.Title.Align = text.AlignCenter
	style.Format.Header = text.FormatDefault
	style.Format.HeaderAlign = text.AlignLeft
	t.SetStyle(style)
	t.SetTitle("%s", title)
	row := make(table.Row, len(header))
	for i, name := range header {
		row[i] = name
	}
	t.AppendHeader(row)
	var columns []table.ColumnConfig
	for i, name := range header {
		c := table.ColumnConfig{Number: i + 1, Name: name}
		if slices.Contains(trimmed, name) && !a.wide() {
			c.WidthMax, c.WidthMaxEnforcer = 40, cut
		}
		if slices.Contains(numbers, name) {
			c.Align, c.AlignHeader = text.AlignRight, text.AlignRight
		}
		columns = append(columns, c)
	}
	if header == nil { // a card
		columns = []table.ColumnConfig{{Number: 1}, {Number: 2}}
	}
	t.SetColumnConfigs(columns)
	return &grid{app: a, t: t, configs: columns}
}

// cut shortens what is too long, and shows that it did.
func cut(s string, width int) string {
	if text.StringWidthWithoutEscSequences(s) <= width {
		return s
	}
	return strings.TrimRight(text.Trim(s, width-1), " ") + "…"
}

// add appends a row.
func (g *grid) add(cells ...any) {
	row := make(table.Row, len(cells))
	for i, c := range cells {
		if s, ok := c.(string); ok {
			c = printable(s)
		}
		row[i] = c
	}
	g.t.AppendRow(row)
	g.rows = append(g.rows, row)
}

// print draws the table. On a terminal it is made to fit, unless everything is
// to be shown.
func (g *grid) print() {
	var left []string
	if width := terminalWidth(g.app.stdout); width > 0 && !g.app.wide() {
		left = g.fit(width)
	}
	fmt.Fprintln(g.app.stdout, g.t.Render())
	if len(left) > 0 {
		g.app.notice("left out to fit: %s; -o wide shows everything", strings.Join(left, ", "))
	}
}

// colour is one of the terminal's.
type colour string

const (
	red    colour = "\x1b[31m"
	green  colour = "\x1b[32m"
	yellow colour = "\x1b[33m"
	blue   colour = "\x1b[34m"
	faint  colour = "\x1b[2m"
	bold   colour = "\x1b[1m"
	plain  colour = "\x1b[0m"
)

// painted is text that has been given colours and is printed as it is.
type painted string

// paint colours s where standard output shows colours.
func (a *app) paint(c colour, s string) painted {
	if s = printable(s); s == "" || !a.colours(a.stdout) {
		return painted(s)
	}
	return painted(string(c) + s + string(plain))
}

// state paints a task's state.
func (a *app) state(s fleet.State) painted {
	c := faint
	switch s {
	case fleet.StateQueued:
		c = plain
	case fleet.StateWorking:
		c = blue
	case fleet.StateInputRequired, fleet.StateBlocked, fleet.StatePartial:
		c = yellow
	case fleet.StateDone:
		c = green
	case fleet.StateError, fleet.StateExpired:
		c = red
	case fleet.StateCanceled:
	}
	return a.paint(c, string(s))
}

// printable makes text of strangers harmless on a terminal: no control
// characters but the end of a line.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return r
		case r < ' ', r == 0x7f, r >= 0x80 && r < 0xa0, r == '\u202e', r == '\u2066', r == '\u2067', r == '\u2068':
			return '\uFFFD'
		}
		return r
	}, s)
}

// oneLine joins the lines of s.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// ago says how long t was before now, or will be after it.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := now.Sub(t)
	if d < 0 {
		return "in " + roughly(-d)
	}
	return roughly(d) + " ago"
}

// roughly is a duration in the two largest units that say something.
func roughly(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return shortDuration(d.Round(time.Second))
	case d < 24*time.Hour:
		return shortDuration(d.Round(time.Minute))
	}
	hours := d.Round(time.Hour) / time.Hour
	if days, rest := hours/24, hours%24; rest > 0 && days < 10 {
		return fmt.Sprintf("%dd%dh", days, rest)
	}
	return fmt.Sprintf("%dd", hours/24)
}

// when is a time as the table's mode shows it.
func (a *app) when(t time.Time) string {
	if a.wide() && !t.IsZero() {
		return t.UTC().Format(time.RFC3339)
	}
	return ago(t, a.now())
}

// thousands writes n with commas.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// reason is a code with its sentence.
func reason(r *fleet.Reason) string {
	switch {
	case r == nil:
		return ""
	case r.Message == "":
		return string(r.Code)
	case r.Code == "":
		return r.Message
	}
	return string(r.Code) + ": " + r.Message
}

// who is an instance of an agent.
func who(agent subjects.AgentID, instance subjects.InstanceID) string {
	if agent == "" {
		return ""
	}
	if instance == "" || instance == subjects.DefaultInstance {
		return string(agent)
	}
	return string(agent) + "/" + string(instance)
}

// dollars is an amount, with more digits where it is small.
func dollars(usd float64) string {
	if usd < 0.1 {
		return fmt.Sprintf("$%.4f", usd)
	}
	return fmt.Sprintf("$%.2f", usd)
}
