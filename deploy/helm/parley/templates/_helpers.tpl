{{/* A name of this release's, such as fleet-parley-router. */}}
{{- define "parley.name" -}}
{{ printf "%s-parley-%s" .root.Release.Name .part | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* What selects the pods of one part. */}}
{{- define "parley.selector" -}}
app.kubernetes.io/name: parley
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "parley.labels" -}}
{{ include "parley.selector" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "parley.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* How any process reaches NATS; secret holds user and password. */}}
{{- define "parley.connection" -}}
- {name: PARLEY_SERVER, value: {{ .root.Values.nats.url | quote }}}
- {name: PARLEY_LOG_FORMAT, value: json}
{{- if .root.Values.nats.tlsSecret }}
- {name: PARLEY_TLSCA, value: /etc/parley/tls/ca.crt}
{{- end }}
{{- if .secret }}
- {name: PARLEY_USER, valueFrom: {secretKeyRef: {name: {{ .secret | quote }}, key: user}}}
- {name: PARLEY_PASSWORD, valueFrom: {secretKeyRef: {name: {{ .secret | quote }}, key: password}}}
{{- end }}
{{- end }}

{{/* Where a process may write: the root of its container is read-only. */}}
{{- define "parley.mounts" -}}
- {name: data, mountPath: /data}
- {name: tmp, mountPath: /tmp}
{{- if .Values.nats.tlsSecret }}
- {name: tls, mountPath: /etc/parley/tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "parley.volumes" -}}
- {name: data, emptyDir: {}}
- {name: tmp, emptyDir: {}}
{{- if .Values.nats.tlsSecret }}
- name: tls
  secret: {secretName: {{ .Values.nats.tlsSecret | quote }}, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- end }}

{{/* What is the same in every pod; grace is how many seconds it has to end. */}}
{{- define "parley.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .grace }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "parley.selector" . | nindent 8 }}
{{- end }}

{{- define "parley.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* What may be called over HTTP: gateway and a2e. */}}
{{- define "parley.isDoor" -}}
{{- if has . (list "a2e" "gateway") }}yes{{ end }}
{{- end }}

{{/* Whether a worker runs: a door does where somebody says who may enter. */}}
{{- define "parley.runs" -}}
{{- $d := .root.Values.doors }}
{{- if or (not (include "parley.isDoor" .worker)) $d.tokensSecret $d.issuer $d.open }}yes{{ end }}
{{- end }}

{{/* What a worker is told beside what all are. */}}
{{- define "parley.own" -}}
{{- $d := .root.Values.doors }}
{{- if include "parley.isDoor" .worker }}
{{- if $d.tokensSecret }}
- {name: PARLEY_A2A_TOKENS, value: /etc/parley/doors/tokens}
{{- end }}
{{- if $d.issuer }}
{{- if not $d.audience }}{{ fail "doors.issuer needs doors.audience: a token for somebody else is none for the fleet" }}{{ end }}
- {name: PARLEY_A2A_ISSUER, value: {{ $d.issuer | quote }}}
{{- end }}
{{- if $d.audience }}
- {name: PARLEY_A2A_AUDIENCE, value: {{ $d.audience | quote }}}
{{- end }}
{{- if $d.open }}
- {name: PARLEY_A2A_OPEN, value: "true"}
{{- end }}
{{- if $d.url }}
- {name: PARLEY_A2A_URL, value: {{ $d.url | quote }}}
{{- end }}
{{- if and $d.mcp (eq .worker "gateway") }}
- {name: PARLEY_SERVE_MCP, value: "true"}
{{- end }}
{{- if and $d.a2ePort (eq .worker "a2e") }}
{{- if not $d.tokensSecret }}{{ fail "doors.a2ePort needs doors.tokensSecret: who connects there proves by a token who they are" }}{{ end }}
- {name: PARLEY_A2E_LISTEN, value: "0.0.0.0:{{ $d.a2ePort }}"}
{{- end }}
{{- end }}
{{- if and (eq .worker "escalation") .root.Values.publicURL }}
- {name: PARLEY_PUBLIC_URL, value: {{ .root.Values.publicURL | quote }}}
{{- end }}
{{- if and (eq .worker "callout") .root.Values.callout.issuerSecret }}
- {name: PARLEY_CALLOUT_ISSUER, valueFrom: {secretKeyRef: {name: {{ .root.Values.callout.issuerSecret | quote }}, key: issuer}}}
- {name: PARLEY_CALLOUT_ACCOUNT, value: {{ .root.Values.callout.account | quote }}}
{{- end }}
{{- end }}
