"""`python -m tools.release.locks`: deploy/requirements-*.txt, with the hashes of every file of each version.

The versions are those of constraints.txt. torch and torchvision are in no lock: each index has builds of its
own of the same version. `uv`, from PyPI, asks the index; it is looked for on PATH.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.release.errors import ReleaseError

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PYTHON = "3.11"  # that of the images' base
OF_TORCHS_INDEX = ("torch", "torchvision")
EXTRAS = {"coordinator": ("otel",), "silo": ("silo", "otel")}
HEAD = "# Written by `make locks`, from pyproject.toml and constraints.txt.\n"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def lock_of(name: str) -> Path:
    """name: build, coordinator or silo."""
    return DEPLOY / f"requirements-{name}.txt"


def normalized(name: str) -> str:
    """As packaging compares names: A-b, a_b and a.b are one."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """Versions by normalized name, of constraints or of a lock."""
    return {normalized(name): version for name, version in _PIN.findall(text)}


def hashes(text: str) -> dict[str, tuple[str, ...]]:
    """SHA-256 of a version's files, by normalized name of what a lock lists."""
    entries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)
    found = {}
    for entry in entries:
        if pin := _PIN.match(entry):
            found[normalized(pin.group(1))] = tuple(_HASH.findall(entry))
    return found


def write() -> None:
    """Ask the index and write every lock. Raises ReleaseError."""
    for name, extras in EXTRAS.items():
        options = [part for extra in extras for part in ("--extra", extra)]
        left_out = [part for each in OF_TORCHS_INDEX for part in ("--no-emit-package", each)]
        text = _compiled(["pyproject.toml", *options, *left_out], given="")
        lock_of(name).write_text(HEAD + _without_cuda(text))
    lock_of("build").write_text(HEAD + _compiled(["-"], given="setuptools"))


def _compiled(what: list[str], *, given: str) -> str:
    uv = shutil.which("uv")
    if uv is None:
        raise ReleaseError("locks: uv is not on PATH; it is a package of PyPI")
    options = ["--constraint", "constraints.txt", "--generate-hashes", "--no-header", "--no-annotate"]
    options += ["--python-version", PYTHON, "--python-platform", "linux", "--only-binary", ":all:"]
    done = subprocess.run(
        [uv, "pip", "compile", *what, *options],
        input=given,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(f"locks: uv: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def _without_cuda(text: str) -> str:
    """Without what PyPI's torch brings for GPUs, which constraints.txt does not pin."""
    known = pins((ROOT / "constraints.txt").read_text())
    entries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)
    return "".join(entry for entry in entries if known.keys() >= pins(entry).keys())


def check(texts: Mapping[str, str], constraints: str) -> None:
    """Raises ReleaseError for a lock that names another version than constraints.txt, or no hash."""
    known = pins(constraints)
    for name, text in texts.items():
        for package, version in pins(text).items():
            if known.get(package) != version:
                expected = known.get(package, "none")
                where = f"{lock_of(name).name}: {package}"
                raise ReleaseError(f"{where} is {version}, constraints.txt has {expected}: make locks")
            if not hashes(text)[package]:
                raise ReleaseError(f"{lock_of(name).name}: {package} has no hash: make locks")


if __name__ == "__main__":
    try:
        write()
    except ReleaseError as error:
        sys.exit(f"chorale: error: {error}")
