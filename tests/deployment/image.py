"""What an image holds, made without an engine: the builder's own steps with their paths mapped.

The folders of the image lie below one of the test's. Commands then run with the image's environment
alone, as its user where the test may change user, and with code that is read-only.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deployment.dockerfile import Dockerfile, Instruction

ROOT = Path(__file__).parents[2]
CODE, STATE = "/opt/chorale", "/var/lib/chorale"
# absolute paths of ours in a Dockerfile's text, not those within a URL or a longer path
_PATH = re.compile(r"(?<![\w./$}-])/(?=(?:opt|src|state|tmp|var)\b)")
PATIENCE_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The root of the image's folders, and the Dockerfile they came from."""

    root: Path
    dockerfile: Dockerfile

    def mapped(self, text: str) -> str:
        return _PATH.sub(f"{self.root}/", text)

    def folder(self, path: str) -> Path:
        return Path(self.mapped(path))

    @property
    def environment(self) -> dict[str, str]:
        values = {name: self.mapped(value) for name, value in self.dockerfile.pairs(-1, "ENV").items()}
        return {**values, "PATH": values["PATH"].replace("$PATH", "/usr/bin:/bin")}

    @property
    def user(self) -> dict[str, object]:
        """Options of subprocess that give a command the image's user, where this process may."""
        if os.geteuid() != 0:
            return {}
        uid, gid = (int(part) for part in self.dockerfile.stage(-1, "USER")[-1].text.split(":"))
        return {"user": uid, "group": gid, "extra_groups": ()}

    def program(self, name: str) -> str:
        found = shutil.which(name, path=self.environment["PATH"])
        assert found is not None, f"{name} is not on the image's PATH"
        assert Path(found).is_relative_to(self.folder(CODE)), f"{found} is not of the image"
        return found

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        """The command in exec form, as the image would start it."""
        first, *rest = command
        return subprocess.Popen(
            [self.program(first), *map(self.mapped, rest)],
            cwd=self.folder(self.dockerfile.stage(-1, "WORKDIR")[-1].text),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **self.user,  # type: ignore[call-overload]
        )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        process = self.start(list(command))
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        return subprocess.CompletedProcess(list(command), process.returncode, out, err)


def build(dockerfile: Dockerfile, root: Path, arguments: dict[str, str]) -> Image:
    """Every step of the builder's stage, then what the last stage copies, then read-only code.

    arguments: build arguments. Skips the test where no Python is found that the image's user may run.
    """
    image = empty(dockerfile, root)
    for step in dockerfile.stages[0]:
        if step.word == "COPY":
            _copy_context(image.folder("/src"), step.text.split()[0])
        elif step.word == "RUN":
            run_step(image, step, arguments)
        else:
            assert step.word in ("FROM", "ARG", "WORKDIR"), f"{step.word}: a step that is not tested"
    for step in dockerfile.stage(-1, "COPY"):
        _copy_between_stages(image, step)
    subprocess.run(["chmod", "-R", "a-w", image.folder(CODE)], check=True)
    return image


def empty(dockerfile: Dockerfile, root: Path) -> Image:
    """The folders alone, before any step."""
    root.chmod(0o755)
    for folder in ("opt", "src", "tmp", "var/lib"):
        (root / folder).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    _write_shim(root / "shims")
    return Image(root=root, dockerfile=dockerfile)


def run_step(image: Image, step: Instruction, arguments: dict[str, str]) -> None:
    """One RUN of the builder's stage."""
    declared = {name for each in image.dockerfile.stage(0, "ARG") for name in each.pairs}
    values = {name: arguments[name] for name in declared & arguments.keys()}
    # the machine's own configuration of pip says where packages come from
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        ["/bin/sh", "-ec", image.mapped(step.text)],
        cwd=image.folder("/src"),
        env={**inherited, **values, "PATH": f"{image.root}/shims:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, f"{step.text}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


def context() -> list[Path]:
    """The files that .dockerignore lets into the build, of those that are kept in the repository."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] not in ("", "#")]
    assert lines[0] == "*", ".dockerignore has to begin with what is let in by name alone"
    named = [line[1:] for line in lines if line.startswith("!")]
    dropped = [line for line in lines[1:] if not line.startswith("!")]
    assert all(line.startswith("**/") for line in dropped), dropped
    found = []
    for name in named:
        path = ROOT / name
        assert path.exists(), f".dockerignore lets in {name}, which is not there"
        found += [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return [
        each
        for each in found
        if not any(Path(part).match(line[3:]) for line in dropped for part in each.relative_to(ROOT).parts)
    ]


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path below a folder with its mode and time of change."""
    every = {str(each): each.lstat() for each in folder.rglob("*")}
    return {path: (found.st_mode, found.st_mtime_ns) for path, found in every.items()}


def _copy_context(source: Path, named: str) -> None:
    """A file or folder of the context, under its own name."""
    for each in context():
        if not each.is_relative_to(ROOT / named):
            continue
        target = source / each.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(each, target)


def _copy_between_stages(image: Image, step: Instruction) -> None:
    *options, source, target = shlex.split(step.text)
    if source == target:  # both stages have the same folder
        return
    # a link over a file that is there already fails: no layer may change what one below it has
    shutil.copytree(
        image.folder(source), image.folder(target), symlinks=True, copy_function=os.link, dirs_exist_ok=True
    )
    owner = next((each.removeprefix("--chown=") for each in options if each.startswith("--chown=")), None)
    if owner is not None and os.geteuid() == 0:
        os.chown(image.folder(target), *map(int, owner.split(":")))


def _write_shim(folder: Path) -> None:
    """`python`: the interpreter that the image's user may run, and this test's pip."""
    folder.mkdir()
    script = folder / "python"
    own, base = shlex.quote(sys.executable), shlex.quote(str(_interpreter()))
    script.write_text(f'#!/bin/sh\n[ "$2" = pip ] && exec {own} "$@"\nexec {base} "$@"\n')
    script.chmod(0o755)


@functools.cache
def _interpreter() -> Path:
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    for path in (own, Path("/usr/local/bin") / name, Path("/usr/bin") / name):
        open_to_all = all(folder.stat().st_mode & 0o001 for folder in path.parents if folder.exists())
        if path.exists() and (os.geteuid() != 0 or open_to_all):
            return path
    pytest.skip(f"no {name} that another user may run")
