//go:build unix

package auth

import (
	"io/fs"
	"testing"
)

func TestAllowed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		owner, uid int
		want       fs.FileMode
	}{
		{0, 65532, 0o750}, // as a container is given it
		{0, 0, 0o700},
		{1000, 1000, 0o700},
		{1000, 65532, 0o700},
	} {
		if got := allowed(tt.owner, tt.uid); got != tt.want {
			t.Errorf("of %d, read by %d: %04o, want %04o", tt.owner, tt.uid, got, tt.want)
		}
	}
}
