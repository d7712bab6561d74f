"""A disk without a free byte, at each place where a coordinator or a silo writes: nothing is lost, it is said
which disk it is, and work goes on by itself once there is room.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest

from chorale.runtime import audit
from chorale.spec.state import state_to_bytes
from tests.faults.conftest import MakeFederation
from tests.support.federation import COORDINATOR, LocalFederation
from tests.support.halting import Halt
from tests.support.history import check_attempts, check_statements, check_votes, read_history
from tests.support.processes import Record, run_cli, wait_until
from tests.support.schedules.machine import full, small_disk, unusable_disk
from tests.support.soak import cases

DISK_BYTES = 12 << 20
SILO = "silo-1"

pytestmark = pytest.mark.skipif(bool(unusable_disk()), reason=unusable_disk() or "usable")

PLACES = {
    "an attempt is begun": (COORDINATOR, "coordinator.storage.store:Store.begin_attempt"),
    "an upload arrives": (COORDINATOR, "coordinator.storage.spool:SessionSpool.open"),
    "the masked sum is stored": (COORDINATOR, "coordinator.storage.sum_files:SumFiles.store"),
    "the sum is unmasked": (COORDINATOR, "coordinator.jobs.phase_runner:unmask_stored"),
    "the next state is stored": (COORDINATOR, "coordinator.storage.checkpoints:Checkpoints.put"),
    "a phase is ended": (COORDINATOR, "coordinator.storage.store:Store.end_phase"),
    "the end of a phase is entered in the audit log": (COORDINATOR, "chorale.runtime.audit:AuditLog.append"),
    "a silo spends": (SILO, "silo_agent.disclosure.ledger.budget:Budget.spend"),
    "a silo signs a set": (SILO, "silo_agent.disclosure.ledger.reveals:Reveals.write_pending"),
    "a silo reveals": (SILO, "silo_agent.disclosure.ledger.reveals:Reveals.mark_revealed"),
    "a silo takes in a sum": (SILO, "silo_agent.connection.transfer:Transfer.download"),
    "a silo stores the next state": (SILO, "silo_agent.local_storage.state_files:StateFiles.put"),
}


@contextmanager
def on_small_disks(federation: LocalFederation, *names: str) -> Iterator[None]:
    with ExitStack() as disks:
        for name in names:
            disks.enter_context(small_disk(federation.folder / name, size_bytes=DISK_BYTES))
        try:
            yield
        finally:
            for service in federation.services.values():
                if service.is_running:
                    service.kill()


@pytest.mark.parametrize(
    "process, call", cases(PLACES, always=["the masked sum is stored", "a silo signs a set"])
)
def test_nothing_is_lost_where_the_disk_is_full_when(
    make_federation: MakeFederation, process: str, call: str
) -> None:
    federation = make_federation(coordinator={"spool_memory_megabytes": 0})
    # both lines are of the end of the enrollment: what follows is of round 1
    halt = Halt(at={"event": "phase ended", "round": 0}, call=call, when="before")
    with on_small_disks(federation, COORDINATOR, SILO):
        federation.start_coordinator(halt=halt if process == COORDINATOR else None)
        for name in federation.names:
            federation.start_silo(name, halt=halt if process == name else None)
        job_id = federation.submit(values=federation.silos, max_attempts=5)
        halted = federation.services[process]
        halted.wait_halted()
        with full(federation.folder / process):
            halted.thaw()
            halted.wait_for(is_told)
            wait_until(lambda: not is_ready(federation, process), f"{process} to be not ready")
        wait_until(lambda: is_ready(federation, process), f"{process} to be ready")

        assert federation.finish()["status"] == "done"

        history = read_history(federation)
        check_votes(federation, job_id, history)
        check_statements(federation, history)
        check_attempts(federation)
        assert len(history.cohorts()) == 2, "no round was lost"
        for name in (COORDINATOR, *federation.names):
            audit.verify_file(federation.folder / name / "audit.jsonl")
        free = federation.scrape()["chorale_coordinator_state_free_bytes"]
        assert 0 < free < federation.scrape()["chorale_coordinator_state_size_bytes"] == DISK_BYTES


def is_told(line: Record) -> bool:
    """What a process says of a disk that is full, in whichever of its words."""
    words = " ".join(str(value) for value in line.values())
    return any(phrase in words for phrase in ("No space left on device", "disk is full", "disk of"))


def is_ready(federation: LocalFederation, process: str) -> bool:
    endpoint = json.loads((federation.folder / process / "endpoint.json").read_text())
    try:
        with urlopen(f"http://{endpoint['metrics']}/readyz", timeout=10) as answer:
            return bool(answer.status == 200)
    except HTTPError as refused:
        return refused.code != 503


@pytest.mark.soak
def test_a_job_is_refused_where_its_states_find_no_room(make_federation: MakeFederation) -> None:
    federation = make_federation()
    with on_small_disks(federation, COORDINATOR):
        federation.start()
        federation.wait_connected()
        directory = federation.folder / COORDINATOR
        state = federation.folder / "large.safetensors"
        large = federation.job_spec(name="large")
        state.write_bytes(state_to_bytes({"model/votes": np.zeros(1 << 19, np.float32)}))
        job = large.to_yaml()
        message = submit(federation, job, state)
        assert f"bytes free on the disk of {directory}" in message, message
        with full(directory):
            message = submit(federation, job, state)
            assert f"the disk of {directory} is full" in message, message

        small = federation.submit(values=federation.silos, rounds=1)

        assert federation.finish()["status"] == "done"
        assert [job.signed.id for job in [read_history(federation).job]] == [small]


def submit(federation: LocalFederation, job: bytes, state: Path) -> str:
    """What the operator is told of a job that is not taken."""
    path = federation.folder / "large.yaml"
    path.write_bytes(job)
    done = federation.cli("job", "submit", path, "--init", state)
    assert done.returncode == 4, done.stdout
    return str(done.stderr)


@pytest.mark.soak
def test_backup_and_restore_say_that_they_find_no_room_and_leave_nothing(
    make_federation: MakeFederation, tmp_path: Path
) -> None:
    federation = make_federation()
    federation.start_coordinator()
    config = tmp_path / f"{COORDINATOR}.yaml"
    made = tmp_path / "made.tar"
    assert run_cli("coordinator", "backup", "--config", config, "--out", made).returncode == 0
    small = tmp_path / "small"
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text(config.read_text().replace(str(tmp_path / COORDINATOR), str(small / "state")))
    with small_disk(small, size_bytes=DISK_BYTES):
        (small / "state").mkdir()
        with full(small):
            refused = [
                run_cli("coordinator", "backup", "--config", config, "--out", small / "new.tar"),
                run_cli("coordinator", "restore", "--config", elsewhere, "--from", made),
            ]
            backup, restore = refused
            assert (backup.returncode, restore.returncode) == (1, 1)
            assert f"it finds no room: the disk of {small}" in backup.stderr
            assert f"bytes in {small / 'state'}" in restore.stderr
            assert "free on the disk of" in restore.stderr
        assert [path.name for path in small.rglob("*")] == ["state"]
        assert run_cli("coordinator", "restore", "--config", elsewhere, "--from", made).returncode == 0
