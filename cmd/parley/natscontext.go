package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// natsContext is the part of a NATS CLI context that is written.
type natsContext struct {
	Description string `json:"description"`
	URL         string `json:"url"`
	Creds       string `json:"creds,omitempty"`
	Inbox       string `json:"inbox_prefix,omitempty"`
}

const contextDescription = "Parley on this machine (written by parley up --save-context)"

// contextPath is the file of the NATS context that the settings name, by its
// name or its path. The bus could find it, too, but by the process's own
// environment.
func contextPath(getenv func(string) string, name string) string {
	if name != filepath.Base(name) || strings.HasSuffix(name, ".json") {
		return name
	}
	return filepath.Join(contextDir(getenv), name+".json")
}

func contextDir(getenv func(string) string) string {
	return filepath.Join(configHome(getenv), "nats", "context")
}

// checkContext finds a NATS context that is not there.
func checkContext(getenv func(string) string, name string) error {
	path := contextPath(getenv, name)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil // what else is wrong with it shows when it is read
	}
	p := usage("there is no NATS context %q", name).because("%s", path)
	files, _ := filepath.Glob(filepath.Join(contextDir(getenv), "*.json")) // the pattern is right
	if len(files) == 0 {
		return p.next("parley up --save-context  makes one; --server names a server instead")
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".json")
	}
	return p.next("take one of " + strings.Join(files, ", ") + "; or name a server with --server")
}

// contextName checks a context's name; none is one.
func contextName(name string) error {
	if name != "" && (name != filepath.Base(name) || strings.HasPrefix(name, ".")) {
		return usage("--save-context %q is not a name", name)
	}
	return nil
}

// saveContext writes a context for the nats command line. One of that name that
// is not ours is left alone.
func saveContext(getenv func(string) string, name string, next natsContext) (string, error) {
	path := contextPath(getenv, name)
	c, err := readContext(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", usage("--save-context: read %s: %w", path, err)
	}
	if err == nil && c.Description != contextDescription {
		return "", usage("the NATS context %s exists already, for %s", name, c.URL).because("%s", path).
			next("choose another name: parley up --save-context=" + name + "2")
	}
	next.Description = contextDescription
	if err := writeContext(path, next); err != nil {
		return "", usage("--save-context: write %s: %w", path, err)
	}
	return name, nil
}

func readContext(path string) (natsContext, error) {
	var c natsContext
	data, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(data, &c)
}

func writeContext(path string, c natsContext) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o600)
}
