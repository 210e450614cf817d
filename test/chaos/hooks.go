//go:build linux

package main

import (
	"context"
	"encoding/json"
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

// hookSecret signs the calls of people.
const hookSecret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

// failuresMost in a row leave an endpoint in use: more of them, and it is tried
// once a minute only.
const failuresMost = 3

// humans are people with a webhook: of the calls that come for the first time many fail, and whoever is
// called answers by the link.
type humans struct {
	journal *scribe
	server  *http.Server
	url     string
	hard    context.Context //nolint:containedctx // no answers once it ends
	wg      sync.WaitGroup

	mu    sync.Mutex
	rng   *rand.Rand      // guarded by mu
	heard map[string]bool // guarded by mu: ids that came before
	row   int             // guarded by mu: how many in a row have failed
}

func newHumans(ctx context.Context, here string, journal *scribe, seed uint64) (*humans, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", here+":0")
	if err != nil {
		return nil, err
	}
	h := &humans{journal: journal, url: "http://" + l.Addr().String(), hard: ctx, heard: map[string]bool{}, rng: rand.New(rand.NewPCG(seed, 7))}
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
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return // the sender died in the middle
	}
	h.mu.Lock()
	dice, delay := h.rng.IntN(100), time.Duration(h.rng.IntN(1500))*time.Millisecond
	id := r.Header.Get("Webhook-Id")
	again := h.heard[id]
	h.heard[id] = true
	fails := dice < 40 && !again && h.row < failuresMost
	if h.row++; !fails {
		h.row = 0
	}
	h.mu.Unlock()
	status := http.StatusOK
	if fails {
		status = []int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusNotFound}[dice%3]
	}
	sign := []string{r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Timestamp"), r.Header.Get("Webhook-Signature")}
	h.journal.write(line{Op: "call", What: invoked, ID: sign[0], Text: strings.Join(sign, "\n"), Version: uint64(status), Body: body})
	w.WriteHeader(status)
	var call struct {
		Link string `json:"link"`
	}
	if status != http.StatusOK || json.Unmarshal(body, &call) != nil || call.Link == "" {
		return
	}
	h.wg.Go(func() { h.answer(call.Link, delay) })
}

// answer says by the link that the task be tried again, until that is taken in.
func (h *humans) answer(link string, delay time.Duration) {
	ctx, cancel := context.WithTimeout(h.hard, time.Minute)
	defer cancel()
	for {
		if pause(ctx, delay) != nil {
			return
		}
		delay = 500 * time.Millisecond
		status, err := post(ctx, link, url.Values{"verb": {"retry"}})
		if err != nil || status == http.StatusServiceUnavailable {
			continue
		}
		h.journal.write(line{Op: "answer", What: wasOK, Text: link, Code: strconv.Itoa(status)})
		if pause(ctx, 4*delay) == nil { // the same once more, as who has seen it go by would
			if status, err := post(ctx, link, url.Values{"verb": {"retry"}}); err == nil {
				h.journal.write(line{Op: "replay", What: wasOK, Text: link, Code: strconv.Itoa(status)})
			}
		}
		return
	}
}

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
