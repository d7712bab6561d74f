"""Commands that the lab runs, each with its log, and a line of progress every few seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

PROGRESS_SECONDS = 15.0


def say(words: str) -> None:
    sys.stderr.write(f"lab: {words}\n")
    sys.stderr.flush()


def run_step(
    name: str,
    *command: str | Path,
    log: Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command, its output appended to `log`. Raises RuntimeError with the log's end where it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began, reported_at = time.monotonic(), 0.0
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
        )
        while process.poll() is None:
            seconds = time.monotonic() - began
            if seconds >= reported_at + PROGRESS_SECONDS:
                reported_at = seconds
                say(f"{name}, {seconds:.0f} s")
            time.sleep(0.05)
    if process.returncode:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise RuntimeError(f"{name}: exit {process.returncode}, the end of {log}:\n{end}")
    say(f"{name}: done in {time.monotonic() - began:.0f} s")
