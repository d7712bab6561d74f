"""The charts as platforms take them: umbrellas, nulls, a cluster's own rules, upgrades of what runs."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deployment import helm
from tests.deployment.objects import check
from tests.deployment.pod_security import violations

COORDINATOR, SILO = helm.NAMES
ARGO_CD = helm.CHARTS / "examples" / "argocd"
Values = dict[str, Any]
Path_ = tuple[str, ...]
charts = pytest.mark.parametrize("chart", helm.NAMES)


class Helm:
    """`helm template` with values that Python holds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(
        self, chart: str | Path, *values: Values, release: str = "fed"
    ) -> subprocess.CompletedProcess[str]:
        chosen: list[str | Path] = []
        for place, each in enumerate(values):
            file = self.folder / f"values-{place}.json"
            file.write_text(json.dumps(each))
            chosen += ["-f", file]
        return helm.run(
            *("template", release, chart, "--namespace", "heart", "--kube-version", "1.33.0"), *chosen
        )

    def objects(self, chart: str | Path, *values: Values, release: str = "fed") -> tuple[helm.Object, ...]:
        done = self.run(chart, *values, release=release)
        assert done.returncode == 0, done.stderr
        return helm.parsed(done.stdout)

    def umbrella(self, dependencies: list[Values]) -> Path:
        """A chart that depends on ours, as `helm dependency build` leaves it."""
        folder = self.folder / "umbrella"
        for name in {each["name"] for each in dependencies}:
            shutil.copytree(helm.CHARTS / name, folder / "charts" / name)
        chart = {"apiVersion": "v2", "name": "heart", "version": "1.0.0", "dependencies": dependencies}
        (folder / "Chart.yaml").write_text(json.dumps(chart))
        return folder


@pytest.fixture
def helm_with(tmp_path: Path) -> Helm:
    return Helm(tmp_path)


def shape(chart: str, name: str) -> Values:
    found: Values = yaml.safe_load((helm.CHARTS / chart / "ci" / f"{name}-values.yaml").read_text())
    return found


def dependency(name: str, **more: str) -> Values:
    return {"name": name, "version": "1.0.0", **more}


def pod_template(objects: tuple[helm.Object, ...]) -> helm.Object:
    found: helm.Object = helm.one(objects, "StatefulSet")["spec"]["template"]
    return found


@pytest.mark.parametrize("file", ["_common.tpl", "_common_checks.tpl"])
def test_what_both_charts_share_is_the_same_text(file: str) -> None:
    first, second = ((helm.CHARTS / name / "templates" / file).read_text() for name in helm.NAMES)
    assert first.replace("coordinator", "silo") == second
    for name in helm.NAMES:
        for template in (helm.CHARTS / name / "templates").rglob("*.*"):
            text = template.read_text()
            assert text.count('define "') == text.count(f'define "{name}.'), template


# one shape of each chart with most kinds of objects, and one that is small
@pytest.mark.parametrize("hub, site", [("gateway", "gpu"), ("platform", "platform"), ("ingress", "proxy")])
def test_charts_of_one_umbrella_render_as_they_do_alone(helm_with: Helm, hub: str, site: str) -> None:
    # each define was there twice, and one chart ran on the other's values
    both = {COORDINATOR: shape(COORDINATOR, hub), SILO: shape(SILO, site)}
    umbrella = helm_with.umbrella([dependency(name) for name in helm.NAMES])
    together = helm_with.objects(umbrella, {**both, "global": {"of-another-chart": {"a": 1}}})
    alone = [each for name in helm.NAMES for each in helm_with.objects(name, both[name])]
    assert sorted(map(json.dumps, together)) == sorted(map(json.dumps, alone))


def test_silos_of_one_umbrella_are_distinguished_by_their_aliases(helm_with: Helm) -> None:
    aliases = ("clinic-a", "clinic-b")
    umbrella = helm_with.umbrella([dependency(SILO, alias=alias) for alias in aliases])
    values = {alias: {**shape(SILO, "hospital"), "name": alias} for alias in aliases}
    values["clinic-b"]["fullnameOverride"] = "other"
    objects = helm_with.objects(umbrella, values)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names))
    sets = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "StatefulSet"}
    assert sets.keys() == {"fed-clinic-a", "other"}
    first, second = (spec["selector"]["matchLabels"] for spec in sets.values())
    assert first != second
    assert first["app.kubernetes.io/component"] == second["app.kubernetes.io/component"] == "silo"


@charts
def test_an_umbrella_names_the_registry_and_its_secrets(helm_with: Helm, chart: str) -> None:
    shared = {"imageRegistry": "mirror.example:5000", "imagePullSecrets": ["mirror", {"name": "second"}]}
    for spec in helm.pods(helm_with.objects(chart, shape(chart, "airgap"), {"global": shared})).values():
        (container,) = spec["containers"]
        assert container["image"].startswith(f"mirror.example:5000/{chart.replace('-', '/')}@sha256:")
        assert spec["imagePullSecrets"] == [{"name": "mirror"}, {"name": "second"}]


@charts
def test_without_a_way_out_every_image_comes_from_the_mirror(helm_with: Helm, chart: str) -> None:
    pods = helm.pods(helm_with.objects(chart, shape(chart, "airgap")))
    assert len(pods) == 2
    for spec in pods.values():
        for container in spec["containers"] + spec.get("initContainers", []):
            assert container["image"].startswith("mirror.")
            assert "@sha256:" in container["image"]
        assert spec["imagePullSecrets"] == [{"name": "mirror"}]


def keys_of(values: Values, above: Path_ = ()) -> Iterator[Path_]:
    for name, value in values.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from keys_of(value, (*above, name))


def nulled(paths: list[Path_]) -> Values:
    found: Values = {}
    for path in paths:
        inner = found
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = None
    return found


def coalesced(defaults: Values, *others: Values) -> Values:
    """What templates see: a null takes a key away."""
    found = copy.deepcopy(defaults)
    for other in others:
        for name, value in other.items():
            if value is None:
                found.pop(name, None)
            elif isinstance(value, dict) and isinstance(found.get(name), dict):
                found[name] = coalesced(found[name], value)
            else:
                found[name] = value
    return found


NULLS = [
    *((COORDINATOR, "gateway"), (SILO, "gpu")),
    *(
        pytest.param(*each, marks=pytest.mark.soak)
        for each in ((COORDINATOR, "ingress"), (COORDINATOR, "loadbalancer"), (SILO, "proxy"))
    ),
]
# one loop renders all of their keys: one null for all of them together
AT_ONCE = ("settings", "policy")
PARTS_OF_POLICY = [("policy", "privacy"), ("policy", "analyses")]


@pytest.mark.gate
@pytest.mark.parametrize("chart, name", NULLS)
def test_a_null_leaves_out_or_is_refused_with_a_sentence(helm_with: Helm, chart: str, name: str) -> None:
    """Of every key of values.yaml. security.runAsUser: null was rendered as 0, which Pod Security refuses."""
    defaults, values = helm.defaults(chart), shape(chart, name)
    validator = jsonschema.Draft7Validator(helm.schema(chart))
    before = helm_with.run(chart, values).stdout
    rest: list[list[Path_]] = [
        [
            path
            for path in keys_of(defaults)
            if path[0] in AT_ONCE and len(path) > 1 and path not in PARTS_OF_POLICY
        ]
    ]
    for path in keys_of(defaults):
        problems = list(validator.iter_errors(coalesced(defaults, values, nulled([path]))))
        for problem in problems:  # Helm says the same before it renders anything
            assert problem.message == f"'{path[-1]}' is a required property"
        if not problems and (path[0] not in AT_ONCE or path in PARTS_OF_POLICY):
            rest.append([path])
    wrong = {}
    for paths in rest:
        is_set = not set(paths).isdisjoint(keys_of(values))
        unset = helm_with.run(chart, coalesced(values, nulled(paths))).stdout if is_set else before
        wrong[tuple(paths)] = left_out_wrongly(helm_with.run(chart, values, nulled(paths)), unset)
    assert {paths: how for paths, how in wrong.items() if how} == {}


def left_out_wrongly(done: subprocess.CompletedProcess[str], before: str) -> list[str]:
    """What is wrong with a refusal, or in what is rendered otherwise than before."""
    if done.returncode != 0:
        return [] if "error calling fail: " in done.stderr else [done.stderr]
    if done.stdout == before:
        return []
    try:
        check(helm.one(helm.parsed(done.stdout), "StatefulSet"), "1.33")
    except jsonschema.ValidationError as error:
        return [error.message]
    added = set(done.stdout.splitlines()) - set(before.splitlines())
    return [line for line in added if "checksum/settings:" not in line and not line.endswith(" {}")]


def test_helm_refuses_a_null_as_the_schema_does(helm_with: Helm) -> None:
    done = helm_with.run(SILO, shape(SILO, "hospital"), {"networkPolicy": {"enabled": None}})
    assert "networkPolicy: enabled is required" in done.stderr


@charts
@pytest.mark.parametrize("nothing", [None, ""])
def test_a_user_that_is_left_to_the_cluster_is_not_rendered(
    helm_with: Helm, chart: str, nothing: str | None
) -> None:
    names = ("runAsUser", "runAsGroup", "fsGroup")
    objects = helm_with.objects(
        chart, shape(chart, "airgap"), {"podSecurityContext": dict.fromkeys(names, nothing)}
    )
    for spec in helm.pods(objects).values():
        assert not spec["securityContext"].keys() & set(names)
        assert violations(spec) == []


@charts
def test_a_new_version_of_the_chart_alone_leaves_the_pod(helm_with: Helm, chart: str) -> None:
    newer = helm_with.folder / chart
    shutil.copytree(helm.CHARTS / chart, newer)
    text = (newer / "Chart.yaml").read_text()
    assert text.count("ersion: 1.0.0") == 2
    (newer / "Chart.yaml").write_text(text.replace("ersion: 1.0.0", "ersion: 1.1.0"))
    values = shape(chart, "airgap")  # which names the image by its digest
    old, new = helm_with.objects(chart, values), helm_with.objects(newer, values)
    assert pod_template(old) == pod_template(new)
    assert helm.one(new, "StatefulSet")["metadata"]["labels"]["helm.sh/chart"] == f"{chart}-1.1.0"


def test_a_change_of_the_policy_restarts_the_agent(helm_with: Helm) -> None:
    # the checksum left the policy out: a stricter one was in the ConfigMap and not in the agent
    values = shape(SILO, "hostpath")
    before = pod_template(helm_with.objects(SILO, values))
    for change in ({"policy": {"min_silos": 5}}, {"moreData": [{**values["moreData"][0], "policy": {}}]}):
        assert pod_template(helm_with.objects(SILO, values, change)) != before


@charts
def test_a_platforms_rules_reach_the_pod(helm_with: Helm, chart: str) -> None:
    values = shape(chart, "platform")
    objects = helm_with.objects(chart, values)
    template = pod_template(objects)
    spec, (container, watch) = template["spec"], template["spec"]["containers"]
    assert spec["schedulerName"] == values["schedulerName"]
    assert violations(spec) == []
    assert watch == values["extraContainers"][0]
    assert spec["initContainers"] == [
        {**values["initContainers"][0], "securityContext": container["securityContext"]}
    ]
    times = {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    assert (times["startup"]["failureThreshold"], times["startup"]["periodSeconds"]) == (200, 5)
    assert (times["liveness"]["timeoutSeconds"], times["liveness"]["failureThreshold"]) == (30, 6)
    assert (times["readiness"]["initialDelaySeconds"], times["readiness"]["timeoutSeconds"]) == (5, 5)
    assert helm.one(objects, "StatefulSet")["spec"]["updateStrategy"] == {"type": "OnDelete"}
    for name in ("affinity", "topologySpreadConstraints", "hostAliases", "dnsPolicy", "dnsConfig"):
        assert spec[name] == values[name]
    failed = [each for each in spec["tolerations"] if each["effect"] == "NoExecute"]
    assert [each["key"] for each in failed] == [
        f"node.kubernetes.io/{state}" for state in ("not-ready", "unreachable")
    ]
    assert {each["tolerationSeconds"] for each in failed} == {60}
    assert values["tolerations"][0] in spec["tolerations"]
    assert container["env"][-2:] == values["extraEnv"]
    assert container["envFrom"] == values["extraEnvFrom"]
    assert values["extraVolumes"][0] in spec["volumes"]
    assert values["extraVolumeMounts"][0] in container["volumeMounts"]
    assert {"team": "research", "cost-center": "4711"}.items() <= template["metadata"]["labels"].items()
    assert spec["securityContext"]["seccompProfile"] == values["podSecurityContext"]["seccompProfile"]
    for each in objects:
        assert each["metadata"]["labels"]["cost-center"] == "4711"
        assert each["metadata"]["annotations"]["example.org/owner"] == "research"
    account = helm.one(objects, "ServiceAccount")
    assert account["metadata"]["name"] == spec["serviceAccountName"] == "federation"
    assert account["metadata"]["annotations"]["example.org/identity"] == "federation"
    assert account["automountServiceAccountToken"] is spec["automountServiceAccountToken"] is False
    # no upgrade may change a claim's labels
    (claim,) = helm.one(objects, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert "cost-center" not in claim["metadata"]["labels"]
    assert claim["metadata"]["annotations"] == values["persistence"]["annotations"]


def test_a_service_is_asked_for_as_the_cluster_gives_it(helm_with: Helm) -> None:
    values = shape(COORDINATOR, "platform")
    service = helm.one(helm_with.objects(COORDINATOR, values), "Service", f"fed-{COORDINATOR}")["spec"]
    assert service["ports"][0].pop("nodePort") == values["service"].pop("nodePort")
    assert values["service"].items() <= service.items()


@charts
def test_an_existing_claim_takes_the_place_of_a_new_one(helm_with: Helm, chart: str) -> None:
    objects = helm_with.objects(chart, shape(chart, "airgap"), {"persistence": {"existingClaim": "kept"}})
    check(helm.one(objects, "StatefulSet"), "1.33")
    spec = helm.one(objects, "StatefulSet")["spec"]
    assert "volumeClaimTemplates" not in spec
    volume = {"name": "state", "persistentVolumeClaim": {"claimName": "kept"}}
    assert volume in spec["template"]["spec"]["volumes"]
    mount = {"name": "state", "mountPath": "/var/lib/chorale"}
    assert mount in spec["template"]["spec"]["containers"][0]["volumeMounts"]


def test_argo_cd_has_an_umbrella_without_hooks(helm_with: Helm) -> None:
    dependencies = yaml.safe_load((ARGO_CD / "Chart.yaml").read_text())["dependencies"]
    values = yaml.safe_load((ARGO_CD / "values.yaml").read_text())
    objects = helm_with.objects(helm_with.umbrella(dependencies), values)
    assert [each["metadata"]["name"] for each in objects if each["kind"] == "StatefulSet"] == [
        "fed-clinic-a",
        "fed-hub",
    ]
    assert "Pod" not in {each["kind"] for each in objects}
    assert "helm.sh/hook" not in json.dumps(objects)
    assert yaml.safe_load((ARGO_CD / "application.yaml").read_text())["kind"] == "Application"


GROUP = {"kind": "APIGroup", "name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}]}
RESOURCE = {"name": "statefulsets", "kind": "StatefulSet", "namespaced": True, "verbs": ["get"]}
ANSWERS: dict[str, Any] = {
    "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis": {"kind": "APIGroupList", "groups": [{**GROUP, "preferredVersion": GROUP["versions"][0]}]},
    "/apis/apps/v1": {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [RESOURCE]},
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What an API server answers to a `lookup`, by path; anything else is not found."""
    answers = dict(ANSWERS)

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound"}
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({**missing, "code": 404} if found is None else found).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        answers["address"] = f"http://127.0.0.1:{server.server_port}"
        yield answers
        server.shutdown()
        thread.join()


def installed(cluster: dict[str, Any], chart: str, folder: Path, **persistence: object) -> str:
    """Helm's complaint at an installation next to what runs, or nothing; no release is stored."""
    (folder / "values.json").write_text(json.dumps({**shape(chart, "airgap"), "persistence": persistence}))
    (folder / "releases").write_text("[]")
    command = [helm.installed(), "install", "fed", helm.CHARTS / chart, "--namespace", "heart"]
    done = subprocess.run(
        [*map(str, command), "-f", str(folder / "values.json"), "--kube-apiserver", cluster["address"]],
        env={
            **os.environ,
            "HELM_DRIVER": "memory",
            "HELM_MEMORY_DRIVER_DATA": str(folder / "releases"),
            "KUBECONFIG": str(folder / "none"),
            "HOME": str(folder),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return "" if done.returncode == 0 else done.stderr


@charts
def test_a_volume_of_another_size_is_refused_before_the_api_server_does(
    cluster: dict[str, Any], chart: str, tmp_path: Path
) -> None:
    live = {"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "20Gi"}}}}
    cluster[f"/apis/apps/v1/namespaces/heart/statefulsets/fed-{chart}"] = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": f"fed-{chart}", "namespace": "heart"},
        "spec": {"volumeClaimTemplates": [{"metadata": {"name": "state"}, **live}]},
    }
    sentence = "persistence.size: the volume was made with 20Gi, and no upgrade makes it 30Gi; see A larger"
    assert sentence in installed(cluster, chart, tmp_path, size="30Gi", storageClassName="fast")
    sentence = 'persistence.storageClassName: the volume was made with "fast", and no upgrade moves it'
    assert sentence in installed(cluster, chart, tmp_path, size="20Gi", storageClassName="slow")
    same = {"size": "20480Mi", "storageClassName": "fast"}
    assert installed(cluster, chart, tmp_path, **same) == ""
    for change, sentence in (
        ({"accessModes": ["ReadWriteOncePod"]}, "persistence.accessModes: the volume was made with ["),
        ({"annotations": {"a": "b"}}, "persistence.annotations: the volume was made with others"),
        (
            {"existingClaim": "kept", "storageClassName": ""},
            "persistence.existingClaim: this release has a volume",
        ),
    ):
        assert sentence in installed(cluster, chart, tmp_path, **{**same, **change})
    other = SILO if chart == COORDINATOR else COORDINATOR
    assert installed(cluster, other, tmp_path, size="30Gi") == ""


@charts
def test_a_release_that_would_lose_its_volume_by_a_new_name_is_refused(
    cluster: dict[str, Any], chart: str, tmp_path: Path, helm_with: Helm
) -> None:
    """A silo's ledger stayed behind under the old name, and the new one began with nothing spent."""
    live = helm.one(
        helm_with.objects(chart, shape(chart, "airgap"), {"fullnameOverride": "old"}), "StatefulSet"
    )
    live["spec"]["volumeClaimTemplates"] = []
    found = {"kind": "StatefulSetList", "apiVersion": "apps/v1", "metadata": {}, "items": [live]}
    cluster["/apis/apps/v1/namespaces/heart/statefulsets"] = found
    sentence = (
        f"fullnameOverride: this release runs as old; as fed-{chart} it would begin with an empty volume"
    )
    assert sentence in installed(cluster, chart, tmp_path)
    live["metadata"]["labels"]["app.kubernetes.io/instance"] = "another"
    assert installed(cluster, chart, tmp_path) == ""


# longer than a name may be, and alike where they are cut
LONG = "clinic-universitaetsklinikum-heidelberg-kardiologie-"


def names_in(objects: tuple[helm.Object, ...]) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in objects}


@charts
@pytest.mark.parametrize("override", ["", "nameOverride", "fullnameOverride"])
def test_long_names_stay_apart_and_short_ones_as_they_are(helm_with: Helm, chart: str, override: str) -> None:
    # two silos of one namespace had one name: the second one's settings and ledger were the first one's
    def objects(end: str, *, stem: str = LONG, more: Values | None = None) -> tuple[helm.Object, ...]:
        more = {**(more or {}), **({override: f"{stem}{end}"} if override else {})}
        release = "fed" if override else f"{stem}{end}"
        return helm_with.objects(chart, shape(chart, "platform"), more, release=release)

    first, second = objects("a"), objects("b")
    shared = {("ServiceAccount", "federation")}  # named by the values
    assert names_in(first) & names_in(second) == shared
    for each in first:
        assert len(each["metadata"]["name"]) <= 63
        assert all(len(value) <= 63 for value in each["metadata"]["labels"].values())
    if chart == COORDINATOR:  # of whose CronJob Kubernetes takes 52 characters
        first = objects("a", more={"backup": {"enabled": True}, "persistence": {"accessModes": None}})
        assert len(helm.one(first, "CronJob")["metadata"]["name"]) <= 52
        check(helm.one(first, "CronJob"), "1.33")
    revision = len("-0123456789")  # of the pod's label controller-revision-hash
    assert len(helm.one(first, "StatefulSet")["metadata"]["name"]) + revision <= 63
    short = {"": f"x-a-{chart}", "nameOverride": "fed-x-a", "fullnameOverride": "x-a"}[override]
    assert helm.one(objects("a", stem="x-"), "StatefulSet")["metadata"]["name"] == short
