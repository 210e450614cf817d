package subjects

import (
	"io/fs"
	"slices"
	"strings"
)

// ReadSchema reads the JSON Schema of a message from a contract's files
// (schema/NAME.json). names are all that it has; another one is not_found.
func ReadSchema(files fs.ReadFileFS, names []string, name string) ([]byte, error) {
	if !slices.Contains(names, name) {
		return nil, Errorf(CodeNotFound, "there is no schema %q", clip(name, 64)).
			WithRemedy("ask for one of " + strings.Join(names, ", "))
	}
	b, err := files.ReadFile("schema/" + name + ".json")
	if err != nil {
		return nil, AsError(err)
	}
	return b, nil
}
