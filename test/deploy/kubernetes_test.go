package deploy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"parley/test/deploy"
)

// natsValues is what deploy/helm/nats-values.yaml says to the official NATS
// chart.
type natsValues struct {
	TLSCA struct {
		Enabled    bool
		SecretName string `yaml:"secretName"`
	} `yaml:"tlsCA"`
	Config struct {
		NATS    struct{ TLS secured }
		Cluster struct {
			Enabled  bool
			Replicas int
			TLS      secured
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

// secured is how a port speaks TLS.
type secured struct {
	Enabled    bool
	SecretName string `yaml:"secretName"`
	Merge      map[string]any
}

// block is what the chart writes for it, where the files are in dir.
func (s secured) block(t *testing.T, dir string) map[string]any {
	t.Helper()
	if !s.Enabled || s.SecretName == "" {
		t.Fatalf("a port speaks without TLS: %+v", s)
	}
	all := map[string]any{"cert_file": filepath.Join(dir, "server.crt"), "key_file": filepath.Join(dir, "server.key"), "ca_file": filepath.Join(dir, "ca.crt")}
	maps.Copy(all, s.Merge)
	return all
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

// TestChartVersion: whoever follows the guide, or the values, gets the chart that
// they are for.
func TestChartVersion(t *testing.T) {
	t.Parallel()
	values := read(t, "../../deploy/helm/nats-values.yaml")
	_, version, _ := strings.Cut(strings.SplitN(values, "\n", 2)[0], "version ")
	version = strings.TrimSuffix(version, ",")
	for name, text := range map[string]string{"operations.md": read(t, "../../docs/guide/operations.md"), "nats-values.yaml": values} {
		got := regexp.MustCompile(`helm upgrade --install nats nats/nats --version (\S+) `).FindStringSubmatch(text)
		if got == nil || got[1] != version || version == "" {
			t.Errorf("%s installs the chart by %q, and the values are for %q", name, got, version)
		}
	}
}

// raw is what the chart writes without quotes, and what it writes as an include.
var (
	raw     = regexp.MustCompile(`"<< (.*?) >>"`)
	include = regexp.MustCompile(`"[0-9]*\$include":\s*"([^"]*)",?`)
)

// TestKubernetesNATS lays the files of three servers out as the values of the
// official NATS chart have them mounted, and starts them: the same people are let
// in, over TLS, and nobody is a server who has no certificate.
func TestKubernetesNATS(t *testing.T) {
	s, all := kubernetes(t, read(t, "../../deploy/helm/nats-values.yaml"), "accounts.conf")
	for _, ns := range all {
		reached(t, "kubernetes", ns)
		safe(t, ns)
		guarded(t, s, ns)
	}
	stream(t, connect(t, s, "kubernetes", deploy.Worker), 3)
	identities(t, s, "kubernetes")
	if !speaksTLS(t, strings.TrimPrefix(s.URL("kubernetes"), "nats://")) {
		t.Error("a server takes clients without TLS")
	}
}

// TestKubernetesCallout: the lines about identities only wait for their sign to be
// taken away. The servers let in whom accounts.conf names, without asking, and nobody
// else while no worker answers.
func TestKubernetesCallout(t *testing.T) {
	values := read(t, "../../deploy/helm/nats-values.yaml")
	for _, line := range []string{"    # 01$include: ", "    # NATS_CALLOUT_ISSUER: "} {
		if strings.Count(values, line) != 1 {
			t.Fatalf("the values have no line %q", line)
		}
		values = strings.Replace(values, line, strings.Replace(line, "# ", "", 1), 1)
	}
	s, all := kubernetes(t, values, "accounts.conf", "callout.conf")
	for _, ns := range all {
		reached(t, "kubernetes", ns)
	}
	stream(t, connect(t, s, "kubernetes", deploy.Worker), 3)
	worker := connect(t, s, "kubernetes", deploy.Worker)
	asked := make(chan struct{}, 8)
	if _, err := worker.Subscribe("$SYS.REQ.USER.AUTH", func(*nats.Msg) { asked <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	if err := worker.Flush(); err != nil {
		t.Fatal(err)
	}
	if nc, err := dial(s, "kubernetes", "bot", "a proof"); err == nil {
		nc.Close()
		t.Error("somebody is let in whom no worker knows")
	}
	select {
	case <-asked:
	default:
		t.Error("no worker is asked who may connect")
	}
}

// kubernetes begins three servers as the values say, with the variables that the
// files named ask for. The site's node kubernetes is one of them.
func kubernetes(t *testing.T, values string, asking ...string) (*deploy.Site, []*server.Server) {
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
	if !v.TLSCA.Enabled || v.TLSCA.SecretName == "" {
		t.Errorf("nobody says whose certificates count: %+v", v.TLSCA)
	}
	files := filepath.Dir(s.CA)
	addresses := []string{deploy.FreeAddress(t), deploy.FreeAddress(t), deploy.FreeAddress(t)}
	routes := []string{"tls://" + addresses[0], "tls://" + addresses[1], "tls://" + addresses[2]}
	slices.Sort(routes)
	var all []*server.Server
	for i, address := range addresses {
		root := t.TempDir()
		mount(t, root, &v)
		jetstream, conf := maps.Clone(v.Config.JetStream.Merge), maps.Clone(v.Config.Merge)
		jetstream["store_dir"], jetstream["max_file_store"] = filepath.Join(root, "data"), "<< 20Gi >>"
		conf["server_name"], conf["host"], conf["port"], conf["jetstream"] = fmt.Sprint("nats-", i), "127.0.0.1", -1, jetstream
		conf["tls"] = v.Config.NATS.TLS.block(t, files)
		conf["cluster"] = map[string]any{"name": "nats", "listen": address, "no_advertise": true, "routes": routes, "tls": v.Config.Cluster.TLS.block(t, files)}
		opts, err := server.ProcessConfigFile(formatted(t, root, conf))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, begin(t, "kubernetes", opts))
	}
	reached(t, "kubernetes", all[0])
	s.At("kubernetes", all[0].ClientURL())
	return s, all
}

// formatted writes a configuration below root as the chart writes it, and is its
// path.
func formatted(t *testing.T, root string, conf map[string]any) string {
	t.Helper()
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
	return file
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
