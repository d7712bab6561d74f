"""What the guide's commands and files need on this node and this server: each is said when it is made."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.page import HUB, SILOS
from tests.cluster.recording import POD
from tests.cluster.report import Report

ROOT = Path(__file__).parents[2]
ADDRESS = "coordinator.example.org"
NODE = "lab"
CLASS = "lab"  # the StorageClass
# what is larger than a node of two cores takes, or waits longer than a test does
SMALL = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "2Gi"}}
QUICK = {"heartbeat_seconds": 0.5, "reconnect_grace_seconds": 60, "stage_deadline_seconds": 60}
# the faults make cohorts and attempts that no policy foresees
LENIENT = {"max_cohort_changes": 10_000, "max_repeats": 100, "initial_state": "given"}
# what verifies a release and copies it to a registry: tests/deployment does it
OF_RELEASES = frozenset({"make", "minisign", "sha256sum", "cd", "skopeo"})
LACKING = {
    "kubeVersion": "the charts' kubeVersion is taken out of a copy, for this server is older",
    "policy/v1": "podDisruptionBudget.enabled=false: the server has no policy/v1",
    "openapi": "helm --disable-openapi-validation: persistentVolumeClaimRetentionPolicy is newer",
}


def copy_charts(folder: Path, report: Report) -> None:
    """helm/ as the guide names it."""
    shutil.copytree(ROOT / "helm", folder / "helm")
    for chart in folder.glob("helm/*/Chart.yaml"):
        chart.write_text(re.sub(r"^kubeVersion:.*\n", "", chart.read_text(), flags=re.MULTILINE))
    report.adapted(LACKING["kubeVersion"])


def values(member: str, *, silo_image: str) -> dict[str, Any]:
    """Of a release, over those of the guide."""
    common: dict[str, Any] = {
        "image": {"registry": "localhost", "repository": "chorale/coordinator", "pullPolicy": "Never"},
        "resources": SMALL,
        "podDisruptionBudget": {"enabled": False},
    }
    if member == HUB:
        return {**common, "service": {"type": "ClusterIP"}, "settings": QUICK}
    return {
        **common,
        "image": {**common["image"], "repository": silo_image},
        "settings": {"objective": "tests.cluster.recording:objective"},
        "policy": LENIENT,
    }


def command(text: str, report: Report) -> str:
    """The line as it is run; empty where this lab has done it otherwise."""
    if text.split()[0] in OF_RELEASES:
        report.adapted(f"not run here: {text} (the lab builds images and charts of this tree itself)")
        return ""
    if match := re.match(r"helm (?:install|upgrade) (\S+) ", text):
        release = match[1]
        report.adapted(
            f"helm --values lab/{release}.yaml: images of the lab, small resources, short waits"
            + ("" if release == HUB else ", recorded inputs, a policy that allows faults")
        )
        report.adapted(LACKING["policy/v1"])
        report.adapted(LACKING["openapi"])
        return f"{text} --values lab/{release}.yaml --disable-openapi-validation"
    return text


def file(text: str, report: Report) -> str:
    """As it is written."""
    if "image: chorale/" not in text:
        return text
    report.adapted("image: localhost/chorale/..., which the lab has built, in the guide's own manifests")
    return text.replace("image: chorale/", "image: localhost/chorale/")


def volume_folders(folder: Path) -> dict[str, Path]:
    """Where the volume of each claim lies, by NAMESPACE.CLAIM."""
    claims = [f"heart.state-{HUB}-chorale-coordinator-0"]
    claims += [f"{silo}.{claim}" for silo in SILOS for claim in (f"state-{silo}{POD}", "patients")]
    return {claim: folder / "volumes" / claim for claim in claims}


def storage(folders: dict[str, Path]) -> str:
    """Manifests of a class and of a local volume for each claim."""
    made = [_storage_class()]
    for name, path in folders.items():
        namespace, _, claim = name.partition(".")
        made.append(volume(name, path, namespace=namespace, claim=claim))
    return yaml.safe_dump_all(made)


def volume(name: str, path: Path, *, namespace: str, claim: str) -> dict[str, Any]:
    """Kept for one claim. local, not hostPath: fsGroup is applied to it."""
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": CLASS,
            "claimRef": {"namespace": namespace, "name": claim},
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
    }


def _storage_class() -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/no-provisioner",
        "allowVolumeExpansion": True,
    }
