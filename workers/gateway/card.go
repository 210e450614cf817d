package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/gateway/a2anats"
)

// HealthURI names the extension by which a card tells how well its agents are.
const HealthURI = fleet.HealthURI

// Bindings, as cards name them.
const (
	bindingRPC  = "JSONRPC"
	bindingREST = "HTTP+JSON"
	bindingGRPC = "GRPC"
)

// listAge is how long the gateway believes the registry's listing. A card may be
// kept for five seconds more.
const listAge = time.Second

// agents lists the fleet's instances, in the order of their ids.
func (w *Worker) agents(ctx context.Context) ([]fleet.AgentView, error) {
	return w.listing.get(time.Now(), listAge, func() ([]fleet.AgentView, error) {
		return fleet.AllAgents(fleet.AgentList{}, func(q fleet.AgentList) (fleet.AgentListReply, error) {
			return ask[fleet.AgentListReply](context.WithoutCancel(ctx), w, anonymous, "agent", "list", q)
		})
	})
}

// base is where clients reach this gateway.
type base struct{ url, host string }

// card is the card of agent, or of the fleet if agent is "".
func (w *Worker) card(ctx context.Context, agent subjects.AgentID, at base) (*a2apb.AgentCard, error) {
	all, err := w.agents(ctx)
	if err != nil {
		return nil, err
	}
	if agent != "" {
		all = slices.DeleteFunc(slices.Clone(all), func(v fleet.AgentView) bool { return v.Announce.Worker.AgentID != agent })
		if len(all) == 0 {
			return nil, faultf(kindTaskNotFound, "there is no agent "+string(agent))
		}
	}
	c := &a2apb.AgentCard{
		Name: w.cfg.Name, Description: w.cfg.Description, Version: w.cfg.Version,
		DefaultInputModes: []string{"text/plain", "application/json", "*/*"}, DefaultOutputModes: []string{"text/plain", "application/json"},
		Capabilities: &a2apb.AgentCapabilities{
			Streaming: new(true), PushNotifications: new(w.push != nil), ExtendedAgentCard: new(w.auth.cfg.required()),
			Extensions: []*a2apb.AgentExtension{
				{Uri: ContractURI, Description: "The terms of a task in the metadata of its message, and how it went in the metadata of the task"},
				{Uri: fleet.RouteURI, Description: "Which agents a message has gone through, so that it does not go in circles"},
				{Uri: HealthURI, Description: "How well the agents behind this card are", Params: healthOf(all)},
			},
		},
		Skills: skillsOf(all, agent != ""),
	}
	if agent != "" {
		w1 := all[0].Announce.Worker
		c.Name = string(agent)
		c.Description = "The agent " + string(agent) + " of " + w.cfg.Name
		if w1.Model != "" {
			c.Description += ", on " + clean(w1.Model)
		}
	}
	type door struct{ binding, url string }
	var doors []door
	if at.url != "" { // over NATS nobody may know
		doors = append(doors, door{bindingRPC, at.url + pathRPC}, door{bindingREST, at.url + pathRPC}, door{bindingGRPC, at.host})
	}
	if w.cfg.NATS != "" && w.cfg.NATSURL != "" {
		doors = append(doors, door{a2anats.Binding, strings.TrimSuffix(w.cfg.NATSURL, "/") + "/" + w.cfg.NATS})
	}
	for _, i := range doors {
		c.SupportedInterfaces = append(c.SupportedInterfaces, &a2apb.AgentInterface{
			Url: i.url, ProtocolBinding: i.binding, ProtocolVersion: protocolVersion, Tenant: string(agent),
		})
	}
	w.secure(c)
	return c, nil
}

// secure declares how callers prove who they are.
func (w *Worker) secure(c *a2apb.AgentCard) {
	add := func(name string, s *a2apb.SecurityScheme) {
		if c.SecuritySchemes == nil {
			c.SecuritySchemes = make(map[string]*a2apb.SecurityScheme)
		}
		c.SecuritySchemes[name] = s
		c.SecurityRequirements = append(c.SecurityRequirements, &a2apb.SecurityRequirement{
			Schemes: map[string]*a2apb.StringList{name: {}},
		})
	}
	a := w.auth.cfg
	if len(a.Tokens) > 0 {
		add("bearer", &a2apb.SecurityScheme{Scheme: &a2apb.SecurityScheme_HttpAuthSecurityScheme{
			HttpAuthSecurityScheme: &a2apb.HTTPAuthSecurityScheme{Scheme: "Bearer"},
		}})
		add("apiKey", &a2apb.SecurityScheme{Scheme: &a2apb.SecurityScheme_ApiKeySecurityScheme{
			ApiKeySecurityScheme: &a2apb.APIKeySecurityScheme{Location: "header", Name: headerAPIKey},
		}})
	}
	if a.Issuer != "" {
		add("oidc", &a2apb.SecurityScheme{Scheme: &a2apb.SecurityScheme_OpenIdConnectSecurityScheme{
			OpenIdConnectSecurityScheme: &a2apb.OpenIdConnectSecurityScheme{
				OpenIdConnectUrl: strings.TrimSuffix(a.Issuer, "/") + "/.well-known/openid-configuration",
			},
		}})
	}
	if a.Certificates {
		add("mtls", &a2apb.SecurityScheme{Scheme: &a2apb.SecurityScheme_MtlsSecurityScheme{
			MtlsSecurityScheme: &a2apb.MutualTlsSecurityScheme{Description: "A client certificate of an authority that this server trusts"},
		}})
	}
}

// skillsOf are the skills that agents announce, each once; an agent that
// announces none has one of its own name. Of the whole fleet, they are tagged
// with their agent.
func skillsOf(all []fleet.AgentView, one bool) []*a2apb.AgentSkill {
	var out []*a2apb.AgentSkill
	seen := map[string]bool{}
	add := func(s *a2apb.AgentSkill) {
		if s.Id != "" && !seen[s.Id] {
			seen[s.Id] = true
			out = append(out, s)
		}
	}
	for i := range all {
		a := &all[i].Announce
		if !all[i].Live {
			continue
		}
		id := string(a.Worker.AgentID)
		tags := []string{"agent:" + id}
		if a.Worker.ModelTier != "" {
			tags = append(tags, "tier:"+clean(a.Worker.ModelTier))
		}
		for _, tool := range a.Capabilities.Tools {
			tags = append(tags, clean(tool))
		}
		n := len(out)
		for _, raw := range a.Capabilities.Skills {
			s := new(a2apb.AgentSkill)
			if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, s) != nil || s.Id == "" {
				continue
			}
			s.Name, s.Description = pick(s.Name, s.Id), pick(s.Description, s.Id)
			if !one {
				s.Id = id + "/" + s.Id
			}
			if len(s.Tags) == 0 || !one {
				s.Tags = append(s.Tags, tags...)
			}
			add(s)
		}
		if len(out) == n && !seen[id] {
			add(&a2apb.AgentSkill{Id: id, Name: id, Description: "Tasks in plain words, done by the agent " + id, Tags: tags})
		}
	}
	if len(out) == 0 {
		out = append(out, &a2apb.AgentSkill{
			Id: "task", Name: "Tasks", Description: "Tasks in plain words; no agent is there just now, they wait for one", Tags: []string{"task"},
		})
	}
	return out
}

// healthOf is what the extension tells of the agents.
func healthOf(all []fleet.AgentView) *structpb.Struct {
	type instance struct {
		Agent    subjects.AgentID    `json:"agent_id"`
		Instance subjects.InstanceID `json:"instance_id"`
		Live     bool                `json:"live"`
		Draining bool                `json:"draining"`
		Tier     string              `json:"model_tier,omitempty"`
		Model    string              `json:"model,omitempty"`
		Max      int                 `json:"max_parallel"`
		MCP      fleet.MCPHealth     `json:"mcp_health,omitempty"`
	}
	list := []instance{}
	for i := range all {
		v := &all[i]
		w := &v.Announce.Worker
		list = append(list, instance{
			w.AgentID, v.Announce.Instance(), v.Live, v.Draining, clean(w.ModelTier), clean(w.Model), max(w.MaxParallel, 1), v.Announce.MCPHealth,
		})
	}
	return toStruct(map[string]any{"agents": list})
}

// cardJSON is a card as the specification wants it: required members are there
// even when they are empty.
func cardJSON(c *a2apb.AgentCard) ([]byte, error) {
	data, err := protojson.Marshal(c)
	if err != nil {
		return nil, err
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, err
	}
	return json.Marshal(m) // keys in order: the same card has the same bytes
}

// seen remembers when a card was first as it is.
type seen struct {
	mu   sync.Mutex
	tags map[string]string // of an address, the tag of its card
	at   map[string]time.Time
}

func (s *seen) since(address, tag string, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tags) > maxCallers {
		clear(s.tags)
		clear(s.at)
	}
	if s.tags[address] != tag {
		s.tags[address], s.at[address] = tag, now
	}
	return s.at[address]
}

// serveCard serves the card of an agent, or of the fleet.
func (w *Worker) serveCard(rw http.ResponseWriter, r *http.Request) {
	agent := subjects.AgentID(r.PathValue("agent"))
	at := w.baseOf(r)
	card, err := w.card(r.Context(), agent, at)
	if err != nil {
		w.restFault(rw, r, err)
		return
	}
	body, err := w.cardBody(card, at)
	if err == nil && (w.signer == nil || strings.HasSuffix(r.URL.Path, legacyCardPath)) {
		body, err = withLegacy(r.Context(), body, card, at) // a signature holds for the card of 1.0 alone
	}
	if err != nil {
		w.restFault(rw, r, err)
		return
	}
	sum := sha256.Sum256(body)
	tag := `"` + hex.EncodeToString(sum[:16]) + `"`
	h := rw.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "public, max-age=5")
	h.Set("ETag", tag)
	h.Set("Vary", "Host")
	// It answers If-None-Match, If-Modified-Since and HEAD.
	http.ServeContent(rw, r, "", w.cards.since(at.url+" "+r.URL.Path, tag, time.Now()).Truncate(time.Second), bytes.NewReader(body))
}

// cardBody is a card as it is sent.
func (w *Worker) cardBody(card *a2apb.AgentCard, at base) ([]byte, error) {
	body, err := cardJSON(card)
	if err != nil {
		return nil, err
	}
	return w.signed(body, at)
}

// getExtendedAgentCard is the operation GetExtendedAgentCard: the card of whom
// the tenant names, for callers who said who they are.
func (w *Worker) getExtendedAgentCard(ctx context.Context, c *call, req *a2apb.GetExtendedAgentCardRequest) (*a2apb.AgentCard, error) {
	if !w.auth.cfg.required() {
		return nil, faultf(kindUnsupported, "there is no extended card here; /.well-known/agent-card.json tells all")
	}
	agent, err := tenantOf(req.GetTenant())
	if err != nil {
		return nil, err
	}
	card, err := w.card(ctx, agent, c.base)
	if err != nil {
		return nil, err
	}
	card.Description += "; you are " + string(c.from)
	return card, nil
}

// serveAgents lists the registry: every agent with its card's address.
func (w *Worker) serveAgents(rw http.ResponseWriter, r *http.Request) {
	if _, err := w.auth.identify(r.Context(), r.Header, peerOf(r)); err != nil {
		w.restFault(rw, r, err)
		return
	}
	all, err := w.agents(r.Context())
	if err != nil {
		w.restFault(rw, r, err)
		return
	}
	type entry struct {
		AgentID   subjects.AgentID `json:"agent_id"`
		Live      bool             `json:"live"`
		Draining  bool             `json:"draining"`
		Instances int              `json:"instances"`
		ModelTier string           `json:"model_tier,omitempty"`
		Card      string           `json:"card"`
	}
	list := []*entry{}
	for i := range all {
		v := &all[i]
		id := v.Announce.Worker.AgentID
		n := len(list)
		if n == 0 || list[n-1].AgentID != id {
			list = append(list, &entry{
				AgentID: id, Draining: true, ModelTier: v.Announce.Worker.ModelTier,
				Card: w.baseOf(r).url + "/agents/" + string(id) + pathCard,
			})
			n++
		}
		e := list[n-1]
		e.Instances++
		e.Live = e.Live || v.Live
		e.Draining = e.Draining && v.Draining
	}
	writeJSON(rw, http.StatusOK, "application/json", map[string]any{"agents": list})
}
