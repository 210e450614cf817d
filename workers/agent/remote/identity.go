package remote

import (
	"errors"
	"net/url"
	"regexp"
	"strings"

	gojson "github.com/go-json-experiment/json"
	"github.com/goccy/go-yaml"

	"parley/subjects"
)

// Protocols of an identity's transports.
const (
	ProtocolRPC  = "google-a2a"            // a2a_rpc: JSON-RPC
	ProtocolCard = "google-a2a-agent-card" // agent_card
)

// Types of Auth.
const (
	AuthNone   = "none"
	AuthBearer = "bearer"
	AuthAPIKey = "api_key"
)

// Identity is an agent of somebody else's, under a name of ours: the file that
// S3 keeps for each. At least one of its transports is there.
type Identity struct {
	ID         string     `json:"id"`
	Name       string     `json:"name,omitempty"`
	External   bool       `json:"external"`
	Transports Transports `json:"transports"`
}

// Transports is how an external agent is reached.
type Transports struct {
	RPC  *Transport `json:"a2a_rpc,omitempty"`
	Card *Transport `json:"agent_card,omitempty"`
}

// Transport is one way to reach an external agent.
type Transport struct {
	Protocol string `json:"protocol"`
	URL      string `json:"url"`
	Path     string `json:"path,omitempty"` // of the card; absent: where cards are
	Auth     *Auth  `json:"auth,omitempty"`
}

// Auth is how we prove who we are. The secret itself is in the environment.
type Auth struct {
	Type     string `json:"type"`
	Header   string `json:"header,omitempty"`    // absent X-API-Key or Authorization
	ValueEnv string `json:"value_env,omitempty"` // name of the variable with the secret
}

const maxIdentity = 64 << 10

var (
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$")
)

// DecodeIdentity reads an identity in YAML, strictly.
func DecodeIdentity(data []byte) (*Identity, error) {
	if len(data) > maxIdentity {
		return nil, subjects.Errorf(subjects.CodePayloadTooLarge, "%d bytes; at most %d are allowed", len(data), maxIdentity)
	}
	j, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "not YAML: %w", err)
	}
	id := new(Identity)
	if err := gojson.Unmarshal(j, id, gojson.RejectUnknownMembers(true)); err != nil {
		if s, ok := errors.AsType[*gojson.SemanticError](err); ok {
			e := subjects.Errorf(subjects.CodeInvalidMessage, "expected %s", kindOf(s)).At(string(s.JSONPointer))
			if errors.Is(err, gojson.ErrUnknownName) {
				e.Message = "there is no such field"
			}
			return nil, e
		}
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "not an identity: %w", err)
	}
	return id, id.Check()
}

func kindOf(s *gojson.SemanticError) string {
	if s.GoType == nil {
		return "something else"
	}
	switch s.GoType.Kind().String() {
	case "bool":
		return "true or false"
	case "string":
		return "a text"
	}
	return "an object"
}

// Encode is the identity in YAML.
func (id *Identity) Encode() ([]byte, error) {
	j, err := gojson.Marshal(id)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(j)
}

// Check holds an identity against its rules; the error is the first that is
// broken.
func (id *Identity) Check() error {
	bad := func(at, format string, args ...any) error {
		return subjects.Errorf(subjects.CodeInvalidMessage, format, args...).At(at)
	}
	if _, err := subjects.ParseAgentID(id.ID); err != nil {
		return subjects.Errorf(subjects.CodeInvalidID, "%q is not an id: 1 to 64 letters, digits, _ and -", id.ID).At("/id")
	}
	if !id.External {
		return bad("/external", "expected true: only agents of others have an identity here")
	}
	t := id.Transports
	if t.RPC == nil && t.Card == nil {
		return bad("/transports", "expected a2a_rpc, agent_card or both")
	}
	for _, c := range []struct {
		at, protocol string
		t            *Transport
	}{{"/transports/a2a_rpc", ProtocolRPC, t.RPC}, {"/transports/agent_card", ProtocolCard, t.Card}} {
		if c.t == nil {
			continue
		}
		if c.t.Protocol != c.protocol {
			return bad(c.at+"/protocol", "expected %s, got %q", c.protocol, c.t.Protocol)
		}
		if err := checkURL(c.t.URL); err != nil {
			return bad(c.at+"/url", "%w", err)
		}
		if p := c.t.Path; p != "" && (c.t == t.RPC || !strings.HasPrefix(p, "/") || strings.ContainsAny(p, "?# \t\r\n")) {
			return bad(c.at+"/path", "expected the path of a card, such as /.well-known/agent-card.json")
		}
		if err := c.t.Auth.check(); err != nil {
			return bad(c.at+"/auth"+err.at, "%s", err.what)
		}
	}
	return nil
}

// checkURL refuses what is no address of a server, or has a secret in it.
func checkURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil, u.Host == "", u.Hostname() == "", u.Scheme != "http" && u.Scheme != "https":
		return errors.New("expected an address such as https://agent.example.org")
	case u.User != nil:
		return errors.New("it holds a secret: name a variable of the environment in auth instead")
	case u.RawQuery != "" || u.Fragment != "":
		return errors.New("expected an address without ? and #")
	}
	return nil
}

type authError struct{ at, what string }

func (a *Auth) check() *authError {
	switch {
	case a == nil:
		return nil
	case a.Type != AuthNone && a.Type != AuthBearer && a.Type != AuthAPIKey:
		return &authError{"/type", "expected none, bearer or api_key"}
	case a.Type == AuthNone && (a.ValueEnv != "" || a.Header != ""):
		return &authError{"/type", "none takes neither header nor value_env"}
	case a.Type != AuthNone && !envName.MatchString(a.ValueEnv):
		return &authError{"/value_env", "expected the name of a variable of the environment, never the secret itself"}
	case a.Header != "" && !headerName.MatchString(a.Header):
		return &authError{"/header", "expected the name of a header"}
	}
	return nil
}

// header is the header that proves who we are; "" for none.
func (a *Auth) header(env func(string) string) (name, value string, err error) {
	if a == nil || a.Type == AuthNone {
		return "", "", nil
	}
	secret := env(a.ValueEnv)
	if secret == "" || strings.ContainsAny(secret, "\r\n") {
		return "", "", subjects.Errorf(subjects.CodeAuthFailed, "the variable %s of the environment is empty or not one line", a.ValueEnv).
			WithRemedy("set " + a.ValueEnv + " to the agent's secret")
	}
	if a.Type == AuthBearer {
		return orElse(a.Header, "Authorization"), "Bearer " + secret, nil
	}
	return orElse(a.Header, "X-API-Key"), secret, nil
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// NewIdentity is the identity of the agent whose card is at address: the card's
// own, or that of the server, where cards are in their usual place.
func NewIdentity(id, address string, auth *Auth) (*Identity, error) {
	t := &Transport{Protocol: ProtocolCard, URL: strings.TrimRight(address, "/"), Auth: auth}
	if u, err := url.Parse(address); err == nil && strings.HasSuffix(u.Path, ".json") {
		t.Path, u.Path = u.Path, ""
		if before, _, ok := strings.Cut(t.Path, "/.well-known/"); ok {
			u.Path, t.Path = before, strings.TrimPrefix(t.Path, before)
		}
		t.URL = u.String()
	}
	x := &Identity{ID: id, External: true, Transports: Transports{Card: t}}
	return x, x.Check()
}

// address is what the agent is told apart by: where its card is.
func (id *Identity) address() string {
	t := id.Transports.Card
	if t == nil {
		return id.Transports.RPC.URL
	}
	return strings.TrimRight(t.URL, "/") + orElse(t.Path, defaultCardPath)
}

// hosts are the hosts that the operator has named.
func (id *Identity) hosts() []string {
	var out []string
	for _, t := range []*Transport{id.Transports.Card, id.Transports.RPC} {
		if t == nil {
			continue
		}
		if u, err := url.Parse(t.URL); err == nil {
			out = append(out, strings.ToLower(u.Hostname()))
		}
	}
	return out
}
