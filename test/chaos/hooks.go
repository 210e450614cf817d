//go:build linux

package main

import (
	"context"
	"encoding/json"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// contacts are who is called, one after the other.
var contacts = []string{"human", "lead"}

// failuresMost in a row leave an endpoint in use, also where an answer is lost
// beside them: more of them, and it is tried once a minute only.
const failuresMost = 2

// How patient people are.
const (
	callsMost = 9                // of an alert that somebody leaves alone: then it is answered
	seesTo    = 10 * time.Second // is how long who has acknowledged takes to answer
)

// humans are people with webhooks. Of the calls that come for the first time many
// fail; what is done about the others, see minds.
type humans struct {
	journal *scribe
	server  *http.Server
	url     string
	hard    context.Context //nolint:containedctx // no answers once it ends
	wg      sync.WaitGroup

	mu     sync.Mutex
	rng    *rand.Rand          // guarded by mu
	heard  map[string]bool     // guarded by mu: ids that came before
	row    map[string]int      // guarded by mu: how many in a row have failed, by contact
	alerts map[string]*concern // guarded by mu: by id
}

// concern is what people know of an alert.
type concern struct {
	calls map[string]bool // that were taken
	acked time.Time       // zero: it is not
}

func newHumans(ctx context.Context, here string, journal *scribe, seed uint64) (*humans, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", here+":0")
	if err != nil {
		return nil, err
	}
	h := &humans{
		journal: journal, url: "http://" + l.Addr().String() + "/", hard: ctx, rng: rand.New(rand.NewPCG(seed, 7)),
		heard: map[string]bool{}, row: map[string]int{}, alerts: map[string]*concern{},
	}
	h.server = &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	h.wg.Go(func() { _ = h.server.Serve(l) })
	return h, nil
}

// close waits for the answers on their way.
func (h *humans) close() {
	_ = h.server.Close()
	h.wg.Wait()
}

// ServeHTTP takes a call down, with what can be proven of it, before it is
// answered.
func (h *humans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return // the sender died in the middle
	}
	contact, id := strings.TrimPrefix(r.URL.Path, "/"), r.Header.Get("Webhook-Id")
	h.mu.Lock()
	dice, delay := h.rng.IntN(100), time.Duration(h.rng.IntN(1500))*time.Millisecond
	again := h.heard[id]
	h.heard[id] = true
	fails := dice < 40 && !again && h.row[contact] < failuresMost
	if h.row[contact]++; !fails {
		h.row[contact] = 0
	}
	h.mu.Unlock()
	status := http.StatusOK
	if fails {
		status = []int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusNotFound}[dice%3]
	}
	sign := []string{id, r.Header.Get("Webhook-Timestamp"), r.Header.Get("Webhook-Signature")}
	h.journal.write(line{At: at.UnixNano(), Op: "call", What: invoked, ID: id, To: contact, Text: strings.Join(sign, "\n"), Version: uint64(status), Body: body})
	w.WriteHeader(status)
	var call struct {
		Alert string `json:"alert_id"`
		Link  string `json:"link"`
	}
	if status != http.StatusOK || json.Unmarshal(body, &call) != nil || call.Link == "" {
		return
	}
	h.wg.Go(func() { h.minds(id, call.Alert, call.Link, delay) })
}

// minds is what somebody does about an alert whose call he has taken. Of ten alerts
// five are answered at once; two when somebody was told often enough; two are
// acknowledged, and answered later; and one is acknowledged and forgotten until
// calls go on.
func (h *humans) minds(id, alert, link string, delay time.Duration) {
	h.mu.Lock()
	a := h.alerts[alert]
	if a == nil {
		a = &concern{calls: map[string]bool{}}
		h.alerts[alert] = a
	}
	a.calls[id] = true
	n, acked := len(a.calls), a.acked
	h.mu.Unlock()
	if pause(h.hard, delay) != nil {
		return
	}
	switch conduct := crc32.ChecksumIEEE([]byte(alert)) % 10; {
	case conduct < 5, n >= callsMost, !acked.IsZero() && time.Since(acked) > ackTimeout:
		h.says("answer", "retry", alert, link)
	case conduct < 7, n > 1: // is told again, or has it seen to
	case !h.says("ack", "ack", alert, link):
		h.says("answer", "retry", alert, link)
	default:
		h.mu.Lock()
		a.acked = time.Now()
		h.mu.Unlock()
		if conduct < 9 && pause(h.hard, seesTo) == nil {
			h.says("answer", "retry", alert, link)
		}
	}
}

// says posts a verb to a link until that is taken in, or refused for good; it
// reports whether it was taken in. An answer that was is posted once more, as by
// one who has seen it go by.
func (h *humans) says(op, verb, alert, link string) bool {
	end := h.journal.begin(line{Op: op, ID: alert, Text: link})
	ctx, cancel := context.WithTimeout(h.hard, saysFor)
	defer cancel()
	for {
		status, err := post(ctx, link, url.Values{"verb": {verb}})
		if err == nil && status != http.StatusServiceUnavailable {
			what := wasFail
			if status == http.StatusOK || status == http.StatusAccepted {
				what = wasOK
			}
			end(what, line{Code: strconv.Itoa(status)})
			if op == "answer" && what == wasOK && pause(ctx, 2*time.Second) == nil {
				h.says("replay", verb, alert, link)
			}
			return what == wasOK
		}
		if pause(ctx, 500*time.Millisecond) != nil {
			end(wasInfo, line{})
			return false
		}
	}
}

// saysFor is how long somebody tries to be taken in.
const saysFor = time.Minute

func post(ctx context.Context, link string, form url.Values) (int, error) {
	try, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(try, http.MethodPost, link, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}
