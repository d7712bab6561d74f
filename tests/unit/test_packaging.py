"""What is installed: exact versions, no torch at the coordinator."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"^[A-Za-z0-9._-]+")
PIN = re.compile(r"^[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*$")


def project() -> dict[str, Any]:
    values: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return values


def canonical(requirement: str) -> str:
    found = NAME.match(requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_constraints_are_exact_versions() -> None:
    assert [line for line in pins() if not PIN.match(line)] == []


def test_every_requirement_is_pinned() -> None:
    extras = project()["optional-dependencies"]
    wanted = {canonical(line) for line in [*project()["dependencies"], *extras["silo"], *extras["dev"]]}
    assert wanted - {canonical(line) for line in pins()} == set()


def test_the_base_install_has_no_torch() -> None:
    heavy = {"torch", "torchvision", "opacus", "scikit-learn"}
    assert heavy.isdisjoint(canonical(line) for line in project()["dependencies"])
    assert heavy <= {canonical(line) for line in project()["optional-dependencies"]["silo"]}
