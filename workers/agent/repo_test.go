package agent_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)...)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

func TestRepo(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "main")
	git(t, dir, "commit", "-q", "--allow-empty", "-m", "first")
	r := newRouter(t)
	a := r.start(agent.Config{Handler: agent.Echo{}, Repo: dir, Heartbeat: time.Hour, Env: []string{"PATH=" + os.Getenv("PATH")}})
	state := func(branch string, clean bool) {
		t.Helper()
		await(t, "an announce of the work tree", r.announces, func(x fleet.Announce) bool {
			s := x.Session.RepoState
			return s != nil && s.Branch == branch && s.Clean == clean
		})
	}
	state("main", true)
	d := dispatch("t1", "x")
	d.Requirements.CleanRepo = true
	a.give(d)
	r.result("t1")

	// The watch comes by in seconds; an offer is judged by what is true now.
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Task.TaskID = "t2"
	if p := a.offer(d); p.code() != subjects.CodeDirtyRepo {
		t.Errorf("offer with a dirty tree = %s, want dirty_repo", p.code())
	}
	state("main", false)
	a.give(dispatch("t3", "does not care"))
	r.result("t3")
	git(t, dir, "switch", "-q", "-c", "topic")
	git(t, dir, "add", "f")
	git(t, dir, "commit", "-q", "-m", "second")
	state("topic", true)
	a.give(again(d, 2))
	r.result("t2")
}

func TestRepoThatIsNone(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := r.start(agent.Config{Handler: agent.Echo{}, Repo: t.TempDir()})
	d := dispatch("t1", "x")
	d.Requirements.CleanRepo = true
	if p := a.offer(d); p.code() != subjects.CodeDirtyRepo {
		t.Errorf("offer = %s, want dirty_repo", p.code())
	}
}

func TestParseStatus(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]fleet.RepoState{
		"# branch.oid 1\n# branch.head main\n":                        {Branch: "main", Clean: true},
		"# branch.oid (initial)\n# branch.head main\n? new\n":         {Branch: "main"},
		"# branch.oid 1\n# branch.head (detached)\n1 .M N... f\n":     {Branch: "(detached)"},
		"# branch.head a b\n# branch.upstream o/a\n# branch.ab +1 -0": {Branch: "a b", Clean: true},
	} {
		if diff := cmp.Diff(&want, agent.ParseStatus([]byte(in))); diff != "" {
			t.Errorf("ParseStatus(%q) (-want +got):\n%s", in, diff)
		}
	}
}
