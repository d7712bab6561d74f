"""Packages of npm that tests use: exact versions, their hashes checked, no script of theirs run."""

from __future__ import annotations

import fcntl
import functools
import shutil
import subprocess
from pathlib import Path

from tests.support import programs
from tests.support.fork_server import ROOT

WANTED = Path(__file__).parent / "npm"
INSTALLED = ROOT / "build" / "pages"


@functools.cache
def install(wanted: Path, folder: Path) -> Path:
    """The folder node_modules of what `wanted` pins, installed by the first process that asks for it.

    Skips or fails the test where it cannot be.
    """
    npm, lock = programs.needed("npm"), (wanted / "package-lock.json").read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # another process ran a binary that was half written
        done = folder / ".installed"
        if not (done.exists() and done.read_bytes() == lock):
            for name in ("package.json", "package-lock.json"):
                shutil.copyfile(wanted / name, folder / name)
            ran = subprocess.run(
                [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode == 0, f"npm ci: {ran.stderr}"
            done.write_bytes(lock)
    return folder / "node_modules"


def modules() -> Path:
    """Those that tests of pages use."""
    return install(WANTED, INSTALLED)


def axe() -> str:
    """The source of axe-core, which finds what shuts people out."""
    return (modules() / "axe-core" / "axe.min.js").read_text()
