{{- define "chorale-silo.dataVolumes" -}}
{{- $count := 0 -}}
{{- if .Values.data.volume.persistentVolumeClaim }}{{ $count = add1 $count }}{{ end -}}
{{- if .Values.data.volume.hostPath }}{{ $count = add1 $count }}{{ end -}}
{{- if .Values.data.volume.csi.driver }}{{ $count = add1 $count }}{{ end -}}
{{- $count -}}
{{- end -}}

{{/* "yes" for a format that reads a file or folder. */}}
{{- define "chorale-silo.needsPath" -}}
{{- if not (or .Values.data.from (has .Values.data.format (list "" "digits" "module"))) }}yes{{ end -}}
{{- end -}}

{{/* A data set of silo.yaml: what is empty is left to the product's default. */}}
{{- define "chorale-silo.dataSet" -}}
{{- $given := . -}}
{{- $data := omit $given "volume" "path" "exclude" "policy" -}}
{{- range $name := list "from" "options" "module" "columns_in_file" "missing" "dialect" "rename" "absent" "values" "units" "derive" "labels" "drop" "partition" "unit" -}}
{{- if empty (get $data $name) }}{{ $data = omit $data $name }}{{ end -}}
{{- end -}}
{{- range $name := list "path" "exclude" -}}
{{- with get $given $name }}{{ $data = set $data $name (printf "/data/%s" .) }}{{ end -}}
{{- end -}}
{{- if $given.policy }}{{ $data = set $data "policy" (printf "/etc/chorale/settings/policy-%s.yaml" $given.name) }}{{ end -}}
{{- toYaml $data -}}
{{- end -}}

{{/* The files that the agent reads at its start. */}}
{{- define "chorale-silo.files" -}}
silo.yaml: |
  {{- include "chorale-silo.settings" . | nindent 2 }}
policy.yaml: |
  {{- include "chorale-silo.policy" .Values | nindent 2 }}
{{- range prepend (default list .Values.moreData) .Values.data }}
{{- if .policy }}
policy-{{ .name }}.yaml: |
  {{- $policy := mergeOverwrite (deepCopy $.Values.policy) .policy }}
  {{- include "chorale-silo.policy" (dict "federation" $.Values.federation "policy" $policy) | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* silo.yaml as `chorale silo run` reads it. */}}
{{- define "chorale-silo.settings" -}}
name: {{ .Values.name | quote }}
federation: {{ .Values.federation | quote }}
coordinator: {{ .Values.coordinator.address | quote }}
{{- with .Values.coordinator.name }}
coordinator_name: {{ . | quote }}
{{- end }}
{{- with .Values.proxy.address }}
proxy: {{ . | quote }}
{{- end }}
{{- if .Values.proxy.credentialsSecretName }}
proxy_credentials: /etc/chorale/proxy/credentials
{{- end }}
{{- with .Values.proxy.noProxy }}
no_proxy: {{ toJson . }}
{{- end }}
identity:
  certificate: /etc/chorale/identity/tls.crt
  key: /etc/chorale/identity/tls.key
authority: /etc/chorale/authority/authority.crt
directory: /var/lib/chorale/state
policy: /etc/chorale/settings/policy.yaml
metrics_listen: {{ printf "%s:%d" .Values.metrics.host (int .Values.metrics.port) | quote }}
data:
{{- if .Values.moreData }}
{{- range prepend .Values.moreData .Values.data }}
  -
    {{- include "chorale-silo.dataSet" . | nindent 4 }}
{{- end }}
{{- else }}
  {{- include "chorale-silo.dataSet" .Values.data | nindent 2 }}
{{- end }}
{{- with .Values.tracing.endpoint }}
tracing_endpoint: {{ . | quote }}
{{- end }}
{{- include "chorale-silo.fields" .Values.settings }}
{{- end -}}

{{/* policy.yaml of a (federation, policy); a null leaves the product's default. */}}
{{- define "chorale-silo.policy" -}}
federation: {{ .federation | quote }}
{{- include "chorale-silo.fields" (omit .policy "privacy") }}
{{- with include "chorale-silo.fields" .policy.privacy | trim }}
privacy:
  {{- . | nindent 2 }}
{{- end }}
...
{{- end -}}
