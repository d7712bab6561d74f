{{- define "chorale.dataVolumes" -}}
{{- $count := 0 -}}
{{- if .Values.data.volume.persistentVolumeClaim }}{{ $count = add1 $count }}{{ end -}}
{{- if .Values.data.volume.hostPath }}{{ $count = add1 $count }}{{ end -}}
{{- if .Values.data.volume.csi.driver }}{{ $count = add1 $count }}{{ end -}}
{{- $count -}}
{{- end -}}

{{/* "yes" for a format that reads a file or folder. */}}
{{- define "chorale.needsPath" -}}
{{- if not (has .Values.data.format (list "" "digits" "module")) }}yes{{ end -}}
{{- end -}}

{{/* The data section of silo.yaml: what is empty is left to the product's default. */}}
{{- define "chorale.data" -}}
{{- $data := omit .Values.data "volume" "path" -}}
{{- range $name := list "module" "columns_in_file" "missing" "labels" "partition" -}}
{{- if empty (get $data $name) }}{{ $data = omit $data $name }}{{ end -}}
{{- end -}}
{{- if .Values.data.path }}{{ $data = set $data "path" (printf "/data/%s" .Values.data.path) }}{{ end -}}
{{- toYaml $data -}}
{{- end -}}

{{/* silo.yaml as `chorale silo run` reads it. */}}
{{- define "chorale.settings" -}}
name: {{ .Values.name | quote }}
federation: {{ .Values.federation | quote }}
coordinator: {{ .Values.coordinator.address | quote }}
{{- with .Values.coordinator.name }}
coordinator_name: {{ . | quote }}
{{- end }}
{{- with .Values.proxy.address }}
proxy: {{ . | quote }}
{{- end }}
identity:
  certificate: /etc/chorale/identity/tls.crt
  key: /etc/chorale/identity/tls.key
authority: /etc/chorale/identity/ca.crt
directory: /var/lib/chorale/state
policy: /etc/chorale/settings/policy.yaml
metrics_listen: {{ printf "%s:%d" .Values.metrics.host (int .Values.metrics.port) | quote }}
data:
  {{- include "chorale.data" . | nindent 2 }}
{{- with .Values.tracing.endpoint }}
tracing_endpoint: {{ . | quote }}
{{- end }}
{{ toYaml .Values.settings }}
{{- end -}}

{{/* policy.yaml; a null leaves the product's default. */}}
{{- define "chorale.policy" -}}
federation: {{ .Values.federation | quote }}
{{- range $name, $value := .Values.policy }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }}: {{ toJson $value }}
{{- end }}
{{- end }}
{{- end -}}
