"""The charts' values: each explained, checked, of the product's own defaults, and never contradictory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from chorale.spec.settings_file import load_settings
from coordinator.settings import ENV_PREFIX, CoordinatorSettings, load_coordinator_settings
from crypto.errors import ConfigError
from silo_agent.disclosure.policy.policy import Policy, load_policy
from silo_agent.disclosure.policy.privacy_policy import PrivacyPolicy
from silo_agent.settings import SiloSettings, load_silo_settings
from silo_agent.training.data.settings import DataSettings, PartitionSettings
from tests.deployment import helm

COORDINATOR, SILO = helm.NAMES
SCREEN_LINES = 40
TRACES_OUTSIDE = "https://traces.clinic-b.example/v1/traces"
TRACES_INSIDE = "http://collector.monitoring:4318/v1/traces"

# values that only some shapes have: the schema knows them, values.yaml does not show them
UNSET = re.compile(
    r"data\.partition\..*|moreData\[\].*|resources\.(requests|limits)\..*|tolerations\[\].*"
    r"|networkPolicy\.(clientPods|metricsPods)\[\].*|tracing\.pods\[\].*|imagePullSecrets\[\].*"
    r"|(affinity|dnsConfig|hostAliases|extra\w+)(\[\])?\..*"
    r"|podSecurityContext\.(seLinuxOptions.*|seccompProfile\.localhostProfile)"
)


def keys_of(values: Any, path: str = "") -> Iterator[str]:
    if isinstance(values, dict):
        for name, value in values.items():
            yield f"{path}{name}"
            yield from keys_of(value, f"{path}{name}.")


def properties_of(schema: helm.Object, path: str = "") -> Iterator[str]:
    for name, value in schema.get("properties", {}).items():
        if value.get("description", "").startswith("Renamed: "):  # known for its sentence alone
            continue
        yield f"{path}{name}"
        yield from properties_of(value, f"{path}{name}.")
    if "items" in schema:
        yield from properties_of(schema["items"], f"{path[:-1]}[].")


def objects_of(schema: helm.Object, path: str = "values") -> Iterator[tuple[str, helm.Object]]:
    if schema.get("type") == "object" and "allOf" not in schema:  # of another one, which is found itself
        yield path, schema
    for name, value in schema.get("properties", {}).items():
        yield from objects_of(value, f"{path}.{name}")
    for name, value in schema.get("definitions", {}).items():
        yield from objects_of(value, name)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from objects_of(schema[key], f"{path}.{key}")


def free_maps(chart: str) -> set[str]:
    """Values that are maps of names which people choose, such as labels."""
    found = objects_of(helm.schema(chart))
    return {path.removeprefix("values.") for path, each in found if "properties" not in each}


@pytest.mark.parametrize("chart", helm.NAMES)
def test_every_key_has_a_comment_of_its_own(chart: str) -> None:
    lines = (helm.CHARTS / chart / "values.yaml").read_text().splitlines()
    bare = [
        line.strip()
        for above, line in zip(["", *lines], lines, strict=False)
        if re.match(r" *(- )?[A-Za-z_][\w./-]*:", line) and not re.match(r" *# \S", above)
    ]
    assert bare == []


@pytest.mark.parametrize("chart", helm.NAMES)
def test_schema_and_values_hold_the_same_keys(chart: str) -> None:
    maps = tuple(f"{path}." for path in free_maps(chart))
    shown = {key for key in keys_of(helm.defaults(chart)) if not key.startswith(maps)}
    known = {key for key in properties_of(helm.schema(chart)) if not UNSET.fullmatch(key)}
    shown = {key for key in shown if not UNSET.fullmatch(key)}
    assert shown == known


# what an umbrella shares with other charts, and Kubernetes' own objects that are handed on as they are
OPEN = {"global", "topologySpreadConstraints.items", "extraEnv.items.valueFrom", "extraVolumes.items"}
OPEN |= {f"affinity.{kind}" for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity")}
OPEN |= {"container.env.items", "container.envFrom.items", "container.resources"}
OPEN |= {"handler", "handler.httpGet", "handler.tcpSocket"}


@pytest.mark.parametrize("chart", helm.NAMES)
def test_schema_is_closed_at_every_level(chart: str) -> None:
    for path, each in objects_of(helm.schema(chart)):
        rest = each.get("additionalProperties")
        if path.removeprefix("values.") in OPEN:
            assert rest is True
        else:
            assert rest is False or ("properties" not in each and rest.get("type")), path


@pytest.mark.parametrize(
    "chart, values",
    [(COORDINATOR, "loadbalancer-values.yaml"), (SILO, "hospital-values.yaml")],
)
@pytest.mark.parametrize("inside", ["", "image.", "networkPolicy.", "metrics.serviceMonitor."])
def test_an_unknown_value_is_refused(chart: str, values: str, inside: str) -> None:
    complaint = helm.refusal(chart, values, f"{inside}replicas=2")
    assert "Additional property replicas is not allowed" in complaint


C, S = (COORDINATOR, "loadbalancer-values.yaml"), (SILO, "hospital-values.yaml")
GATEWAY, GPU, PROXY = (
    (COORDINATOR, "gateway-values.yaml"),
    (SILO, "gpu-values.yaml"),
    (SILO, "proxy-values.yaml"),
)
INGRESS, DIGITS = (COORDINATOR, "ingress-values.yaml"), (SILO, "digits-values.yaml")
ISSUER = "identity.certManager.issuerRef.name"
RENEWED = "identity.certManager.renewBefore=8760h"
ENDED = r"ingress.annotations.haproxy\.org/ssl-passthrough=no"

REFUSED = [
    (C, ["service.appProtocol=h2c"], 'service.appProtocol must be one of the following: "https"'),
    (C, ["service.appProtocol=kubernetes.io/h2c"], "service.appProtocol must be one of the following"),
    (
        C,
        ["podSecurityContext.runAsUser=0"],
        "podSecurityContext.runAsUser: Must be greater than or equal to 1",
    ),
    (S, ["podSecurityContext.fsGroup=0"], "podSecurityContext.fsGroup: Must be greater than or equal to 1"),
    (S, ["policy.min_silos=2"], "policy.min_silos: Must be greater than or equal to 3"),
    (S, ["data.path=/etc"], "data.path: Does not match pattern"),
    (S, ["data.path=a/../../etc"], "data.path: Does not match pattern"),
    (C, ["federation="], "federation: give the name of the federation"),
    (C, ["identity.secretName="], "identity.secretName: name the Secret"),
    (C, ["identity.certManager.enabled=true"], "identity: give secretName or certManager.enabled, not both"),
    (GATEWAY, [f"{ISSUER}="], "identity.certManager.issuerRef.name: name the issuer"),
    (
        GATEWAY,
        ["identity.certManager.dnsNames=null", "identity.certManager.ipAddresses=null"],
        "identity.certManager: give dnsNames or ipAddresses",
    ),
    (GATEWAY, [RENEWED], "identity.certManager.renewBefore: must be less than duration"),
    (GATEWAY, ["identity.certManager.duration=90m"], "identity.certManager.duration: Does not match pattern"),
    (GATEWAY, ["gateway.hostnames={203.0.113.10}"], "Must not validate the schema"),
    (GATEWAY, ["metrics.podMonitor.interval=1s1m"], "metrics.podMonitor.interval: Does not match pattern"),
    (GATEWAY, ["networkPolicy.metricsPods=null"], "networkPolicy.metricsPods: name Prometheus' pods"),
    (C, ["podLabels.app\\.kubernetes\\.io/component=x"], "belongs to the chart, Services and the network"),
    (INGRESS, [ENDED], "ingress.annotations: TLS is always passed through"),
    (C, ["roster.configMapName="], "roster: give configMapName, or the file by --set-file"),
    (C, ["roster.document=x"], "roster: give configMapName or document, not both"),
    (GATEWAY, ["roster.document=-----BEGIN PRIVATE KEY-----"], "roster.document: this is a private key"),
    (C, ["settings.stage_hard_cap_seconds=20"], "settings.stage_hard_cap_seconds: must be at least"),
    (C, ["metrics.port=7443"], "metrics.port: 7443 is the port of gRPC"),
    (C, ["service.type=ClusterIP"], ": only a Service of type LoadBalancer has it"),
    (INGRESS, ["service.loadBalancerClass=a"], ": only a Service of type LoadBalancer has it"),
    (INGRESS, ["service.loadBalancerIP=203.0.113.10"], ": only a Service of type LoadBalancer has it"),
    (
        C,
        ["persistence.accessModes={ReadWriteOncePod}"],
        "backup: with persistence.accessModes ReadWriteOncePod",
    ),
    (C, ["backup.schedule=3 o'clock"], "backup.schedule: Does not match pattern"),
    (INGRESS, ["service.nodePort=30443"], "service.nodePort: a Service of type ClusterIP has none"),
    (C, ["service.externalTrafficPolicy=Cluster"], "the pod sees addresses of nodes; use Local"),
    (GATEWAY, ["ingress.enabled=true"], "ingress and gateway: enable one of them, not both"),
    (INGRESS, ["ingress.host="], "ingress: give host and className"),
    (INGRESS, ["networkPolicy.clientCidrs={10.0.0.0/8}"], "networkPolicy.clientCidrs: behind an ingress"),
    (GATEWAY, ["gateway.hostnames=null"], "gateway: give hostnames and name"),
    (C, ["networkPolicy.enabled=false"], "clientCidrs and clientPods do nothing while enabled is false"),
    (
        GATEWAY,
        ["metrics.serviceMonitor.enabled=true"],
        "metrics: enable serviceMonitor or podMonitor, not both",
    ),
    (S, ["name="], "name and federation: give both"),
    (S, ["coordinator.address="], "coordinator.address: give the host:port"),
    (S, ["identity.secretName="], "identity.secretName: name the Secret"),
    (S, ["identity.certManager.enabled=true"], "identity: give secretName or certManager.enabled, not both"),
    (PROXY, [RENEWED], "identity.certManager.renewBefore: must be less than duration"),
    (GPU, ["networkPolicy.metricsPods=null"], "networkPolicy.metricsPods: name Prometheus' pods"),
    (S, ["podLabels.app\\.kubernetes\\.io/component=x"], "belongs to the chart, Services and the network"),
    (
        DIGITS,
        ["data.labels.ill=1"],
        "data: missing, dialect, rename, absent, values, units, derive, labels",
    ),
    (DIGITS, ["data.columns_in_file[0]=age"], "data.columns_in_file: is for format csv alone"),
    (
        S,
        ["moreData[0].name=data", "moreData[0].format=digits"],
        "moreData: give each data set a name of its own",
    ),
    (
        DIGITS,
        ["moreData[0].name=b", "moreData[0].format=csv", "moreData[0].path=b.csv"],
        "moreData: its paths are those of data.volume",
    ),
    (
        S,
        ["moreData[0].name=b", "moreData[0].format=digits", "moreData[0].volume.hostPath=/b"],
        "moreData: every data set lies in data.volume",
    ),
    (S, ["data.partition.kind=iid"], "data.partition: give kind, silos and index"),
    (DIGITS, ["data.partition.index=3"], "data.partition.index: parts are counted from 0"),
    (S, ["gpu.runtimeClassName=nvidia"], "gpu.runtimeClassName: it brings a GPU's libraries"),
    (PROXY, [f"{ISSUER}="], "identity.certManager.issuerRef.name: name the issuer"),
    (S, ["data.format="], "data.format: say how the data is stored"),
    (
        DIGITS,
        ["data.format=disc"],
        "data.format: give one of Chorale's own, or with data.from a name of that",
    ),
    (DIGITS, ["data.from=hospital-data==1.0.0"], "data.format: give one of Chorale's own, or with data.from"),
    (S, ["data.volume.hostPath=/srv"], "data.volume: give one of persistentVolumeClaim, hostPath and csi"),
    (S, ["data.volume.persistentVolumeClaim="], "needs path and one data.volume"),
    (S, ["data.path="], "needs path and one data.volume"),
    (DIGITS, ["data.path=x"], "takes none"),
    (DIGITS, ["data.volume.persistentVolumeClaim=x"], "data.volume: format digits comes with the image"),
    (DIGITS, ["data.module=a:b"], "data.module: give it with format module, and only with it"),
    (DIGITS, ["data.format=module"], "data.module: give it with format module, and only with it"),
    (
        (SILO, "hostpath-values.yaml"),
        ["nodeSelector=null"],
        "data.volume.hostPath: name the node by nodeSelector",
    ),
    (S, ["coordinator.cidrs=null"], "coordinator.cidrs: give the coordinator's addresses"),
    (S, ["coordinator.cidrs={0.0.0.0/0}"], "allows far more addresses than those of one service"),
    (S, ["coordinator.cidrs={0.0.0.0/1,128.0.0.0/1}"], "allows far more addresses than those of one service"),
    (S, ["networkPolicy.dns.cidrs={0.0.0.0/0}"], "allows far more addresses than those of one service"),
    (PROXY, ["proxy.cidrs={::/0}"], "allows far more addresses than those of one service"),
    (S, ["coordinator.cidrs={203.0.113.10}"], "expected a range of addresses, or a single one such as"),
    (S, ["coordinator.cidrs={203.0.113.300/32}"], "expected a range of addresses"),
    (S, ["coordinator.cidrs={203.0.113.10/64}"], "expected a range of addresses"),
    (S, ["coordinator.cidrs={coordinator.example.org}"], "expected a range of addresses"),
    (C, ["service.loadBalancerSourceRanges={198.51.100.0}"], "expected a range of addresses"),
    (C, ["networkPolicy.clientCidrs={198.51.100.0/33}"], "expected a range of addresses"),
    (S, ["coordinator.address=coordinator.example.org"], "expected host:port with a port from 1 to 65535"),
    (S, ["coordinator.address=https://hub.example.org:7443"], "expected host:port with a port from 1"),
    (S, ["coordinator.address=hub.example.org:0"], "expected host:port with a port from 1 to 65535"),
    (S, ["coordinator.address=hub.example.org:99999"], "expected host:port with a port from 1 to 65535"),
    (PROXY, ["proxy.address=http://proxy:3128"], "expected host:port with a port from 1 to 65535"),
    (C, ["listenHost=127.0.0.1"], 'listenHost must be one of the following: "0.0.0.0", "[::]"'),
    (S, ["metrics.host=127.0.0.1"], 'metrics.host must be one of the following: "0.0.0.0", "[::]"'),
    (C, ["ingress.host=hub.example.org"], "ingress: host and className do nothing while enabled is false"),
    (C, ["gateway.name=edge"], "gateway: hostnames and name do nothing while enabled is false"),
    (C, [f"{ISSUER}=x"], "identity.certManager: issuerRef, dnsNames and ipAddresses do nothing"),
    (S, [f"{ISSUER}=x"], "identity.certManager: issuerRef does nothing while enabled is false"),
    (S, ["data.volume.csi.secretName=x"], "data.volume.csi: give driver, without it nothing is mounted"),
    (C, ["tracing.secretName=x"], "secretName are of no use without endpoint"),
    (PROXY, ["proxy.cidrs=null"], "proxy.cidrs: give the proxy's addresses"),
    (PROXY, ["coordinator.cidrs={203.0.113.10/32}"], "through a proxy the agent reaches the proxy alone"),
    (PROXY, ["proxy.address="], "proxy.cidrs: give proxy.address, too"),
    (S, ["proxy.noProxy={a}"], "proxy: credentialsSecretName and noProxy are of no use without address"),
    (INGRESS, ["tracing.pods=null"], "tracing: give the collector's pods or cidrs"),
    (INGRESS, ["tracing.endpoint="], "tracing: pods, cidrs and secretName are of no use without endpoint"),
    (INGRESS, ["tracing.cidrs={0.0.0.0/0}"], "allows far more addresses than those of one service"),
    (INGRESS, ["tracing.endpoint=collector:4318"], "tracing.endpoint: Does not match pattern"),
    (GPU, ["tracing.cidrs=null"], "tracing: give the collector's pods or cidrs"),
    (GPU, ["tracing.endpoint="], "tracing: pods, cidrs and secretName are of no use without endpoint"),
    (GPU, ["tracing.cidrs={::/0}"], "allows far more addresses than those of one service"),
    (S, ["policy.privacy.epsilon=31"], "policy.privacy.epsilon: Must be less than or equal to 30"),
    (S, ["policy.privacy.delta=0"], "policy.privacy.delta: Must be greater than or equal to 1e-12"),
    (GPU, ["gpu.count=0"], "settings.device: cuda needs gpu.count of at least 1"),
    (GPU, ["settings.device=gpu"], "settings.device: Does not match pattern"),
    (GPU, ["settings.devices=2"], "settings.devices: more than gpu.count gives the pod"),
    (GPU, ["settings.devices=2", "gpu.count=2", "shmSize="], "shmSize: several GPUs exchange gradients"),
    (GPU, ["settings.device=cpu"], "gpu.count: settings.device is cpu"),
    (GPU, ["metrics.serviceMonitor.enabled=true"], "metrics: enable serviceMonitor or podMonitor, not both"),
    (GATEWAY, ["tracing.endpoint=http://c:4318/v1/traces"], "tracing: give the collector's pods or cidrs"),
    (INGRESS, ["tracing.cidrs={1.2.3.4}"], "expected a range of addresses, or a single one such as"),
]
# what both charts refuse alike
OPEN_DNS = ["networkPolicy.dns.podLabels.k8s-app=null"]
FOREIGN = ["extraVolumes[0].name=x", "extraVolumes[0].emptyDir.medium="]
MOUNT = [*FOREIGN, "extraVolumeMounts[0].name=x"]
CONTAINER = ["extraContainers[0].name=watch", "extraContainers[0].image=watch:1"]
CONTEXT = "extraContainers[0].securityContext"
RIGHTS = [*CONTAINER, f"{CONTEXT}.allowPrivilegeEscalation=false", f"{CONTEXT}.capabilities.drop={{ALL}}"]
WATCHED = ["metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.scrapeTimeout=1m"]
MEETS = ["tolerationSeconds=60", "tolerations[0].operator=Exists"]
UNREACHABLE = ["tolerationSeconds=60", "tolerations[0].key=node.kubernetes.io/unreachable"]
CONFIG_MAP = "extraEnvFrom[0].configMapRef.name=x"
BOTH = [
    (["imagePullSecrets={registry}"], "imagePullSecrets: write {name: "),
    (["authority.configMapName="], "authority.configMapName: name the ConfigMap with the authority's"),
    (["image.repository=registry.example.org/chorale/silo"], "names a registry; it goes into image.registry"),
    (["image.repository=localhost:5000/silo"], "names a registry; it goes into image.registry"),
    ([r"commonLabels.app\.kubernetes\.io/name=x"], "belongs to the chart, Services and the network policy"),
    ([f"commonLabels.team={'a' * 64}"], "Kubernetes takes at most 63 letters, digits"),
    ([f"podLabels.{'a' * 64}=x"], "Kubernetes takes no label of this name"),
    ([r"commonAnnotations.helm\.sh/hook=test"], "is not allowed: it makes the object a hook, or its pod one"),
    (
        [r"podAnnotations.container\.apparmor\.security\.beta\.kubernetes\.io/silo=unconfined"],
        "is not allowed: it makes the object a hook, or its pod one without AppArmor",
    ),
    (
        ["serviceAccount.create=false", "serviceAccount.annotations.a=b"],
        "serviceAccount.annotations: with create",
    ),
    (MEETS, "tolerationSeconds: tolerations say how long the pod stays on a failed node, too"),
    (UNREACHABLE, "tolerationSeconds: tolerations say how long the pod stays on a failed node, too"),
    (["dnsPolicy=None"], "dnsPolicy: None needs dnsConfig.nameservers"),
    *(
        (
            [f"extraEnv[0].name={name}", "extraEnv[0].value=x"],
            "is not taken, it changes what the process runs",
        )
        for name in (
            *("CHORALE_SILO_POLICY", "CHORALE_COORDINATOR_ROSTER", "LD_PRELOAD", "LD_LIBRARY_PATH", "PATH"),
            *("PYTHONHOME", "PYTHONSTARTUP", "https_proxy", "HTTP_PROXY", "SSLKEYLOGFILE", "GRPC_TRACE"),
            *(
                "OPENSSL_CONF",
                "OTEL_EXPORTER_OTLP_HEADERS",
                "NVIDIA_VISIBLE_DEVICES",
                "HOME",
                "NUMBA_CACHE_DIR",
            ),
            *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "NCCL_NET_PLUGIN"),
        )
    ),
    (["extraEnv[0].name=TZ"], " value or valueFrom, one of them"),
    ([CONFIG_MAP], "prefix is required"),
    *(
        ([CONFIG_MAP, f"extraEnvFrom[0].prefix={prefix}"], "an entry could become ")
        for prefix in ("C", "CHORALE_SILO_", "LD_", "P", "http_", "PYTHONP")
    ),
    (["extraEnvFrom[0].prefix=OWN_"], " configMapRef or secretRef, one of them"),
    (
        ["initContainers[0].name=watch", "initContainers[0].image=a", *CONTAINER],
        " is the name of another container",
    ),
    (
        [
            *CONTAINER,
            "extraContainers[0].volumeMounts[0].name=identity",
            "extraContainers[0].volumeMounts[0].mountPath=/x",
        ],
        " may mount what extraVolumes names, and ",
    ),
    *(
        ([*RIGHTS, f"extraContainers[0].{setting}"], f"extraContainers.0.{complaint}")
        for setting, complaint in (
            ("securityContext.privileged=true", "securityContext.privileged must be one of"),
            (
                "securityContext.allowPrivilegeEscalation=true",
                "securityContext.allowPrivilegeEscalation must be",
            ),
            (
                "securityContext.capabilities.drop={NET_RAW}",
                "securityContext.capabilities.drop: At least one",
            ),
            (
                "securityContext.capabilities.add={SYS_ADMIN}",
                "securityContext.capabilities.add.0 must be one of",
            ),
            ("securityContext.runAsNonRoot=false", "securityContext.runAsNonRoot must be one of"),
            ("securityContext.runAsUser=0", "securityContext.runAsUser: Must be greater than or equal to 1"),
            (
                "securityContext.seccompProfile.type=Unconfined",
                "securityContext.seccompProfile.type must be one",
            ),
            ("securityContext.seLinuxOptions.type=spc_t", "securityContext.seLinuxOptions.type must be one"),
            ("securityContext.procMount=Unmasked", "securityContext: Additional property procMount is not"),
            ("securityContext.capabilities=null", "securityContext.capabilities: Invalid type"),
            ("ports[0].hostPort=80", "ports.0: Additional property hostPort is not allowed"),
            ("livenessProbe.httpGet.host=10.0.0.1", "livenessProbe.httpGet.host must be one of"),
            ("lifecycle.preStop.tcpSocket.host=10.0.0.1", "lifecycle.preStop.tcpSocket.host must be one of"),
        )
    ),
    (WATCHED, "scrapeTimeout: must be at most interval"),
    (
        ["persistence.existingClaim=a", "persistence.storageClassName=b"],
        "persistence: storageClassName and annotations are those of a claim that the chart makes",
    ),
    (["extraVolumes[0].name=state"], " is the name of another volume of the pod"),
    (
        ["extraVolumes[0].name=x", "extraVolumes[0].hostPath.path=/"],
        "the restricted Pod Security standard does not allow ",
    ),
    (
        ["extraVolumeMounts[0].name=state", "extraVolumeMounts[0].mountPath=/x"],
        "expected the name of one of extraVolumes, got ",
    ),
    *(
        ([*MOUNT, f"extraVolumeMounts[0].mountPath={path}"], " would cover ")
        for path in (
            "/etc/chorale/identity",
            "/etc",
            "/opt/chorale/lib",
            "/var",
            "/data",
            "/tmp/numba",
            "/usr",
            "/etc/ssl",
            "/etc/ssl/certs",
        )
    ),
    ([*MOUNT, "extraVolumeMounts[0].mountPath=/opt/../etc"], "mountPath: Does not match pattern"),
    *(
        ([f"{name}={value}"], f"{name} must be one of the following")
        for name, value in (
            ("podSecurityContext.runAsNonRoot", "false"),
            ("podSecurityContext.seccompProfile.type", "Unconfined"),
            ("containerSecurityContext.allowPrivilegeEscalation", "true"),
            ("containerSecurityContext.privileged", "true"),
            ("containerSecurityContext.readOnlyRootFilesystem", "false"),
            ("containerSecurityContext.runAsNonRoot", "false"),
        )
    ),
    (
        ["containerSecurityContext.capabilities.drop={NET_RAW}"],
        "capabilities.drop.0 must be one of the following",
    ),
    (["containerSecurityContext.capabilities.add={SYS_ADMIN}"], "Additional property add is not allowed"),
]
NAMES = [
    (OPEN_DNS, "networkPolicy.dns.podLabels: name the pods of the cluster's DNS"),
    (["dnsPolicy=Default"], " the pod asks other resolvers than the cluster's"),
]
# one chart after the other: their common checks are the same text, test_chart_platforms.py
REFUSED += [((C, S)[place % 2], *each) for place, each in enumerate(BOTH)]
REFUSED += [((INGRESS, S)[place % 2], *each) for place, each in enumerate(NAMES)]


@pytest.mark.parametrize("shape, settings, sentence", REFUSED)
def test_contradictory_values_fail_with_a_sentence(
    shape: tuple[str, str], settings: list[str], sentence: str
) -> None:
    assert sentence in helm.refusal(*shape, *settings)


def test_every_sentence_of_the_checks_is_tested() -> None:
    live = (
        "persistence.size: the volume",
        "persistence.storageClassName: the volume",
        "fullnameOverride: this release runs as",
        "persistence.existingClaim: this release has",
        "persistence.accessModes: the volume",
        "persistence.annotations: the volume",
    )  # test_chart_platforms.py
    for chart in helm.NAMES:
        files = sorted((helm.CHARTS / chart / "templates").glob("_*checks.tpl"))
        text = "".join(file.read_text() for file in files)
        common = (helm.CHARTS / chart / "templates" / "_common_checks.tpl").read_text()
        sentences = re.findall(r'fail (?:\(printf )?"([^"]+)"', text)
        assert len(sentences) == text.count("fail ")
        for sentence in sentences:
            if not sentence.startswith(live):
                is_common = sentence in common
                assert any(
                    expected in sentence for (name, _), _, expected in REFUSED if is_common or name == chart
                ), sentence


def test_a_hospitals_values_fit_on_one_screen() -> None:
    text = (helm.CHARTS / SILO / "ci" / "hospital-values.yaml").read_text()
    assert len(text.splitlines()) <= SCREEN_LINES
    assert set(yaml.safe_load(text)) == {
        *("name", "federation", "coordinator", "identity", "authority", "data", "policy", "settings")
    }


def settings_files(chart: str, values: str, directory: Path) -> dict[str, Path]:
    """The rendered settings of a shape, as files."""
    data = helm.one(helm.rendered(chart, values), "ConfigMap", f"{release_name(chart, values)}-settings")[
        "data"
    ]
    for name, text in data.items():
        (directory / name).write_text(text)
    return {name: directory / name for name in data}


def release_name(chart: str, values: str) -> str:
    name: str = helm.one(helm.rendered(chart, values), "StatefulSet")["metadata"]["name"]
    return name


@pytest.mark.parametrize("chart, values", helm.SHAPES)
def test_rendered_settings_load_and_name_files_that_are_mounted(
    chart: str, values: str, tmp_path: Path
) -> None:
    files = settings_files(chart, values, tmp_path)
    pod = helm.one(helm.rendered(chart, values), "StatefulSet")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert container["command"][-1] == f"/etc/chorale/settings/{next(iter(files))}" or len(files) >= 2
    if chart == COORDINATOR:
        settings = load_coordinator_settings(files["coordinator.yaml"])
        assert settings.listen.endswith(f":{ports['grpc']}")
        read = [settings.roster]
    else:
        settings = load_silo_settings(files["silo.yaml"])
        assert load_policy(files["policy.yaml"]).federation == settings.federation
        assert container["command"][-1] == "/etc/chorale/settings/silo.yaml"
        assert str(settings.policy) == "/etc/chorale/settings/policy.yaml"
        read = [settings.policy, *(each.path for each in settings.data_sets if each.path)]
        read += [settings.proxy_credentials] if settings.proxy_credentials else []
    assert settings.metrics_listen is not None
    assert settings.metrics_listen.endswith(f":{ports['metrics']}")
    read += [settings.identity.certificate, settings.identity.key, settings.authority]
    for path in read:
        (mount,) = (mounts[str(folder)] for folder in path.parents if str(folder) in mounts)
        assert mount["readOnly"] is True, path
        assert "subPath" not in mount, path  # such a file would never be renewed
    assert str(settings.directory.parent) in mounts
    assert not mounts[str(settings.directory.parent)].get("readOnly")


@pytest.mark.parametrize("name", ["123", "true", "null", "0x1f", "1e5"])
def test_names_that_yaml_takes_for_something_else_stay_names(name: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(json.dumps({"name": name, "federation": name}))
    done = helm.run(
        *("template", "fed", SILO, "--kube-version", "1.33.0"),
        *("-f", f"{SILO}/ci/digits-values.yaml", "-f", tmp_path / "values.yaml"),
    )
    data = helm.one(helm.parsed(done.stdout), "ConfigMap")["data"]
    (tmp_path / "silo.yaml").write_text(data["silo.yaml"])
    assert load_silo_settings(tmp_path / "silo.yaml").name == name


def test_options_are_the_numbers_and_texts_of_the_values(tmp_path: Path) -> None:
    # Helm writes 0.00001 as 1e-05, which arrived as a text
    options = "{small: 0.00001, least: 1e-7, whole: 1000000, limit: 1e6, word: '1e-3', seen: 'no'}"
    given = f"data: {{from: 'hospital==1.0', format: cohort, path: '', options: {options}}}"
    (tmp_path / "values.yaml").write_text(given)
    done = helm.run(
        *("template", "fed", SILO, "--kube-version", "1.33.0"),
        *("-f", f"{SILO}/ci/hospital-values.yaml", "-f", tmp_path / "values.yaml"),
    )
    (tmp_path / "silo.yaml").write_text(helm.one(helm.parsed(done.stdout), "ConfigMap")["data"]["silo.yaml"])
    (data,) = load_silo_settings(tmp_path / "silo.yaml").data_sets
    numbers = {"small": 0.00001, "least": 1e-7, "whole": 1_000_000, "limit": 1_000_000}
    assert data.options == {**numbers, "word": "1e-3", "seen": "no"}
    assert all(isinstance(data.options[name], int) for name in ("whole", "limit"))


def test_a_map_of_a_policy_arrives_with_its_nulls_and_its_names(tmp_path: Path) -> None:
    """null stands for all columns of a data set; it was left out, and no job read any."""
    inputs = {"ward": ["age"], "trial": None, "yes": ["age"], "010": ["bmi"]}
    (tmp_path / "values.json").write_text(json.dumps({"policy": {"inputs": inputs}}))
    done = helm.run(
        *("template", "fed", SILO, "--kube-version", "1.33.0"),
        *("-f", f"{SILO}/ci/hospital-values.yaml", "-f", tmp_path / "values.json"),
    )
    path = tmp_path / "policy.yaml"
    path.write_text(helm.one(helm.parsed(done.stdout), "ConfigMap")["data"][path.name])
    read = load_policy(path).inputs
    assert read is not None
    assert {name: None if columns is None else list(columns) for name, columns in read.items()} == inputs


def test_what_a_hospital_sets_is_what_the_agent_reads(tmp_path: Path) -> None:
    files = settings_files(SILO, "hostpath-values.yaml", tmp_path)
    settings = load_silo_settings(files["silo.yaml"])
    assert settings.name == "clinic-d"
    data, scans = settings.data_sets
    assert (data.path, data.columns_in_file) == (Path("/data/patients.csv"), ("age", "chol", "num"))
    assert (data.missing, data.labels) == ({"chol": ("0",)}, {"gesund": "healthy", "krank": "ill"})
    assert data.drop == ("unknown",)
    assert (scans.name, scans.path) == ("ct", Path("/data/ct"))
    assert [settings.policy_of(each).name for each in settings.data_sets] == ["policy.yaml", "policy-ct.yaml"]
    own, shared = load_policy(files["policy-ct.yaml"]), load_policy(files["policy.yaml"])
    assert own == shared.model_copy(update={"max_rounds": 20})
    files = settings_files(SILO, "proxy-values.yaml", tmp_path)
    behind_proxy = load_silo_settings(files["silo.yaml"])
    assert behind_proxy.coordinator_name == "coordinator.example.org"
    assert (settings.proxy, behind_proxy.proxy) == (None, "proxy.clinic-c.example:3128")
    policy = load_policy(files["policy.yaml"])
    assert (policy.approval, policy.drawn_rounds, policy.min_class_holders) == ("automatic", "refuse", 4)
    assert (policy.privacy.epsilon, policy.privacy.shared_noise) == (12, 5)
    files = settings_files(COORDINATOR, "gateway-values.yaml", tmp_path)
    assert load_coordinator_settings(files["coordinator.yaml"]).max_state_bytes == 8 << 30


def test_tracing_is_given_to_both_sides(tmp_path: Path) -> None:
    files = settings_files(SILO, "gpu-values.yaml", tmp_path)
    assert load_silo_settings(files["silo.yaml"]).tracing_endpoint == TRACES_OUTSIDE
    objects = helm.rendered(SILO, "gpu-values.yaml")
    (container,) = helm.one(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    (headers,) = [each for each in container["env"] if each["name"] == "OTEL_EXPORTER_OTLP_HEADERS"]
    assert headers["valueFrom"] == {"secretKeyRef": {"name": "collector-token", "key": "headers"}}
    files = settings_files(COORDINATOR, "ingress-values.yaml", tmp_path)
    assert load_coordinator_settings(files["coordinator.yaml"]).tracing_endpoint == TRACES_INSIDE


# fields that the chart sets itself, or under a name of its own
COORDINATOR_OWN = {"federation", "listen", "metrics_listen", "identity", "authority", "roster", "directory"}
COORDINATOR_OWN |= {"tracing_endpoint"}
SILO_OWN = {"name", "federation", "coordinator", "coordinator_name", "identity", "authority", "directory"}
SILO_OWN |= {"policy", "metrics_listen", "data", "proxy", "proxy_credentials", "no_proxy", "tracing_endpoint"}


@pytest.mark.parametrize(
    "chart, path, model, own",
    [
        (COORDINATOR, ["settings"], CoordinatorSettings, COORDINATOR_OWN),
        (SILO, ["settings"], SiloSettings, SILO_OWN),
        (SILO, ["policy"], Policy, {"federation"}),
        (SILO, ["policy", "privacy"], PrivacyPolicy, set()),
        (SILO, ["data"], DataSettings, {"database"}),
        (SILO, ["data", "partition"], PartitionSettings, set()),
    ],
)
def test_values_are_the_products_fields_with_the_products_defaults(
    chart: str, path: list[str], model: type[BaseModel], own: set[str]
) -> None:
    schema, values = helm.schema(chart), helm.defaults(chart)
    for name in path:
        schema, values = schema["properties"][name], values[name]
    fields = {field.alias or name for name, field in model.model_fields.items()}
    assert set(schema["properties"]) - {"volume"} == fields - own
    for name, value in values.items():
        field = model.model_fields.get(name)
        if field is None or field.is_required() or value in (None, "", [], {}) or isinstance(value, dict):
            continue
        assert value == field.default, name


def test_further_data_sets_have_every_field_of_the_first(tmp_path: Path) -> None:
    """The schema of moreData had been written a second time, and lacked cache_megabytes and workers."""
    defaults = helm.defaults(SILO)
    fields = helm.schema(SILO)["properties"]["data"]["properties"].keys() - {"volume"}
    assert fields == defaults["data"].keys() - {"volume"}
    first = {name: defaults["data"][name] for name in fields} | {"format": "csv", "path": "a.csv"}
    changed = {
        "cache_megabytes": 512,
        "workers": 4,
        "unit": "patient",
        "max_rows_per_unit": 3,
        "holdout": 0.3,
    }
    values = yaml.safe_load((helm.CHARTS / SILO / "ci" / "hospital-values.yaml").read_text())
    values |= {"moreData": [{**first, **changed, "name": "ct"}]}
    (tmp_path / "values.json").write_text(json.dumps(values))
    done = helm.run("template", "fed", SILO, "--kube-version", "1.33.0", "-f", tmp_path / "values.json")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "silo.yaml"
    path.write_text(
        helm.one(helm.parsed(done.stdout), "ConfigMap", f"fed-{SILO}-settings")["data"][path.name]
    )
    _, further = load_silo_settings(path).data_sets
    assert {name: getattr(further, name) for name in changed} == changed

    def refused(where: str, name: str) -> bool:
        """Whether a value that is right for no field is refused there."""
        wrong = {**first, name: 1.5}
        more = {"data": wrong | {"volume": {"csi": {}}}} if where == "data" else {"moreData": [wrong]}
        problems = jsonschema.Draft7Validator(helm.schema(SILO)).iter_errors({**defaults, **more})
        return where in {
            str(problem.absolute_path[0]) for problem in problems if name in problem.absolute_path
        }

    for name in fields:
        assert (refused("data", name), refused("moreData", name)) == (True, True), name


def test_variables_of_services_would_be_read_as_settings(tmp_path: Path) -> None:
    # why enableServiceLinks is off: Kubernetes sets these for a Service named chorale-coordinator
    file = settings_files(COORDINATOR, "loadbalancer-values.yaml", tmp_path)["coordinator.yaml"]
    linked = {"CHORALE_COORDINATOR_SERVICE_HOST": "10.0.0.1"}
    with pytest.raises(ConfigError, match="SERVICE_HOST"):
        load_settings(CoordinatorSettings, file, ENV_PREFIX, environment=linked)


def test_a_coordinator_past_the_proxy_has_a_way_of_its_own(tmp_path: Path) -> None:
    """Of the network policy and of the agent; the proxy's stays, as names may be added later."""
    past = "proxy.noProxy={203.0.113.0/24},coordinator.cidrs={203.0.113.10/32}"
    values = f"{SILO}/ci/proxy-values.yaml"
    done = helm.run("template", "fed", SILO, "--kube-version", "1.30.0", "-f", values, "--set", past)
    assert done.returncode == 0, done.stderr
    objects = helm.parsed(done.stdout)
    egress = helm.one(objects, "NetworkPolicy")["spec"]["egress"]
    ways = {
        (rule["ports"][0]["port"], to["ipBlock"]["cidr"])
        for rule in egress
        for to in rule["to"]
        if "ipBlock" in to
    }
    assert {(7443, "203.0.113.10/32"), (3128, "10.20.0.8/32")} <= ways
    path = tmp_path / "silo.yaml"
    (text,) = [text for each in objects for name, text in each.get("data", {}).items() if name == path.name]
    path.write_text(text)
    assert load_silo_settings(path).route().proxy is None
