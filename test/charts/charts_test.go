// Package charts_test renders the Helm chart by Helm itself, and loads the
// compose file as docker compose does. It is a module of its own, so that what
// that needs stays out of the product's.
package charts_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"helm.sh/helm/v3/pkg/chart"
	chartloader "helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/releaseutil"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
)

const chartDir = "../../deploy/helm/parley"

func TestLint(t *testing.T) {
	t.Parallel()
	for _, m := range lint.All(chartDir, nil, "fleet", true).Messages {
		if m.Severity >= support.WarningSev {
			t.Errorf("helm lint: %s", m)
		}
	}
}

// decode is what the API server makes of a manifest: no unknown kind, no unknown
// field, no field twice.
func decode(manifest []byte) (runtime.Object, error) {
	s := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	o, _, err := s.Decode(manifest, nil, nil)
	return o, err
}

// render is helm template, with each object decoded.
func render(t *testing.T, values string) ([]runtime.Object, error) {
	t.Helper()
	c, err := chartloader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	texts, err := templates(c, values)
	if err != nil {
		return nil, err
	}
	var all []runtime.Object
	for name, text := range texts {
		if strings.HasSuffix(name, "NOTES.txt") {
			continue
		}
		for _, manifest := range releaseutil.SplitManifests(text) {
			if strings.HasSuffix(name, ".tpl") || strings.TrimSpace(manifest) == "" {
				continue
			}
			o, err := decode([]byte(manifest))
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, manifest)
				continue
			}
			all = append(all, o)
		}
	}
	return all, nil
}

func templates(c *chart.Chart, values string) (map[string]string, error) {
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		return nil, err
	}
	all, err := chartutil.ToRenderValues(c, given, chartutil.ReleaseOptions{Name: "fleet", Namespace: "agents", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	return engine.Engine{}.Render(c, all)
}

// of are the objects of one kind, by name.
func of[T runtime.Object](all []runtime.Object, name func(T) string) map[string]T {
	found := map[string]T{}
	for _, o := range all {
		if v, ok := o.(T); ok {
			found[name(v)] = v
		}
	}
	return found
}

const full = `
image: {repository: registry.example/parley, tag: v1.2.3}
imagePullSecrets: [{name: pull}]
nats: {workerSecret: worker}
settingsFrom: [webhook]
doors: {tokensSecret: doors, issuer: "https://id.example", audience: fleet, url: "https://fleet.example"}
callout: {issuerSecret: callout}
nodeSelector: {disk: ssd}
tolerations: [{key: k, operator: Exists}]
agents:
  - id: claude
    image: registry.example/claude:1
    args: [--max-parallel, "2", --, claude, -p]
    secret: claude
    env: [{name: ANTHROPIC_API_KEY, valueFrom: {secretKeyRef: {name: anthropic, key: key}}}]
    resources: {limits: {memory: 1Gi}}
    autoscaling: {maxReplicas: 20, tasksPerReplica: "2", metric: {name: parley_open_tasks, selector: {matchLabels: {class: any}}}}
  - id: echo
    args: [--driver, echo]
    replicas: 3
`

func TestChart(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]string{"defaults": "", "full": full} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, err := render(t, values)
			if err != nil {
				t.Fatal(err)
			}
			deployments := of(all, func(d *appsv1.Deployment) string { return d.Name })
			want := []string{"fleet-parley-audit", "fleet-parley-callout", "fleet-parley-escalation", "fleet-parley-mesh", "fleet-parley-registry", "fleet-parley-router", "fleet-parley-runs", "fleet-parley-schedules", "fleet-parley-sessions", "fleet-parley-telemetry", "fleet-parley-webhooks"}
			served := []string{"fleet-parley-escalation", "fleet-parley-telemetry"}
			if name == "full" {
				want = append(want, "fleet-parley-agent-claude", "fleet-parley-agent-echo", "fleet-parley-a2e", "fleet-parley-gateway")
				served = append(served, "fleet-parley-a2e", "fleet-parley-gateway")
				checkDoors(t, deployments)
			}
			slices.Sort(want)
			var got []string
			for n, d := range deployments {
				got = append(got, n)
				checkDeployment(t, d)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("deployments %q, want %q", got, want)
			}
			for n, p := range of(all, func(p *policyv1.PodDisruptionBudget) string { return p.Name }) {
				selects(t, n, labels.SelectorFromSet(p.Spec.Selector.MatchLabels), deployments[n])
			}
			services := of(all, func(s *corev1.Service) string { return s.Name })
			for n, s := range services {
				selects(t, n, labels.SelectorFromSet(s.Spec.Selector), deployments[n])
				checkLeaves(t, deployments[n])
			}
			for _, n := range served {
				if services[n] == nil {
					t.Errorf("nobody reaches %s: it has no service", n)
				}
			}
			if len(services) != len(served) {
				t.Errorf("%d services, want those of %q", len(services), served)
			}
			policies := of(all, func(p *networkingv1.NetworkPolicy) string { return p.Name })
			for n, p := range policies {
				selects(t, n, labels.SelectorFromSet(p.Spec.PodSelector.MatchLabels), deployments[n])
				if ofAgent(n) {
					continue
				}
				if len(p.Spec.PolicyTypes) != 2 {
					t.Errorf("%s lets something through: %v", n, p.Spec.PolicyTypes)
				}
			}
			if len(policies) != len(want) || len(policies["fleet-parley-webhooks"].Spec.Egress) != len(policies["fleet-parley-router"].Spec.Egress)+1 {
				t.Errorf("%d network policies, want one for each, and webhooks may go where others do not", len(policies))
			}
			if budgets := of(all, func(p *policyv1.PodDisruptionBudget) string { return p.Name }); len(budgets) != len(want) {
				t.Errorf("%d disruption budgets, want %d", len(budgets), len(want))
			}
			for n := range policies {
				if ofAgent(n) {
					continue
				}
				if e := env(&deployments[n].Spec.Template.Spec.Containers[0]); !strings.HasPrefix(e["PARLEY_MONITOR"], "http://nats-0.nats-headless:8222,") {
					t.Errorf("%s asks %q whether the servers sync", n, e["PARLEY_MONITOR"])
				}
			}
			for n, h := range of(all, func(h *autoscalingv2.HorizontalPodAutoscaler) string { return h.Name }) {
				if d := deployments[h.Spec.ScaleTargetRef.Name]; d == nil || d.Spec.Replicas != nil {
					t.Errorf("%s scales %q, which is not there or says itself how many", n, h.Spec.ScaleTargetRef.Name)
				}
				if m := h.Spec.Metrics[0].External; m == nil || m.Metric.Name != "parley_open_tasks" || m.Target.AverageValue.String() != "2" {
					t.Errorf("%s scales by %+v", n, h.Spec.Metrics)
				}
			}
		})
	}
}

// ofAgent reports whether something of that name is an agent's.
func ofAgent(name string) bool { return strings.HasPrefix(name, "fleet-parley-agent-") }

func selects(t *testing.T, name string, s labels.Selector, d *appsv1.Deployment) {
	t.Helper()
	if d == nil || s.Empty() || !s.Matches(labels.Set(d.Spec.Template.Labels)) {
		t.Errorf("%s selects no pod", name)
	}
}

// checkLeaves checks that what a service leads to still takes connections while
// that is told that it goes, and has no less time to end for it.
func checkLeaves(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	pod := d.Spec.Template.Spec
	l := pod.Containers[0].Lifecycle
	if l == nil || l.PreStop == nil || l.PreStop.Sleep == nil || l.PreStop.Sleep.Seconds < 5 {
		t.Errorf("%s refuses connections that are sent to it while it goes: %+v", d.Name, l)
		return
	}
	if got, want := *pod.TerminationGracePeriodSeconds, 45+l.PreStop.Sleep.Seconds; got != want {
		t.Errorf("%s is killed after %d s, want %d", d.Name, got, want)
	}
}

// checkDoors checks that what is called over HTTP asks who calls, and that the
// file of tokens is one that the program takes: nobody else may read it.
func checkDoors(t *testing.T, deployments map[string]*appsv1.Deployment) {
	t.Helper()
	for _, n := range []string{"fleet-parley-a2e", "fleet-parley-gateway"} {
		d := deployments[n]
		if d == nil {
			t.Errorf("no %s", n)
			continue
		}
		pod := d.Spec.Template.Spec
		if e := env(&pod.Containers[0]); e["PARLEY_A2A_TOKENS"] != "/etc/parley/doors/tokens" || e["PARLEY_A2A_ISSUER"] != "https://id.example" || e["PARLEY_A2A_OPEN"] != "" {
			t.Errorf("%s is told %v", n, e)
		}
		i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "doors" })
		if i < 0 || *pod.Volumes[i].Secret.DefaultMode != 0o440 {
			t.Errorf("%s: the tokens are for others to read, or missing", n)
		}
	}
	callout := env(&deployments["fleet-parley-callout"].Spec.Template.Spec.Containers[0])
	if _, ok := callout["PARLEY_CALLOUT_ISSUER"]; !ok || callout["PARLEY_CALLOUT_ACCOUNT"] != "CLIENTS" {
		t.Errorf("callout is told %v", callout)
	}
}

func env(c *corev1.Container) map[string]string {
	all := map[string]string{}
	for _, e := range c.Env {
		all[e.Name] = e.Value
	}
	return all
}

// The doors stay shut until somebody says who may enter, and the notes say so.
func TestChartDoors(t *testing.T) {
	t.Parallel()
	c, err := chartloader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	for values, want := range map[string]string{"": "no gateway", "doors: {open: true}": "whoever reaches", "doors: {tokensSecret: x}": ""} {
		all, err := templates(c, values)
		if err != nil {
			t.Fatal(err)
		}
		notes := all["parley/templates/NOTES.txt"]
		if !strings.Contains(notes, want) || want == "" && (strings.Contains(notes, "no gateway") || strings.Contains(notes, "whoever reaches the services")) {
			t.Errorf("with %q the notes are %s", values, notes)
		}
		if runs := strings.Contains(all["parley/templates/workers.yaml"], "fleet-parley-gateway"); runs != (values != "") {
			t.Errorf("with %q a gateway runs: %t", values, runs)
		}
	}
}

// TestChartAgentReplicas: an agent runs once where nothing else is said, and not at
// all where 0 is.
func TestChartAgentReplicas(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]int32{"": 1, ", replicas: 0": 0, ", replicas: 2": 2} {
		all, err := render(t, "agents: [{id: bob, secret: s, args: [--driver, echo]"+values+"}]")
		if err != nil {
			t.Fatal(err)
		}
		d := of(all, func(d *appsv1.Deployment) string { return d.Name })["fleet-parley-agent-bob"]
		if d == nil || d.Spec.Replicas == nil || *d.Spec.Replicas != want {
			t.Errorf("with %q: %+v, want %d replicas", values, d, want)
		}
	}
}

// checkDeployment checks what no pod may lack.
func checkDeployment(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	pod := d.Spec.Template.Spec
	selects(t, d.Name, labels.SelectorFromSet(d.Spec.Selector.MatchLabels), d)
	c := pod.Containers[0]
	if s := pod.SecurityContext; s == nil || !*s.RunAsNonRoot || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || *pod.AutomountServiceAccountToken {
		t.Errorf("%s: the pod is not confined: %+v", d.Name, s)
	}
	if s := c.SecurityContext; s == nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Contains(s.Capabilities.Drop, "ALL") {
		t.Errorf("%s: the container is not confined: %+v", d.Name, s)
	}
	grace := int64(30) // PARLEY_GRACE
	if c.Args[0] == "agent" {
		grace += 20 // to hand in results, as the harness does
	}
	if *pod.TerminationGracePeriodSeconds <= grace {
		t.Errorf("%s is killed after %d s, before it has finished", d.Name, *pod.TerminationGracePeriodSeconds)
	}
	volumes := map[string]corev1.Volume{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v
	}
	writable := map[string]bool{}
	for _, m := range c.VolumeMounts {
		v, ok := volumes[m.Name]
		if !ok {
			t.Errorf("%s mounts %s, which is not there", d.Name, m.Name)
		}
		writable[m.MountPath] = v.EmptyDir != nil && !m.ReadOnly
	}
	if !writable["/tmp"] || !writable["/data"] {
		t.Errorf("%s can write to %v, want /tmp and /data", d.Name, writable)
	}
	if c.Args[0] != "serve" {
		if home := env(&c)["HOME"]; !writable[home] {
			t.Errorf("%s cannot write to its home %q", d.Name, home)
		}
		return // agents have no pages
	}
	for what, p := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if p == nil || p.HTTPGet.Path != what || p.HTTPGet.Port.String() != c.Ports[0].Name || p.HTTPGet.Scheme != corev1.URISchemeHTTP {
			t.Errorf("%s: the probe of %s is %+v", d.Name, what, p)
		}
	}
	if u := d.Spec.Strategy.RollingUpdate; u == nil || u.MaxUnavailable.IntValue() != 0 {
		t.Errorf("%s: an upgrade takes old ones away before new ones serve", d.Name)
	}
}

// Values that cannot be meant are refused.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	for _, values := range []string{
		"workers: {rooter: {replicas: 1}}", "nats: {replicas: 2}", "nats: {url: example.com}", "agents: [{id: Bob, args: []}]",
		"agents: [{id: bob, args: [], autoscaling: {maxReplicas: 2}}]", "settings: {MAX_STORE: 1GiB}", "doors: {issuer: example.com}", "terminationGraceSeconds: 5", "typo: 1",
		"agents: [{id: bob, args: [], terminationGraceSeconds: 45}]", "doors: {open: true, a2ePort: 7413}", "publicURL: people.example", "networkPolicy: {natsPorts: []}", "nats: {monitor: example.com}",
		`agents: [{id: bob, args: [], autoscaling: {maxReplicas: 2, metric: {name: parley_queue_depth, selector: {matchLabels: {class: 'tier="opus"'}}}}}]`,
	} {
		if _, err := render(t, values); err == nil {
			t.Errorf("%s is taken", values)
		}
	}
}

// mountable checks that what is mounted below a directory that cannot be written
// to finds its place there: nobody can make it.
func mountable(t *testing.T, s *types.ServiceConfig) {
	t.Helper()
	for _, outer := range s.Volumes {
		if outer.Type != types.VolumeTypeBind || !outer.ReadOnly {
			continue
		}
		for _, v := range s.Volumes {
			rest, below := strings.CutPrefix(v.Target, outer.Target+"/")
			if !below {
				continue
			}
			if _, err := os.Stat(filepath.Join(outer.Source, filepath.FromSlash(rest))); err != nil {
				t.Errorf("%s cannot mount %s: %v", s.Name, v.Target, err)
			}
		}
	}
}

// TestCompose loads the compose file as docker compose config does.
func TestCompose(t *testing.T) {
	t.Parallel()
	path, err := filepath.Abs("../../deploy/container/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: filepath.Dir(path), ConfigFiles: []types.ConfigFile{{Filename: path}}, Environment: types.Mapping{},
	}, func(o *loader.Options) { o.SetProjectName("parley", true) })
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.ServiceNames(), []string{"a2e", "agent", "audit", "callout", "escalation", "gateway", "mesh", "n1", "n2", "n3", "registry", "router", "runs", "schedules", "sessions", "telemetry", "webhooks"}; !slices.Equal(got, want) {
		t.Errorf("services %q, want %q", got, want)
	}
	for _, worker := range []string{"router", "gateway", "telemetry"} {
		if m := p.Services[worker].Environment["PARLEY_MONITOR"]; m == nil || *m != "http://n1:8222,http://n2:8222,http://n3:8222" {
			t.Errorf("%s does not look whether the servers sync", worker)
		}
	}
	for name, s := range p.Services {
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s is open to other machines: %+v", name, port)
			}
		}
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeBind || strings.HasSuffix(filepath.Dir(v.Source), "tls") || strings.HasSuffix(v.Source, "tls") {
				continue // the directory tls is made by certificates.sh
			}
			if _, err := os.Stat(v.Source); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		mountable(t, &s)
		if s.Build != nil {
			if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if len(s.DependsOn) != 3 || !s.ReadOnly {
				t.Errorf("%s: %+v", name, s.DependsOn)
			}
		}
		if grace := 50 * time.Second; name == "agent" && time.Duration(*s.StopGracePeriod) <= grace {
			t.Errorf("%s is killed after %s, want more than %s", name, s.StopGracePeriod, grace)
		}
		if i := strings.TrimPrefix(name, "n"); len(name) == 2 {
			if want := fmt.Sprintf("/etc/nats/cluster-%s.conf", i); !slices.Contains(s.Command, want) {
				t.Errorf("%s runs %q, want %s", name, s.Command, want)
			}
		}
	}
	for _, twice := range []string{"router", "gateway"} {
		s := p.Services[twice]
		if n := s.GetScale(); n != 2 {
			t.Errorf("%d of %s, want 2", n, twice)
		}
		for _, port := range s.Ports {
			if !strings.Contains(port.Published, "-") {
				t.Errorf("%s: two cannot both have port %s", twice, port.Published)
			}
		}
	}
}
