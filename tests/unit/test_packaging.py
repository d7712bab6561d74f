"""What is installed: exact versions, the product's packages alone, no torch or scipy at the coordinator."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools.sizes import INSTALLS, closure, install_bytes

ROOT = Path(__file__).resolve().parents[2]
INSTALL = ROOT / "docs" / "install.md"
PACKAGES = (
    *("crypto", "strategies", "chorale_models", "chorale", "coordinator", "silo_agent", "simulation"),
    *("client", "web", "cli"),
)
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
    listed = [project()["dependencies"], *project()["optional-dependencies"].values()]
    wanted = {canonical(line) for lines in listed for line in lines} - {"chorale"}  # names its own extras
    assert wanted - {canonical(line) for line in pins()} == set()


def test_the_base_install_has_no_torch_and_no_scipy() -> None:
    extras = project()["optional-dependencies"]
    heavy = {"torch", "torchvision", "opacus", "scikit-learn"}
    assert not {*heavy, "dp-accounting", "scipy"} & {canonical(line) for line in project()["dependencies"]}
    assert heavy <= {canonical(line) for line in extras["silo"]}
    assert [canonical(line) for line in extras["privacy"]] == ["dp-accounting"]  # which brings scipy
    assert all("chorale[privacy]" in extras[name] for name in ("silo", "dev"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of the wheel that a fresh clone builds."""
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheel")
    kept = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(lambda name: (ROOT / name).is_file(), kept.stdout.splitlines()):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, clone / name)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=clone, capture_output=True, check=True)
    (made,) = out.glob("*.whl")
    return set(zipfile.ZipFile(made).namelist())


def test_wheel_holds_the_packages_of_the_product_alone(wheel: set[str]) -> None:
    suffixes = ("*.py", "*.pyi", "py.typed", "*.html", "*.js", "*.css", "*.svg", "vendor/*")
    ours = {path for name in PACKAGES for suffix in suffixes for path in (ROOT / name).rglob(suffix)}
    shipped = {name for name in wheel if not name.split("/")[0].endswith(".dist-info")}
    assert shipped == {str(path.relative_to(ROOT)) for path in ours}
    assert {name.split("/")[0] for name in shipped} == set(PACKAGES)


def test_every_package_says_that_it_is_typed(wheel: set[str]) -> None:
    assert {f"{name}/py.typed" for name in PACKAGES} <= wheel


def test_install_of_the_demo_holds_nothing_of_tests_linters_and_schemas() -> None:
    """A demo environment of 1.8 GB held them all."""
    extras = project()["optional-dependencies"]
    others = ("dev", "fuzz", "otel", "examples", "export", "ray")
    own = {canonical(line) for name in others for line in extras[name]}
    assert closure(("demo",)) & own == {"setuptools"}  # torch asks for it
    assert {"torch", "opacus", "scikit-learn", "dp-accounting"} <= closure(("demo",))


@pytest.mark.parametrize("what", INSTALLS)
def test_sizes_of_the_page_are_those_measured_here(what: str) -> None:
    torch = pytest.importorskip("torch", reason="measures what is installed: needs the extra silo")
    if torch.version.cuda is not None:
        pytest.skip("the page's sizes are with torch's build for the CPU")
    stated = re.search(rf"^\| {re.escape(what)} \|.*\| ([0-9.]+) GB \|$", INSTALL.read_text(), re.MULTILINE)
    assert stated is not None, f"the page has no size of {what}"
    assert float(stated[1]) == pytest.approx(install_bytes(INSTALLS[what]) / 1e9, rel=0.1)
