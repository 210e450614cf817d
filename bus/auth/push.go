package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"parley/bus"
)

// ErrNotPrivate is returned for a file with secrets that others may read.
var ErrNotPrivate = errors.New("others may read a file that holds secrets")

// Push tells the servers that b is connected to, by SystemCreds, the accounts
// as the directory has them. Who was revoked is thrown out at once.
func (d *Directory) Push(ctx context.Context, b *bus.Bus) error {
	files, err := filepath.Glob(filepath.Join(d.Accounts(), "*.jwt"))
	if err != nil {
		return err
	}
	for _, f := range files {
		token, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if err := push(ctx, b, token); err != nil {
			return fmt.Errorf("account %s: %w", strings.TrimSuffix(filepath.Base(f), ".jwt"), err)
		}
	}
	return nil
}

func push(ctx context.Context, b *bus.Bus, token []byte) error {
	m, err := b.Request(ctx, "$SYS.REQ.CLAIMS.UPDATE", token, nil)
	if err != nil {
		return err
	}
	var reply struct {
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &reply); err != nil {
		return err
	}
	if reply.Error != nil {
		return errors.New(reply.Error.Description)
	}
	return nil
}
