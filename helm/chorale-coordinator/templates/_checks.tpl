{{/* What no schema can say: values that contradict one another, each with one sentence. */}}
{{- define "chorale-coordinator.checks" -}}
{{- if not .Values.federation -}}
{{- fail "federation: give the name of the federation, as in every certificate" -}}
{{- end -}}
{{- $identity := .Values.identity -}}
{{- if and $identity.secretName $identity.certManager.enabled -}}
{{- fail "identity: give secretName or certManager.enabled, not both: only one of them can hold the certificate" -}}
{{- end -}}
{{- if not (or $identity.secretName $identity.certManager.enabled) -}}
{{- fail "identity.secretName: name the Secret with tls.crt and tls.key" -}}
{{- end -}}
{{- if and $identity.certManager.enabled (not $identity.certManager.issuerRef.name) -}}
{{- fail "identity.certManager.issuerRef.name: name the issuer that signs for the federation's authority" -}}
{{- end -}}
{{- if and $identity.certManager.enabled (not $identity.certManager.dnsNames) (not $identity.certManager.ipAddresses) -}}
{{- fail "identity.certManager: give dnsNames or ipAddresses, what silos dial must be in the certificate" -}}
{{- end -}}
{{- $certificate := $identity.certManager -}}
{{- if and (or $certificate.issuerRef.name $certificate.dnsNames $certificate.ipAddresses) (not $certificate.enabled) -}}
{{- fail "identity.certManager: issuerRef, dnsNames and ipAddresses do nothing while enabled is false" -}}
{{- end -}}
{{- if and $certificate.enabled (ge (trimSuffix "h" $certificate.renewBefore | int) (trimSuffix "h" $certificate.duration | int)) -}}
{{- fail "identity.certManager.renewBefore: must be less than duration, or the certificate is renewed without end" -}}
{{- end -}}
{{- if and .Values.roster.configMapName .Values.roster.document -}}
{{- fail "roster: give configMapName or document, not both: there is one roster" -}}
{{- end -}}
{{- if not (or .Values.roster.configMapName .Values.roster.document) -}}
{{- fail "roster: give configMapName, or the file by --set-file roster.document=roster.json" -}}
{{- end -}}
{{- if contains "PRIVATE KEY" (default "" .Values.roster.document) -}}
{{- fail "roster.document: this is a private key; give the signed roster" -}}
{{- end -}}
{{- $deadline := default 30 .Values.settings.stage_deadline_seconds -}}
{{- $cap := default 600 .Values.settings.stage_hard_cap_seconds -}}
{{- if lt (float64 $cap) (float64 $deadline) -}}
{{- fail (printf "settings.stage_hard_cap_seconds: must be at least settings.stage_deadline_seconds, %v, got %v" $deadline $cap) -}}
{{- end -}}
{{- if eq (int .Values.metrics.port) 7443 -}}
{{- fail "metrics.port: 7443 is the port of gRPC in the same pod" -}}
{{- end -}}
{{- range $name := list "loadBalancerSourceRanges" "loadBalancerClass" "loadBalancerIP" -}}
{{- if and (get $.Values.service $name) (ne $.Values.service.type "LoadBalancer") -}}
{{- fail (printf "service.%s: only a Service of type LoadBalancer has it" $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.service.nodePort (eq .Values.service.type "ClusterIP") -}}
{{- fail "service.nodePort: a Service of type ClusterIP has none" -}}
{{- end -}}
{{- if and .Values.ingress.enabled .Values.gateway.enabled -}}
{{- fail "ingress and gateway: enable one of them, not both: silos dial one name" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not (and .Values.ingress.host .Values.ingress.className)) -}}
{{- fail "ingress: give host and className, TLS is passed through by host name" -}}
{{- end -}}
{{- if and (or .Values.ingress.host .Values.ingress.className) (not .Values.ingress.enabled) -}}
{{- fail "ingress: host and className do nothing while enabled is false" -}}
{{- end -}}
{{- if and (or .Values.gateway.hostnames .Values.gateway.name) (not .Values.gateway.enabled) -}}
{{- fail "gateway: hostnames and name do nothing while enabled is false" -}}
{{- end -}}
{{- range $name, $value := .Values.ingress.annotations -}}
{{- if hasSuffix "/ssl-passthrough" $name -}}
{{- fail "ingress.annotations: TLS is always passed through, ending it there would break mutual authentication" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not (and .Values.gateway.hostnames .Values.gateway.name)) -}}
{{- fail "gateway: give hostnames and name, TLS is passed through by host name" -}}
{{- end -}}
{{- if and (or .Values.networkPolicy.clientCidrs .Values.networkPolicy.clientPods) (not .Values.networkPolicy.enabled) -}}
{{- fail "networkPolicy: clientCidrs and clientPods do nothing while enabled is false" -}}
{{- end -}}
{{- if and .Values.networkPolicy.clientCidrs (or .Values.ingress.enabled .Values.gateway.enabled) -}}
{{- fail "networkPolicy.clientCidrs: behind an ingress or a gateway its pods are who dials; give clientPods" -}}
{{- end -}}
{{- if and .Values.networkPolicy.clientCidrs (eq .Values.service.externalTrafficPolicy "Cluster") -}}
{{- fail "networkPolicy.clientCidrs: with service.externalTrafficPolicy Cluster the pod sees addresses of nodes; use Local" -}}
{{- end -}}
{{- include "chorale-coordinator.checkRanges" (list "networkPolicy.clientCidrs" .Values.networkPolicy.clientCidrs) -}}
{{- include "chorale-coordinator.checkRanges" (list "service.loadBalancerSourceRanges" .Values.service.loadBalancerSourceRanges) -}}
{{- if and (default dict .Values.backup).enabled (has "ReadWriteOncePod" .Values.persistence.accessModes) -}}
{{- fail "backup: with persistence.accessModes ReadWriteOncePod its pod cannot mount the volume; see Back up in docs/deploy-kubernetes.md" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled .Values.tracing.endpoint -}}
{{- include "chorale-coordinator.checkNames" . -}}
{{- end -}}
{{- include "chorale-coordinator.commonChecks" . -}}
{{- end -}}
