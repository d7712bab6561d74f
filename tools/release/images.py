"""The images of a commit by buildah, as OCI archives that are the same bytes for the same inputs.

An image's digest is that of its manifest: what `skopeo copy --preserve-digests` and `ctr images import` keep.
The manifest is Docker's, schema 2: an image with OCI's has no HEALTHCHECK.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.release import archives
from tools.release.build import Commit, last_line
from tools.release.errors import ReleaseError

NAMES = ("coordinator", "silo")
BASE, BASE_DIGEST = "PYTHON_IMAGE", "PYTHON_DIGEST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """command: buildah and its own options. options: of its `bud`. arguments: build arguments of both
    images; BASE_DIGEST has to be one of them."""

    command: str
    options: str
    arguments: Mapping[str, str]

    def build(self, source: Path, name: str, out: Path, *, commit: Commit, version: str) -> str:
        """One image of an export into `out`; its digest. Raises ReleaseError."""
        tag = f"localhost/chorale/{name}:{version}-{commit.sha[:12]}"
        declared = (source / "deploy" / f"{name}.Dockerfile").read_text()
        given = {**self.arguments, "REVISION": commit.sha, "SOURCE_DATE_EPOCH": str(commit.epoch)}
        chosen = [f"--build-arg={key}={value}" for key, value in given.items() if f"ARG {key}" in declared]
        # no cache: a step that was done with another index would be taken over. A layer for each COPY, with
        # one time in all releases: what did not change is the same layer
        fixed = ["--no-cache", "--layers", "--format", "docker", "--timestamp", str(archives.FIXED_TIME)]
        file = ["-f", f"deploy/{name}.Dockerfile", "-t", tag, "."]
        self._run(["bud", *shlex.split(self.options), *fixed, *chosen, *file], cwd=source)
        with tempfile.TemporaryDirectory(dir=out.parent) as folder:
            pushed, layout = Path(folder) / "pushed", Path(folder) / "layout"
            self._run(["push", tag, f"dir:{pushed}"], cwd=source)
            archives.layout_of_image(pushed, layout, name=version, epoch=commit.epoch)
            archives.pack(layout, out, epoch=commit.epoch)
        return archives.Layout(out).digest

    def _run(self, arguments: list[str], *, cwd: Path) -> None:
        command, *own = shlex.split(self.command)
        program = shutil.which(command)
        if program is None:
            raise ReleaseError(f"{command}: not on PATH; it is Debian's package buildah")
        done = subprocess.run(
            [program, *own, *arguments], cwd=cwd, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ReleaseError(f"{command} {arguments[0]}: {last_line(done.stderr)}")
