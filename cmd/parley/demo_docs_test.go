package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// pages are the texts of the project, by their paths from here.
func pages(t *testing.T) map[string]string {
	t.Helper()
	paths := []string{"../../README.md"}
	for _, folder := range []string{"guide", "reference", "adr"} {
		more, err := filepath.Glob("../../docs/" + folder + "/*.md")
		if err != nil || len(more) == 0 {
			t.Fatalf("no %s: %v", folder, err)
		}
		paths = append(paths, more...)
	}
	texts := make(map[string]string)
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[path] = string(data)
	}
	return texts
}

var (
	shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")
	inlineCode = regexp.MustCompile("`(parley [^`\n]+)`")
	goBlock    = regexp.MustCompile("(?ms)^```go\n(.*?)^```")
	link       = regexp.MustCompile(`\]\(([^)\s#]*)(?:#([^)\s]*))?\)`)
	heading    = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// Every command that the texts tell people to type is there, with its flags.
func TestDocumentedCommandsExist(t *testing.T) {
	t.Parallel()
	tried := map[string]bool{}
	for path, text := range pages(t) {
		var commands []string
		for _, block := range shellBlock.FindAllStringSubmatch(text, -1) {
			lines := strings.ReplaceAll(block[1], "\\\n", " ")
			for line := range strings.Lines(lines) {
				for part := range strings.SplitSeq(line, " | ") {
					part = strings.TrimPrefix(strings.TrimSpace(part), "bin/")
					if strings.HasPrefix(part, "parley ") {
						commands = append(commands, part)
					}
				}
			}
		}
		for _, code := range inlineCode.FindAllStringSubmatch(text, -1) {
			commands = append(commands, code[1])
		}
		if strings.HasSuffix(path, "README.md") && len(commands) < 5 {
			t.Errorf("%s: found %d commands only; has its form changed?", path, len(commands))
		}
		for _, command := range commands {
			if tried[command] {
				continue
			}
			tried[command] = true
			// With --help flags are still parsed, and nothing is done.
			args := words(command)[1:]
			end := slices.Index(args, "--")
			if end < 0 {
				end = len(args)
			}
			a := &app{conf: defaultConfig(func(string) string { return "" }), now: time.Now}
			root := a.rootCommand()
			root.InitDefaultHelpCmd()
			root.InitDefaultCompletionCmd()
			cmd, rest, err := root.Find(args[:end])
			if err == nil && cmd.Name() == "schema" && len(rest) > 0 {
				_, err = schema(rest[0])
			}
			if err == nil && cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
				err = fmt.Errorf("%s has no command %s", cmd.CommandPath(), rest[0])
			}
			if err != nil {
				t.Errorf("%s: %s: %v", path, command, err)
			}
			args = append(slices.Clone(args[:end]), "--help")
			var out bytes.Buffer
			if code := run(t.Context(), process{args: args, stdin: strings.NewReader(""), stdout: &out, stderr: &out}); code != 0 {
				t.Errorf("%s: %s\n%s", path, command, out.String())
			}
		}
	}
}

// words splits a command as a shell does.
func words(command string) (list []string) {
	var word strings.Builder
	quote, open := rune(0), false
	for _, r := range command + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			quote, open = r, true
		case quote == 0 && (r == ' ' || r == '\t'):
			if open || word.Len() > 0 {
				list = append(list, word.String())
			}
			word.Reset()
			open = false
		default:
			word.WriteRune(r)
		}
	}
	return list
}

// The Go code in the texts is code that is compiled.
func TestDocumentedCodeCompiles(t *testing.T) {
	t.Parallel()
	var example []byte
	for _, path := range []string{"../../workers/agent/example_test.go", "../../workers/gateway/a2anats/example_test.go"} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		example = append(example, data...)
	}
	found := 0
	for path, text := range pages(t) {
		for _, block := range goBlock.FindAllStringSubmatch(text, -1) {
			found++
			if !bytes.Contains(example, []byte(block[1])) {
				t.Errorf("%s: this is in no example:\n%s", path, block[1])
			}
		}
	}
	if found == 0 {
		t.Error("no Go code found; has the form of the texts changed?")
	}
}

// Links lead somewhere.
func TestDocumentedLinksLead(t *testing.T) {
	t.Parallel()
	for path, text := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to, anchor := m[1], m[2]
			if strings.Contains(to, "://") {
				continue
			}
			target := path
			if to != "" {
				target = filepath.Join(filepath.Dir(path), to)
			}
			data, err := os.ReadFile(target)
			if info, serr := os.Stat(target); serr == nil && info.IsDir() {
				continue
			}
			if errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: there is no %s", path, to)
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if anchor != "" && !slices.ContainsFunc(heading.FindAllStringSubmatch(string(data), -1), func(h []string) bool { return slug(h[1]) == anchor }) {
				t.Errorf("%s: %s has no heading #%s", path, target, anchor)
			}
		}
	}
}

// slug is the anchor that GitHub makes of a heading.
func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', r >= '0' && r <= '9', r >= 'a' && r <= 'z':
			return r
		}
		return -1
	}, strings.ToLower(heading))
}
