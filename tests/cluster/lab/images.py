"""The images of a lab: Chorale's two, built by buildah from the Dockerfiles as they are shipped, and a pause.

Their base is made of Debian's packages and named by its real digest, as a hospital would name its own.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.cluster.lab.packages import PACKAGES, apt_archives, install
from tests.cluster.lab.settings import CONTAINERD
from tests.cluster.lab.steps import run_step, say

ROOT = Path(__file__).parents[3]
NAMES = ("coordinator", "silo")
TAG = "1.0.0"
BASE = "localhost/python:3.11-slim-bookworm"
BASE_PACKAGES = "python3,python3-venv,python3-pip,python-is-python3,ca-certificates"
BASE_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PAUSE = """
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) { exit(0); }
static void reap(int number) { while (waitpid(-1, 0, WNOHANG) > 0); }

int main(void) {
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
"""


def archives(folder: Path) -> list[Path]:
    return [folder / "images" / f"{name}.tar" for name in ("pause", *NAMES)]


def make_images(folder: Path) -> None:
    """Into folder/images, as archives that containerd imports; what did not change is not built again."""
    log, images = folder / "log" / "images.log", folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    install(PACKAGES, log)
    buildah = Buildah(folder=folder, log=log)
    _make_pause(images, buildah)
    for name in NAMES:
        archive, key = images / f"{name}.tar", images / f"{name}.sha256"
        built = _digest_of_source(name)
        if archive.exists() and key.exists() and key.read_text() == built:
            say(f"image of the {name}: not changed")
            continue
        buildah.bud(
            f"localhost/chorale/{name}:{TAG}", ROOT / "deploy" / f"{name}.Dockerfile", base(images, buildah)
        )
        buildah.push(f"localhost/chorale/{name}:{TAG}", archive)
        buildah.step("remove former images", "rmi", "--prune")
        key.write_text(built)


def import_image(folder: Path, archive: Path) -> None:
    """Into the running containerd, unless it has this archive; by a process inside the lab."""
    status = archive.stat()
    key, known = f"{status.st_size} {status.st_mtime_ns}", folder / "containerd" / f"{archive.name}.imported"
    if known.exists() and known.read_text() == key:
        return
    words = ["ctr", "--address", str(CONTAINERD), "--namespace", "k8s.io", "images", "import", str(archive)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    known.write_text(key)


class Buildah:
    """buildah over a storage of its own below a folder."""

    def __init__(self, *, folder: Path, log: Path) -> None:
        self._folder, self._log = folder, log
        storage = {"--root": folder / "storage", "--runroot": folder / "storage-run"}
        self.words = (
            "buildah",
            *(str(each) for pair in storage.items() for each in pair),
            "--storage-driver",
            "overlay",
        )

    def step(self, name: str, *words: str | Path) -> None:
        run_step(name, *self.words, *words, log=self._log)

    def read(self, *words: str | Path) -> str:
        done = subprocess.run([*self.words, *map(str, words)], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def bud(self, tag: str, dockerfile: Path, digest: str) -> None:
        self.step(
            f"image {tag}",
            *("bud", *self.options(), "--format", "docker"),
            *(word for each in arguments(digest).items() for word in ("--build-arg", "=".join(each))),
            *("--file", dockerfile, "--tag", tag, ROOT),
        )

    def options(self) -> list[str]:
        """Of `bud`: this machine's certificates and pip's settings, which a registry's mirror may need."""
        mounts = ["/etc/ssl/certs:/etc/ssl/certs:ro"]
        wheels = _pip_setting("find-links")
        if Path(wheels).is_dir():
            settings = self._folder / "images" / "pip.conf"
            settings.write_text(f"[global]\nfind-links = {wheels}\n")
            mounts += [f"{wheels}:{wheels}:ro", f"{settings}:/etc/pip.conf:ro"]
        fixed = ["--isolation", "chroot", "--network", "host", "--pull-never"]
        return fixed + [word for each in mounts for word in ("--volume", each)]

    def push(self, tag: str, archive: Path) -> None:
        archive.unlink(missing_ok=True)
        self.step(f"archive {archive.name}", "push", "--quiet", tag, f"docker-archive:{archive}:{tag}")


def arguments(digest: str) -> dict[str, str]:
    """Of a build upon the base of that digest."""
    index = _pip_setting("index-url") or "https://pypi.org/simple"
    return {"PYTHON_IMAGE": BASE.partition(":")[0], "PYTHON_DIGEST": digest, "TORCH_INDEX_URL": index}


def base(images: Path, buildah: Buildah) -> str:
    """The digest of the base, which is made once."""
    archive, known = images / "base.tar", images / "base.digest"
    if known.exists():
        return known.read_text()
    words = ("--mode=root", "--variant=minbase", f"--include={BASE_PACKAGES}", "bookworm", archive)
    run_step(
        "base of Debian",
        "mmdebstrap",
        *words,
        *apt_archives(),
        log=images.parent / "log" / "images.log",
    )
    container = buildah.read("from", "scratch")
    buildah.step("unpack the base", "add", container, archive, "/")
    buildah.step("path of the base", "config", "--env", BASE_PATH, container)
    buildah.step("store the base", "commit", "--rm", container, BASE)
    known.write_text(buildah.read("images", "--format", "{{.Digest}}", BASE))
    archive.unlink()
    return known.read_text()


def _make_pause(images: Path, buildah: Buildah) -> None:
    archive, program = images / "pause.tar", images / "pause"
    if archive.exists():
        return
    source = images / "pause.c"
    source.write_text(PAUSE)
    run_step(
        "compile pause",
        "gcc",
        "-O1",
        "-static",
        "-o",
        program,
        source,
        log=images.parent / "log" / "images.log",
    )
    container = buildah.read("from", "scratch")
    buildah.step("copy pause", "copy", container, program, "/pause")
    buildah.step("entry point of pause", "config", "--entrypoint", '["/pause"]', container)
    buildah.step("store pause", "commit", "--rm", container, "localhost/pause:1")
    buildah.push("localhost/pause:1", archive)


def _digest_of_source(name: str) -> str:
    """Of all that a build reads of the repository."""
    digest = hashlib.sha256()
    copied = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in sorted(_files([*copied, f"deploy/{name}.Dockerfile"])):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _files(names: list[str]) -> set[Path]:
    found = set()
    for name in names:
        inside = [ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*")
        found |= {path for path in inside if path.is_file() and "__pycache__" not in path.parts}
    return found


def _pip_setting(name: str) -> str:
    """As this machine's pip has it, from its environment or its files; empty where it has none."""
    variable = f"PIP_{name.replace('-', '_').upper()}"
    if variable in os.environ:
        return os.environ[variable]
    words = ["python3", "-m", "pip", "config", "get", f"global.{name}"]
    return subprocess.run(words, check=False, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    import_image(*map(Path, sys.argv[1:]))
