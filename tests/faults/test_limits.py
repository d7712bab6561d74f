"""Too few descriptors, threads or bytes of memory: one sentence, where a signal or silence was."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from chorale.spec.state import state_to_bytes
from cli.errors import ExitCode
from tests.faults.conftest import MakeFederation
from tests.support.federation import COORDINATOR, LocalFederation
from tests.support.limits import few_files, few_threads, inside, memory_group, run_limited
from tests.support.processes import wait_until

MIB = 1 << 20
FILES, SILENT = 256, 1000


@pytest.mark.parametrize("role", ["coordinator", "silo"])
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (few_files(64), "open files are limited to 64, at least 256 are needed: LimitNOFILE= or ulimit -Hn"),
        (few_threads(1), "threads are limited: 0 more can start, at least 64 are needed: LimitNPROC= or "),
    ],
    ids=["files", "threads"],
)
def test_start_names_the_limit_that_is_too_low(role: str, limits: list[str], said: str) -> None:
    done = run_limited(limits, role, "run", "--config", "none.yaml")

    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert done.stderr.startswith(f"chorale: error: {said}")


def test_start_needs_more_memory_than_its_control_group_has(tmp_path: Path) -> None:
    with memory_group(56 * MIB) as group:
        done = run_limited(inside(group), "coordinator", "run", "--config", "none.yaml")

    assert done.returncode == 1
    assert done.stderr == (
        "chorale: error: memory is limited to 56 MiB, a coordinator needs at least 64 MiB: "
        "MemoryMax=, a container's memory limit, or ulimit -v\n"
    )


def test_coordinator_refuses_a_job_that_finds_no_memory(make_federation: MakeFederation) -> None:
    """It was killed in the first round, and again after each start."""
    federation = make_federation(silos=3, executed=[COORDINATOR])
    with memory_group(112 * MIB) as group, federation:
        hub = federation.start_coordinator()
        (group / "cgroup.procs").write_text(str(hub.process.pid))
        state = federation.folder / "large.safetensors"
        state.write_bytes(state_to_bytes({"model/votes": np.zeros(5 * MIB, np.float32)}))
        job = federation.folder / "job.yaml"
        job.write_bytes(federation.job_spec().to_yaml())

        done = federation.cli("job", "submit", job, "--init", state)

        assert done.returncode == ExitCode.REFUSED_BY_PEER
        assert "memory is limited to 112 MiB, job " in done.stderr
        assert hub.is_running
        hub.kill()


def test_silo_waits_out_a_job_that_finds_no_memory(make_federation: MakeFederation) -> None:
    federation = make_federation(silos=3, executed=["silo-0"])
    with memory_group(104 * MIB) as group, federation:
        federation.start()
        federation.wait_connected()
        silo = federation.services["silo-0"]
        (group / "cgroup.procs").write_text(str(silo.process.pid))
        job_id = federation.submit(values=3 * MIB)

        refused = silo.wait_for(lambda line: "memory is limited" in str(line.get("reason")))

        assert f"memory is limited to 104 MiB, job {job_id[:12]} needs at least 144 MiB" in refused["reason"]
        silo.kill()


@pytest.fixture
def crowded(make_federation: MakeFederation, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalFederation]:
    """A coordinator of few descriptors, one silo of it, and many who connected and say nothing."""
    federation = make_federation(silos=3, coordinator_limits=few_files(FILES))
    federation.start_coordinator()
    federation.start_silo("silo-0")
    federation.hub.wait_for(lambda line: line["event"] == "silo connected")
    host, _, port = federation.endpoint["grpc"].rpartition(":")
    with ExitStack() as silent:
        for _ in range(SILENT):
            silent.enter_context(socket.create_connection((host, int(port))))
        yield federation


def test_silent_connections_take_no_descriptor_of_probes_and_members(crowded: LocalFederation) -> None:
    """They took all: /livez answered nobody, no silo came in, and no line in the log said why."""
    for page in ("livez", "readyz", "metrics"):
        with urlopen(f"http://{crowded.endpoint['metrics']}/{page}", timeout=30) as answer:
            assert answer.status == 200
    crowded.start_silo("silo-1")
    crowded.hub.wait_for(lambda line: line["event"] == "silo connected" and line["silo"] == "silo-1")
    wait_until(
        lambda: crowded.scrape()["chorale_coordinator_cut_connections_total"] > 0, "connections to be cut"
    )

    assert crowded.scrape()["chorale_coordinator_connections_without_certificate"] <= FILES // 8
    assert crowded.scrape()["process_open_fds"] < FILES // 2
    events = [line["event"] for line in crowded.hub.records()]
    assert events.count("connections beyond a limit are cut") == 1
    assert events.count("silo disconnected") == 0


def test_no_other_user_reads_what_processes_write(make_federation: MakeFederation) -> None:
    """In folders that were there before, by umask 022; SQLite's own files were for all to read."""
    federation = make_federation(silos=3)
    folders = [federation.folder / name for name in (COORDINATOR, *federation.names)]
    for folder in folders:
        folder.mkdir()
        folder.chmod(0o755)
    umask = os.umask(0o022)
    try:
        federation.start()
        federation.submit()
        federation.finish()
    finally:
        os.umask(umask)

    found = [*folders, *(path for folder in folders for path in folder.rglob("*"))]
    assert {path.name for path in found} >= {"coordinator.sqlite-wal", "ledger.sqlite", "agent.lock"}
    modes = {}
    for path in found:
        with suppress(FileNotFoundError):  # a silo deletes states when it hears that the job is over
            modes[str(path)] = stat.S_IMODE(path.lstat().st_mode)
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}
