{{/* What both charts share: the file is the same in each but for the chart's name, which keeps them apart under
     one umbrella. */}}
{{/* A name that leaves room for what objects add to it. A longer one ends with a hash of the whole, or two that begin
     alike would be one. Arguments: most characters, name. */}}
{{- define "chorale-silo.cut" -}}
{{- $most := index . 0 -}}
{{- $name := index . 1 | trimSuffix "-" -}}
{{- if gt (len $name) $most -}}
{{- $name = printf "%s-%s" (trunc (sub $most 9 | int) $name | trimAll "-.") (sha256sum $name | trunc 8) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "chorale-silo.name" -}}
{{- default .Chart.Name .Values.nameOverride | list 50 | include "chorale-silo.cut" -}}
{{- end -}}

{{- define "chorale-silo.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- default $full .Values.fullnameOverride | list 50 | include "chorale-silo.cut" -}}
{{- end -}}

{{- define "chorale-silo.selector" -}}
app.kubernetes.io/name: {{ include "chorale-silo.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: "silo"
{{- end -}}

{{/* Labels of the pod that `helm test` runs: the network policy lets it read the probes. */}}
{{- define "chorale-silo.testSelector" -}}
app.kubernetes.io/name: {{ include "chorale-silo.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: "test"
{{- end -}}

{{/* Namespace, labels and annotations of an object. Arguments: context, labels and annotations of its own, and
     the namespace where it is not the release's. */}}
{{- define "chorale-silo.metadata" -}}
{{- $top := index . 0 -}}
{{- $labels := include "chorale-silo.selector" $top | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/version" $top.Chart.AppVersion -}}
{{- $_ := set $labels "app.kubernetes.io/part-of" "chorale" -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" $top.Release.Service -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" $top.Chart.Name $top.Chart.Version | replace "+" "_") -}}
namespace: {{ slice . 3 | first | default $top.Release.Namespace }}
labels:
  {{- merge dict (default dict (index . 1)) $labels (default dict $top.Values.commonLabels) | toYaml | nindent 2 }}
{{- with merge dict (default dict (index . 2)) (default dict $top.Values.commonAnnotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Metadata of the process's pod. No version is in it: a new one of the chart alone must not restart the pod. The
     checksum is: settings are read at the start alone. */}}
{{- define "chorale-silo.podMetadata" -}}
{{- $labels := include "chorale-silo.selector" . | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/part-of" "chorale" -}}
{{- $annotations := dict "checksum/settings" (include "chorale-silo.files" . | sha256sum) -}}
labels:
  {{- merge $labels (default dict .Values.podLabels) (default dict .Values.commonLabels) | toYaml | nindent 2 }}
annotations:
  {{- merge $annotations (default dict .Values.podAnnotations) (default dict .Values.commonAnnotations) | toYaml | nindent 2 }}
{{- end -}}

{{- define "chorale-silo.image" -}}
{{- $image := .Values.image -}}
{{- $registry := default $image.registry .Values.global.imageRegistry -}}
{{- if $registry }}{{ $registry | trimSuffix "/" }}/{{ end }}{{ $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default .Chart.AppVersion $image.tag }}{{ end -}}
{{- end -}}

{{- define "chorale-silo.serviceAccountName" -}}
{{- default (ternary (include "chorale-silo.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "chorale-silo.identitySecret" -}}
{{- if .Values.identity.certManager.enabled -}}
{{- printf "%s-identity" (include "chorale-silo.fullname" .) -}}
{{- else -}}
{{- .Values.identity.secretName -}}
{{- end -}}
{{- end -}}

{{/* Fields of every pod of the chart. */}}
{{- define "chorale-silo.anyPod" -}}
serviceAccountName: {{ include "chorale-silo.serviceAccountName" . }}
# variables such as CHORALE_*_SERVICE_HOST would be read as settings
enableServiceLinks: false
{{- $secrets := list -}}
{{- range concat (default list .Values.global.imagePullSecrets) (default list .Values.imagePullSecrets) -}}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) -}}
{{- end -}}
{{- with uniq $secrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- range $name, $value := .Values.podSecurityContext }}
  {{- if not (has $value (list nil "")) }}
  {{ $name }}: {{ toJson $value }}
  {{- end }}
  {{- end }}
{{- end -}}

{{/* Where the process's pod runs, and how it is stopped and looks up names. */}}
{{- define "chorale-silo.placement" -}}
automountServiceAccountToken: {{ .Values.serviceAccount.automountServiceAccountToken }}
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds | int }}
{{- $tolerations := default list .Values.tolerations -}}
{{- if not (kindIs "invalid" .Values.tolerationSeconds) -}}
{{- range list "not-ready" "unreachable" -}}
{{- $key := printf "node.kubernetes.io/%s" . -}}
{{- $seconds := int64 $.Values.tolerationSeconds -}}
{{- $tolerations = append $tolerations (dict "key" $key "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" $seconds) -}}
{{- end -}}
{{- end -}}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $name := list "priorityClassName" "schedulerName" "nodeSelector" "affinity" "topologySpreadConstraints" "hostAliases" "dnsPolicy" "dnsConfig" }}
{{- with get $.Values $name }}
{{ dict $name . | toYaml }}
{{- end }}
{{- end }}
{{- end -}}

{{/* One entry of metricsPods, clientPods or pods as a NetworkPolicyPeer. */}}
{{- define "chorale-silo.peer" -}}
{{- if .namespaceLabels -}}
namespaceSelector:
  matchLabels: {{ toJson .namespaceLabels }}
{{ end -}}
{{- if .podLabels -}}
podSelector:
  matchLabels: {{ toJson .podLabels }}
{{ end -}}
{{- end -}}

{{/* The way to the cluster's DNS. */}}
{{- define "chorale-silo.dnsEgress" -}}
{{- with .Values.networkPolicy.dns -}}
- ports:
    {{- range list 53 (int .port) | uniq }}
    - port: {{ . }}
      protocol: UDP
    - port: {{ . }}
      protocol: TCP
    {{- end }}
  to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ .namespace | quote }}
      podSelector:
        matchLabels:
          {{- toYaml .podLabels | nindent 10 }}
    {{- range .cidrs }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
{{- end -}}
{{- end -}}

{{/* The way to the collector of traces, on the port of its URL. */}}
{{- define "chorale-silo.tracingEgress" -}}
{{- with .Values.tracing -}}
- ports:
    - port: {{ regexFind "[0-9]+$" (regexFind ":[0-9]+$" (urlParse .endpoint).host) | default (ternary 443 80 (hasPrefix "https:" .endpoint)) }}
      protocol: TCP
  to:
    {{- range .pods }}
    - {{- include "chorale-silo.peer" . | nindent 6 }}
    {{- end }}
    {{- range .cidrs }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
{{- end -}}
{{- end -}}

{{/* Fields of a settings file under their own names; a null leaves the product's default. */}}
{{- define "chorale-silo.fields" -}}
{{- range $name, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }}: {{ toJson $value }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Their times; what values give goes before. */}}
{{- define "chorale-silo.probes" -}}
{{- $start := dict "periodSeconds" 5 "timeoutSeconds" 5 "failureThreshold" 60 -}}
{{- $live := dict "periodSeconds" 10 "timeoutSeconds" 10 "failureThreshold" 6 -}}
{{- $ready := dict "periodSeconds" 5 "timeoutSeconds" 5 "failureThreshold" 2 -}}
{{- range $name, $times := dict "startupProbe" $start "livenessProbe" $live "readinessProbe" $ready }}
{{ $name }}:
  httpGet: {path: {{ ternary "/readyz" "/livez" (eq $name "readinessProbe") }}, port: metrics}
  {{- merge (deepCopy (default dict (get $.Values $name))) $times | toYaml | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Containers beside the process. Arguments: context, containers. One that says nothing of its rights has the chart's. */}}
{{- define "chorale-silo.containers" -}}
{{- $context := (index . 0).Values.containerSecurityContext -}}
{{- range index . 1 }}
- {{- hasKey . "securityContext" | ternary . (merge (dict "securityContext" $context) .) | toYaml | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where the process keeps what it has: a claim that is there, or one that the StatefulSet makes. */}}
{{- define "chorale-silo.existingVolume" -}}
{{- with .Values.persistence.existingClaim }}
- name: state
  persistentVolumeClaim:
    claimName: {{ . }}
{{- end }}
{{- end -}}

{{- define "chorale-silo.claimTemplates" -}}
{{- $claim := .Values.persistence -}}
{{- if not $claim.existingClaim -}}
volumeClaimTemplates:
  - metadata:
      name: state
      labels:
        {{- include "chorale-silo.selector" . | nindent 8 }}
      {{- with $claim.annotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      accessModes: {{ default (list "ReadWriteOnce") $claim.accessModes | toJson }}
      {{- with $claim.storageClassName }}
      storageClassName: {{ . }}
      {{- end }}
      resources:
        requests:
          storage: {{ $claim.size }}
{{- end -}}
{{- end -}}

{{/* How Prometheus reads the metrics: an endpoint of serviceMonitor or podMonitor. */}}
{{- define "chorale-silo.scrape" -}}
port: metrics
path: /metrics
interval: {{ .interval }}
{{- with .scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
relabelings:
  # a pod has another address after every restart
  - sourceLabels: [namespace, pod]
    separator: /
    targetLabel: instance
  {{- with .relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
