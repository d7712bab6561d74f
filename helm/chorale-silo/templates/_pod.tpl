{{/* Resources, with the GPUs as request and limit: Kubernetes wants both equal. */}}
{{- define "chorale-silo.resources" -}}
{{- $requests := .Values.resources.requests -}}
{{- $limits := .Values.resources.limits -}}
{{- if .Values.gpu.count -}}
{{- $gpus := dict .Values.gpu.resourceName (int .Values.gpu.count) -}}
{{- $requests = merge (deepCopy $gpus) $requests -}}
{{- $limits = merge (deepCopy $gpus) $limits -}}
{{- end -}}
requests:
  {{- toYaml $requests | nindent 2 }}
limits:
  {{- toYaml $limits | nindent 2 }}
{{- end -}}

{{- define "chorale-silo.dataVolume" -}}
{{- with .Values.data.volume.persistentVolumeClaim }}
- name: data
  persistentVolumeClaim:
    claimName: {{ . }}
    readOnly: true
{{- end }}
{{- with .Values.data.volume.hostPath }}
- name: data
  hostPath:
    path: {{ . | quote }}
    type: Directory
{{- end }}
{{- with .Values.data.volume.csi }}
{{- if .driver }}
- name: data
  csi:
    driver: {{ .driver }}
    readOnly: true
    {{- with .fsType }}
    fsType: {{ . }}
    {{- end }}
    {{- with .volumeAttributes }}
    volumeAttributes:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .secretName }}
    nodePublishSecretRef:
      name: {{ . }}
    {{- end }}
{{- end }}
{{- end }}
{{- end -}}
