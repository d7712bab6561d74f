{{/* The files that the process reads at its start. */}}
{{- define "chorale-coordinator.files" -}}
coordinator.yaml: |
  {{- include "chorale-coordinator.settings" . | nindent 2 }}
{{- end -}}

{{/* coordinator.yaml as `chorale coordinator run` reads it. */}}
{{- define "chorale-coordinator.settings" -}}
federation: {{ .Values.federation | quote }}
listen: {{ printf "%s:7443" .Values.listenHost | quote }}
metrics_listen: {{ printf "%s:%d" .Values.listenHost (int .Values.metrics.port) | quote }}
identity:
  certificate: /etc/chorale/identity/tls.crt
  key: /etc/chorale/identity/tls.key
authority: /etc/chorale/authority/authority.crt
roster: /etc/chorale/roster/roster.json
directory: /var/lib/chorale/state
{{- with .Values.tracing.endpoint }}
tracing_endpoint: {{ . | quote }}
{{- end }}
{{- include "chorale-coordinator.fields" .Values.settings }}
{{- end -}}
