package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Times of announcing the card to a shared registry.
const (
	DefaultAnnounceEach = 5 * time.Minute // and whenever the card has changed

	announceLook    = 5 * time.Second // between looks at whether it has
	announceTimeout = 10 * time.Second
	announceAgain   = 5 * time.Minute // at most, after failures
)

// Registry is a shared registry of agents that is told the fleet's card: it is
// posted there, under Config.URL, when the gateway begins, when it changes, and
// on an interval. It is not withdrawn: other replicas may still serve.
type Registry struct {
	URL   string        // where the card is posted to; "" for none
	Token string        // a bearer token; "" for none
	Each  time.Duration // absent DefaultAnnounceEach
}

// LogValue keeps the token out of the log.
func (r Registry) LogValue() slog.Value { return slog.StringValue(r.URL) }

func (r Registry) check(public string) error {
	if r.URL == "" {
		return nil
	}
	u, err := url.Parse(r.URL)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("gateway: the registry's address is not one such as https://registry.example.org/agents")
	case public == "":
		return errors.New("gateway: a registry needs to be told where clients reach the gateway: its own address is missing")
	case strings.ContainsAny(r.Token, "\r\n"):
		return errors.New("gateway: the registry's token is not one line")
	}
	return nil
}

// announce tells the registry of the card until ctx ends.
func (w *Worker) announce(ctx context.Context) {
	client := &http.Client{
		Timeout: announceTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("it redirects: name the address that it redirects to")
		},
	}
	defer client.CloseIdleConnections()
	again := backoff.NewExponentialBackOff(backoff.WithInitialInterval(time.Second), backoff.WithMaxInterval(announceAgain), backoff.WithMaxElapsedTime(0))
	var told []byte
	var toldAt, notBefore time.Time
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		card, err := w.fleetCard(ctx)
		now := time.Now()
		if err == nil && now.After(notBefore) && (!bytes.Equal(card, told) || now.Sub(toldAt) >= w.cfg.Registry.Each) {
			if err = w.post(ctx, client, card); err == nil {
				if told == nil {
					w.log.Info("the registry has the fleet's card", slog.Any("registry", w.cfg.Registry))
				}
				told, toldAt = card, now
				again.Reset()
			}
		}
		wait := min(announceLook, w.cfg.Registry.Each)
		if err != nil && ctx.Err() == nil {
			wait = again.NextBackOff()
			notBefore = time.Now().Add(wait)
			w.log.Warn("tell the registry the fleet's card", slog.Any("registry", w.cfg.Registry), slog.Any("error", err))
		}
		t.Reset(wait)
	}
}

// fleetCard is the fleet's card as clients get it.
func (w *Worker) fleetCard(ctx context.Context) ([]byte, error) {
	at := base{url: w.cfg.URL, host: w.publicAuthority}
	card, err := w.card(ctx, "", at, true)
	if err != nil {
		return nil, err
	}
	return w.cardBody(card)
}

func (w *Worker) post(ctx context.Context, client *http.Client, card []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.cfg.Registry.URL, bytes.NewReader(card))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header[headerVersion] = []string{protocolVersion}
	if token := w.cfg.Registry.Token; token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.CopyN(io.Discard, res.Body, maxBody)
	if err := res.Body.Close(); err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("the registry answers %s", res.Status)
	}
	return nil
}
