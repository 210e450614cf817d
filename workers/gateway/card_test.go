package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// cardUnder is the answer to a request for the fleet's card under a host.
func cardUnder(w *Worker, host string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, pathCard, nil)
	r.Host = host
	rec := httptest.NewRecorder()
	w.guarded(http.HandlerFunc(w.serveCard)).ServeHTTP(rec, r)
	return rec
}

// listing is a gateway whose fleet has these agents, whenever it is asked.
func listing(t *testing.T, all ...fleet.AgentView) *Worker {
	t.Helper()
	w := door(t)
	w.cfg.Open = true
	w.listing.value, w.listing.at = all, time.Now().Add(time.Hour)
	return w
}

// TestHosts: a card is kept for so many hosts, and for none that is no name.
func TestHosts(t *testing.T) {
	t.Parallel()
	w := listing(t)
	if rec := cardUnder(w, strings.Repeat("a", maxHost)); rec.Code != http.StatusOK {
		t.Errorf("a host of %d bytes: %d, want 200", maxHost, rec.Code)
	}
	for _, n := range []int{maxHost + 1, 1 << 20} {
		if rec := cardUnder(w, strings.Repeat("a", n)); rec.Code != http.StatusForbidden {
			t.Errorf("a host of %d bytes: %d, want 403", n, rec.Code)
		}
	}
	for i := range 2 * maxPages {
		cardUnder(w, fmt.Sprintf("h%d.example.org", i))
	}
	if n := len(w.cards.all); n > maxPages {
		t.Errorf("%d cards are kept, want at most %d", n, maxPages)
	}
}

// TestCardOfManyAgents: the card of a large fleet stays one that clients read, and
// says what it leaves out.
func TestCardOfManyAgents(t *testing.T) {
	t.Parallel()
	const agents = 5000
	all := make([]fleet.AgentView, agents)
	for i := range all {
		v := &all[i]
		v.Live = i >= agents/2
		v.Announce.Worker.AgentID = subjects.AgentID(fmt.Sprintf("agent-%04d", i))
		v.Announce.Worker.Model = strings.Repeat("<&>", 40) // six bytes each, as JSON has it
		v.Announce.Capabilities.Skills = []json.RawMessage{[]byte(`{"id":"s","name":"S","description":"` + strings.Repeat("<x>", 100) + `","tags":["t"]}`)}
	}
	rec := cardUnder(listing(t, all...), "localhost")
	if n := rec.Body.Len(); rec.Code != http.StatusOK || n > 1<<20 {
		t.Errorf("the card: %d, %d bytes, want 200 and at most 1 MiB", rec.Code, n)
	}
	var card struct {
		Description  string
		Skills       []struct{ ID string }
		Capabilities struct {
			Extensions []struct {
				URI    string
				Params struct {
					Agents []struct{ Live bool }
					More   int
				}
			}
		}
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &card); err != nil {
		t.Fatal(err)
	}
	if n := len(card.Skills); n == 0 || n > maxSkills || !strings.Contains(card.Description, fmt.Sprintf("; %d more skills", agents/2-n)) {
		t.Errorf("%d skills, and the description %q", n, card.Description)
	}
	for _, e := range card.Capabilities.Extensions {
		if n := len(e.Params.Agents); e.URI == HealthURI && (n == 0 || n > maxInstances || n+e.Params.More != agents || !e.Params.Agents[0].Live) {
			t.Errorf("the health of %d instances and %d more, want %d", n, e.Params.More, agents)
		}
	}
}

// TestCardIsKept: whoever asks for a card again at once costs nothing.
func TestCardIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := listing(t)
		first := cardUnder(w, "localhost")
		w.cfg.Name = "Another"
		if again := cardUnder(w, "localhost"); again.Body.String() != first.Body.String() {
			t.Error("the card is made anew for every request")
		}
		time.Sleep(listAge)
		after := cardUnder(w, "localhost")
		if !strings.Contains(after.Body.String(), "Another") {
			t.Error("the card is kept for too long")
		}
		was, is := first.Header(), after.Header()
		if was.Get("ETag") == is.Get("ETag") || was.Get("Last-Modified") == is.Get("Last-Modified") {
			t.Errorf("another card has the tag %s since %s", is.Get("ETag"), is.Get("Last-Modified"))
		}
		time.Sleep(time.Minute)
		same := cardUnder(w, "localhost").Header()
		if same.Get("ETag") != is.Get("ETag") || same.Get("Last-Modified") != is.Get("Last-Modified") {
			t.Errorf("the same card has the tag %s since %s, was %s since %s", same.Get("ETag"), same.Get("Last-Modified"), is.Get("ETag"), is.Get("Last-Modified"))
		}
	})
}
