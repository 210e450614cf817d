package bustest

import (
	"bufio"
	"net"
	"regexp"
	"strconv"
	"testing"
	"time"

	"parley/bus"
)

// yearsAhead is a number of years after which every date comes again.
const yearsAhead = 4

// Ahead is what servers that are ahead take t for; see ConnectAhead.
func Ahead(t time.Time) time.Time { return t.AddDate(yearsAhead, 0, 0) }

// ConnectAhead gives a connection of a machine whose clock is four years behind
// the server's, and which knows that. It is closed by cleanup.
func (s *Server) ConnectAhead(tb testing.TB, c bus.Config) *bus.Bus {
	tb.Helper()
	c.URL, c.InProcess = "", ahead{s.NATS(0)}
	b, err := bus.Connect(tb.Context(), c)
	if err != nil {
		tb.Fatalf("bustest: %v", err)
	}
	tb.Cleanup(b.Close)
	Eventually(tb, "bustest: a server that is years ahead", func() bool { // a canary that takes long says nothing
		if err := b.Canary(tb.Context()); err != nil {
			tb.Fatalf("bustest: %v", err)
		}
		return time.Until(b.Now()) > 300*24*time.Hour
	})
	return b
}

// ahead is a server whose clock is ahead, as far as a connection can tell.
type ahead struct {
	server interface{ InProcessConn() (net.Conn, error) }
}

// InProcessConn implements what bus.Config asks of a server.
func (a ahead) InProcessConn() (net.Conn, error) {
	conn, err := a.server.InProcessConn()
	return &aheadConn{Conn: conn, from: bufio.NewReaderSize(conn, 1<<20)}, err
}

type aheadConn struct {
	net.Conn
	from *bufio.Reader
	rest []byte
}

// Where a server says what time it is.
var (
	stamps = regexp.MustCompile(`("time":"|Nats-Time-Stamp: )(\d{4})-`)
	acks   = regexp.MustCompile(`(\$JS\.ACK\.\S+\.)(\d{19})(\.\d+ )`)
)

// Read gives what the server sends, with its times years later.
func (c *aheadConn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		text, err := c.from.ReadBytes('\n')
		if err != nil {
			return 0, err
		}
		text = stamps.ReplaceAllFunc(text, func(m []byte) []byte {
			parts := stamps.FindSubmatch(m)
			year, _ := strconv.Atoi(string(parts[2]))
			return []byte(string(parts[1]) + strconv.Itoa(year+yearsAhead) + "-")
		})
		c.rest = acks.ReplaceAllFunc(text, func(m []byte) []byte {
			parts := acks.FindSubmatch(m)
			nanos, _ := strconv.ParseInt(string(parts[2]), 10, 64)
			return []byte(string(parts[1]) + strconv.FormatInt(Ahead(time.Unix(0, nanos).UTC()).UnixNano(), 10) + string(parts[3]))
		})
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}
