package identity

import "embed"

//go:embed schema/*.json
var schemas embed.FS

// Schemas returns the JSON Schemas of proofs and records, by name.
func Schemas() map[string][]byte {
	all := map[string][]byte{}
	for _, name := range []string{"identity-proof", "identity-record"} {
		data, err := schemas.ReadFile("schema/" + name + ".json")
		if err != nil {
			panic("identity: " + err.Error()) // it is in the program
		}
		all[name] = data
	}
	return all
}
