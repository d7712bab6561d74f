"""What the charts promise a reviewer: restricted pods, closed networks, no key outside a Secret."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.deployment import helm
from tests.deployment.network import Peer, allows
from tests.deployment.pod_security import lapses, violations

every_shape = pytest.mark.parametrize("chart, values", helm.SHAPES)
HOST_PATH = "hostpath-values.yaml"


@every_shape
def test_pods_are_restricted(chart: str, values: str) -> None:
    pods = helm.pods(helm.rendered(chart, values))
    # the process and that of `helm test`, and that of backups
    assert len(pods) == 2 + (chart == COORDINATOR and values == "loadbalancer-values.yaml")
    for name, spec in pods.items():
        is_exempt = values == HOST_PATH and not name.endswith("readyz")
        assert violations(spec) == (["volume data: hostPath is not allowed"] if is_exempt else [])
        # OpenShift gives every namespace users of its own
        assert [each for each in lapses(spec) if not each.endswith("the user is not a number")] == []
        is_free = "runAsUser" not in spec["securityContext"]
        assert is_free is (values == "openshift-values.yaml")


Change = Callable[[dict[str, Any], dict[str, Any]], object]
WEAKENED: dict[str, Change] = {
    "hostNetwork is set": lambda pod, _: pod.update(hostNetwork=True),
    "hostPID is set": lambda pod, _: pod.update(hostPID=True),
    "volume x: hostPath is not allowed": lambda pod, _: pod["volumes"].append(
        {"name": "x", "hostPath": {"path": "/"}}
    ),
    "silo: privileged": lambda _, own: own.update(privileged=True),
    "silo: privilege escalation is not forbidden": lambda _, own: own.pop("allowPrivilegeEscalation"),
    "silo: capabilities are not dropped": lambda _, own: own.update(capabilities={"drop": ["NET_RAW"]}),
    "silo: it may run as root": lambda _, own: own.update(runAsNonRoot=False),
    "silo: its user is root": lambda _, own: own.update(runAsUser=0),
    "silo: no seccomp profile": lambda pod, _: pod["securityContext"].pop("seccompProfile"),
    "silo: AppArmor is off": lambda pod, _: pod["securityContext"].update(
        appArmorProfile={"type": "Unconfined"}
    ),
    "silo: SELinux's user, role or type is changed": lambda _, own: own.update(
        seLinuxOptions={"type": "spc_t"}
    ),
    "silo: procMount": lambda _, own: own.update(procMount="Unmasked"),
    "sysctls are set": lambda pod, _: pod["securityContext"].update(sysctls=[{"name": "kernel.msgmax"}]),
    "silo: hostPort": lambda pod, _: pod["containers"][0]["ports"][0].update(hostPort=80),
}


@pytest.mark.parametrize("violation", WEAKENED)
def test_each_weakening_is_seen(violation: str) -> None:
    pod = copy.deepcopy(helm.pods(helm.rendered("chorale-silo", "hospital-values.yaml"))["fed-chorale-silo"])
    assert violations(pod) == []
    WEAKENED[violation](pod, pod["containers"][0]["securityContext"])
    assert violations(pod) == [violation]


def test_each_lapse_is_seen() -> None:
    pod = copy.deepcopy(helm.pods(helm.rendered("chorale-silo", "hospital-values.yaml"))["fed-chorale-silo"])
    del pod["automountServiceAccountToken"], pod["enableServiceLinks"], pod["securityContext"]["runAsUser"]
    pod["containers"][0]["resources"] = {}
    pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = False
    assert len(lapses(pod)) == 5


MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
KUBE_SYSTEM = {"kubernetes.io/metadata.name": "kube-system"}
HEART = {"kubernetes.io/metadata.name": "heart"}
OTHER = {"kubernetes.io/metadata.name": "other"}
INGRESS = {"kubernetes.io/metadata.name": "ingress-nginx"}
OBSERVABILITY = {"kubernetes.io/metadata.name": "observability"}

PROMETHEUS = Peer(namespace=MONITORING, pod={"app.kubernetes.io/name": "prometheus"})
TRACES = Peer(namespace=MONITORING, pod={"app.kubernetes.io/name": "opentelemetry-collector"})
STRANGER = Peer(namespace=OTHER, pod={"app": "stranger"})
NEIGHBOR = Peer(namespace=HEART, pod={"app": "neighbor"})
CONTROLLER = Peer(namespace=INGRESS, pod={"app.kubernetes.io/component": "controller"})
OPENSHIFT_DNS = {"kubernetes.io/metadata.name": "openshift-dns"}
OTHER_DNS = Peer(namespace=OPENSHIFT_DNS, pod={"dns.operator.openshift.io/daemonset-dns": "default"})
COREDNS = Peer(namespace=KUBE_SYSTEM, pod={"k8s-app": "kube-dns"})
OTHER_PROMETHEUS = Peer(namespace=OBSERVABILITY, pod={"app.kubernetes.io/name": "prometheus"})
OBSERVER = Peer(namespace=OBSERVABILITY, pod={"app": "grafana"})
SILO = Peer(address="198.51.100.7")
ELSEWHERE = Peer(address="192.0.2.1")
HUB = Peer(address="203.0.113.10")
PROXY = Peer(address="10.20.0.8")

COORDINATOR = "chorale-coordinator"
AGENT = "chorale-silo"
IN, OUT = "Ingress", "Egress"

# (chart, values, direction, peer, port, protocol, allowed)
FLOWS = [
    # gRPC from the allowed networks alone
    (COORDINATOR, "loadbalancer", IN, SILO, 7443, "TCP", True),
    (COORDINATOR, "loadbalancer", IN, HUB, 7443, "TCP", True),
    (COORDINATOR, "loadbalancer", IN, ELSEWHERE, 7443, "TCP", False),
    (COORDINATOR, "loadbalancer", IN, STRANGER, 7443, "TCP", False),
    (COORDINATOR, "loadbalancer", IN, SILO, 9463, "TCP", False),
    (COORDINATOR, "loadbalancer", IN, SILO, 7443, "UDP", False),
    # ... or from the ingress controller alone
    (COORDINATOR, "ingress", IN, CONTROLLER, 7443, "TCP", True),
    (COORDINATOR, "ingress", IN, Peer(namespace=INGRESS, pod={"app": "x"}), 7443, "TCP", False),
    (COORDINATOR, "ingress", IN, SILO, 7443, "TCP", False),
    (COORDINATOR, "ingress", IN, CONTROLLER, 9463, "TCP", False),
    # ... or from everywhere, and still nothing else
    (COORDINATOR, "gateway", IN, ELSEWHERE, 7443, "TCP", True),
    (COORDINATOR, "gateway", IN, STRANGER, 7443, "TCP", True),
    (COORDINATOR, "gateway", IN, ELSEWHERE, 22, "TCP", False),
    # metrics from Prometheus alone
    (COORDINATOR, "gateway", IN, PROMETHEUS, 9463, "TCP", True),
    (COORDINATOR, "gateway", IN, STRANGER, 9463, "TCP", False),
    (COORDINATOR, "gateway", IN, NEIGHBOR, 9463, "TCP", False),
    (COORDINATOR, "gateway", IN, ELSEWHERE, 9463, "TCP", False),
    # it dials no one
    (COORDINATOR, "gateway", OUT, ELSEWHERE, 443, "TCP", False),
    (COORDINATOR, "gateway", OUT, COREDNS, 53, "UDP", False),
    (COORDINATOR, "gateway", OUT, NEIGHBOR, 80, "TCP", False),
    # a silo dials the coordinator on its port, asks for names, and nothing else
    (AGENT, "hospital", OUT, HUB, 7443, "TCP", True),
    (AGENT, "hospital", OUT, HUB, 443, "TCP", False),
    (AGENT, "hospital", OUT, HUB, 7443, "UDP", False),
    (AGENT, "hospital", OUT, Peer(address="203.0.113.11"), 7443, "TCP", False),
    (AGENT, "hospital", OUT, ELSEWHERE, 7443, "TCP", False),
    (AGENT, "hospital", OUT, COREDNS, 53, "UDP", True),
    (AGENT, "hospital", OUT, COREDNS, 53, "TCP", True),
    (AGENT, "hospital", OUT, COREDNS, 443, "TCP", False),
    (AGENT, "hospital", OUT, Peer(namespace=KUBE_SYSTEM, pod={"app": "x"}), 53, "UDP", False),
    (AGENT, "hospital", OUT, ELSEWHERE, 53, "UDP", False),
    (AGENT, "hospital", OUT, NEIGHBOR, 7443, "TCP", False),
    (AGENT, "gpu", OUT, HUB, 443, "TCP", True),
    (AGENT, "gpu", OUT, Peer(address="2001:db8::10"), 443, "TCP", True),
    (AGENT, "gpu", OUT, Peer(address="2001:db8::11"), 443, "TCP", False),
    # a DNS of other labels on another port
    (AGENT, "openshift", OUT, OTHER_DNS, 5353, "UDP", True),
    (AGENT, "openshift", OUT, OTHER_DNS, 5353, "TCP", True),
    (AGENT, "openshift", OUT, COREDNS, 53, "UDP", False),
    (AGENT, "hospital", OUT, COREDNS, 5353, "UDP", False),
    # through a proxy: the proxy and its port, not even the coordinator
    (AGENT, "proxy", OUT, PROXY, 3128, "TCP", True),
    (AGENT, "proxy", OUT, PROXY, 7443, "TCP", False),
    (AGENT, "proxy", OUT, HUB, 7443, "TCP", False),
    (AGENT, "proxy", OUT, HUB, 3128, "TCP", False),
    (AGENT, "proxy", OUT, Peer(address="169.254.20.10"), 53, "UDP", True),
    # nothing dials a silo but Prometheus
    (AGENT, "hospital", IN, PROMETHEUS, 9464, "TCP", True),
    (AGENT, "hospital", IN, PROMETHEUS, 7443, "TCP", False),
    (AGENT, "hospital", IN, STRANGER, 9464, "TCP", False),
    (AGENT, "hospital", IN, NEIGHBOR, 9464, "TCP", False),
    (AGENT, "hospital", IN, HUB, 9464, "TCP", False),
    (AGENT, "proxy", IN, OTHER_PROMETHEUS, 9464, "TCP", True),
    (AGENT, "proxy", IN, OBSERVER, 9464, "TCP", False),
    (AGENT, "proxy", IN, PROMETHEUS, 9464, "TCP", False),
    # with tracing the collector, on the port of its URL, and its name
    (COORDINATOR, "ingress", OUT, TRACES, 4318, "TCP", True),
    (COORDINATOR, "ingress", OUT, TRACES, 4317, "TCP", False),
    (COORDINATOR, "ingress", OUT, PROMETHEUS, 4318, "TCP", False),
    (COORDINATOR, "ingress", OUT, ELSEWHERE, 4318, "TCP", False),
    (COORDINATOR, "ingress", OUT, COREDNS, 53, "UDP", True),
    (COORDINATOR, "ingress", OUT, ELSEWHERE, 53, "UDP", False),
    (AGENT, "gpu", OUT, Peer(address="10.30.0.9"), 443, "TCP", True),
    (AGENT, "gpu", OUT, Peer(address="10.30.0.9"), 4318, "TCP", False),
    (AGENT, "gpu", OUT, Peer(address="10.30.0.10"), 443, "TCP", False),
    # switched off, everything goes
    (AGENT, "digits", OUT, ELSEWHERE, 443, "TCP", True),
    (COORDINATOR, "bare", IN, STRANGER, 9463, "TCP", True),
]


def is_allowed(chart: str, values: str, direction: Any, peer: Peer, port: int, protocol: str = "TCP") -> bool:
    """Whether the policies of a shape let its process talk to a peer."""
    objects = helm.rendered(chart, values)
    labels = helm.one(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    return allows(policies, labels, direction, peer, port, own_namespace=HEART, protocol=protocol)


@pytest.mark.parametrize("chart, values, direction, peer, port, protocol, allowed", FLOWS)
def test_flows(
    chart: str, values: str, direction: Any, peer: Peer, port: int, protocol: str, allowed: bool
) -> None:
    assert is_allowed(chart, f"{values}-values.yaml", direction, peer, port, protocol) is allowed


def test_the_pod_of_backups_talks_to_nobody() -> None:
    objects = helm.rendered(COORDINATOR, "loadbalancer-values.yaml")
    template = helm.one(objects, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    for direction, port in ((IN, 9463), (IN, 7443), (OUT, 443), (OUT, 53)):
        for peer in (PROMETHEUS, SILO, NEIGHBOR, COREDNS):
            assert not allows(
                policies, template["metadata"]["labels"], direction, peer, port, own_namespace=HEART
            )
    assert not any("secret" in volume for volume in template["spec"]["volumes"])


@every_shape
def test_the_pod_of_helm_test_reaches_the_probes_alone(chart: str, values: str) -> None:
    labels = helm.one(helm.rendered(chart, values), "Pod")["metadata"]["labels"]
    tester, elsewhere = (Peer(namespace=namespace, pod=labels) for namespace in (HEART, OTHER))
    metrics = 9463 if chart == COORDINATOR else 9464
    is_open = values in ("bare-values.yaml", "digits-values.yaml")
    assert is_allowed(chart, values, IN, tester, metrics)
    assert is_allowed(chart, values, IN, elsewhere, metrics) is is_open
    assert is_allowed(chart, values, IN, tester, 22) is is_open


@every_shape
def test_no_key_is_rendered_and_the_secret_is_mounted_for_the_process_alone(chart: str, values: str) -> None:
    objects = helm.rendered(chart, values)
    assert "Secret" not in {each["kind"] for each in objects}
    assert "PRIVATE KEY" not in str(objects)
    pods = helm.pods(objects)
    (process,) = (pod for name, pod in pods.items() if not name.endswith(("readyz", "backup")))
    secrets = {volume["name"]: volume["secret"] for volume in process["volumes"] if "secret" in volume}
    assert all(secret["defaultMode"] & 0o007 == 0 for secret in secrets.values())
    read = {name: {item["path"] for item in secret["items"]} for name, secret in secrets.items()}
    login = {"proxy": {"credentials"}} if values == "proxy-values.yaml" else {}
    assert read == {"identity": {"tls.crt", "tls.key"}, **login}
    assert not any("volumes" in pod for name, pod in pods.items() if name.endswith("readyz"))


@pytest.mark.parametrize("chart", helm.NAMES)
def test_no_value_takes_a_key(chart: str) -> None:
    names = re.findall(r"^ *([A-Za-z_]+):", (helm.CHARTS / chart / "values.yaml").read_text(), re.MULTILINE)
    assert {
        name for name in names if re.search("secret|password|token|private|key$", name, re.IGNORECASE)
    } <= {
        # names of Secrets and of their entries
        *("secretName", "imagePullSecrets", "certificateKey", "privateKeyKey", "credentialsSecretName"),
        "automountServiceAccountToken",  # whether, not which
    }
