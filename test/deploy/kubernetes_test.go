package deploy_test

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats-server/v2/server"

	"parley/test/deploy"
)

// natsValues is what deploy/helm/nats-values.yaml says to the official NATS
// chart.
type natsValues struct {
	Config struct {
		Cluster struct {
			Enabled  bool
			Replicas int
		}
		JetStream struct {
			Enabled   bool
			FileStore struct {
				MaxSize string `yaml:"maxSize"`
			} `yaml:"fileStore"`
			Merge map[string]any
		}
		Merge map[string]any
	}
	Container struct {
		Env   map[string]any
		Patch []patch
	}
	PodTemplate struct{ Patch []patch } `yaml:"podTemplate"`
}

type patch struct {
	Op, Path string
	Value    struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ConfigMap struct {
			Name  string
			Items []struct{ Key, Path string }
		} `yaml:"configMap"`
	}
}

// raw is what the chart writes without quotes, and what it writes as an include.
var (
	raw     = regexp.MustCompile(`"<< (.*?) >>"`)
	include = regexp.MustCompile(`"[0-9]*\$include":\s*"([^"]*)",?`)
)

// TestKubernetesNATS lays a server's files out as the values of the official
// NATS chart have them mounted, and starts it: the same people are let in.
func TestKubernetesNATS(t *testing.T) {
	s, _ := kubernetes(t, read(t, "../../deploy/helm/nats-values.yaml"), "accounts.conf")
	stream(t, connect(t, s, "kubernetes", deploy.Worker), 1)
	identities(t, s, "kubernetes")
}

// TestKubernetesCallout: the lines about identities only wait for their sign to be
// taken away.
func TestKubernetesCallout(t *testing.T) {
	values := read(t, "../../deploy/helm/nats-values.yaml")
	for _, line := range []string{"    # 01$include: ", "    # NATS_CALLOUT_ISSUER: "} {
		if strings.Count(values, line) != 1 {
			t.Fatalf("the values have no line %q", line)
		}
		values = strings.Replace(values, line, strings.Replace(line, "# ", "", 1), 1)
	}
	s, opts := kubernetes(t, values, "accounts.conf", "callout.conf")
	if opts.AuthCallout == nil || opts.AuthCallout.Account != "FLEET" {
		t.Errorf("the server asks %+v", opts.AuthCallout)
	}
	stream(t, connect(t, s, "kubernetes", deploy.Worker), 1)
}

// kubernetes starts a server as the values say, with the variables that the files
// named ask for. It gives the site, whose node kubernetes it is, and what it has read.
func kubernetes(t *testing.T, values string, asking ...string) (*deploy.Site, *server.Options) {
	t.Helper()
	var v natsValues
	if err := yaml.Unmarshal([]byte(values), &v); err != nil {
		t.Fatal(err)
	}
	if c := v.Config; !c.Cluster.Enabled || c.Cluster.Replicas != 3 || !c.JetStream.Enabled || c.JetStream.FileStore.MaxSize != "20Gi" {
		t.Errorf("the values are %+v", c)
	}
	s := site(t)
	for _, kv := range s.Env {
		name, _, _ := strings.Cut(kv, "=")
		asked := slices.ContainsFunc(asking, func(f string) bool { return strings.Contains(read(t, "../../deploy/nats/"+f), "$"+name) })
		if _, given := v.Container.Env[name]; given != asked {
			t.Errorf("%s is given: %t, asked for: %t", name, given, asked)
		}
	}
	root := t.TempDir()
	mount(t, root, &v)
	jetstream := v.Config.JetStream.Merge
	jetstream["store_dir"], jetstream["max_file_store"] = filepath.Join(root, "data"), "<< 20Gi >>"
	conf := v.Config.Merge
	conf["server_name"], conf["host"], conf["port"], conf["jetstream"] = "nats-0", "127.0.0.1", -1, jetstream
	text, err := json.MarshalIndent(conf, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(string(text))
	plain = include.ReplaceAllString(raw.ReplaceAllString(plain, "$1"), "include $1;")
	file := filepath.Join(root, "etc", "nats-config", "nats.conf")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(plain), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatalf("%v\n%s", err, plain)
	}
	ns := serve(t, "kubernetes", opts)
	safe(t, ns)
	s.At("kubernetes", ns.ClientURL())
	return s, opts
}

// mount writes below root what the pod sees of the config map that the values'
// first lines make.
func mount(t *testing.T, root string, v *natsValues) {
	t.Helper()
	if len(v.Container.Patch) != 1 || len(v.PodTemplate.Patch) != 1 {
		t.Fatalf("patches: %+v, %+v", v.Container.Patch, v.PodTemplate.Patch)
	}
	at, volume := v.Container.Patch[0], v.PodTemplate.Patch[0]
	if at.Op != "add" || at.Path != "/volumeMounts/-" || volume.Op != "add" || volume.Path != "/spec/volumes/-" || at.Value.Name != volume.Value.Name {
		t.Fatalf("the volume %+v is not mounted: %+v", volume, at)
	}
	keys := map[string]string{} // of kubectl create configmap --from-file, which goes by base names
	for _, pattern := range []string{"accounts.conf", "callout.conf", "permissions/*", "passages/*"} {
		files, err := filepath.Glob(filepath.Join("../../deploy/nats", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, f := range files {
			if keys[filepath.Base(f)] != "" {
				t.Errorf("two files are called %s", filepath.Base(f))
			}
			keys[filepath.Base(f)] = f
		}
	}
	if len(keys) != len(volume.Value.ConfigMap.Items) {
		t.Errorf("%d files, %d items", len(keys), len(volume.Value.ConfigMap.Items))
	}
	for _, item := range volume.Value.ConfigMap.Items {
		to := filepath.Join(root, filepath.FromSlash(path.Join(at.Value.MountPath, item.Path)))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, []byte(read(t, keys[item.Key])), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
