package fleet_test

import (
	"strings"
	"testing"

	"parley/subjects"
	"parley/subjects/fleet"
)

// deliveryWith is a delivery with more members.
func deliveryWith(more string) string {
	return `{"delivery_id":"d1","order":"t1","body":{}` + more + `}`
}

var deliveryRefusals = []refusal{
	{name: "no id", in: `{"order":"t","body":1,"endpoint":"e"}`, code: subjects.CodeInvalidMessage, pointer: "/delivery_id", says: "expected an identifier"},
	{name: "id of two tokens", in: `{"delivery_id":"a.b","order":"t","body":1,"endpoint":"e"}`, code: subjects.CodeInvalidID, pointer: "/delivery_id", says: "a.b"},
	{name: "no order", in: `{"delivery_id":"a","body":1,"endpoint":"e"}`, code: subjects.CodeInvalidMessage, pointer: "/order", says: "expected an identifier"},
	{name: "no target", in: deliveryWith(``), code: subjects.CodeInvalidMessage, pointer: "/endpoint", says: "neither"},
	{name: "no body", in: `{"delivery_id":"a","order":"t","endpoint":"e"}`, code: subjects.CodeInvalidMessage, pointer: "/body", says: "nothing"},
	{name: "null body", in: `{"delivery_id":"a","order":"t","endpoint":"e","body":null}`, code: subjects.CodeInvalidMessage, pointer: "/body", says: "nothing"},
	{name: "schedule", in: deliveryWith(`,"endpoint":"e","schedule":"never"`), code: subjects.CodeInvalidMessage, pointer: "/schedule", says: "human, push"},
	{name: "scheme", in: deliveryWith(`,"url":"ftp://a.example/"`), code: subjects.CodeInvalidMessage, pointer: "/url", says: `"ftp"`},
	{name: "no host", in: deliveryWith(`,"url":"https:///x"`), code: subjects.CodeInvalidMessage, pointer: "/url", says: "host", lenient: true},
	{name: "password", in: deliveryWith(`,"url":"https://u:p@a.example/"`), code: subjects.CodeInvalidMessage, pointer: "/url", says: "password", lenient: true},
	{name: "fragment", in: deliveryWith(`,"url":"https://a.example/#x"`), code: subjects.CodeInvalidMessage, pointer: "/url", says: "fragment", lenient: true},
	{name: "space", in: deliveryWith(`,"url":"https://a.example/ x"`), code: subjects.CodeInvalidMessage, pointer: "/url", says: "expected a URL"},
	{name: "headers of an endpoint", in: deliveryWith(`,"endpoint":"e","headers":{"a":"b"}`), code: subjects.CodeInvalidMessage, pointer: "/headers", says: "url"},
	{name: "header name", in: deliveryWith(`,"url":"https://a.example/","headers":{"a b":"c"}`), code: subjects.CodeInvalidMessage, pointer: "/headers/a b", says: "name"},
	{name: "header value", in: deliveryWith(`,"url":"https://a.example/","headers":{"a":"b\r\nc: d"}`), code: subjects.CodeInvalidMessage, pointer: "/headers/a", says: "printable"},
	{name: "forged signature", in: deliveryWith(`,"url":"https://a.example/","headers":{"Webhook-Signature":"x"}`), code: subjects.CodeInvalidMessage, pointer: "/headers/Webhook-Signature", says: "signature", lenient: true},
	{name: "host header", in: deliveryWith(`,"url":"https://a.example/","headers":{"HOST":"b"}`), code: subjects.CodeInvalidMessage, pointer: "/headers/HOST", says: "not the sender's", lenient: true},
	{name: "content type", in: deliveryWith(`,"endpoint":"e","content_type":"x"`), code: subjects.CodeInvalidMessage, pointer: "/content_type", says: "media type"},
}

func TestDeliveryDefaults(t *testing.T) {
	t.Parallel()
	d, err := fleet.DecodeDelivery([]byte(deliveryWith(`,"endpoint":"human"`)))
	if err != nil {
		t.Fatal(err)
	}
	if d.Schedule != fleet.ScheduleHuman || d.ContentType != "application/json" || d.NotAfter != nil || d.Target() != "human" {
		t.Errorf("got %+v", d)
	}
}

// What names a delivery's target to people has nothing of its path, where many
// receivers keep their secret.
func TestDeliveryTargetHidesThePath(t *testing.T) {
	t.Parallel()
	d, err := fleet.DecodeDelivery([]byte(deliveryWith(`,"url":"HTTPS://Hooks.example:8443/T0/secret?token=x"`)))
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Target(); got != "https://hooks.example:8443" {
		t.Errorf("Target() = %q", got)
	}
}

// A refusal of a URL does not repeat it: errors are logged.
func TestDeliveryRefusalHidesTheURL(t *testing.T) {
	t.Parallel()
	for _, u := range []string{"https://u:hunter2@a.example/", "https://a.example/hunter2#x", "https:///hunter2", "https://a.example/hunter2 x"} {
		if _, err := fleet.DecodeDelivery([]byte(deliveryWith(`,"url":"` + u + `"`))); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", u, err)
		}
	}
}
