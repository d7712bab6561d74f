"""Whether Kubernetes takes an object: its own schemas, and those of the operators that the charts know."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import jsonschema
import kubernetes_validate
from kubernetes_validate import utils

from tests.deployment import helm

CRDS = {
    crd["properties"]["kind"]["const"]: crd
    for crd in (json.loads(file.read_text()) for file in (Path(__file__).parent / "crds").glob("*.json"))
}

# the validator reads megabytes of schema for every object otherwise
utils.schema_contents = functools.cache(utils.schema_contents)


def check(found: helm.Object, version: str) -> None:
    """Raises ValidationError."""
    if found["kind"] in CRDS:
        jsonschema.validate(found, CRDS[found["kind"]])
    else:
        kubernetes_validate.validate(found, version, strict=True)
