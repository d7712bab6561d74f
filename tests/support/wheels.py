"""Distributions as an institution makes them: built by setuptools into a wheel, installed by pip."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{name}"
version = "{version}"
{entry_points}
[tool.setuptools]
packages = [{packages}]
[tool.setuptools.package-data]
"*" = ["*.txt", "*.py"]
"""
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
Offers = Mapping[str, Mapping[str, str]]


def build(
    folder: Path, *, name: str, files: Mapping[str, str], version: str = "1.0.0", offers: Offers | None = None
) -> Path:
    """The wheel of a project. files: their text by path. offers: entry points by group."""
    source = folder / f"{name}-{version}"
    for path, text in files.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    lines = []
    for group, entries in (offers or {}).items():
        lines.append(f'[project.entry-points."{group}"]')
        lines += [f'{entry} = "{value}"' for entry, value in entries.items()]
    packages = sorted({str(Path(path).parent).replace("/", ".") for path in files if "/" in path})
    (source / "pyproject.toml").write_text(
        PROJECT.format(
            name=name,
            version=version,
            entry_points="\n".join(lines),
            packages=", ".join(f'"{package}"' for package in packages),
        )
    )
    done = _run(["-c", BUILD, str(folder)], folder=source)
    return folder / done.splitlines()[-1]


def install(wheel: Path | str, site: Path, *options: str) -> None:
    """Into a folder that stands for site-packages."""
    quiet = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--root-user-action=ignore"]
    _run(["-m", "pip", "install", *quiet, "--target", str(site), *options, str(wheel)], folder=site.parent)


def _run(arguments: list[str], *, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
