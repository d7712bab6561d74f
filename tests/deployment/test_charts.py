"""Every supported shape of the charts renders to objects that Kubernetes takes, and that fit together."""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path

import jsonschema
import pytest
import yaml

from cli.coordinator import backup
from tests.deployment import helm
from tests.deployment.objects import CRDS, check

every_shape = pytest.mark.parametrize("chart, values", helm.SHAPES)


@every_shape
def test_lint_finds_nothing(chart: str, values: str) -> None:
    done = helm.run("lint", "--strict", chart, "-f", f"{chart}/ci/{values}")
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", helm.KUBERNETES)
@every_shape
def test_objects_are_valid_in_each_version_of_kubernetes(chart: str, values: str, version: str) -> None:
    for found in helm.rendered(chart, values, version):
        check(found, version)


@every_shape
def test_values_that_the_schema_does_not_require_may_be_absent(
    chart: str, values: str, tmp_path: Path
) -> None:
    """As under `helm upgrade --reuse-values` of a release whose version did not have them."""
    copy = tmp_path / chart
    shutil.copytree(helm.CHARTS / chart, copy)
    shape = copy / "ci" / values
    given = yaml.safe_load(shape.read_text())
    given.setdefault("networkPolicy", {}).setdefault("metricsPods", [])  # which the checks require
    least = helm.least_values(copy, given)
    (copy / "values.yaml").write_text(yaml.safe_dump(least))
    done = helm.run("template", "fed", copy, "--kube-version", "1.33.0", "-f", shape)
    assert done.returncode == 0, done.stderr


def test_validation_refuses_what_is_not_in_a_schema() -> None:
    objects = helm.rendered("chorale-coordinator", "gateway-values.yaml")
    for kind in ("Service", "StatefulSet", "TLSRoute", "Certificate", "PodMonitor"):
        wrong = json.loads(json.dumps(next(each for each in objects if each["kind"] == kind)))
        check(wrong, "1.33")
        wrong["spec"]["replicass"] = 1
        with pytest.raises(jsonschema.ValidationError, match="replicass"):
            check(wrong, "1.33")


def test_shapes_use_every_kind_of_object() -> None:
    kinds = {each["kind"] for chart, values in helm.SHAPES for each in helm.rendered(chart, values)}
    assert kinds == {
        *("StatefulSet", "Service", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Ingress", "Pod"),
        *("ServiceAccount", "CronJob", "PersistentVolumeClaim"),
        *CRDS,
    }


@every_shape
def test_objects_carry_names_and_labels_of_their_release(chart: str, values: str) -> None:
    objects = helm.rendered(chart, values)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)
    for each in objects:
        is_monitor = each["kind"] in ("ServiceMonitor", "PodMonitor") and "namespaceSelector" in each["spec"]
        assert each["metadata"]["namespace"] == ("monitoring" if is_monitor else "heart")
        assert not is_monitor or each["spec"]["namespaceSelector"] == {"matchNames": ["heart"]}
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "fed"


@every_shape
def test_selectors_find_the_pod_and_not_that_of_the_test(chart: str, values: str) -> None:
    objects = helm.rendered(chart, values)
    labels = helm.one(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    test_labels = helm.one(objects, "Pod")["metadata"]["labels"]
    selectors = [
        each["spec"]["selector"].get("matchLabels", each["spec"]["selector"])
        for each in objects
        if each["kind"] in ("StatefulSet", "Service", "PodDisruptionBudget", "PodMonitor")
    ]
    assert len(selectors) >= 2
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not selector.items() <= test_labels.items()


@every_shape
def test_monitors_and_routes_name_ports_and_services_that_exist(chart: str, values: str) -> None:
    objects = helm.rendered(chart, values)
    container = helm.one(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"] for port in container["ports"]}
    services = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Service"}
    for service in services.values():
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    assert helm.one(objects, "StatefulSet")["spec"]["serviceName"] in services
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked == {"path": "/readyz" if probe == "readinessProbe" else "/livez", "port": "metrics"}
    for each in objects:
        if each["kind"] == "ServiceMonitor":
            wanted = each["spec"]["selector"]["matchLabels"].items()
            found = [s for s in services.values() if wanted <= s["metadata"]["labels"].items()]
            offered = {port["name"] for service in found for port in service["spec"]["ports"]}
            assert {endpoint["port"] for endpoint in each["spec"]["endpoints"]} <= offered
        elif each["kind"] == "PodMonitor":
            assert {endpoint["port"] for endpoint in each["spec"]["podMetricsEndpoints"]} <= ports
        elif each["kind"] == "TLSRoute":
            (backend,) = each["spec"]["rules"][0]["backendRefs"]
            offered = {port["port"] for port in services[backend["name"]]["spec"]["ports"]}
            assert backend["port"] in offered
        elif each["kind"] == "Ingress":
            backend = each["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
            offered = {port["name"] for port in services[backend["name"]]["spec"]["ports"]}
            assert backend["port"]["name"] in offered


@every_shape
def test_grpc_is_announced_as_https_and_passed_through(chart: str, values: str) -> None:
    objects = helm.rendered(chart, values)
    grpc = [
        port
        for each in objects
        if each["kind"] == "Service"
        for port in each["spec"]["ports"]
        if port["name"] == "grpc"
    ]
    assert [port["appProtocol"] for port in grpc] == (["https"] if chart == "chorale-coordinator" else [])
    for each in objects:
        if each["kind"] == "Ingress":
            passing = [key for key in each["metadata"]["annotations"] if key.endswith("/ssl-passthrough")]
            assert len(passing) == 1
            assert "tls" not in each["spec"]


@every_shape
def test_state_stays_when_the_release_goes(chart: str, values: str) -> None:
    spec = helm.one(helm.rendered(chart, values), "StatefulSet")["spec"]
    assert spec["replicas"] == 1
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    (claim,) = spec["volumeClaimTemplates"]
    mode = "ReadWriteOncePod" if values == "platform-values.yaml" else "ReadWriteOnce"
    assert claim["spec"]["accessModes"] == [mode]
    mounts = spec["template"]["spec"]["containers"][0]["volumeMounts"]
    assert {"name": claim["metadata"]["name"], "mountPath": "/var/lib/chorale"} in mounts


@pytest.mark.parametrize(
    "chart, values, usage, uri",
    [
        ("chorale-coordinator", "gateway-values.yaml", "server auth", "spiffe://heart/coordinator/hub"),
        ("chorale-silo", "proxy-values.yaml", "client auth", "spiffe://heart/silo/clinic-c"),
    ],
)
def test_cert_manager_is_asked_for_what_the_protocol_demands(
    chart: str, values: str, usage: str, uri: str
) -> None:
    objects = helm.rendered(chart, values)
    spec = helm.one(objects, "Certificate")["spec"]
    assert spec["uris"] == [uri]
    assert spec["usages"] == ["digital signature", usage]
    assert (spec["privateKey"]["algorithm"], spec["privateKey"]["size"]) == ("ECDSA", 256)
    assert spec["isCA"] is False
    assert ("dnsNames" in spec) == (usage == "server auth")
    volumes = helm.one(objects, "StatefulSet")["spec"]["template"]["spec"]["volumes"]
    assert spec["secretName"] in [volume.get("secret", {}).get("secretName") for volume in volumes]


def test_backups_are_made_beside_the_coordinator_and_kept_by_themselves() -> None:
    """Its volume is bound to one node, so the pod that reads it has to run there."""
    objects = helm.rendered("chorale-coordinator", "loadbalancer-values.yaml")
    job, claim = helm.one(objects, "CronJob")["spec"], helm.one(objects, "PersistentVolumeClaim")
    assert (job["schedule"], job["concurrencyPolicy"]) == ("30 */6 * * *", "Forbid")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    template = job["jobTemplate"]["spec"]["template"]
    pod, (container,) = template["spec"], template["spec"]["containers"]
    (term,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    process = helm.one(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    selected = term["labelSelector"]["matchLabels"].items()
    assert selected <= process.items()
    assert not selected <= template["metadata"]["labels"].items()
    claims = {
        each["name"]: each["persistentVolumeClaim"]["claimName"]
        for each in pod["volumes"]
        if "persistentVolumeClaim" in each
    }
    name = helm.one(objects, "StatefulSet")["metadata"]["name"]
    assert claims == {"state": f"state-{name}-0", "backups": claim["metadata"]["name"]}
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    assert mounts["state"] == {"name": "state", "mountPath": "/var/lib/chorale"}
    program, group, command, *arguments = container["command"]
    assert (program, group, command) == ("chorale", "coordinator", "backup")
    given = backup.make_context(command, arguments).params
    assert given["out"] == Path(mounts["backups"]["mountPath"])
    assert given["keep"] == 3


def test_gpus_have_memory_to_exchange_gradients_by_default() -> None:
    """The runtime's 64 MiB of /dev/shm are too few for NCCL."""
    objects = helm.rendered("chorale-silo", "digits-values.yaml")
    pod = helm.one(objects, "StatefulSet")["spec"]["template"]["spec"]
    (shm,) = (volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm")
    assert shm == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]


def test_a_gpu_is_asked_for_as_request_and_limit() -> None:
    pod = helm.one(helm.rendered("chorale-silo", "gpu-values.yaml"), "StatefulSet")["spec"]["template"][
        "spec"
    ]
    resources = pod["containers"][0]["resources"]
    assert resources["requests"] == {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": 1}
    assert resources["limits"] == {"memory": "64Gi", "nvidia.com/gpu": 1}
    assert pod["runtimeClassName"] == "nvidia"
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]


@pytest.mark.parametrize(
    "values, volume",
    [
        ("hospital-values.yaml", {"persistentVolumeClaim": {"claimName": "patients", "readOnly": True}}),
        ("hostpath-values.yaml", {"hostPath": {"path": "/srv/heart", "type": "Directory"}}),
        (
            "gpu-values.yaml",
            {
                "csi": {
                    "driver": "smb.csi.k8s.io",
                    "readOnly": True,
                    "volumeAttributes": {"source": "//files.clinic-b.example/scans"},
                    "nodePublishSecretRef": {"name": "scans-credentials"},
                }
            },
        ),
        ("digits-values.yaml", None),
    ],
)
def test_data_is_mounted_for_reading_alone(values: str, volume: helm.Object | None) -> None:
    pod = helm.one(helm.rendered("chorale-silo", values), "StatefulSet")["spec"]["template"]["spec"]
    volumes = [each for each in pod["volumes"] if each["name"] == "data"]
    mounts = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "data"]
    assert volumes == ([] if volume is None else [{"name": "data", **volume}])
    assert mounts == ([] if volume is None else [{"name": "data", "mountPath": "/data", "readOnly": True}])


def test_a_settings_change_replaces_the_pod_and_a_roster_does_not() -> None:
    def annotations(*settings: str) -> object:
        chart = "chorale-coordinator"
        done = helm.run(
            *("template", "fed", chart, "--kube-version", "1.33.0", "-f", f"{chart}/ci/gateway-values.yaml"),
            *(part for setting in settings for part in ("--set", setting)),
        )
        return helm.one(helm.parsed(done.stdout), "StatefulSet")["spec"]["template"]["metadata"][
            "annotations"
        ]

    assert annotations("roster.document=new") == annotations()
    assert annotations("settings.max_jobs=9") != annotations()


NOTES_AS_VALUE = 'notes: {{ tpl (.Files.Get "notes.txt") . | toJson }}\nkind: Notes\n'


@functools.cache
def notes_of(chart: str, values: str, directory: Path) -> str:
    """What `helm install` would print. `helm template` renders the notes and drops them."""
    copied = directory / chart
    if not copied.exists():
        shutil.copytree(helm.CHARTS / chart, copied)
        shutil.copyfile(copied / "templates" / "NOTES.txt", copied / "notes.txt")
        (copied / "templates" / "notes.yaml").write_text(NOTES_AS_VALUE)
    done = helm.run(
        *("template", "fed", copied, "--namespace", "heart", "--kube-version", "1.33.0"),
        *("-f", copied / "ci" / values, "--show-only", "templates/notes.yaml"),
    )
    assert done.returncode == 0, done.stderr
    text: str = helm.parsed(done.stdout)[0]["notes"]
    return text


@pytest.fixture(scope="module")
def notes_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notes")


@every_shape
def test_notes_tell_the_next_step_and_warn(chart: str, values: str, notes_directory: Path) -> None:
    notes = notes_of(chart, values, notes_directory)
    objects = helm.rendered(chart, values)
    name = helm.one(objects, "StatefulSet")["metadata"]["name"]
    assert f"rollout status statefulset/{name}\n" in notes
    assert "helm -n heart test fed\n" in notes
    assert "\n\n\n" not in notes
    assert "\n\nThe volume stays" in notes
    warned = set(re.findall(r"WARNING: (\S+)", notes))
    assert warned == {
        *({"data.volume.hostPath"} if "hostpath" in values else set()),
        *({"cert-manager"} if "Certificate" in [each["kind"] for each in objects] else set()),
        *({"networkPolicy.enabled"} if values in ("bare-values.yaml", "digits-values.yaml") else set()),
    }


def test_notes_say_what_waits_for_approval(notes_directory: Path) -> None:
    waiting = notes_of("chorale-silo", "hospital-values.yaml", notes_directory)
    assert "chorale silo approve --config /etc/chorale/settings/silo.yaml ID" in waiting
    assert "silo approve" not in notes_of("chorale-silo", "proxy-values.yaml", notes_directory)
