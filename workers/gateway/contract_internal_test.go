package gateway

import (
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"parley/subjects/fleet"
)

// TestContractLosses: a client says how many agents its task may lose.
func TestContractLosses(t *testing.T) {
	t.Parallel()
	meta, err := structpb.NewStruct(map[string]any{ContractURI: map[string]any{"max_losses": 5, "max_retries": 1}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := readContract(meta)
	if err != nil {
		t.Fatal(err)
	}
	var d fleet.Dispatch
	c.apply(&d)
	if d.Task.MaxLosses != 5 || d.Task.MaxRetries == nil || *d.Task.MaxRetries != 1 {
		t.Errorf("task = %+v, want 5 losses and 1 retry", d.Task)
	}
}
