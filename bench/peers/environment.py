"""A peer's own virtual environment: nothing of it enters ours."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

MAX_SECONDS = 600  # of one installation: the index does not answer


class PeerUnavailable(Exception):
    """The peer cannot be installed here; the message says why in one sentence."""


def python_with(requirement: str, *, folder: Path) -> Path:
    """The interpreter of an environment that holds this requirement, such as `flwr==1.41.0`.

    It is made and filled by pip where it is not there yet. Raises PeerUnavailable.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        _make(folder)
    if not _holds(python, requirement):
        _install(python, requirement)
    return python


def _make(folder: Path) -> None:
    try:
        venv.create(folder, clear=True)  # without pip: ours installs into it
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeerUnavailable(f"the environment {folder} cannot be made: {error}") from None


def _holds(python: Path, requirement: str) -> bool:
    name, _, version = requirement.partition("==")
    distribution = name.partition("[")[0]  # of name[extra]
    found = f"from importlib.metadata import version; print(version({distribution!r}))"
    done = subprocess.run([python, "-I", "-c", found], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


def _install(python: Path, requirement: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*pip, "install", "--quiet", requirement],
            capture_output=True,
            text=True,
            timeout=MAX_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"pip did not install {requirement} in {MAX_SECONDS} seconds") from None
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        why = errors[-1].removeprefix("ERROR: ") if errors else f"exit code {done.returncode}"
        raise PeerUnavailable(f"pip cannot install {requirement}: {why}")
