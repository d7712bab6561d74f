{{/* What no schema can say, and both charts refuse: the file is the same in each but for the chart's name. */}}
{{- define "chorale-coordinator.commonChecks" -}}
{{- range .Values.imagePullSecrets -}}
{{- if kindIs "string" . -}}
{{- fail (printf "imagePullSecrets: write {name: %s} in place of %s" . .) -}}
{{- end -}}
{{- end -}}
{{- if not .Values.authority.configMapName -}}
{{- fail "authority.configMapName: name the ConfigMap with the authority's certificate" -}}
{{- end -}}
{{- if regexMatch "^(localhost|[^/]*[.:][^/]*)/" .Values.image.repository -}}
{{- fail (printf "image.repository: %s names a registry; it goes into image.registry" .Values.image.repository) -}}
{{- end -}}
{{- include "chorale-coordinator.checkLabels" . -}}
{{- include "chorale-coordinator.checkPlacement" . -}}
{{- include "chorale-coordinator.checkExtras" . -}}
{{- include "chorale-coordinator.checkMetrics" . -}}
{{- include "chorale-coordinator.checkTracing" . -}}
{{- include "chorale-coordinator.checkRenamed" . -}}
{{- include "chorale-coordinator.checkVolume" . -}}
{{- end -}}

{{- define "chorale-coordinator.checkLabels" -}}
{{- range $value := list "podLabels" "commonLabels" -}}
{{- range $label, $given := default dict (get $.Values $value) -}}
{{- if not (regexMatch "^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$" $given) -}}
{{- fail (printf "%s.%s: Kubernetes takes at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, got %d characters: %s" $value $label (len $given) $given) -}}
{{- end -}}
{{- if not (regexMatch "^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$" $label) -}}
{{- fail (printf "%s: Kubernetes takes no label of this name: %s" $value $label) -}}
{{- end -}}
{{- if regexMatch "^(app[.]kubernetes[.]io|helm[.]sh)/" $label -}}
{{- fail (printf "%s: %s belongs to the chart, Services and the network policy find the pod by it" $value $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $value := list "podAnnotations" "commonAnnotations" -}}
{{- range $name, $_ := default dict (get $.Values $value) -}}
{{- if regexMatch "^(checksum|helm[.]sh|meta[.]helm[.]sh|container[.]apparmor[.]security[.]beta[.]kubernetes[.]io)/" $name -}}
{{- fail (printf "%s: %s is not allowed: it makes the object a hook, or its pod one without AppArmor" $value $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "chorale-coordinator.checkPlacement" -}}
{{- if and .Values.serviceAccount.annotations (not .Values.serviceAccount.create) -}}
{{- fail "serviceAccount.annotations: with create false the account is not the chart's; set them where it is made" -}}
{{- end -}}
{{- if not (kindIs "invalid" .Values.tolerationSeconds) -}}
{{- range .Values.tolerations -}}
{{- if or (has .key (list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable")) (and (not .key) (has .effect (list "NoExecute" nil))) -}}
{{- fail "tolerationSeconds: tolerations say how long the pod stays on a failed node, too; give one of them" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq (default "" .Values.dnsPolicy) "None") (not (default dict .Values.dnsConfig).nameservers) -}}
{{- fail "dnsPolicy: None needs dnsConfig.nameservers, without them no name is found" -}}
{{- end -}}
{{- end -}}

{{/* Variables of the environment that change what the process runs, trusts or reveals. With * all that begin so. */}}
{{- define "chorale-coordinator.reservedVariables" -}}
CHORALE_* LD_* PYTHON* GRPC_* OPENSSL_* OTEL_EXPORTER_OTLP_* TORCH_FORCE_* CUDA_INJECTION* NCCL_*
SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY
HOME PATH NUMBA_CACHE_DIR SSLKEYLOGFILE GLIBC_TUNABLES GCONV_PATH NVIDIA_VISIBLE_DEVICES
{{- end -}}

{{- define "chorale-coordinator.checkExtras" -}}
{{- range $reserved := include "chorale-coordinator.reservedVariables" . | splitList "\n" | join " " | splitList " " -}}
{{- $stem := trimSuffix "*" $reserved -}}
{{- $isStem := ne $stem $reserved -}}
{{- range $.Values.extraEnv -}}
{{- $name := upper .name -}}
{{- $isTaken := or (eq $name $stem) (and $isStem (hasPrefix $stem $name)) -}}
{{- if and $isTaken (ne .name "PYTHONPATH") -}}
{{- fail (printf "extraEnv: %s is not taken, it changes what the process runs, trusts or reveals (%s)" .name $reserved) -}}
{{- end -}}
{{- if eq (hasKey . "value") (hasKey . "valueFrom") -}}
{{- fail (printf "extraEnv: give %s value or valueFrom, one of them" .name) -}}
{{- end -}}
{{- end -}}
{{- range $.Values.extraEnvFrom -}}
{{- $prefix := upper .prefix -}}
{{- if or (hasPrefix $prefix $stem) (and $isStem (hasPrefix $stem $prefix)) -}}
{{- fail (printf "extraEnvFrom: with prefix %s an entry could become %s; take a prefix of your own" .prefix $reserved) -}}
{{- end -}}
{{- if eq (hasKey . "configMapRef") (hasKey . "secretRef") -}}
{{- fail (printf "extraEnvFrom: give prefix %s configMapRef or secretRef, one of them" .prefix) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $names := list "state" "settings" "identity" "authority" "roster" "proxy" "tmp" "shm" "data" -}}
{{- $kinds := list "name" "configMap" "csi" "downwardAPI" "emptyDir" "ephemeral" "persistentVolumeClaim" "projected" "secret" -}}
{{- $extras := list -}}
{{- range $volume := .Values.extraVolumes -}}
{{- if has .name (concat $names $extras) -}}
{{- fail (printf "extraVolumes: %s is the name of another volume of the pod" .name) -}}
{{- end -}}
{{- range $kind := keys $volume -}}
{{- if not (has $kind $kinds) -}}
{{- fail (printf "extraVolumes: %s: the restricted Pod Security standard does not allow %s" $volume.name $kind) -}}
{{- end -}}
{{- end -}}
{{- $extras = append $extras .name -}}
{{- end -}}
{{- range $mount := .Values.extraVolumeMounts -}}
{{- if not (has .name $extras) -}}
{{- fail (printf "extraVolumeMounts: expected the name of one of extraVolumes, got %s" .name) -}}
{{- end -}}
{{- range $own := list "/etc/chorale" "/var/lib/chorale" "/opt/chorale" "/data" "/tmp" "/dev" "/proc" "/sys" "/run" "/usr" "/bin" "/sbin" "/lib" "/lib32" "/lib64" "/etc/ld.so.preload" "/etc/ld.so.cache" "/etc/ssl" -}}
{{- if or (hasPrefix (print $own "/") (print $mount.mountPath "/")) (hasPrefix (print $mount.mountPath "/") $own) -}}
{{- fail (printf "extraVolumeMounts: %s would cover %s, which is the chart's or the image's" $mount.mountPath $own) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $containers := list "coordinator" -}}
{{- range $kind := list "initContainers" "extraContainers" -}}
{{- range $container := default list (get $.Values $kind) -}}
{{- if has .name $containers -}}
{{- fail (printf "%s: %s is the name of another container of the pod" $kind .name) -}}
{{- end -}}
{{- $containers = append $containers .name -}}
{{- range .volumeMounts -}}
{{- if not (has .name $extras) -}}
{{- fail (printf "%s: %s may mount what extraVolumes names, and %s is none of it" $kind $container.name .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "chorale-coordinator.checkMetrics" -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.metricsPods) (or .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled) -}}
{{- fail "networkPolicy.metricsPods: name Prometheus' pods, the network policy lets no others read the metrics" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled -}}
{{- fail "metrics: enable serviceMonitor or podMonitor, not both: every series would be there twice" -}}
{{- end -}}
{{- range $name := list "serviceMonitor" "podMonitor" -}}
{{- $monitor := get $.Values.metrics $name -}}
{{- with $monitor.scrapeTimeout -}}
{{- if gt (include "chorale-coordinator.seconds" . | float64) (include "chorale-coordinator.seconds" $monitor.interval | float64) -}}
{{- fail (printf "metrics.%s.scrapeTimeout: must be at most interval, %s, or Prometheus refuses both" $name $monitor.interval) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A duration such as 500ms. */}}
{{- define "chorale-coordinator.seconds" -}}
{{- mulf (regexFind "^[0-9]+" .) (get (dict "ms" 0.001 "s" 1 "m" 60 "h" 3600) (regexFind "[a-z]+$" .)) -}}
{{- end -}}

{{- define "chorale-coordinator.checkTracing" -}}
{{- $tracing := .Values.tracing -}}
{{- $isNamed := or $tracing.pods $tracing.cidrs -}}
{{- if and (or $isNamed $tracing.secretName) (not $tracing.endpoint) -}}
{{- fail "tracing: pods, cidrs and secretName are of no use without endpoint" -}}
{{- end -}}
{{- if and $tracing.endpoint .Values.networkPolicy.enabled (not $isNamed) -}}
{{- fail "tracing: give the collector's pods or cidrs, the network policy allows no others" -}}
{{- end -}}
{{- include "chorale-coordinator.checkReached" (list "tracing.cidrs" $tracing.cidrs) -}}
{{- end -}}

{{/* For a pod that looks up names under a network policy. */}}
{{- define "chorale-coordinator.checkNames" -}}
{{- $dns := .Values.networkPolicy.dns -}}
{{- if not $dns.podLabels -}}
{{- fail "networkPolicy.dns.podLabels: name the pods of the cluster's DNS, without labels every pod of the namespace is one" -}}
{{- end -}}
{{- if and (has .Values.dnsPolicy (list "Default" "None")) (not $dns.cidrs) -}}
{{- fail (printf "networkPolicy.dns.cidrs: with dnsPolicy %s the pod asks other resolvers than the cluster's; give their addresses" .Values.dnsPolicy) -}}
{{- end -}}
{{- include "chorale-coordinator.checkReached" (list "networkPolicy.dns.cidrs" $dns.cidrs) -}}
{{- end -}}

{{/* Arguments: name of the value, ranges. */}}
{{- define "chorale-coordinator.checkRanges" -}}
{{- $name := index . 0 -}}
{{- $octet := `(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])` -}}
{{- $four := printf `%s(\.%s){3}/(3[0-2]|[12]?[0-9])` $octet $octet -}}
{{- $six := `[0-9a-fA-F:]*:[0-9a-fA-F:.]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9])` -}}
{{- range index . 1 -}}
{{- if not (regexMatch (printf "^(%s|%s)$" $four $six) .) -}}
{{- fail (printf "%s: expected a range of addresses, or a single one such as 203.0.113.10/32 or 2001:db8::10/128, got %s" $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Ranges that the process may reach. Two halves of everything are everything. */}}
{{- define "chorale-coordinator.checkReached" -}}
{{- include "chorale-coordinator.checkRanges" . -}}
{{- $name := index . 0 -}}
{{- range index . 1 -}}
{{- if regexMatch "/[0-7]$" . -}}
{{- fail (printf "%s: %s allows far more addresses than those of one service; give its own" $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* At an upgrade: under another name the process would begin with an empty volume. */}}
{{- define "chorale-coordinator.checkRenamed" -}}
{{- $name := include "chorale-coordinator.fullname" . -}}
{{- $own := include "chorale-coordinator.selector" . | fromYaml -}}
{{- range (lookup "apps/v1" "StatefulSet" .Release.Namespace "").items -}}
{{- $labels := default dict .metadata.labels -}}
{{- if and (deepEqual (merge (deepCopy $own) $labels) $labels) (ne .metadata.name $name) -}}
{{- fail (printf "fullnameOverride: this release runs as %s; as %s it would begin with an empty volume. Set it to %s" .metadata.name $name .metadata.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* At an upgrade: Kubernetes takes no change of the volume's claim, and says it in words of its own. */}}
{{- define "chorale-coordinator.checkVolume" -}}
{{- $wanted := .Values.persistence -}}
{{- if and $wanted.existingClaim (or $wanted.storageClassName $wanted.annotations) -}}
{{- fail "persistence: storageClassName and annotations are those of a claim that the chart makes, not of existingClaim" -}}
{{- end -}}
{{- range (default dict (lookup "apps/v1" "StatefulSet" .Release.Namespace (include "chorale-coordinator.fullname" .)).spec).volumeClaimTemplates -}}
{{- if $wanted.existingClaim -}}
{{- fail "persistence.existingClaim: this release has a volume of its own, and no upgrade moves it; keep that" -}}
{{- end -}}
{{- $size := .spec.resources.requests.storage -}}
{{- if ne (include "chorale-coordinator.bytes" $size) (include "chorale-coordinator.bytes" $wanted.size) -}}
{{- fail (printf "persistence.size: the volume was made with %s, and no upgrade makes it %s; see A larger volume in docs/deploy-kubernetes.md" $size $wanted.size) -}}
{{- end -}}
{{- $class := default "" .spec.storageClassName -}}
{{- if ne $class (default "" $wanted.storageClassName) -}}
{{- fail (printf "persistence.storageClassName: the volume was made with %q, and no upgrade moves it; keep that" $class) -}}
{{- end -}}
{{- $modes := default (list "ReadWriteOnce") .spec.accessModes | toJson -}}
{{- if ne $modes (default (list "ReadWriteOnce") $wanted.accessModes | toJson) -}}
{{- fail (printf "persistence.accessModes: the volume was made with %s, and no upgrade changes it; keep that" $modes) -}}
{{- end -}}
{{- if ne (default dict $wanted.annotations | toJson) (default dict .metadata.annotations | toJson) -}}
{{- fail "persistence.annotations: the volume was made with others, and no upgrade changes them; keep those" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A quantity such as 20Gi in bytes; the API server writes 1024Mi as 1Gi. */}}
{{- define "chorale-coordinator.bytes" -}}
{{- $factors := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- mulf (regexFind "^[0-9.]+" .) (get $factors (regexFind "[A-Za-z]*$" .)) | printf "%.0f" -}}
{{- end -}}
