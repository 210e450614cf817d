package telemetry

// CountForTest decodes and counts data, as if it had been heard.
func CountForTest(data []byte) {
	if r, err := decode(data); err == nil {
		newHeard().count(r, "1")
	}
}
