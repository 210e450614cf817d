package main

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"parley/bus/auth"
)

// secretFiles are the flags of settings that name a file of secrets.
var secretFiles = []string{"creds", "nkey", "tlskey", "http-key", "a2a-key", "a2a-tokens", "a2e-tokens"}

// fileVariable names, for a secret's variable, the one that names a file with
// it.
func fileVariable(env string) string { return env + "_FILE" }

// readSecrets reads the secrets that are in files of their own.
func (c *config) readSecrets(getenv func(string) string) error {
	for _, s := range settings(c) {
		if !slices.Contains(secretFlags, s.flag) {
			continue
		}
		name := fileVariable(s.env)
		path := getenv(name)
		if path == "" {
			continue
		}
		if getenv(s.env) != "" {
			return usage("%s and %s are both set", s.env, name).next("set one of them")
		}
		text, err := readSecret(name, path)
		if err != nil {
			return err
		}
		s.value.SetString(text)
	}
	return nil
}

// readSecret reads a file that holds one secret; what is who names the file.
func readSecret(what, path string) (string, error) {
	if err := private(what, path); err != nil {
		return "", err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", usage("%s: %w", what, err)
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return "", usage("%s: %s is empty", what, path)
	}
	return text, nil
}

// private refuses a file of secrets that others may read. One that is not there
// is told by who reads it.
func private(what, path string) error {
	err := auth.Private(path)
	if errors.Is(err, auth.ErrNotPrivate) {
		return usage("%s: %w", what, err).next("chmod as the line above says; if others could read it, take a new secret")
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return usage("%s: %w", what, err)
	}
	return nil
}

// guardSecrets refuses files of secrets that others may read, of the settings
// that cmd has, and warns of secrets that were typed.
func (a *app) guardSecrets(cmd *cobra.Command) error {
	for _, s := range settings(a.conf) {
		flag := cmd.Flags().Lookup(s.flag)
		switch {
		case flag == nil:
		case slices.Contains(secretFiles, s.flag) && s.value.String() != "":
			if err := private("--"+s.flag, s.value.String()); err != nil {
				return err
			}
		case slices.Contains(secretFlags, s.flag) && flag.Changed:
			a.notice("parley: warning: --%s is seen by everybody on this machine who lists processes; set %s or %s", s.flag, s.env, fileVariable(s.env))
		}
	}
	return nil
}

// identify takes who one is from the credentials, unless that was said. A
// worker's credentials are of nobody in particular.
func (a *app) identify(cmd *cobra.Command) error {
	flag := cmd.Flags().Lookup("as")
	if flag == nil || flag.Changed || a.conf.Creds == "" || a.conf.As != defaultAs {
		return nil
	}
	id, role, err := auth.Identity(a.conf.Creds)
	if errors.Is(err, fs.ErrNotExist) {
		return usage("--creds: %w", err)
	}
	if err == nil && isClientRole(role) {
		a.conf.As = id
	}
	return nil
}
