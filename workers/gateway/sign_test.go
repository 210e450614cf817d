package gateway

import (
	"testing"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
)

// TestCanonicalCard holds the bytes that are signed against the rules of the
// specification (8.4.1): what is optional counts when it is set, what is required
// counts always, everything else when it is not the default.
func TestCanonicalCard(t *testing.T) {
	t.Parallel()
	card := &a2apb.AgentCard{
		Name: "Zoë <&>", Capabilities: &a2apb.AgentCapabilities{Streaming: new(false), Extensions: []*a2apb.AgentExtension{
			{Uri: "u", Params: toStruct(map[string]any{"kept": map[string]any{}, "n": 1})},
		}},
		SupportedInterfaces: []*a2apb.AgentInterface{{Url: "https://a", ProtocolBinding: "JSONRPC", ProtocolVersion: "1.0"}},
		Provider:            &a2apb.AgentProvider{Url: "https://p"},
		SecuritySchemes: map[string]*a2apb.SecurityScheme{"apiKey": {Scheme: &a2apb.SecurityScheme_ApiKeySecurityScheme{
			ApiKeySecurityScheme: &a2apb.APIKeySecurityScheme{Name: "X"},
		}}},
		SecurityRequirements: []*a2apb.SecurityRequirement{{Schemes: map[string]*a2apb.StringList{"apiKey": {}}}},
		Skills:               []*a2apb.AgentSkill{{Id: "s", Name: "S"}},
	}
	exact, lean, err := canonicalCard(card)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"capabilities":{"extensions":[{"params":{"kept":{},"n":1},"uri":"u"}],"streaming":false},` +
		`"defaultInputModes":[],"defaultOutputModes":[],"description":"","name":"Zoë <&>","provider":{"organization":"","url":"https://p"},` +
		`"securityRequirements":[{"schemes":{"apiKey":{}}}],"securitySchemes":{"apiKey":{"apiKeySecurityScheme":{"location":"","name":"X"}}},` +
		`"skills":[{"description":"","id":"s","name":"S","tags":[]}],` +
		`"supportedInterfaces":[{"protocolBinding":"JSONRPC","protocolVersion":"1.0","url":"https://a"}],"version":""}`
	if string(exact) != want {
		t.Errorf("signed by the specification:\n%s\nwant\n%s", exact, want)
	}
	const wantLean = `{"capabilities":{"extensions":[{"params":{"n":1},"uri":"u"}],"streaming":false},"name":"Zoë <&>",` +
		`"provider":{"url":"https://p"},"securitySchemes":{"apiKey":{"apiKeySecurityScheme":{"name":"X"}}},"skills":[{"id":"s","name":"S"}],` +
		`"supportedInterfaces":[{"protocolBinding":"JSONRPC","protocolVersion":"1.0","url":"https://a"}]}`
	if string(lean) != wantLean {
		t.Errorf("signed for the SDKs:\n%s\nwant\n%s", lean, wantLean)
	}
}
