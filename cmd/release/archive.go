package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name       string // in the archive
	path       string
	executable bool
}

func (e entry) mode() os.FileMode {
	if e.executable {
		return 0o755
	}
	return 0o644
}

// create writes a file for everybody to read.
func create(path string, write func(io.Writer) error) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return write(f)
}

// add copies the file at path to w.
func add(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return errors.Join(err, f.Close())
}

// writeTar writes an archive in which nothing tells who made it, and when.
func writeTar(path string, files []entry, when time.Time) error {
	return create(path, func(w io.Writer) error {
		z := gzip.NewWriter(w)
		t := tar.NewWriter(z)
		for _, e := range files {
			info, err := os.Stat(e.path)
			if err != nil {
				return err
			}
			h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: int64(e.mode()), Size: info.Size(), ModTime: when, Format: tar.FormatUSTAR}
			if err := errors.Join(t.WriteHeader(h), add(t, e.path)); err != nil {
				return err
			}
		}
		return errors.Join(t.Close(), z.Close())
	})
}

// writeZip is writeTar for those who have no tar.
func writeZip(path string, files []entry, when time.Time) error {
	return create(path, func(w io.Writer) error {
		z := zip.NewWriter(w)
		for _, e := range files {
			h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: when}
			h.SetMode(e.mode())
			f, err := z.CreateHeader(h)
			if err != nil {
				return err
			}
			if err := add(f, e.path); err != nil {
				return err
			}
		}
		return z.Close()
	})
}

// checksums writes SHA256SUMS of all files in dir, as sha256sum -c reads it.
func checksums(dir string) error {
	files, err := os.ReadDir(dir) // in the order of their names
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, f := range files {
		h := sha256.New()
		if err := add(h, filepath.Join(dir, f.Name())); err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", h.Sum(nil), f.Name())
	}
	return create(filepath.Join(dir, "SHA256SUMS"), func(w io.Writer) error {
		_, err := io.WriteString(w, sums.String())
		return err
	})
}
