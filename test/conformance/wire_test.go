package conformance_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
)

// raw sends bytes and gives back what came.
func (c *client) raw(method, path, contentType, body string) (*http.Response, []byte) {
	c.Helper()
	res, err := send(context.WithoutCancel(c.Context()), method, c.at+path, c.h, contentType, []byte(body))
	if err != nil {
		c.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		c.Fatal(err)
	}
	return res, data
}

// rawFails sends bytes that must be refused.
func (c *client) rawFails(method, path, contentType, body string, want fault) *http.Response {
	c.Helper()
	res, data := c.raw(method, path, contentType, body)
	var a rpcAnswer
	err := restError(res, data)
	if c.b.name() == "JSON-RPC" {
		if json.Unmarshal(data, &a) != nil {
			c.Fatalf("%s: %s", body, data)
		}
		err = a.err(res)
	}
	r, ok := err.(*refusal) //nolint:errorlint // it is made here
	if !ok {
		c.Fatalf("%s %s %q = %d %s, want %s", method, path, body, res.StatusCode, data, want.reason)
	}
	c.is(r, want)
	return res
}

// answer is what came over HTTP.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask sends bytes and gives back what came.
func (c *client) ask(method, path, body string) answer {
	c.Helper()
	res, data := c.raw(method, path, "application/json", body) //nolint:bodyclose // raw closes it
	return answer{res.StatusCode, res.Header, string(data)}
}

// askFails sends bytes that must be refused.
func (c *client) askFails(method, path, body string, want fault) {
	c.Helper()
	c.rawFails(method, path, "application/json", body, want) //nolint:bodyclose // raw closes it
}

var timestamp = regexp.MustCompile(`"timestamp":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z"`)

const message = `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"echo"}]}}`

var wireChecks = []check{
	{"9.1", "MUST", "what is not one JSON-RPC 2.0 request is refused as such", "JSON-RPC", func(c *client) {
		for body, want := range map[string]fault{
			`{`:  parseError,
			``:   parseError,
			`[]`: invalidRequest,
			`{"jsonrpc":"1.0","id":1,"method":"GetTask"}`:                           invalidRequest,
			`{"jsonrpc":"2.0","id":1}`:                                              invalidRequest,
			`{"jsonrpc":"2.0","method":"GetTask","params":{}}`:                      invalidRequest,
			`{"jsonrpc":"2.0","id":{},"method":"GetTask"}`:                          invalidRequest,
			`{"jsonrpc":"2.0","id":1,"id":2,"method":"GetTask"}`:                    invalidRequest,
			`{"jsonrpc":"2.0","id":1,"method":"NoSuchMethod"}`:                      noMethod,
			`{"jsonrpc":"2.0","id":1,"method":"message/send"}`:                      noMethod,
			`{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[1]}`:              invalidParams,
			`{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":7}}`:         invalidParams,
			`{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"status":"x"}}`: invalidParams,
		} {
			c.rawFails(http.MethodPost, "/a2a", "application/json", body, want)
		}
	}},
	{"9.1", "MUST", "the id comes back as it was: text, number or null", "JSON-RPC", func(c *client) {
		for _, id := range []string{`"x y"`, `7`, `-1.5`, `null`} {
			_, data := c.raw(http.MethodPost, "/a2a", "application/json", `{"jsonrpc":"2.0","id":`+id+`,"method":"ListTasks"}`)
			var a rpcAnswer
			if err := json.Unmarshal(data, &a); err != nil || a.Error != nil || (string(a.ID) != id && id != "null") {
				c.Errorf("id %s came back in %s", id, data)
			}
		}
	}},
	{"11.1", "MUST", "a body of another media type is ContentTypeNotSupported", sseBindings, func(c *client) {
		path := map[string]string{"JSON-RPC": "/a2a", "HTTP+JSON": "/a2a/message:send"}[c.b.name()]
		for _, ct := range []string{"text/plain", "application/xml", ""} {
			c.rawFails(http.MethodPost, path, ct, message, badContentType)
		}
	}},
	{"11.1", "SHOULD", "application/a2a+json is taken, and given to who asks for it", "HTTP+JSON", func(c *client) {
		res, _ := c.raw(http.MethodPost, "/a2a/message:send", "application/a2a+json; charset=utf-8", message)
		if ct := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || ct != "application/json" {
			c.Errorf("%d %s", res.StatusCode, ct)
		}
		c.h = c.h.with("Accept", "application/a2a+json")
		if res, _ = c.raw(http.MethodGet, "/a2a/tasks?pageSize=1", "", ""); res.Header.Get("Content-Type") != "application/a2a+json" {
			c.Errorf("headers %v", res.Header)
		}
	}},
	{"11.3", "MUST", "paths and methods that are not there are refused", "HTTP+JSON", func(c *client) {
		for _, q := range []string{"GET /a2a/nothing", "GET /a2a/tasks/x/y", "POST /a2a/tasks/x:explode", "GET /a2a/worker/second/tasks"} {
			method, path, _ := strings.Cut(q, " ")
			c.rawFails(method, path, "application/json", "{}", noMethod)
		}
		res := c.rawFails(http.MethodDelete, "/a2a/tasks", "", "", fault{"METHOD_NOT_FOUND", 0, 405, 0})
		if res.Header.Get("Allow") != "GET" {
			c.Errorf("Allow: %q", res.Header.Get("Allow"))
		}
	}},
	{"11.3", "MUST", "SubscribeToTask is served by GET and by POST", "HTTP+JSON", func(c *client) {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			c.rawFails(method, "/a2a/tasks/nothing:subscribe", "", "", taskNotFound)
		}
	}},
	{"5.5", "MUST", "fields are written in camelCase, enumerations by their names", sseBindings, func(c *client) {
		path, body := "/a2a/message:send", message
		if c.b.name() == "JSON-RPC" {
			path, body = "/a2a", `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":`+message+`}`
		}
		_, data := c.raw(http.MethodPost, path, "application/json", body)
		for _, want := range []string{`"contextId":`, `"TASK_STATE_COMPLETED"`, `"ROLE_USER"`, `"artifactId":`} {
			if !strings.Contains(string(data), want) {
				c.Errorf("%s lacks %s", data, want)
			}
		}
		if strings.Contains(string(data), "context_id") {
			c.Errorf("%s has snake case", data)
		}
	}},
	{"5.5", "SHOULD", "snake_case names and enumeration numbers are read", sseBindings, func(c *client) {
		params := `{"message":{"message_id":"m","role":1,"parts":[{"text":"echo","media_type":"text/plain"}],"context_id":"snake"}}`
		path, body := "/a2a/message:send", params
		if c.b.name() == "JSON-RPC" {
			path, body = "/a2a", `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":`+params+`}`
		}
		if _, data := c.raw(http.MethodPost, path, "application/json", body); !strings.Contains(string(data), `"contextId":"snake"`) {
			c.Errorf("%s", data)
		}
	}},
	{"5.6.1", "MUST", "timestamps are UTC, to the millisecond", sseBindings, func(c *client) {
		id := c.send(say("echo")).GetId()
		path, body, method := "/a2a/tasks/"+id, "", http.MethodGet
		if c.b.name() == "JSON-RPC" {
			path, body, method = "/a2a", `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"`+id+`"}}`, http.MethodPost
		}
		if _, data := c.raw(method, path, "application/json", body); !timestamp.Match(data) {
			c.Errorf("no such time in %s", data)
		}
	}},
	{"5.7", "SHOULD", "fields that are not known are ignored", sseBindings, func(c *client) {
		params := `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"echo","new":{}}],"new":1},"new":[]}`
		path, body := "/a2a/message:send", params
		if c.b.name() == "JSON-RPC" {
			path, body = "/a2a", `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":`+params+`,"new":1}`
		}
		if _, data := c.raw(http.MethodPost, path, "application/json", body); !strings.Contains(string(data), `"TASK_STATE_COMPLETED"`) {
			c.Errorf("%s", data)
		}
	}},
	{"3.1.4", "MUST", "nextPageToken and tasks are there even when they are empty", sseBindings, func(c *client) {
		path, body, method := "/a2a/tasks?contextId=none", "", http.MethodGet
		if c.b.name() == "JSON-RPC" {
			path, body, method = "/a2a", `{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"contextId":"none"}}`, http.MethodPost
		}
		_, data := c.raw(method, path, "application/json", body)
		for _, want := range []string{`"tasks":[]`, `"nextPageToken":""`, `"pageSize":50`, `"totalSize":0`} {
			if !strings.Contains(string(data), want) {
				c.Errorf("%s lacks %s", data, want)
			}
		}
	}},
	{"3.2.6", "MUST", "the version may be in the query, header names are of any case", "HTTP+JSON", func(c *client) {
		c.h = headers{}
		if res, data := c.raw(http.MethodGet, "/a2a/tasks?A2A-Version=1.0", "", ""); res.StatusCode != http.StatusOK {
			c.Errorf("%d %s", res.StatusCode, data)
		}
		c.h = headers{"a2a-version": "1.0"}
		if res, data := c.raw(http.MethodGet, "/a2a/tasks", "", ""); res.StatusCode != http.StatusOK || res.Header.Get("A2A-Version") != "1.0" {
			c.Errorf("%d %s", res.StatusCode, data)
		}
	}},
	{"13", "SHOULD", "pages of the web do not get in: no CORS, no foreign host, JSON only", sseBindings, func(c *client) {
		res, _ := c.raw(http.MethodOptions, "/a2a", "", "")
		if res.Header.Get("Access-Control-Allow-Origin") != "" {
			c.Errorf("headers %v", res.Header)
		}
		req, err := http.NewRequestWithContext(c.Context(), http.MethodGet, c.at+"/.well-known/agent-card.json", nil)
		if err != nil {
			c.Fatal(err)
		}
		req.Host = "evil.example.org"
		got, err := httpClient.Do(req)
		if err != nil {
			c.Fatal(err)
		}
		_ = got.Body.Close()
		if got.StatusCode != http.StatusForbidden {
			c.Errorf("status %d, want 403", got.StatusCode)
		}
	}},
}

var cardChecks = []check{
	{"8.2", "MUST", "the card is at its well-known path and declares every interface", "HTTP+JSON", func(c *client) {
		res, data := c.raw(http.MethodGet, "/.well-known/agent-card.json", "", "")
		var card struct {
			Name, Description, Version string
			SupportedInterfaces        []struct{ URL, ProtocolBinding, ProtocolVersion string }
			Capabilities               struct{ Streaming bool }
			DefaultInputModes          []string
			DefaultOutputModes         []string
			Skills                     []struct {
				ID, Name, Description string
				Tags                  []string
			}
		}
		if err := json.Unmarshal(data, &card); err != nil || res.StatusCode != http.StatusOK {
			c.Fatalf("%d %v", res.StatusCode, err)
		}
		var got []string
		for _, i := range card.SupportedInterfaces {
			got = append(got, i.ProtocolBinding+" "+i.ProtocolVersion)
		}
		if strings.Join(got, ", ") != "JSONRPC 1.0, HTTP+JSON 1.0, GRPC 1.0" || !card.Capabilities.Streaming || card.Name == "" || card.Description == "" ||
			card.Version == "" || len(card.DefaultInputModes) == 0 || len(card.DefaultOutputModes) == 0 || len(card.Skills) != 2 || card.Skills[0].ID != "second/echo" || len(card.Skills[0].Tags) == 0 {
			c.Errorf("card %s", data)
		}
	}},
	{"8.2", "MUST", "every agent has a card of its own, with its tenant", "HTTP+JSON", func(c *client) {
		res, data := c.raw(http.MethodGet, "/agents/worker/.well-known/agent-card.json", "", "")
		if res.StatusCode != http.StatusOK || !strings.Contains(string(data), `"tenant":"worker"`) || !strings.Contains(string(data), `"id":"echo"`) || strings.Contains(string(data), "second") {
			c.Errorf("%d %s", res.StatusCode, data)
		}
		if res, _ := c.raw(http.MethodGet, "/agents/nobody/.well-known/agent-card.json", "", ""); res.StatusCode != http.StatusNotFound {
			c.Errorf("the card of nobody: %d", res.StatusCode)
		}
		if _, data := c.raw(http.MethodGet, "/agents", "", ""); !strings.Contains(string(data), `"agent_id":"worker","live":true`) {
			c.Errorf("agents %s", data)
		}
	}},
	{"8.6", "SHOULD", "the card can be cached: Cache-Control, ETag, Last-Modified, 304", "HTTP+JSON", func(c *client) {
		res, _ := c.raw(http.MethodGet, "/.well-known/agent-card.json", "", "")
		tag := res.Header.Get("ETag")
		if tag == "" || !strings.Contains(res.Header.Get("Cache-Control"), "max-age=") || res.Header.Get("Last-Modified") == "" {
			c.Errorf("headers %v", res.Header)
		}
		c.h = c.h.with("If-None-Match", tag)
		if res, _ := c.raw(http.MethodGet, "/.well-known/agent-card.json", "", ""); res.StatusCode != http.StatusNotModified {
			c.Errorf("status %d, want 304", res.StatusCode)
		}
	}},
	{"7.3", "MUST", "the card declares how callers prove who they are", "HTTP+JSON", func(c *client) {
		c.at = c.w.asked
		_, data := c.raw(http.MethodGet, "/.well-known/agent-card.json", "", "")
		for _, want := range []string{`"httpAuthSecurityScheme":{"scheme":"Bearer"}`, `"apiKeySecurityScheme":{"location":"header","name":"X-API-Key"}`, `"securityRequirements":`, `"extendedAgentCard":true`} {
			if !strings.Contains(string(data), want) {
				c.Errorf("%s lacks %s", data, want)
			}
		}
	}},
	{"5.1", "MUST", "a task is the same over every binding", "", func(c *client) {
		id := c.send(say("chunks")).GetId()
		want := c.get(id)
		for _, b := range bindings {
			got := new(a2apb.Task)
			if _, err := b.call(c.T, c.at, "GetTask", v10, &a2apb.GetTaskRequest{Id: id}, got); err != nil {
				c.Fatal(err)
			}
			if got.String() != want.String() {
				c.Errorf("%s: %v, want %v", b.name(), got, want)
			}
		}
	}},
}
