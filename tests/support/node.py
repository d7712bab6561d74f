"""Packages of npm that tests of pages use: exact versions, their hashes checked, no script of theirs run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support import programs
from tests.support.fork_server import ROOT

WANTED = Path(__file__).parent / "npm"
INSTALLED = ROOT / "build" / "pages"


def modules() -> Path:
    """The folder node_modules, installed at the first call. Skips or fails the test where it cannot be."""
    lock = (WANTED / "package-lock.json").read_bytes()
    copied, found = INSTALLED / "package-lock.json", INSTALLED / "node_modules"
    if found.is_dir() and copied.exists() and copied.read_bytes() == lock:
        return found
    npm = programs.needed("npm")
    INSTALLED.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(WANTED / name, INSTALLED / name)
    done = subprocess.run(
        [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=INSTALLED,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"npm ci: {done.stderr}"
    return found


def axe() -> str:
    """The source of axe-core, which finds what shuts people out."""
    return (modules() / "axe-core" / "axe.min.js").read_text()
