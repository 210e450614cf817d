package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that the guide on security names is there.
func TestSecurityGuideNamesTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/guide/security.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1)
	if len(named) < 30 {
		t.Errorf("%d tests are named", len(named))
	}
	var all strings.Builder
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		all.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range named {
		if !strings.Contains(all.String(), "func "+m[1]+"(") {
			t.Errorf("there is no test %s", m[1])
		}
	}
}
