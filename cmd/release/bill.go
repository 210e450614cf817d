package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"strings"
	"time"
)

// bill is a bill of materials: CycloneDX 1.6, as much of it as Go knows of a
// program that it has built.
type bill struct {
	Format     string       `json:"bomFormat"`
	Spec       string       `json:"specVersion"`
	Version    int          `json:"version"`
	Metadata   metadata     `json:"metadata"`
	Components []component  `json:"components"`
	Depends    []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp string     `json:"timestamp"`
	Component component  `json:"component"`
	Settings  []property `json:"properties"` // the build's
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl,omitempty"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref string   `json:"ref"`
	On  []string `json:"dependsOn"`
}

// bill writes which modules are in a program, by what the program itself says.
func (r *release) bill(binary, path string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	sum := sha256.New()
	if err := add(sum, binary); err != nil {
		return err
	}
	b := bill{Format: "CycloneDX", Spec: "1.6", Version: 1}
	b.Metadata = metadata{Timestamp: r.when.Format(time.RFC3339), Component: component{
		Type: "application", Ref: "parley", Name: "parley", Version: r.version,
		Hashes: []hash{{"SHA-256", hex.EncodeToString(sum.Sum(nil))}},
	}}
	for _, s := range info.Settings {
		b.Metadata.Settings = append(b.Metadata.Settings, property{"go:build:" + s.Key, s.Value})
	}
	b.Components = []component{library("std", strings.TrimPrefix(info.GoVersion, "go"), "")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		b.Components = append(b.Components, library(m.Path, m.Version, m.Sum))
	}
	all := dependency{Ref: "parley"}
	for _, c := range b.Components {
		all.On = append(all.On, c.Ref)
	}
	b.Depends = []dependency{all}
	return create(path, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(b)
	})
}

// library is a module, with the checksum that go.sum has of it.
func library(path, version, sum string) component {
	purl := "pkg:golang/" + path + "@" + version
	c := component{Type: "library", Ref: purl, Name: path, Version: version, PURL: purl}
	if raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:")); err == nil && len(raw) == sha256.Size {
		c.Hashes = []hash{{"SHA-256", hex.EncodeToString(raw)}}
	}
	return c
}
