//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ring is the keys that sign calls at a step, by number: one, then its successor
// beside it, then that alone, and so on.
func ring(step int) []int {
	if step%2 == 0 {
		return []int{step / 2}
	}
	return []int{step/2 + 1, step / 2}
}

// secretOf is a key as those have it who sign and who verify.
func secretOf(key int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "key %d", key))
	return "whsec_" + base64.StdEncoding.EncodeToString(sum[:])
}

// hooksFile is PARLEY_WEBHOOKS_FILE of the workers.
func hooksFile(dir string) string { return filepath.Join(dir, "webhooks.json") }

// writeHooks writes how people are reached, with the keys of a step.
func (f *fleet) writeHooks(step int) error {
	var secrets []string
	for _, key := range ring(step) {
		secrets = append(secrets, secretOf(key))
	}
	var endpoints []map[string]any
	for _, name := range contacts {
		endpoints = append(endpoints, map[string]any{
			"name": name, "url": f.hook + name, "secret": strings.Join(secrets, " "), "allow": []string{f.w.here()},
			"human": map[string]any{"steps": []string{"2s", "5s"}},
		})
	}
	data, err := json.Marshal(map[string]any{"endpoints": endpoints})
	if err != nil {
		return err
	}
	temp := hooksFile(f.w.dir) + ".new"
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, hooksFile(f.w.dir))
}

// replaceKeys goes one step on, as the guide says: the workers that call people are
// restarted one after the other.
func (n *nemesis) replaceKeys(ctx context.Context, f fault) error {
	n.step++
	err := n.f.writeHooks(n.step)
	for i, p := range n.f.doors() {
		if i > 0 {
			_ = pause(ctx, f.lasts)
		}
		p.term(15 * time.Second)
		err = errors.Join(err, p.start(n.w))
	}
	return err
}

// doors are the workers that call people.
func (f *fleet) doors() (list []*process) {
	for _, p := range f.workers {
		if strings.HasPrefix(p.name, "door") {
			list = append(list, p)
		}
	}
	return list
}
