package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/charmbracelet/x/term"
	"github.com/jedib0t/go-pretty/v6/text"
)

// leastProse is how narrow a column of prose may become before another column
// is left out instead.
const leastProse = 14

// vital are the columns that are never left out, beside the first.
var vital = []string{"State", "Is", "Verdict"}

// terminalWidth is how many columns the terminal w has; 0 where w is none.
func terminalWidth(w any) int {
	f, ok := w.(*os.File)
	if !ok || !isTerminal(f) {
		return 0
	}
	width, _, err := term.GetSize(f.Fd())
	if err != nil {
		return 0
	}
	return width
}

// column is one of a grid, as fit sees it.
type column struct {
	at    int // its place, from 0
	name  string
	width int
	cut   bool // its cells are cut, not wrapped
	prose bool // it may become narrower
	empty bool
}

// fit makes the table no wider than width, where that can be done: prose becomes
// narrower, then whole columns are left out, those that say nothing first and
// the others from the right. It returns the names of the latter.
func (g *grid) fit(width int) (left []string) {
	all := g.columns()
	columns := slices.Clone(all)
	for !squeeze(columns, width) {
		gone := dispensable(columns)
		if gone < 0 {
			break
		}
		columns = slices.Delete(columns, gone, gone+1)
	}
	configs := slices.Clone(g.configs)
	for _, c := range all {
		configs[c.at].Hidden = !slices.ContainsFunc(columns, func(k column) bool { return k.at == c.at })
		if configs[c.at].Hidden && !c.empty {
			left = append(left, c.name)
		}
	}
	for _, c := range columns {
		if c.prose {
			configs[c.at].WidthMax, configs[c.at].WidthMaxEnforcer = c.width, text.WrapSoft
			if c.cut {
				configs[c.at].WidthMaxEnforcer = cut
			}
		}
	}
	g.t.SetColumnConfigs(configs)
	return left
}

// columns measures what is in the table.
func (g *grid) columns() []column {
	columns := make([]column, len(g.configs))
	for i, conf := range g.configs {
		c := column{at: i, name: conf.Name, cut: conf.WidthMax > 0, empty: true}
		c.prose = c.cut
		for _, row := range g.rows {
			if i >= len(row) {
				continue
			}
			cell := text.StripEscape(fmt.Sprint(row[i]))
			c.empty = c.empty && (cell == "" || cell == "-")
			long := text.LongestLineLen(cell)
			c.width = max(c.width, long)
			// An id has no spaces, and is of no use in parts.
			c.prose = c.prose || i > 0 && long > leastProse && strings.ContainsAny(cell, " ")
		}
		if conf.WidthMax > 0 {
			c.width = min(c.width, conf.WidthMax)
		}
		c.width = max(c.width, text.LongestLineLen(conf.Name))
		columns[i] = c
	}
	return columns
}

// squeeze narrows the columns of prose, the widest first, until the table is no
// wider than width. It reports whether that was enough, and changes nothing if
// it was not.
func squeeze(columns []column, width int) bool {
	narrow := slices.Clone(columns)
	total := 1
	for _, c := range narrow {
		total += c.width + 3
	}
	for ; total > width; total-- {
		widest := -1
		for i, c := range narrow {
			if c.prose && c.width > leastProse && (widest < 0 || c.width > narrow[widest].width) {
				widest = i
			}
		}
		if widest < 0 {
			return false
		}
		narrow[widest].width--
	}
	copy(columns, narrow)
	return true
}

// dispensable is the column to leave out next; -1 where none can be.
func dispensable(columns []column) int {
	for _, may := range []func(column) bool{
		func(c column) bool { return c.empty },
		func(c column) bool { return !c.prose },
		func(column) bool { return true },
	} {
		for i := len(columns) - 1; i > 0; i-- {
			if may(columns[i]) && !slices.Contains(vital, columns[i].name) && len(columns) > 2 {
				return i
			}
		}
	}
	return -1
}
