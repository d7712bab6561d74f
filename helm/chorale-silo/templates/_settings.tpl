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

{{/* A data set of silo.yaml: what is empty is left to the product's default. */}}
{{- define "chorale.dataSet" -}}
{{- $given := . -}}
{{- $data := omit $given "volume" "path" "policy" -}}
{{- range $name := list "module" "columns_in_file" "missing" "labels" "partition" -}}
{{- if empty (get $data $name) }}{{ $data = omit $data $name }}{{ end -}}
{{- end -}}
{{- if $given.path }}{{ $data = set $data "path" (printf "/data/%s" $given.path) }}{{ end -}}
{{- if $given.policy }}{{ $data = set $data "policy" (printf "/etc/chorale/settings/policy-%s.yaml" $given.name) }}{{ end -}}
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
{{- if .Values.moreData }}
{{- range prepend .Values.moreData .Values.data }}
  -
    {{- include "chorale.dataSet" . | nindent 4 }}
{{- end }}
{{- else }}
  {{- include "chorale.dataSet" .Values.data | nindent 2 }}
{{- end }}
{{- with .Values.tracing.endpoint }}
tracing_endpoint: {{ . | quote }}
{{- end }}
{{ toYaml .Values.settings }}
{{- end -}}

{{/* policy.yaml of a (federation, policy); a null leaves the product's default. */}}
{{- define "chorale.policy" -}}
federation: {{ .federation | quote }}
{{- range $name, $value := .policy }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }}: {{ toJson $value }}
{{- end }}
{{- end }}
{{- end -}}
