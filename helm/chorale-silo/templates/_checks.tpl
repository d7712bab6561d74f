{{/* What no schema can say: values that contradict one another, each with one sentence. */}}
{{- define "chorale-silo.checks" -}}
{{- if not (and .Values.name .Values.federation) -}}
{{- fail "name and federation: give both, as in this silo's certificate" -}}
{{- end -}}
{{- if not .Values.coordinator.address -}}
{{- fail "coordinator.address: give the host:port that the agent dials" -}}
{{- end -}}
{{- include "chorale-silo.checkIdentity" . -}}
{{- include "chorale-silo.checkData" . -}}
{{- include "chorale-silo.checkNetwork" . -}}
{{- if and (hasPrefix "cuda" (default "auto" .Values.settings.device)) (not .Values.gpu.count) -}}
{{- fail "settings.device: cuda needs gpu.count of at least 1" -}}
{{- end -}}
{{- if and .Values.gpu.count (gt (int .Values.settings.devices) (int .Values.gpu.count)) -}}
{{- fail "settings.devices: more than gpu.count gives the pod" -}}
{{- end -}}
{{- if and .Values.gpu.count (gt (int .Values.settings.devices) 1) (not .Values.shmSize) -}}
{{- fail "shmSize: several GPUs exchange gradients through /dev/shm, give it a size" -}}
{{- end -}}
{{- if and .Values.gpu.runtimeClassName (not .Values.gpu.count) -}}
{{- fail "gpu.runtimeClassName: it brings a GPU's libraries, give gpu.count, too" -}}
{{- end -}}
{{- if and (has .Values.settings.device (list "cpu")) .Values.gpu.count -}}
{{- fail "gpu.count: settings.device is cpu, which would leave the GPU unused" -}}
{{- end -}}
{{- include "chorale-silo.commonChecks" . -}}
{{- end -}}

{{- define "chorale-silo.checkIdentity" -}}
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
{{- if and $identity.certManager.issuerRef.name (not $identity.certManager.enabled) -}}
{{- fail "identity.certManager: issuerRef does nothing while enabled is false" -}}
{{- end -}}
{{- $certificate := $identity.certManager -}}
{{- if and $certificate.enabled (ge (trimSuffix "h" $certificate.renewBefore | int) (trimSuffix "h" $certificate.duration | int)) -}}
{{- fail "identity.certManager.renewBefore: must be less than duration, or the certificate is renewed without end" -}}
{{- end -}}
{{- end -}}

{{- define "chorale-silo.checkData" -}}
{{- $data := .Values.data -}}
{{- $volumes := int (include "chorale-silo.dataVolumes" .) -}}
{{- if not $data.format -}}
{{- fail "data.format: say how the data is stored" -}}
{{- end -}}
{{- $own := list "digits" "mnist" "npz" "image-folder" "csv" "parquet" "dicom" "nifti" "cifar10" "cifar100" "module" -}}
{{- if ne (empty $data.from) (has $data.format $own) -}}
{{- fail "data.format: give one of Chorale's own, or with data.from a name of that distribution" -}}
{{- end -}}
{{- $csi := $data.volume.csi -}}
{{- if and (or $csi.fsType $csi.volumeAttributes $csi.secretName) (not $csi.driver) -}}
{{- fail "data.volume.csi: give driver, without it nothing is mounted" -}}
{{- end -}}
{{- if gt $volumes 1 -}}
{{- fail "data.volume: give one of persistentVolumeClaim, hostPath and csi, the data lies in one place" -}}
{{- end -}}
{{- if and (include "chorale-silo.needsPath" .) (not (and $data.path $volumes)) -}}
{{- fail (printf "data: format %s needs path and one data.volume" $data.format) -}}
{{- end -}}
{{- if and (not (include "chorale-silo.needsPath" .)) $data.path -}}
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
{{- if and (not (has $data.format (list "csv" "parquet" "dicom" "nifti" "image-folder"))) (or $data.missing $data.dialect $data.rename $data.absent $data.values $data.units $data.derive $data.labels $data.drop) -}}
{{- fail "data: missing, dialect, rename, absent, values, units, derive, labels and drop are for tables and folders of classes alone" -}}
{{- end -}}
{{- $names := list $data.name -}}
{{- range .Values.moreData -}}
{{- if hasKey . "volume" -}}
{{- fail "moreData: every data set lies in data.volume, so none has a volume of its own" -}}
{{- end -}}
{{- if has .name $names -}}
{{- fail "moreData: give each data set a name of its own, the ledger counts by name" -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- if and .path (not $volumes) -}}
{{- fail "moreData: its paths are those of data.volume, so give one" -}}
{{- end -}}
{{- end -}}
{{- $partition := default dict $data.partition -}}
{{- if and $partition (not (and $partition.kind $partition.silos (hasKey $partition "index"))) -}}
{{- fail "data.partition: give kind, silos and index" -}}
{{- end -}}
{{- if and $partition (ge (int $partition.index) (int $partition.silos)) -}}
{{- fail "data.partition.index: parts are counted from 0, so it must be less than silos" -}}
{{- end -}}
{{- if and $data.volume.hostPath (not .Values.nodeSelector) -}}
{{- fail "data.volume.hostPath: name the node by nodeSelector, on any other the path is empty or another party's" -}}
{{- end -}}
{{- end -}}

{{- define "chorale-silo.checkNetwork" -}}
{{- if and .Values.proxy.cidrs (not .Values.proxy.address) -}}
{{- fail "proxy.cidrs: give proxy.address, too" -}}
{{- end -}}
{{- if and (or .Values.proxy.credentialsSecretName .Values.proxy.noProxy) (not .Values.proxy.address) -}}
{{- fail "proxy: credentialsSecretName and noProxy are of no use without address" -}}
{{- end -}}
{{- if and .Values.proxy.address .Values.coordinator.cidrs (not .Values.proxy.noProxy) -}}
{{- fail "coordinator.cidrs: through a proxy the agent reaches the proxy alone; leave them out, or list the coordinator in proxy.noProxy" -}}
{{- end -}}
{{- if .Values.networkPolicy.enabled -}}
{{- if and .Values.proxy.address (not .Values.proxy.cidrs) -}}
{{- fail "proxy.cidrs: give the proxy's addresses, the network policy allows no others" -}}
{{- end -}}
{{- if and (not .Values.proxy.address) (not .Values.coordinator.cidrs) -}}
{{- fail "coordinator.cidrs: give the coordinator's addresses, the network policy allows no others" -}}
{{- end -}}
{{- include "chorale-silo.checkNames" . -}}
{{- end -}}
{{- include "chorale-silo.checkReached" (list "coordinator.cidrs" .Values.coordinator.cidrs) -}}
{{- include "chorale-silo.checkReached" (list "proxy.cidrs" .Values.proxy.cidrs) -}}
{{- include "chorale-silo.checkAddress" (list "coordinator.address" .Values.coordinator.address) -}}
{{- include "chorale-silo.checkAddress" (list "proxy.address" .Values.proxy.address) -}}
{{- end -}}

{{/* Arguments: name of the value, address or nothing. */}}
{{- define "chorale-silo.checkAddress" -}}
{{- $address := default "" (index . 1) -}}
{{- $isOne := regexMatch `^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):[1-9][0-9]{0,4}$` $address -}}
{{- if and $address (not (and $isOne (le (regexFind "[0-9]+$" $address | int) 65535))) -}}
{{- fail (printf "%s: expected host:port with a port from 1 to 65535, such as coordinator.example.org:7443, got %s" (index . 0) $address) -}}
{{- end -}}
{{- end -}}
