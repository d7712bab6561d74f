{{/* What no schema can say: values that contradict one another, each with one sentence. */}}
{{- define "chorale.checks" -}}
{{- if not .Values.federation -}}
{{- fail "federation: give the name of the federation, as in every certificate" -}}
{{- end -}}
{{- $identity := .Values.identity -}}
{{- if and $identity.secretName $identity.certManager.enabled -}}
{{- fail "identity: give secretName or certManager.enabled, not both: only one of them can hold the certificate" -}}
{{- end -}}
{{- if not (or $identity.secretName $identity.certManager.enabled) -}}
{{- fail "identity.secretName: name the Secret with tls.crt, tls.key and ca.crt" -}}
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
{{- if contains "PRIVATE KEY" .Values.roster.document -}}
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
{{- if and .Values.service.loadBalancerSourceRanges (ne .Values.service.type "LoadBalancer") -}}
{{- fail "service.loadBalancerSourceRanges: only a Service of type LoadBalancer has them" -}}
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
{{- include "chorale.checkRanges" (list "networkPolicy.clientCidrs" .Values.networkPolicy.clientCidrs) -}}
{{- include "chorale.checkRanges" (list "service.loadBalancerSourceRanges" .Values.service.loadBalancerSourceRanges) -}}
{{- include "chorale.checkTracing" . -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.metricsPods) (or .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled) -}}
{{- fail "networkPolicy.metricsPods: name Prometheus' pods, the network policy lets no others read the metrics" -}}
{{- end -}}
{{- range $label, $value := .Values.podLabels -}}
{{- if hasPrefix "app.kubernetes.io/" $label -}}
{{- fail (printf "podLabels: %s belongs to the chart, Services and the network policy find the pod by it" $label) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled -}}
{{- fail "metrics: enable serviceMonitor or podMonitor, not both: every series would be there twice" -}}
{{- end -}}
{{- end -}}

{{- define "chorale.checkTracing" -}}
{{- $tracing := .Values.tracing -}}
{{- $isNamed := or $tracing.pods $tracing.cidrs -}}
{{- if and (or $isNamed $tracing.secretName) (not $tracing.endpoint) -}}
{{- fail "tracing: pods, cidrs and secretName are of no use without endpoint" -}}
{{- end -}}
{{- if and $tracing.endpoint .Values.networkPolicy.enabled (not $isNamed) -}}
{{- fail "tracing: give the collector's pods or cidrs, the network policy allows no others" -}}
{{- end -}}
{{- include "chorale.checkReached" (list "tracing.cidrs" $tracing.cidrs) -}}
{{- include "chorale.checkReached" (list "networkPolicy.dns.cidrs" .Values.networkPolicy.dns.cidrs) -}}
{{- end -}}

{{/* Arguments: name of the value, ranges. */}}
{{- define "chorale.checkRanges" -}}
{{- $name := index . 0 -}}
{{- $octet := `(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])` -}}
{{- $four := printf `%s(\.%s){3}/(3[0-2]|[12]?[0-9])` $octet $octet -}}
{{- $six := `[0-9a-fA-F:]*:[0-9a-fA-F:.]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9])` -}}
{{- range index . 1 -}}
{{- if not (regexMatch (printf "^(%s|%s)$" $four $six) .) -}}
{{- fail (printf "%s: %s is no range of addresses; a single one is written as 203.0.113.10/32 or 2001:db8::10/128" $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Ranges that the process may reach. Two halves of everything are everything. */}}
{{- define "chorale.checkReached" -}}
{{- include "chorale.checkRanges" . -}}
{{- $name := index . 0 -}}
{{- range index . 1 -}}
{{- if regexMatch "/[0-7]$" . -}}
{{- fail (printf "%s: %s opens the way to far more than one service; name its addresses" $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
