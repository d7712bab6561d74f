{{- define "chorale.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "chorale.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "chorale.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "chorale.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "chorale.selector" -}}
app.kubernetes.io/name: {{ include "chorale.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: {{ .Chart.Name | trimPrefix "chorale-" | quote }}
{{- end -}}

{{/* Labels of the pod that `helm test` runs: the network policy lets it read the probes. */}}
{{- define "chorale.testSelector" -}}
app.kubernetes.io/name: {{ include "chorale.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: "test"
{{- end -}}

{{- define "chorale.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: "chorale"
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{- define "chorale.labels" -}}
{{ include "chorale.selector" . }}
{{ include "chorale.commonLabels" . }}
{{- end -}}

{{- define "chorale.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "chorale.identitySecret" -}}
{{- if .Values.identity.certManager.enabled -}}
{{- printf "%s-identity" (include "chorale.fullname" .) -}}
{{- else -}}
{{- .Values.identity.secretName -}}
{{- end -}}
{{- end -}}

{{- define "chorale.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ .Values.security.runAsUser | int64 }}
runAsGroup: {{ .Values.security.runAsGroup | int64 }}
fsGroup: {{ .Values.security.fsGroup | int64 }}
fsGroupChangePolicy: OnRootMismatch
{{- with .Values.security.supplementalGroups }}
supplementalGroups: {{ toJson . }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "chorale.containerSecurityContext" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* One entry of metricsPods as a NetworkPolicyPeer. */}}
{{- define "chorale.peer" -}}
{{- if .namespaceLabels -}}
namespaceSelector:
  matchLabels: {{ toJson .namespaceLabels }}
{{ end -}}
{{- if .podLabels -}}
podSelector:
  matchLabels: {{ toJson .podLabels }}
{{ end -}}
{{- end -}}

{{/* The way to the collector of traces, on the port of its URL. */}}
{{- define "chorale.tracingEgress" -}}
{{- with .Values.tracing -}}
- ports:
    - port: {{ regexFind "[0-9]+$" (regexFind ":[0-9]+$" (urlParse .endpoint).host) | default (ternary 443 80 (hasPrefix "https:" .endpoint)) }}
      protocol: TCP
  to:
    {{- range .pods }}
    - {{- include "chorale.peer" . | nindent 6 }}
    {{- end }}
    {{- range .cidrs }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
{{- end -}}
{{- end -}}

{{- define "chorale.observability.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}
