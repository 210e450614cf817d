package registry_test

import (
	"bufio"
	"net"
	"regexp"
	"strconv"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// ahead is a server whose clock is a year ahead.
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

var (
	stamps = regexp.MustCompile(`("time":"|Nats-Time-Stamp: )(\d{4})-`)
	acks   = regexp.MustCompile(`(\$JS\.ACK\.\S+\.)(\d{19})(\.\d+ )`)
)

// Read gives what the server sends, with its times a year later.
func (c *aheadConn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		text, err := c.from.ReadBytes('\n')
		if err != nil {
			return 0, err
		}
		text = stamps.ReplaceAllFunc(text, func(m []byte) []byte {
			parts := stamps.FindSubmatch(m)
			year, _ := strconv.Atoi(string(parts[2]))
			return []byte(string(parts[1]) + strconv.Itoa(year+1) + "-")
		})
		c.rest = acks.ReplaceAllFunc(text, func(m []byte) []byte {
			parts := acks.FindSubmatch(m)
			nanos, _ := strconv.ParseInt(string(parts[2]), 10, 64)
			return []byte(string(parts[1]) + strconv.FormatInt(time.Unix(0, nanos).UTC().AddDate(1, 0, 0).UnixNano(), 10) + string(parts[3]))
		})
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// Who lives is reckoned by the servers' clocks, by which announces are dated.
func TestServersClock(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	plain := s.Bus(t)
	b, err := bus.Connect(t.Context(), bus.Config{InProcess: ahead{s.NATS(0)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Canary(t.Context()); err != nil {
		t.Fatal(err)
	}
	if by := -b.ClockAhead(); by < 300*24*time.Hour {
		t.Fatalf("the servers are %s ahead, want a year", by)
	}
	told := events(t, plain)
	start(t, b)
	a := announcement(1)
	a.HeartbeatSeconds = new(0.2)
	store(t, plain, subjects.Announce("claude", "one"), a)
	next(t, told, fleet.AgentLive)
	next(t, told, fleet.AgentLost)
}
