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
}

const contextDescription = "Parley on this machine (written by parley up --save-context)"

// contextName checks a context's name; none is one.
func contextName(name string) error {
	if name != "" && (name != filepath.Base(name) || strings.HasPrefix(name, ".")) {
		return usage("--save-context %q is not a name", name)
	}
	return nil
}

// saveContext writes a context for the nats command line. One of that name that
// is not ours is left alone.
func saveContext(getenv func(string) string, name, url string) (string, error) {
	path := filepath.Join(configHome(getenv), "nats", "context", name+".json")
	c, err := readContext(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", usage("--save-context: read %s: %w", path, err)
	}
	if err == nil && c.Description != contextDescription {
		return "", usage("the NATS context %s exists already, for %s", name, c.URL).because("%s", path).
			next("choose another name: parley up --save-context=" + name + "2")
	}
	if err := writeContext(path, natsContext{Description: contextDescription, URL: url}); err != nil {
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
