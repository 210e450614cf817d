package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
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

// card is the card of agent, or of the fleet if agent is "". One for everybody, where
// callers must say who they are, does not tell which agents there are.
func (w *Worker) card(ctx context.Context, agent subjects.AgentID, at base, everybody bool) (*a2apb.AgentCard, error) {
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
	hidden := everybody && agent == "" && w.auth.cfg.required()
	skills, more := skillsOf(all, agent != "", hidden)
	health := &a2apb.AgentExtension{Uri: HealthURI, Description: "How well the agents behind this card are"}
	if !hidden {
		health.Params = healthOf(all)
	}
	c := &a2apb.AgentCard{
		Name: w.cfg.Name, Description: w.cfg.Description, Version: w.cfg.Version,
		DefaultInputModes: []string{"text/plain", "application/json", "*/*"}, DefaultOutputModes: []string{"text/plain", "application/json"},
		Capabilities: &a2apb.AgentCapabilities{
			Streaming: new(!w.cfg.NoStreaming), PushNotifications: new(w.delivers(ctx)), ExtendedAgentCard: new(w.auth.cfg.required()),
			Extensions: []*a2apb.AgentExtension{
				{Uri: ContractURI, Description: "The terms of a task in the metadata of its message, and how it went in the metadata of the task"},
				{Uri: fleet.RouteURI, Description: "Which agents a message has gone through, so that it does not go in circles"},
				health,
			},
		},
		Skills: skills,
	}
	for _, uri := range w.cfg.Required {
		i := slices.IndexFunc(c.Capabilities.Extensions, func(e *a2apb.AgentExtension) bool { return e.Uri == uri })
		if i < 0 {
			i = len(c.Capabilities.Extensions)
			c.Capabilities.Extensions = append(c.Capabilities.Extensions, &a2apb.AgentExtension{Uri: uri})
		}
		c.Capabilities.Extensions[i].Required = true
	}
	if agent != "" {
		w1 := all[0].Announce.Worker
		c.Name = string(agent)
		c.Description = "The agent " + string(agent) + " of " + w.cfg.Name
		if w1.Model != "" {
			c.Description += ", on " + clean(w1.Model)
		}
	}
	switch {
	case more > 0 && agent == "":
		c.Description += "; " + strconv.Itoa(more) + " more skills are in the cards of its agents, which " + pathAgents + " lists"
	case more > 0:
		c.Description += "; it has " + strconv.Itoa(more) + " more skills"
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

// A card has at most so many skills and instances, and of each so many bytes: the
// clients that know most of them read 1 MiB of a card, and a NATS server passes no
// more on.
const (
	maxSkills     = 500
	maxInstances  = 500
	maxCardMember = 256 << 10
)

// skillsOf are the skills that agents announce, each once; an agent that
// announces none has one of its own name. Of the whole fleet, they are tagged
// with their agent, unless that is hidden. more counts those that do not fit.
func skillsOf(all []fleet.AgentView, one, hidden bool) (out []*a2apb.AgentSkill, more int) {
	seen, size, full := map[string]bool{}, 0, false
	add := func(s *a2apb.AgentSkill) {
		if s.Id == "" || seen[s.Id] {
			return
		}
		seen[s.Id] = true
		if !full {
			data, err := protojson.Marshal(s)
			size += len(mustJSON(json.RawMessage(data))) // as cards have it
			full = err != nil || len(out) == maxSkills || size > maxCardMember
		}
		if full {
			more++
			return
		}
		out = append(out, s)
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
		if hidden {
			tags = []string{"task"}
		}
		none := true
		for _, raw := range a.Capabilities.Skills {
			s := new(a2apb.AgentSkill)
			if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, s) != nil || s.Id == "" {
				continue
			}
			none = false
			s.Name, s.Description = pick(s.Name, s.Id), pick(s.Description, s.Id)
			if !one && !hidden {
				s.Id = id + "/" + s.Id
			}
			if len(s.Tags) == 0 || !one && !hidden {
				s.Tags = append(s.Tags, tags...)
			}
			add(s)
		}
		if none && !hidden {
			add(&a2apb.AgentSkill{Id: id, Name: id, Description: "Tasks in plain words, done by the agent " + id, Tags: tags})
		}
	}
	if len(seen) == 0 {
		about := "Tasks in plain words"
		if !hidden {
			about += "; no agent is there just now"
		}
		out = append(out, &a2apb.AgentSkill{Id: "task", Name: "Tasks", Description: about, Tags: []string{"task"}})
	}
	return out, more
}

// healthOf is what the extension tells of the agents: of more than fit those that
// live, and how many more there are.
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
	list, size := []json.RawMessage{}, 0
	add := func(live bool) {
		for i := range all {
			v := &all[i]
			w := &v.Announce.Worker
			if v.Live != live || len(list) == maxInstances {
				continue
			}
			data := mustJSON(instance{
				w.AgentID, v.Announce.Instance(), v.Live, v.Draining, clean(w.ModelTier), clean(w.Model), max(w.MaxParallel, 1), v.Announce.MCPHealth,
			})
			if size += len(data); size > maxCardMember {
				return
			}
			list = append(list, data)
		}
	}
	add(true)
	add(false)
	told := map[string]any{"agents": list}
	if more := len(all) - len(list); more > 0 {
		told["more"] = more
	}
	return toStruct(told)
}

// cardJSON is a card as the specification wants it (5.7): the fields that are set,
// and those that are required even when they are empty.
func cardJSON(c *a2apb.AgentCard) ([]byte, error) {
	data, err := protojson.Marshal(c)
	if err != nil {
		return nil, err
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, err
	}
	addRequired(c.ProtoReflect(), m)
	return json.Marshal(m) // keys in order: the same card has the same bytes
}

// addRequired adds to the JSON of a message what is required and empty, of the
// messages within, too.
func addRequired(m protoreflect.Message, object map[string]any) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		value, there := object[fd.JSONName()]
		switch {
		case !there && isRequired(fd):
			if fd.IsList() {
				object[fd.JSONName()] = []any{}
			} else if fd.Kind() == protoreflect.StringKind {
				object[fd.JSONName()] = ""
			}
		case !there || fd.Message() == nil:
		case fd.IsMap():
			of, _ := value.(map[string]any)
			m.Get(fd).Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				if in, ok := of[k.String()].(map[string]any); ok && fd.MapValue().Message() != nil {
					addRequired(v.Message(), in)
				}
				return true
			})
		case fd.IsList():
			of, _ := value.([]any)
			for i, list := 0, m.Get(fd).List(); i < min(len(of), list.Len()); i++ {
				if in, ok := of[i].(map[string]any); ok {
					addRequired(list.Get(i).Message(), in)
				}
			}
		case fd.Message().ParentFile().Package() == m.Descriptor().ParentFile().Package(): // a Struct is JSON as it is
			if in, ok := value.(map[string]any); ok {
				addRequired(m.Get(fd).Message(), in)
			}
		}
	}
}

// isRequired reports whether the protocol requires a field.
func isRequired(fd protoreflect.FieldDescriptor) bool {
	behaviors, _ := proto.GetExtension(fd.Options(), annotations.E_FieldBehavior).([]annotations.FieldBehavior)
	return slices.Contains(behaviors, annotations.FieldBehavior_REQUIRED)
}

// cardPage is a card as it is sent.
type cardPage struct {
	body  []byte
	tag   string
	since time.Time // when it was first so
}

// cardPages are the cards that were asked for, by whose they are and the address that
// they name. Everybody may ask under any address: what that costs is bounded.
type cardPages struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]*shared[cardPage]
}

// maxPages is how many cards are kept; beyond it all are made anew.
const maxPages = 128

func (p *cardPages) of(address string) *shared[cardPage] {
	key := sha256.Sum256([]byte(address))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all[key] == nil {
		if p.all == nil || len(p.all) >= maxPages {
			p.all = make(map[[sha256.Size]byte]*shared[cardPage])
		}
		p.all[key] = new(shared[cardPage])
	}
	return p.all[key]
}

// serveCard serves the card of an agent, or of the fleet.
func (w *Worker) serveCard(rw http.ResponseWriter, r *http.Request) {
	at := w.baseOf(r)
	if r.PathValue("agent") != "" { // which agents there are is not for everybody
		if _, err := w.auth.identify(r.Context(), r.Header, peerOf(r)); err != nil {
			w.restFault(rw, r, err)
			return
		}
	}
	shown := w.cards.of(at.url + " " + r.URL.Path)
	p, err := shown.get(time.Now(), listAge, func() (cardPage, error) {
		body, err := w.servedCard(r, at)
		if err != nil {
			return shown.value, err
		}
		sum := sha256.Sum256(body)
		next := cardPage{body: body, tag: `"` + hex.EncodeToString(sum[:16]) + `"`, since: time.Now().Truncate(time.Second)}
		if next.tag == shown.value.tag {
			next.since = shown.value.since
		}
		return next, nil
	})
	if err != nil {
		w.restFault(rw, r, err)
		return
	}
	h := rw.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "public, max-age=5")
	if r.PathValue("agent") != "" && w.auth.cfg.required() {
		h.Set("Cache-Control", "private, max-age=5")
	}
	h.Set("ETag", p.tag)
	h.Set("Vary", "Host")
	// It answers If-None-Match, If-Modified-Since and HEAD.
	http.ServeContent(rw, r, "", p.since, bytes.NewReader(p.body))
}

// servedCard is the card that a request asks for.
func (w *Worker) servedCard(r *http.Request, at base) ([]byte, error) {
	card, err := w.card(r.Context(), subjects.AgentID(r.PathValue("agent")), at, true)
	if err != nil {
		return nil, err
	}
	body, err := w.cardBody(card)
	if err != nil || w.cfg.NoLegacy || w.signer != nil && !strings.HasSuffix(r.URL.Path, legacyCardPath) {
		return body, err
	}
	return withLegacy(r.Context(), body, card, at) // a signature holds for the card of 1.0 alone
}

// cardBody is a card as it is sent.
func (w *Worker) cardBody(card *a2apb.AgentCard) ([]byte, error) {
	if err := w.sign(card); err != nil {
		return nil, err
	}
	return cardJSON(card)
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
	card, err := w.card(ctx, agent, c.base, false)
	if err != nil {
		return nil, err
	}
	card.Description += "; you are " + string(c.from)
	return card, w.sign(card)
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
