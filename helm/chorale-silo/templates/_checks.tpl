{{/* What no schema can say: values that contradict one another, each with one sentence. */}}
{{- define "chorale.checks" -}}
{{- if not (and .Values.name .Values.federation) -}}
{{- fail "name and federation: give both, as in this silo's certificate" -}}
{{- end -}}
{{- if not .Values.coordinator.address -}}
{{- fail "coordinator.address: give the host:port that the agent dials" -}}
{{- end -}}
{{- include "chorale.checkIdentity" . -}}
{{- include "chorale.checkData" . -}}
{{- include "chorale.checkNetwork" . -}}
{{- include "chorale.checkTracing" . -}}
{{- $privacy := .Values.policy.privacy -}}
{{- if and (gt (float64 $privacy.epsilon) 10.0) (gt (float64 $privacy.epsilon) (float64 (default 0 $privacy.accept_epsilon_up_to))) -}}
{{- fail "policy.privacy.epsilon: a budget above 10 hides next to nothing; say the number in accept_epsilon_up_to, too" -}}
{{- end -}}
{{- if and (eq .Values.settings.device "cuda") (not .Values.gpu.count) -}}
{{- fail "settings.device: cuda needs gpu.count of at least 1" -}}
{{- end -}}
{{- if and .Values.gpu.runtimeClassName (not .Values.gpu.count) -}}
{{- fail "gpu.runtimeClassName: it brings a GPU's libraries, give gpu.count, too" -}}
{{- end -}}
{{- if and (eq .Values.settings.device "cpu") .Values.gpu.count -}}
{{- fail "gpu.count: settings.device is cpu, the GPU would stand idle" -}}
{{- end -}}
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

{{- define "chorale.checkIdentity" -}}
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
{{- if and $identity.certManager.issuerRef.name (not $identity.certManager.enabled) -}}
{{- fail "identity.certManager: issuerRef does nothing while enabled is false" -}}
{{- end -}}
{{- $certificate := $identity.certManager -}}
{{- if and $certificate.enabled (ge (trimSuffix "h" $certificate.renewBefore | int) (trimSuffix "h" $certificate.duration | int)) -}}
{{- fail "identity.certManager.renewBefore: must be less than duration, or the certificate is renewed without end" -}}
{{- end -}}
{{- end -}}

{{- define "chorale.checkData" -}}
{{- $data := .Values.data -}}
{{- $volumes := int (include "chorale.dataVolumes" .) -}}
{{- if not $data.format -}}
{{- fail "data.format: say how the data is stored" -}}
{{- end -}}
{{- $csi := $data.volume.csi -}}
{{- if and (or $csi.fsType $csi.volumeAttributes $csi.secretName) (not $csi.driver) -}}
{{- fail "data.volume.csi: give driver, without it nothing is mounted" -}}
{{- end -}}
{{- if gt $volumes 1 -}}
{{- fail "data.volume: give one of persistentVolumeClaim, hostPath and csi, the data lies in one place" -}}
{{- end -}}
{{- if and (include "chorale.needsPath" .) (not (and $data.path $volumes)) -}}
{{- fail (printf "data: format %s needs path and one data.volume" $data.format) -}}
{{- end -}}
{{- if and (not (include "chorale.needsPath" .)) $data.path -}}
{{- fail (printf "data.path: format %s takes none" $data.format) -}}
{{- end -}}
{{- if and (eq $data.format "digits") $volumes -}}
{{- fail "data.volume: format digits comes with the image and needs none" -}}
{{- end -}}
{{- if ne (eq $data.format "module") (not (empty $data.module)) -}}
{{- fail "data.module: give it with format module, and only with it" -}}
{{- end -}}
{{- if and (ne $data.format "csv") $data.columns_in_file -}}
{{- fail "data.columns_in_file: is for format csv alone" -}}
{{- end -}}
{{- if and (not (has $data.format (list "csv" "parquet" "dicom" "nifti" "image-folder"))) (or $data.missing $data.labels) -}}
{{- fail "data: missing and labels are for tables alone" -}}
{{- end -}}
{{- $names := list $data.name -}}
{{- range .Values.moreData -}}
{{- if has .name $names -}}
{{- fail "moreData: give each data set a name of its own, the ledger counts by name" -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- if and .path (not $volumes) -}}
{{- fail "moreData: its paths are those of data.volume, so give one" -}}
{{- end -}}
{{- end -}}
{{- if and $data.partition (not (and $data.partition.kind $data.partition.silos (hasKey $data.partition "index"))) -}}
{{- fail "data.partition: give kind, silos and index" -}}
{{- end -}}
{{- if and $data.partition (ge (int $data.partition.index) (int $data.partition.silos)) -}}
{{- fail "data.partition.index: parts are counted from 0, so it must be less than silos" -}}
{{- end -}}
{{- if and $data.volume.hostPath (not .Values.nodeSelector) -}}
{{- fail "data.volume.hostPath: name the node by nodeSelector, on any other the path is empty or another party's" -}}
{{- end -}}
{{- end -}}

{{- define "chorale.checkNetwork" -}}
{{- if and .Values.proxy.cidrs (not .Values.proxy.address) -}}
{{- fail "proxy.cidrs: give proxy.address, too" -}}
{{- end -}}
{{- if and .Values.proxy.address .Values.coordinator.cidrs -}}
{{- fail "coordinator.cidrs: through a proxy the agent reaches the proxy alone; leave them out" -}}
{{- end -}}
{{- if .Values.networkPolicy.enabled -}}
{{- if and .Values.proxy.address (not .Values.proxy.cidrs) -}}
{{- fail "proxy.cidrs: give the proxy's addresses, the network policy allows no others" -}}
{{- end -}}
{{- if and (not .Values.proxy.address) (not .Values.coordinator.cidrs) -}}
{{- fail "coordinator.cidrs: give the coordinator's addresses, the network policy allows no others" -}}
{{- end -}}
{{- end -}}
{{- include "chorale.checkReached" (list "coordinator.cidrs" .Values.coordinator.cidrs) -}}
{{- include "chorale.checkReached" (list "proxy.cidrs" .Values.proxy.cidrs) -}}
{{- include "chorale.checkAddress" (list "coordinator.address" .Values.coordinator.address) -}}
{{- include "chorale.checkAddress" (list "proxy.address" .Values.proxy.address) -}}
{{- end -}}

{{/* Arguments: name of the value, address or nothing. */}}
{{- define "chorale.checkAddress" -}}
{{- $address := index . 1 -}}
{{- $isOne := regexMatch `^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):[1-9][0-9]{0,4}$` $address -}}
{{- if and $address (not (and $isOne (le (regexFind "[0-9]+$" $address | int) 65535))) -}}
{{- fail (printf "%s: %s is no host:port with a port from 1 to 65535, such as coordinator.example.org:7443" (index . 0) $address) -}}
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
