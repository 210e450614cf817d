package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"

	"parley/bus/auth"
	policy "parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/callout"
	"parley/workers/escalation"
	"parley/workers/gateway"
	"parley/workers/webhooks"
)

// config holds every setting: a flag (flag) wins over the environment
// (envconfig, then natscli's variable in nats), which wins over the file
// config.json (json), which wins over the default. `parley help env` prints
// this table.
type config struct {
	Server      string `envconfig:"PARLEY_SERVER" nats:"NATS_URL" json:"server" flag:"server" short:"s" desc:"NATS servers, comma separated"`
	Context     string `envconfig:"PARLEY_CONTEXT" nats:"NATS_CONTEXT" json:"context" flag:"context" desc:"NATS CLI context to connect with, instead of a server"`
	Creds       string `envconfig:"PARLEY_CREDS" nats:"NATS_CREDS" json:"creds" flag:"creds" desc:"file with user credentials"`
	NKey        string `envconfig:"PARLEY_NKEY" nats:"NATS_NKEY" json:"nkey" flag:"nkey" desc:"file with an nkey seed"`
	User        string `envconfig:"PARLEY_USER" nats:"NATS_USER" json:"user" flag:"user" desc:"user name"`
	Password    string `envconfig:"PARLEY_PASSWORD" nats:"NATS_PASSWORD" json:"password" flag:"password" desc:"password; better set in the environment than as a flag"`
	Token       string `envconfig:"PARLEY_TOKEN" nats:"NATS_TOKEN" json:"token" flag:"token" desc:"authentication token; better set in the environment than as a flag"`
	TLSCA       string `envconfig:"PARLEY_TLSCA" nats:"NATS_CA" json:"tlsca" flag:"tlsca" desc:"file with the certificate authority"`
	TLSCert     string `envconfig:"PARLEY_TLSCERT" nats:"NATS_CERT" json:"tlscert" flag:"tlscert" desc:"file with the client's certificate"`
	TLSKey      string `envconfig:"PARLEY_TLSKEY" nats:"NATS_KEY" json:"tlskey" flag:"tlskey" desc:"file with the client's key"`
	TLSFirst    bool   `envconfig:"PARLEY_TLSFIRST" json:"tlsfirst" flag:"tlsfirst" desc:"begin with TLS before the server says anything"`
	InboxPrefix string `envconfig:"PARLEY_INBOX_PREFIX" nats:"NATS_INBOX_PREFIX" json:"inbox_prefix" flag:"inbox-prefix" desc:"subject prefix of replies"`
	Timeout     span   `envconfig:"PARLEY_TIMEOUT" json:"timeout" flag:"timeout" desc:"how long to wait for a connection and for a reply"`

	Identity    string `envconfig:"PARLEY_IDENTITY" json:"identity" flag:"identity" desc:"file with your identity, of parley identity add: you connect by it, and what you send is signed"`
	IdentityKey string `envconfig:"PARLEY_IDENTITY_KEY" json:"identity_key" flag:"identity-key" desc:"its key alone, instead of a file; better set in the environment than as a flag"`

	As        string `envconfig:"PARLEY_AS" json:"as" flag:"as" desc:"who you are; operator sees all tasks, others their own"`
	Output    string `envconfig:"PARLEY_OUTPUT" json:"output" flag:"output" short:"o" desc:"table, wide, json or jsonl"`
	Session   string `envconfig:"PARLEY_SESSION_TOKEN" json:"session_token" flag:"session-token" desc:"token of a session that somebody else owns; better set in the environment than as a flag"`
	LogLevel  string `envconfig:"PARLEY_LOG_LEVEL" json:"log_level" flag:"log-level" desc:"debug, info, warn or error"`
	LogFormat string `envconfig:"PARLEY_LOG_FORMAT" json:"log_format" flag:"log-format" desc:"auto, text or json; auto is text on a terminal"`

	Workers       []string `envconfig:"PARLEY_WORKERS" json:"workers" flag:"workers" desc:"workers to run, comma separated"`
	Operators     []string `envconfig:"PARLEY_OPERATORS" json:"operators" flag:"operators" desc:"who may see and change every task"`
	MaxQueued     int      `envconfig:"PARLEY_MAX_QUEUED" json:"max_queued" flag:"max-queued" desc:"queued tasks above which dispatches are refused; 0 is the router's default"`
	KeepEnded     int      `envconfig:"PARLEY_KEEP_ENDED" json:"keep_ended" flag:"keep-ended" desc:"ended tasks kept at most (and 24 h at most); 0 is the router's default"`
	MeshHops      int      `envconfig:"PARLEY_MESH_HOPS" json:"mesh_hops" flag:"mesh-hops" desc:"messages that may lead to another one between agents; 0 is 8"`
	MeshPairRate  int      `envconfig:"PARLEY_MESH_PAIR_RATE" json:"mesh_pair_rate" flag:"mesh-pair-rate" desc:"messages a minute from one agent to one other; 0 is 120"`
	MeshAgentRate int      `envconfig:"PARLEY_MESH_AGENT_RATE" json:"mesh_agent_rate" flag:"mesh-agent-rate" desc:"messages a minute from one agent; 0 is 600"`
	RunOutput     string   `envconfig:"PARLEY_RUN_OUTPUT" json:"run_output" flag:"run-output" desc:"directory below which runs leave their documents; empty: they leave none"`
	Provision     string   `envconfig:"PARLEY_PROVISION" json:"provision" flag:"provision" desc:"streams and buckets: create, verify (somebody else makes them) or off"`
	Replicas      int      `envconfig:"PARLEY_REPLICAS" json:"replicas" flag:"replicas" desc:"copies of every stream in a cluster: 1, 3 or 5; 0 keeps what is there, and begins with one"`
	MaxStore      size     `envconfig:"PARLEY_MAX_STORE" json:"max_store" flag:"max-store" desc:"disk guard of the task records, such as 10GiB; 0 keeps what is there, and begins with 4GiB or what the disk has"`
	MaxOutput     size     `envconfig:"PARLEY_MAX_OUTPUT" json:"max_output" flag:"max-output" desc:"largest output that a session keeps, such as 64MiB; 0 is the default"`
	AuditKeep     span     `envconfig:"PARLEY_AUDIT_KEEP" json:"audit_keep" flag:"audit-keep" desc:"how long the audit is kept; 0 is the default, 90 days"`
	HTTP          string   `envconfig:"PARLEY_HTTP" json:"http" flag:"http" desc:"address of A2A, /healthz and /readyz; off for none"`
	HTTPCert      string   `envconfig:"PARLEY_HTTP_CERT" json:"http_cert" flag:"http-cert" desc:"file with the certificate of the HTTP port, which then speaks TLS"`
	HTTPKey       string   `envconfig:"PARLEY_HTTP_KEY" json:"http_key" flag:"http-key" desc:"file with its key"`
	HTTPCA        string   `envconfig:"PARLEY_HTTP_CLIENT_CA" json:"http_client_ca" flag:"http-client-ca" desc:"file with the authority of client certificates, which then say who calls"`
	A2AURL        string   `envconfig:"PARLEY_A2A_URL" json:"a2a_url" flag:"a2a-url" desc:"where A2A clients reach the gateway, for its cards; as each request says when empty"`
	A2ANATS       string   `envconfig:"PARLEY_A2A_NATS_URL" json:"a2a_nats_url" flag:"a2a-nats-url" desc:"where A2A clients reach NATS, for the gateway's cards; parley up knows its own; without it cards do not name the NATS binding"`
	A2AName       string   `envconfig:"PARLEY_A2A_NAME" json:"a2a_name" flag:"a2a-name" desc:"name of the fleet in its A2A card"`
	A2ATokens     string   `envconfig:"PARLEY_A2A_TOKENS" json:"a2a_tokens" flag:"a2a-tokens" desc:"file with a line 'caller token' for each A2A caller; the token is a bearer token or API key, of 16 characters or more"`
	A2AIssuer     string   `envconfig:"PARLEY_A2A_ISSUER" json:"a2a_issuer" flag:"a2a-issuer" desc:"OpenID provider whose tokens say who calls; with --a2a-audience"`
	A2AAud        string   `envconfig:"PARLEY_A2A_AUDIENCE" json:"a2a_audience" flag:"a2a-audience" desc:"audience that those tokens must be for"`
	A2AOpen       bool     `envconfig:"PARLEY_A2A_OPEN" json:"a2a_open" flag:"a2a-open" desc:"let everybody who reaches the HTTP port use the fleet, also from other machines"`
	A2AOrigin     []string `envconfig:"PARLEY_A2A_ORIGINS" json:"a2a_origins" flag:"a2a-origins" desc:"web origins whose pages may call (CORS), comma separated"`
	A2ARate       float64  `envconfig:"PARLEY_A2A_RATE" json:"a2a_rate" flag:"a2a-rate" desc:"A2A calls per second and caller; 0 for no limit"`
	A2AKey        string   `envconfig:"PARLEY_A2A_KEY" json:"a2a_key" flag:"a2a-key" desc:"file with the private key that signs A2A cards: PKCS #8 in PEM, Ed25519 or ECDSA on P-256; with --a2a-url"`
	A2AWithout    []string `envconfig:"PARLEY_A2A_WITHOUT" json:"a2a_without" flag:"a2a-without" desc:"what the A2A gateway neither declares nor serves: push, streaming, 0.3, comma separated"`
	A2ARequire    []string `envconfig:"PARLEY_A2A_REQUIRE" json:"a2a_require" flag:"a2a-require" desc:"URIs of extensions that every A2A message must activate, comma separated"`
	A2APush       string   `envconfig:"PARLEY_A2A_PUSH_ENDPOINT" json:"a2a_push_endpoint" flag:"a2a-push-endpoint" desc:"webhook endpoint, one without a URL, that signs A2A push notifications and says what they may reach"`
	Monitor       []string `envconfig:"PARLEY_MONITOR" json:"monitor" flag:"monitor" desc:"monitoring pages of the NATS servers, such as http://n1:8222, comma separated: workers do not start on servers that sync less than --sync says, and parley doctor looks at syncing, versions and room"`
	A2AIdentities string   `envconfig:"PARLEY_A2A_IDENTITIES" json:"a2a_identities" flag:"a2a-identities" desc:"directory of the A2A agents of others, a file NAME.yaml for each; absent: a2a in the directory of the settings"`
	A2ARegistry   string   `envconfig:"PARLEY_A2A_REGISTRY" json:"a2a_registry" flag:"a2a-registry" desc:"address of a shared registry that is told the fleet's card; empty: none"`
	A2ARegToken   string   `envconfig:"PARLEY_A2A_REGISTRY_TOKEN" json:"a2a_registry_token" flag:"a2a-registry-token" desc:"bearer token for it; better set in the environment than as a flag"`
	A2ARegEach    span     `envconfig:"PARLEY_A2A_REGISTRY_EACH" json:"a2a_registry_each" flag:"a2a-registry-each" desc:"how often the registry is told the card again"`
	A2EListen     string   `envconfig:"PARLEY_A2E_LISTEN" json:"a2e_listen" flag:"a2e-listen" desc:"where agents connect that use the fleet as their A2E environment: host:port or unix:/path; none when empty"`
	A2ETokens     string   `envconfig:"PARLEY_A2E_TOKENS" json:"a2e_tokens" flag:"a2e-tokens" desc:"file with a line 'agent token' for each A2E agent; that of --a2a-tokens when empty"`
	A2EParallel   int      `envconfig:"PARLEY_A2E_MAX_PARALLEL" json:"a2e_max_parallel" flag:"a2e-max-parallel" desc:"tasks and runs that an A2E session may have under way; 0 is 4"`
	MCP           bool     `envconfig:"PARLEY_SERVE_MCP" json:"serve_mcp" flag:"serve-mcp" desc:"serve MCP at /mcp of the HTTP port, to those who may call the A2A gateway"`
	// MCPEscalations is for parley mcp, too.
	MCPEscalations  bool `envconfig:"PARLEY_MCP_ESCALATIONS" json:"mcp_escalations" flag:"mcp-escalations" desc:"offer MCP clients the tool that decides for a human about what waits for one"`
	MetricsLog      bool `envconfig:"PARLEY_METRICS_LOG" json:"metrics_log" flag:"metrics-log" desc:"write the figures of this process into its log, regularly"`
	MetricsInterval span `envconfig:"PARLEY_METRICS_INTERVAL" json:"metrics_interval" flag:"metrics-interval" desc:"how often"`
	Grace           span `envconfig:"PARLEY_GRACE" json:"grace" flag:"grace" desc:"time to finish what is in hand after a signal to stop"`

	RequireSignatures bool   `envconfig:"PARLEY_REQUIRE_SIGNATURES" json:"require_signatures" flag:"require-signatures" desc:"take only messages that are signed; the same for all workers of a fleet"`
	RequireIdentity   bool   `envconfig:"PARLEY_REQUIRE_IDENTITY" json:"require_identity" flag:"require-identity" desc:"take announces only of agents that have an identity; the same for all workers of a fleet"`
	SealKey           string `envconfig:"PARLEY_SEAL_KEY" json:"seal_key" flag:"seal-key" desc:"what seals the secrets of identities, 32 characters or more, the same for all workers of a fleet; made and kept in the fleet where it is empty"`
	CalloutIssuer     string `envconfig:"PARLEY_CALLOUT_ISSUER" json:"callout_issuer" flag:"callout-issuer" desc:"seed of the account key that the servers' auth_callout names as issuer; empty: no server asks"`
	CalloutXKey       string `envconfig:"PARLEY_CALLOUT_XKEY" json:"callout_xkey" flag:"callout-xkey" desc:"seed of the curve key that their auth_callout names as xkey; empty for none"`
	CalloutAccount    string `envconfig:"PARLEY_CALLOUT_ACCOUNT" json:"callout_account" flag:"callout-account" desc:"account of the servers that identities are let into; empty where there are no accounts"`
	CalloutTTL        span   `envconfig:"PARLEY_CALLOUT_TTL" json:"callout_ttl" flag:"callout-ttl" desc:"how long a connection lasts before it must prove itself anew"`

	WebhooksFile   string   `envconfig:"PARLEY_WEBHOOKS_FILE" json:"webhooks_file" flag:"webhooks-file" desc:"file that names webhook endpoints"`
	WebhookURL     string   `envconfig:"PARLEY_WEBHOOK_URL" json:"webhook_url" flag:"webhook-url" desc:"address of the webhook endpoint human, where people are called"`
	WebhookSecret  string   `envconfig:"PARLEY_WEBHOOK_SECRET" json:"webhook_secret" flag:"webhook-secret" desc:"what it is signed with, whsec_…; better set in the environment than as a flag"`
	WebhookHeader  string   `envconfig:"PARLEY_WEBHOOK_HEADER" json:"webhook_header" flag:"webhook-header" desc:"a header for it, such as X-API-Key: …; better set in the environment than as a flag"`
	WebhookAllow   []string `envconfig:"PARLEY_WEBHOOK_ALLOW" json:"webhook_allow" flag:"webhook-allow" desc:"hosts and networks that webhooks may reach although they are not public, or without TLS"`
	WebhookRetries int      `envconfig:"PARLEY_WEBHOOK_RETRIES" json:"webhook_retries" flag:"webhook-retries" desc:"attempts of a push"`
	WebhookBase    span     `envconfig:"PARLEY_WEBHOOK_BASE" json:"webhook_base" flag:"webhook-base" desc:"wait after the first attempt of a push, doubled after each"`
	WebhookTimeout span     `envconfig:"PARLEY_WEBHOOK_TIMEOUT" json:"webhook_timeout" flag:"webhook-timeout" desc:"time for one webhook to be called and to answer"`
	WebhookCheck   bool     `envconfig:"PARLEY_WEBHOOK_CHECK" json:"webhook_check" flag:"webhook-check" desc:"say at the start which webhook endpoints cannot be reached"`

	MaxRetries    int      `envconfig:"PARLEY_MAX_RETRIES" json:"max_retries" flag:"max-retries" desc:"repeats by the same agent, where a dispatch does not say it"`
	MaxLosses     int      `envconfig:"PARLEY_MAX_LOSSES" json:"max_losses" flag:"max-losses" desc:"agents that a task may lose in a row before a human decides, where a dispatch does not say it"`
	OnBlocked     string   `envconfig:"PARLEY_ON_BLOCKED" json:"on_blocked" flag:"on-blocked" desc:"reroute, wait, fail or escalate, where a dispatch does not say it"`
	Escalate      string   `envconfig:"PARLEY_ESCALATE" json:"escalate" flag:"escalate" desc:"wait for a human: auto (where somebody can be called), always or never, where a dispatch does not say it"`
	AlertRepeat   span     `envconfig:"PARLEY_ALERT_REPEAT" json:"alert_repeat" flag:"alert-repeat" desc:"people are called again after this, where a dispatch does not say it"`
	GiveUpAfter   span     `envconfig:"PARLEY_GIVE_UP_AFTER" json:"give_up_after" flag:"give-up-after" desc:"a task waits no longer for people, where a dispatch does not say it"`
	AlertContacts []string `envconfig:"PARLEY_ALERT_CONTACTS" json:"alert_contacts" flag:"alert-contacts" desc:"webhook endpoints to call, one after the other; human where PARLEY_WEBHOOK_URL is set"`
	AlertNext     span     `envconfig:"PARLEY_ALERT_NEXT" json:"alert_next" flag:"alert-next" desc:"the next contact is called after this, unless somebody answers"`
	WaitAlert     span     `envconfig:"PARLEY_WAIT_ALERT" json:"wait_alert" flag:"wait-alert" desc:"people are notified of tasks that wait for an agent, an account or terms for so long, or for half of what was left until the deadline"`
	AckTimeout    span     `envconfig:"PARLEY_ACK_TIMEOUT" json:"ack_timeout" flag:"ack-timeout" desc:"how long an acknowledgement keeps quiet"`
	GroupBy       []string `envconfig:"PARLEY_GROUP_BY" json:"group_by" flag:"group-by" desc:"what the tasks of one alert have in common, of code, agent, mcp, from, session, run, task"`
	GroupWait     span     `envconfig:"PARLEY_GROUP_WAIT" json:"group_wait" flag:"group-wait" desc:"time to gather what fails for one cause, before the first call"`
	GroupInterval span     `envconfig:"PARLEY_GROUP_INTERVAL" json:"group_interval" flag:"group-interval" desc:"least time between calls because a group has grown"`
	ChangeLog     string   `envconfig:"PARLEY_CHANGE_LOG" json:"change_log" flag:"change-log" desc:"file that gets a line of JSON for whatever is a human's; absent: CHANGE.log in PARLEY_DATA; off for none"`
	PublicURL     string   `envconfig:"PARLEY_PUBLIC_URL" json:"public_url" flag:"public-url" desc:"where people reach the address of PARLEY_HTTP, for the links in calls"`
	LinkKey       string   `envconfig:"PARLEY_LINK_KEY" json:"link_key" flag:"link-key" desc:"what signs those links, 16 characters or more; made and kept in the fleet where it is empty"`
	LinkTTL       span     `envconfig:"PARLEY_LINK_TTL" json:"link_ttl" flag:"link-ttl" desc:"how long a link can be used"`
	HeartbeatTo   string   `envconfig:"PARLEY_HEARTBEAT_TO" json:"heartbeat_to" flag:"heartbeat-to" desc:"webhook endpoint that hears regularly that all is well, so that silence is noticed"`
	HeartbeatEach span     `envconfig:"PARLEY_HEARTBEAT_EACH" json:"heartbeat_each" flag:"heartbeat-each" desc:"how often"`

	OTLPEndpoint string `envconfig:"PARLEY_OTLP_ENDPOINT" json:"otlp_endpoint" flag:"otlp-endpoint" desc:"where the telemetry worker sends a trace of each task, by OTLP over HTTP, such as http://127.0.0.1:4318; empty: nowhere"`
	OTLPHeaders  string `envconfig:"PARLEY_OTLP_HEADERS" json:"otlp_headers" flag:"otlp-headers" desc:"headers of those requests, NAME=VALUE,NAME=VALUE; better set in the environment than as a flag"`

	Host     string `envconfig:"PARLEY_HOST" json:"host" flag:"host" desc:"address of the embedded broker"`
	Port     int    `envconfig:"PARLEY_PORT" json:"port" flag:"port" desc:"port of the embedded broker; -1 is any free one"`
	Callout  bool   `envconfig:"PARLEY_CALLOUT" json:"callout" flag:"callout" desc:"the embedded broker lets in who proves an identity of the fleet, and nobody else"`
	Auth     string `envconfig:"PARLEY_AUTH" json:"auth" flag:"auth" desc:"directory of identities, made by parley auth init; the embedded broker lets in nobody else"`
	Tenant   string `envconfig:"PARLEY_TENANT" json:"tenant" flag:"tenant" desc:"tenant of that directory"`
	Insecure bool   `envconfig:"PARLEY_INSECURE" json:"insecure" flag:"insecure" desc:"let other machines reach the embedded broker, which asks nobody who they are"`
	Data     string `envconfig:"PARLEY_DATA" json:"data" flag:"data" desc:"directory of everything that is kept"`
	Sync     string `envconfig:"PARLEY_SYNC" json:"sync" flag:"sync" desc:"always: no acknowledgement before the disk has it; a time such as 2m is faster, and a power cut loses what was acknowledged since; parley serve wants to know what its servers do"`
}

// defaultAs is who asks where nothing says it.
const defaultAs = "operator"

// defaultConfig is what holds where nobody says anything. Worker defaults that
// are zero here belong to the workers.
func defaultConfig(getenv func(string) string) *config {
	chain := policy.Chain{}.WithDefaults()
	return &config{
		Server: "nats://127.0.0.1:4222", Timeout: span(5 * time.Second),
		As: defaultAs, Output: "table", LogLevel: "info", LogFormat: "auto",
		Workers: workerNames(), Operators: []string{"operator"}, Provision: "create",
		WebhookRetries: webhooks.Push().Attempts, WebhookBase: span(webhooks.Push().Base), WebhookTimeout: span(webhooks.DefaultTimeout),
		MaxRetries: fleet.DefaultMaxRetries, MaxLosses: fleet.DefaultMaxLosses, OnBlocked: fleet.OnBlockedReroute, Escalate: fleet.EscalateAuto,
		AlertRepeat: span(fleet.DefaultAlertRepeat), GiveUpAfter: span(fleet.DefaultGiveUpAfter),
		AlertNext: span(chain.CallNext), WaitAlert: span(escalation.DefaultWaitAlert), AckTimeout: span(chain.AckTimeout),
		GroupBy: escalation.DefaultGroupBy(), GroupWait: span(chain.GroupWait), GroupInterval: span(chain.GroupInterval),
		LinkTTL: span(escalation.DefaultLinkTTL), HeartbeatEach: span(escalation.DefaultHeartbeat),
		Tenant: auth.DefaultTenant, CalloutTTL: span(callout.DefaultTTL),
		MetricsInterval: span(time.Minute), HTTP: "127.0.0.1:7411", Grace: span(30 * time.Second),
		A2ARegEach: span(gateway.DefaultAnnounceEach),
		Host:       "127.0.0.1", Port: 4222, Data: dataHome(getenv), Sync: "always",
	}
}

// readEnviron reads the PARLEY_ variables of this process. It is the only
// place that asks the operating system for them: main hands it on, and a test
// that does not is out of reach of whatever its caller has set.
func readEnviron(c *config) error { return envconfig.Process("", c) }

// loadConfig reads file and environment on top of the defaults.
func loadConfig(p *process) (*config, error) {
	getenv := p.getenv
	c := defaultConfig(getenv)
	if err := c.readFile(configFile(getenv)); err != nil {
		return nil, err
	}
	pristine := *defaultConfig(getenv)
	if p.settings != nil {
		err := p.settings(c)
		if bad, ok := errors.AsType[*envconfig.ParseError](err); ok {
			return nil, usage("%s=%q is not valid: %w", bad.KeyName, bad.Value, bad.Err).next("parley help env")
		}
		if err != nil {
			return nil, usage("read the environment: %w", err)
		}
	}
	// natscli's own variables count where nothing of ours is set.
	v, d := reflect.ValueOf(c).Elem(), reflect.ValueOf(&pristine).Elem()
	for i, f := range reflect.VisibleFields(v.Type()) {
		if name := f.Tag.Get("nats"); name != "" && v.Field(i).Equal(d.Field(i)) {
			if value := getenv(name); value != "" {
				v.Field(i).SetString(value)
			}
		}
	}
	return c, c.readSecrets(getenv)
}

// readFile reads the settings file, which need not exist.
func (c *config) readFile(path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return usage("read the settings: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return usage("%s: %w", path, err).next("parley help env  lists the settings; their names in the file are those of the flags, with _")
	}
	for _, s := range settings(c) {
		if slices.Contains(secretFlags, s.flag) && s.value.String() != "" {
			return private("the settings file", path)
		}
	}
	return nil
}

// check finds settings that cannot be meant, after flags have been read.
func (c *config) check() error {
	for _, s := range []struct{ flag, value, allowed string }{
		{"output", c.Output, "table wide json jsonl"},
		{"log-level", c.LogLevel, "debug info warn error"},
		{"log-format", c.LogFormat, "auto text json"},
		{"provision", c.Provision, "create verify off"},
		{"on-blocked", c.OnBlocked, "reroute wait fail escalate"},
		{"escalate", c.Escalate, "auto always never"},
	} {
		if allowed := strings.Fields(s.allowed); !slices.Contains(allowed, s.value) {
			next := "parley help env"
			if s.flag == "output" && strings.ContainsAny(s.value, "./") {
				next = "--output is the form of what is printed; a command that writes a file has --output-file"
			}
			return usage("--%s %q: expected one of %s", s.flag, s.value, strings.Join(allowed, ", ")).next(next)
		}
	}
	if c.MetricsInterval <= 0 {
		return usage("--metrics-interval %s: expected a time such as 1m", &c.MetricsInterval)
	}
	for _, w := range c.Workers {
		if !slices.Contains(workerNames(), w) {
			return usage("--workers: there is no worker %q, only %s", w, strings.Join(workerNames(), ", "))
		}
	}
	if len(c.Workers) == 0 {
		return usage("--workers is empty: name some of %s", strings.Join(workerNames(), ", "))
	}
	if !slices.Contains([]int{0, 1, 3, 5}, c.Replicas) {
		return usage("--replicas %d: expected 1, 3 or 5", c.Replicas)
	}
	if c.WebhookRetries < 1 || c.WebhookBase <= 0 || c.WebhookTimeout <= 0 {
		return usage("--webhook-retries %d, --webhook-base %s, --webhook-timeout %s: expected more than nothing",
			c.WebhookRetries, &c.WebhookBase, &c.WebhookTimeout)
	}
	if c.CalloutTTL < span(time.Second) {
		return usage("--callout-ttl %s: expected one second or more", &c.CalloutTTL)
	}
	for _, id := range append([]string{c.As}, c.Operators...) {
		if _, err := subjects.ParseAgentID(id); err != nil {
			return fmt.Errorf("--as or --operators: %w", err)
		}
	}
	_, _, err := c.sync()
	return err
}

// sync reads --sync.
func (c *config) sync() (always bool, every time.Duration, err error) {
	if c.Sync == "always" {
		return true, 0, nil
	}
	d, err := time.ParseDuration(c.Sync)
	if err != nil || d <= 0 {
		return false, 0, usage("--sync %q: expected always or a time such as 2m", c.Sync)
	}
	return false, d, nil
}

func (c *config) level() slog.Level {
	var l slog.Level
	if err := l.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return slog.LevelInfo
	}
	return l
}

// xdg is a directory of the XDG base directory specification.
func xdg(getenv func(string) string, name string, fallback ...string) string {
	if dir := getenv(name); filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(append([]string{getenv("HOME")}, fallback...)...)
}

func configHome(getenv func(string) string) string {
	return xdg(getenv, "XDG_CONFIG_HOME", ".config")
}

func configFile(getenv func(string) string) string {
	if path := getenv("PARLEY_CONFIG"); path != "" {
		return path
	}
	return filepath.Join(configHome(getenv), "parley", "config.json")
}

func dataHome(getenv func(string) string) string {
	return filepath.Join(xdg(getenv, "XDG_DATA_HOME", ".local", "share"), "parley")
}

// span is a duration as flag, in the environment and in JSON.
type span time.Duration

// String makes span a flag value.
func (s *span) String() string { return shortDuration(time.Duration(*s)) }

// Type names the value in a command's help.
func (*span) Type() string { return "duration" }

// Set reads a duration such as 1m30s; a number alone is of seconds.
func (s *span) Set(text string) error {
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		*s = span(time.Duration(n) * time.Second)
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return errors.New("expected a time such as 1m30s")
	}
	*s = span(d)
	return nil
}

// UnmarshalText makes span readable from JSON.
func (s *span) UnmarshalText(text []byte) error { return s.Set(string(text)) }

// shortDuration is d without the zeros at its end: 2m, not 2m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// size is a number of bytes as flag, in the environment and in JSON.
type size int64

var units = []struct {
	name  string
	bytes int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}}

// String makes size a flag value.
func (s *size) String() string {
	for _, unit := range slices.Backward(units) {
		if n := int64(*s); n > 0 && n%unit.bytes == 0 {
			return strconv.FormatInt(n/unit.bytes, 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(*s), 10)
}

// Type names the value in a command's help.
func (*size) Type() string { return "size" }

// Set reads a number of bytes such as 10GiB.
func (s *size) Set(text string) error {
	unit := int64(1)
	for _, u := range units {
		if number, ok := strings.CutSuffix(text, u.name); ok {
			text, unit = number, u.bytes
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n < 0 || n > (1<<62)/unit {
		return errors.New("expected a number of bytes such as 10GiB")
	}
	*s = size(n * unit)
	return nil
}

// UnmarshalText makes size readable from JSON.
func (s *size) UnmarshalText(text []byte) error { return s.Set(string(text)) }
