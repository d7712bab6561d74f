"""Limits of the machine around a process of the product, as a service manager sets them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from chorale.runtime import machine
from tests.support.processes import PATIENCE_SECONDS, REPOSITORY, environment

NOBODYS = 54_321  # a user without processes: the limit of threads counts all of a user's


def few_files(count: int) -> list[str]:
    return ["prlimit", f"--nofile={count}:{count}"]


def few_threads(count: int) -> list[str]:
    """root has no such limit: it becomes a real user of its own, without the capabilities that lift it."""
    limited = ["prlimit", f"--nproc={count}:{count}"]
    if os.getuid() != 0:
        return limited
    return [*limited, "setpriv", f"--ruid={NOBODYS}", "--bounding-set=-sys_resource,-sys_admin"]


def inside(group: Path) -> list[str]:
    return ["bash", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "bash"]


def run_limited(limits: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """`chorale <arguments>` to its end, or that of the limit, by an interpreter of its own."""
    return subprocess.run(
        [*limits, sys.executable, "-m", "cli.main", *arguments],
        cwd=REPOSITORY,
        env=environment({}),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A control group below this process's own; the test is skipped where none can be made."""
    for line in machine.OWN_CGROUPS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        root = machine.CGROUPS / controllers
        own = next((each for each in (root / path.lstrip("/"), root) if each.is_dir()), root)
        group = own / f"chorale-test-{os.getpid()}"
        if controllers in ("", "memory"):
            try:
                group.mkdir()
            except OSError:
                continue
            try:
                found = [group / name for name in ("memory.max", "memory.limit_in_bytes")]
                if limits := [each for each in found if each.exists()]:
                    limits[0].write_text(str(limit_bytes))
                    yield group
                    return
            finally:
                _remove(group)
    pytest.skip("no control group of memory can be made here")


def _remove(group: Path) -> None:
    for pid in (group / "cgroup.procs").read_text().split():
        with Path(f"/proc/{pid}/stat").open() as state:
            assert state.read().rpartition(")")[2].split()[0] == "Z", f"{pid} still runs in {group}"
    end = time.monotonic() + PATIENCE_SECONDS
    while group.exists():  # the kernel counts a process that has ended a moment longer
        try:
            group.rmdir()
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.01)
