package subjects_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
)

// declaredCodes are the values of the constants Code… in errors.go.
func declaredCodes(t *testing.T) []subjects.Code {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var list []subjects.Code
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Code") {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, subjects.Code(value))
		return true
	})
	return list
}

func TestCodesAreComplete(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(declaredCodes(t), subjects.Codes()); diff != "" {
		t.Errorf("Codes() (-errors.go +table):\n%s", diff)
	}
}

func TestCodeInfo(t *testing.T) {
	t.Parallel()
	exits := map[int]subjects.Code{}
	for _, code := range subjects.Codes() {
		meaning, remedy, exit, status := subjects.CodeInfo(code)
		if !strings.HasSuffix(meaning, ".") || !strings.HasSuffix(remedy, ".") {
			t.Errorf("CodeInfo(%s): meaning %q and remedy %q should be sentences", code, meaning, remedy)
		}
		if exit < 10 || exit > 125 || exits[exit] != "" {
			t.Errorf("CodeInfo(%s): exit %d is out of range or taken by %q", code, exit, exits[exit])
		}
		exits[exit] = code
		if status < 400 || http.StatusText(status) == "" {
			t.Errorf("CodeInfo(%s): %d is no HTTP error", code, status)
		}
	}
	for code, want := range map[subjects.Code][2]int{ // part of the contract
		subjects.CodeInvalidMessage: {10, 400}, subjects.CodeNotFound: {19, 404},
		subjects.CodeCanceled: {37, 409}, subjects.CodeInternal: {39, 500}, "of_tomorrow": {1, 500},
	} {
		if _, _, exit, status := subjects.CodeInfo(code); exit != want[0] || status != want[1] {
			t.Errorf("CodeInfo(%s) = exit %d, HTTP %d, want %v", code, exit, status, want)
		}
	}
}

func TestError(t *testing.T) {
	t.Parallel()
	cause := errors.New("no route")
	err := subjects.Errorf(subjects.CodeUnavailable, "ask router: %w", cause).
		At("/task").WithRemedy("repeat").RetryAfter(1500 * time.Millisecond)
	if got, want := err.Error(), "unavailable at /task: ask router: no route (repeat)"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if err.RetryAfterSeconds != 1.5 {
		t.Errorf("RetryAfterSeconds = %v, want 1.5", err.RetryAfterSeconds)
	}
	wrapped := fmt.Errorf("dispatch: %w", err)
	if !errors.Is(wrapped, cause) || !errors.Is(wrapped, &subjects.Error{Code: subjects.CodeUnavailable}) ||
		errors.Is(wrapped, &subjects.Error{Code: subjects.CodeInternal}) {
		t.Error("errors.Is does not match cause and code alone")
	}
	if got := subjects.CodeOf(wrapped); got != subjects.CodeUnavailable {
		t.Errorf("CodeOf(wrapped) = %q, want unavailable", got)
	}
	if subjects.AsError(wrapped) != err {
		t.Error("AsError(wrapped) is not the error within")
	}
	if e := subjects.AsError(cause); e.Code != subjects.CodeInternal || strings.Contains(e.Message, "route") || !errors.Is(e, cause) {
		t.Errorf("AsError(cause) = %v, want internal with the cause for the log only", e)
	}
	if subjects.AsError(nil) != nil || subjects.CodeOf(nil) != "" || subjects.CodeOf(cause) != subjects.CodeInternal {
		t.Error("AsError or CodeOf mishandle nil or a foreign error")
	}
}
