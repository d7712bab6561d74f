"""Limits of a process, lowered and put back. Whole processes: tests/faults/test_limits.py."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from chorale.runtime import machine
from chorale.runtime.machine import LimitTooLow, allow_descriptors, check_memory, memory_limit_bytes
from tests.support.limits import inside, memory_group
from tests.support.processes import REPOSITORY, environment

MIB = 1 << 20


def test_a_process_may_open_as_much_as_the_system_lets_it() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        allow_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_limit_of_a_real_control_group_is_seen() -> None:
    """systemd's MemoryMax= was not: the root's file was read."""
    with memory_group(300 * MIB) as group:
        script = "from chorale.runtime.machine import memory_limit_bytes as found; print(found())"
        command = [*inside(group), sys.executable, "-c", script]
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment({}), capture_output=True, text=True, check=True
        )
    assert int(done.stdout) == 300 * MIB


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/system.slice/chorale-hub.service", {"system.slice/chorale-hub.service/memory.max": 300}),
        ("0::/chorale.slice/hub.service", {"chorale.slice/memory.max": 300}),
        ("0::/", {"memory.max": 300}),
        ("4:memory:/docker/1f", {"memory/docker/1f/memory.limit_in_bytes": 300}),
        ("4:memory:/docker/1f", {"memory/memory.limit_in_bytes": 300}),
    ],
    ids=["unit", "slice", "container", "version-1", "container-of-version-1"],
)
def test_lowest_limit_of_own_control_groups_holds(
    own: str, files: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text(f"1:name=systemd:/user.slice\n{own}\n")
    group = tmp_path / own.split(":", 2)[2].lstrip("/")
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text("max\n")
    (tmp_path / "user.slice").mkdir()
    (tmp_path / "user.slice/memory.max").write_text(f"{MIB}\n")  # of another one
    for name, limit in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{limit * MIB}\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "OWN_CGROUPS", tmp_path / "own")

    assert memory_limit_bytes() == 300 * MIB
    check_memory(300 * MIB, what="a job")
    with pytest.raises(
        LimitTooLow, match="memory is limited to 300 MiB, a job needs at least 301 MiB: MemoryMax="
    ):
        check_memory(301 * MIB, what="a job")
