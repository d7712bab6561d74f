"""Wheel, source distribution and charts of one commit, the same bytes wherever they are built.

They are made from what git holds of the commit: nothing that lies in a working tree is in them.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import yaml

from tools.release import archives
from tools.release.errors import ReleaseError
from tools.release.locks import pins

CHARTS = ("chorale-coordinator", "chorale-silo")
CHART_MEDIA = (
    "application/vnd.cncf.helm.config.v1+json",
    "application/vnd.cncf.helm.chart.content.v1.tar+gzip",
)
_IMAGE_DIGEST = re.compile(r'(?<=^  digest: )""$', re.MULTILINE)
# of a build: nothing of the person's own environment but where programs are
_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """epoch: when it was committed, in seconds since 1970: the time of every file of the release."""

    sha: str
    epoch: int


def commit_of(repository: Path, name: str) -> Commit:
    """Raises ReleaseError for what is no commit."""
    done = _git(repository, "log", "-1", "--format=%H %ct", name, "--")
    sha, _, epoch = done.decode().strip().partition(" ")
    return Commit(sha=sha, epoch=int(epoch))


def export(repository: Path, commit: Commit, folder: Path) -> None:
    """The commit's files below a folder, with modes 644 and 755 and the commit's time."""
    data = _git(repository, "archive", "--format=tar", commit.sha)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for entry in tar:
            entry.uid, entry.gid, entry.mtime = os.getuid(), os.getgid(), commit.epoch
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            tar.extract(entry, folder, filter="tar")


def python_archives(source: Path, out: Path, *, epoch: int) -> tuple[Path, Path]:
    """Wheel and source distribution of an export. Raises ReleaseError."""
    _check_setuptools(source)
    code = (
        "import os, sys; os.umask(0o022); from setuptools import build_meta as build\n"
        "out = sys.argv[1]; build.build_sdist(out); build.build_wheel(out)"  # they change argv
    )
    _run([sys.executable, "-c", code, str(out)], cwd=source, epoch=epoch, what="setuptools")
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    archives.repack(sdist, epoch=epoch)
    return wheel, sdist


def chart(source: Path, out: Path, *, helm: str, image_digest: str | None, epoch: int) -> tuple[Path, str]:
    """A chart as .tgz and as an OCI archive beside it; the first, and the digest of the second's manifest.

    image_digest: of the image that the chart installs unless values say otherwise; None leaves it to them.
    """
    values = source / "values.yaml"
    if image_digest is not None:
        text, count = _IMAGE_DIGEST.subn(f'"{image_digest}"', values.read_text())
        if count != 1:
            raise ReleaseError(f"{source.name}: values.yaml has {count} empty image digests, expected 1")
        values.write_text(text)
    about = yaml.safe_load((source / "Chart.yaml").read_text())
    _run([helm, "package", str(source), "--destination", str(out)], cwd=source, epoch=epoch, what="helm")
    packed = out / f"{about['name']}-{about['version']}.tgz"
    archives.repack(packed, epoch=epoch)
    layout = out / "layout"
    digest = archives.write_layout(
        layout,
        config=json.dumps(about, sort_keys=True).encode(),
        layer=packed,
        media=CHART_MEDIA,
        name=about["version"],
    )
    archives.pack(layout, out / f"{about['name']}-{about['version']}.chart.oci.tar", epoch=epoch)
    shutil.rmtree(layout)
    return packed, digest


def _check_setuptools(source: Path) -> None:
    """Raises ReleaseError where this environment has another builder than the images."""
    expected = pins((source / "deploy" / "requirements-build.txt").read_text())["setuptools"]
    if (found := metadata.version("setuptools")) != expected:
        raise ReleaseError(f"setuptools: expected {expected}, got {found}: make setup")


def _run(command: list[str], *, cwd: Path, epoch: int, what: str) -> None:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**kept, **_ENVIRONMENT, "SOURCE_DATE_EPOCH": str(epoch)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(f"{what}: {last_line(done.stderr) or f'exit status {done.returncode}'}")


def tools(*, helm: str, buildah: str | None) -> dict[str, str]:
    """Versions of what builds a release. Raises ReleaseError."""
    found = {
        "python": platform.python_version(),
        "setuptools": metadata.version("setuptools"),
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
    }
    commands = {"helm": [helm, "version", "--short"]}
    if buildah is not None:
        commands["buildah"] = [shlex.split(buildah)[0], "--version"]
    for name, command in commands.items():
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            raise ReleaseError(f"{command[0]}: does not run, expected {name}") from None
        found[name] = done.stdout.strip()
    return found


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def _git(repository: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"git: {last_line(done.stderr.decode(errors='replace'))}")
    return done.stdout
