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

// raw is what the chart writes without quotes, and what it writes as an include.
var (
	raw     = regexp.MustCompile(`"<< (.*?) >>"`)
	include = regexp.MustCompile(`"\$include":\s*"([^"]*)",?`)
)

// TestKubernetesNATS lays the files of three servers out as the values of the
// official NATS chart have them mounted, and starts them: the same people are let
// in, over TLS, and nobody is a server who has no certificate.
func TestKubernetesNATS(t *testing.T) {
	var v natsValues
	if err := yaml.Unmarshal([]byte(read(t, "../../deploy/helm/nats-values.yaml")), &v); err != nil {
		t.Fatal(err)
	}
	if c := v.Config; !c.Cluster.Enabled || c.Cluster.Replicas != 3 || !c.JetStream.Enabled || c.JetStream.FileStore.MaxSize != "20Gi" {
		t.Errorf("the values are %+v", c)
	}
	s := site(t)
	for _, kv := range s.Env {
		name, _, _ := strings.Cut(kv, "=")
		asked := strings.Contains(read(t, "../../deploy/nats/accounts.conf"), "$"+name)
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
	for _, ns := range all {
		reached(t, "kubernetes", ns)
		safe(t, ns)
		guarded(t, s, ns)
	}
	s.At("kubernetes", all[0].ClientURL())
	stream(t, connect(t, s, "kubernetes", deploy.Worker), 3)
	identities(t, s, "kubernetes")
	if !speaksTLS(t, strings.TrimPrefix(s.URL("kubernetes"), "nats://")) {
		t.Error("a server takes clients without TLS")
	}
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
	for _, pattern := range []string{"accounts.conf", "permissions/*", "passages/*"} {
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
