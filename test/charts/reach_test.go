package charts_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	chartloader "helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/strvals"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// ports are the numbers and names of a rule's ports.
func ports(of []networkingv1.NetworkPolicyPort) []string {
	var all []string
	for _, p := range of {
		all = append(all, p.Port.String())
	}
	return all
}

// Whoever has the servers elsewhere says where, and which ports they have.
func TestChartReachesServers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values string
		peer   networkingv1.NetworkPolicyPeer
		ports  []string
	}{
		{"", networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "nats"}}}, []string{"4222", "8222"}},
		{
			"networkPolicy: {natsPeers: [{namespaceSelector: {matchLabels: {team: bus}}}], natsPorts: [4443]}",
			networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "bus"}}},
			[]string{"4443"},
		},
		{"networkPolicy: {natsPeers: [{ipBlock: {cidr: 192.0.2.0/24}}]}", networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "192.0.2.0/24"}}, []string{"4222", "8222"}},
	} {
		all, err := render(t, c.values)
		if err != nil {
			t.Fatal(err)
		}
		policies := of(all, func(p *networkingv1.NetworkPolicy) string { return p.Name })
		if len(policies) == 0 {
			t.Errorf("with %q no worker has a policy", c.values)
		}
		for n, p := range policies {
			servers := p.Spec.Egress[0]
			if len(servers.To) != 1 || servers.To[0].String() != c.peer.String() || !slices.Equal(ports(servers.Ports), c.ports) {
				t.Errorf("with %q %s reaches %v, want ports %q of %v", c.values, n, servers, c.ports, c.peer)
			}
		}
	}
}

// Nobody reaches an agent; where there are several, not all are taken away at once.
func TestChartAgents(t *testing.T) {
	t.Parallel()
	const agents = `
agents:
  - {id: lone, args: []}
  - {id: pair, args: [], replicas: 2}
  - {id: scaled, args: [], autoscaling: {maxReplicas: 3, metric: {name: parley_open_tasks}}}
`
	for values, has := range map[string]bool{agents: true, agents + "networkPolicy: {enabled: false}\npodDisruptionBudget: false": false} {
		all, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		policies := of(all, func(p *networkingv1.NetworkPolicy) string { return p.Name })
		budgets := of(all, func(p *policyv1.PodDisruptionBudget) string { return p.Name })
		for id, several := range map[string]bool{"lone": false, "pair": true, "scaled": true} {
			n := "fleet-parley-agent-" + id
			p, b := policies[n], budgets[n]
			if (p != nil) != has || (b != nil) != (has && several) {
				t.Errorf("with %q %s has the policy %v and the budget %v", values, n, p, b)
			}
			if p != nil && (!slices.Equal(p.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) || len(p.Spec.Ingress) > 0) {
				t.Errorf("%s is reached: %+v", n, p.Spec)
			}
			if b != nil && b.Spec.MaxUnavailable.IntValue() != 1 {
				t.Errorf("%s goes at once: %+v", n, b.Spec)
			}
		}
	}
}

// The port for lines of A2E is there for whoever may reach the worker, and for
// no other worker.
func TestChartLines(t *testing.T) {
	t.Parallel()
	all, err := render(t, "doors: {tokensSecret: doors, a2ePort: 7413}")
	if err != nil {
		t.Fatal(err)
	}
	for n, p := range of(all, func(p *networkingv1.NetworkPolicy) string { return p.Name }) {
		want := []string{"health"}
		if n == "fleet-parley-a2e" {
			want = append(want, "a2e")
		}
		if got := ports(p.Spec.Ingress[0].Ports); !slices.Equal(got, want) {
			t.Errorf("%s takes %q, want %q", n, got, want)
		}
	}
	for n, d := range of(all, func(d *appsv1.Deployment) string { return d.Name }) {
		c := d.Spec.Template.Spec.Containers[0]
		want := ""
		if n == "fleet-parley-a2e" {
			want = "0.0.0.0:7413"
		}
		if got := env(&c)["PARLEY_A2E_LISTEN"]; got != want {
			t.Errorf("%s listens on %q, want %q", n, got, want)
		}
		if want != "" && (len(c.Ports) != 2 || c.Ports[1].Name != "a2e" || c.Ports[1].ContainerPort != 7413) {
			t.Errorf("%s has the ports %v", n, c.Ports)
		}
	}
	a2e := of(all, func(s *corev1.Service) string { return s.Name })["fleet-parley-a2e"]
	if a2e == nil || len(a2e.Spec.Ports) != 2 || a2e.Spec.Ports[1].Port != 7413 || a2e.Spec.Ports[1].TargetPort.String() != "a2e" {
		t.Errorf("the service of a2e is %+v", a2e)
	}
}

// What settings name is mounted, in workers and in agents; and a port that
// speaks TLS is asked over TLS whether it is ready.
func TestChartFiles(t *testing.T) {
	t.Parallel()
	all, err := render(t, `
settings: {PARLEY_HTTP_CERT: /etc/parley/own/tls.crt, PARLEY_HTTP_KEY: /etc/parley/own/tls.key, PARLEY_A2A_KEY: /etc/parley/own/card.key}
extraVolumes: [{name: own, secret: {secretName: own, defaultMode: 0440}}]
extraVolumeMounts: [{name: own, mountPath: /etc/parley/own, readOnly: true}]
agents: [{id: bob, args: [--driver, echo], extraVolumes: [{name: mcp, configMap: {name: mcp}}], extraVolumeMounts: [{name: mcp, mountPath: /etc/mcp}]}]
`)
	if err != nil {
		t.Fatal(err)
	}
	for n, d := range of(all, func(d *appsv1.Deployment) string { return d.Name }) {
		pod := d.Spec.Template.Spec
		c := pod.Containers[0]
		want := corev1.VolumeMount{Name: "own", MountPath: "/etc/parley/own", ReadOnly: true}
		if c.Args[0] == "agent" {
			want = corev1.VolumeMount{Name: "mcp", MountPath: "/etc/mcp"}
		} else {
			for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
				if p.HTTPGet.Scheme != corev1.URISchemeHTTPS {
					t.Errorf("%s is asked for %s by %s", n, p.HTTPGet.Path, p.HTTPGet.Scheme)
				}
			}
			if env(&c)["PARLEY_A2A_KEY"] == "" {
				t.Errorf("%s is not told of PARLEY_A2A_KEY", n)
			}
		}
		if !slices.Contains(c.VolumeMounts, want) || !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == want.Name }) {
			t.Errorf("%s mounts %v of %v, want %v", n, c.VolumeMounts, pod.Volumes, want)
		}
	}
}

// The notes say what people would find out too late.
func TestChartNotes(t *testing.T) {
	t.Parallel()
	c, err := chartloader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	for note, values := range map[string][2]string{ // with which it is there, and with which it is not
		"links in calls": {"", "publicURL: https://people.example"},
		"a password":     {"", "settings: {PARLEY_CREDS: /etc/parley/creds/worker.creds}"},
		"nobody looks":   {"nats: {monitor: ''}", ""},
		"without TLS":    {"nats: {url: 'nats://nats:4222', tlsSecret: ''}", ""},
		"natsPeers":      {"nats: {url: 'tls://nats.example.com:4222'}", "{nats: {url: 'tls://nats.example.com:4222'}, networkPolicy: {natsPeers: [{ipBlock: {cidr: 192.0.2.0/24}}]}}"},
	} {
		for i, v := range values {
			all, err := templates(c, v)
			if err != nil {
				t.Fatal(err)
			}
			if notes := all["parley/templates/NOTES.txt"]; strings.Contains(notes, note) != (i == 0) {
				t.Errorf("with %q the notes are %s", v, notes)
			}
		}
	}
	all, err := render(t, "publicURL: https://people.example")
	if err != nil {
		t.Fatal(err)
	}
	d := of(all, func(d *appsv1.Deployment) string { return d.Name })["fleet-parley-escalation"]
	if got := env(&d.Spec.Template.Spec.Containers[0])["PARLEY_PUBLIC_URL"]; got != "https://people.example" {
		t.Errorf("escalation is reached at %q", got)
	}
}

// Of the servers' ports, the clients' alone is open to everybody.
func TestNATSPolicy(t *testing.T) {
	t.Parallel()
	var values struct{ ExtraResources []any }
	data, err := os.ReadFile("../../deploy/helm/nats-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &values); err != nil {
		t.Fatal(err)
	}
	if len(values.ExtraResources) != 1 {
		t.Fatalf("%d more resources, want one policy", len(values.ExtraResources))
	}
	manifest, err := yaml.Marshal(values.ExtraResources[0])
	if err != nil {
		t.Fatal(err)
	}
	o, err := decode(manifest)
	if err != nil {
		t.Fatal(err)
	}
	p, ok := o.(*networkingv1.NetworkPolicy)
	if !ok {
		t.Fatalf("%T, want a policy", o)
	}
	servers := map[string]string{"app.kubernetes.io/name": "nats", "app.kubernetes.io/component": "nats"}
	if !slices.Equal(p.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) ||
		metav1.FormatLabelSelector(&p.Spec.PodSelector) != metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: servers}) {
		t.Errorf("the policy is %+v", p)
	}
	who := map[string]string{}
	for _, rule := range p.Spec.Ingress {
		from := "all"
		if len(rule.From) == 1 {
			from = metav1.FormatLabelSelector(rule.From[0].PodSelector)
		}
		for _, port := range ports(rule.Ports) {
			who[port] += from
		}
	}
	want := map[string]string{"4222": "all", "6222": "app.kubernetes.io/component=nats,app.kubernetes.io/name=nats", "8222": "app.kubernetes.io/name=parley"}
	for port, w := range want {
		if who[port] != w {
			t.Errorf("%s reaches port %s, want %s", who[port], port, w)
		}
	}
	if len(who) != len(want) {
		t.Errorf("the policy is about the ports %v", who)
	}
}

// TestGuide follows the commands of the guide: what the pods want is made by
// them, and the image has a tag that is somebody's.
func TestGuide(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/guide/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(page), "\\\n", " ")
	made := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^kubectl create (?:secret|configmap)(?: generic| tls)? (\S+)`).FindAllStringSubmatch(text, -1) {
		made[m[1]] = true
	}
	install := regexp.MustCompile(`(?m)^helm upgrade --install fleet deploy/helm/parley (.*)$`).FindStringSubmatch(text)
	if install == nil {
		t.Fatal("the guide does not say how to install the chart")
	}
	set := map[string]any{}
	for _, m := range regexp.MustCompile(`--set (\S+)`).FindAllStringSubmatch(install[1], -1) {
		if err := strvals.ParseInto(m[1], set); err != nil {
			t.Fatal(err)
		}
	}
	values, err := chartutil.Values(set).YAML()
	if err != nil {
		t.Fatal(err)
	}
	all, err := render(t, values)
	if err != nil {
		t.Fatal(err)
	}
	servers, err := os.ReadFile("../../deploy/helm/nats-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var wanted []string
	for _, m := range regexp.MustCompile(`(?m)(?:secretName: |secretKeyRef: {name: |configMap:\n +name: )([\w-]+)`).FindAllStringSubmatch(string(servers), -1) {
		wanted = append(wanted, m[1])
	}
	for n, d := range of(all, func(d *appsv1.Deployment) string { return d.Name }) {
		pod := d.Spec.Template.Spec
		for _, v := range pod.Volumes {
			if v.Secret != nil {
				wanted = append(wanted, v.Secret.SecretName)
			}
		}
		for _, e := range pod.Containers[0].Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				wanted = append(wanted, e.ValueFrom.SecretKeyRef.Name)
			}
		}
		image := pod.Containers[0].Image
		if strings.HasSuffix(image, ":dev") || !strings.Contains(text, "podman push "+image+"\n") {
			t.Errorf("%s runs %s, which the guide does not push", n, image)
		}
	}
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	if len(wanted) < 5 {
		t.Errorf("pods want %q alone", wanted)
	}
	for _, w := range wanted {
		if !made[w] {
			t.Errorf("the pods want %s, which the guide does not make: %v", w, made)
		}
	}
}
