package subjects

// DeliveryID names a webhook delivery: the same in every attempt, and what the
// receiver sees as webhook-id. One NATS token.
type DeliveryID string

// ParseDeliveryID checks s and returns it as a DeliveryID.
func ParseDeliveryID(s string) (DeliveryID, error) {
	t, err := parseToken("delivery_id", s)
	return DeliveryID(t), err
}

// Webhook is where delivery id waits to be sent. Deliveries to one endpoint
// with the same order (one token, a task's id for example) go one at a time.
func Webhook(order string, id DeliveryID) string { return join("fleet.webhook", order, string(id)) }

// WebhookEvent is where it is kept what became of delivery id.
func WebhookEvent(id DeliveryID) string { return join("fleet.webhookevent", string(id)) }

// Patterns with one star for every variable token.
const (
	WebhookPattern      = "fleet.webhook.*.*"
	WebhookEventPattern = "fleet.webhookevent.*"
)
