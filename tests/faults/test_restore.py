"""A coordinator loses its disk and comes back from a backup that was made while it ran.

With the newest backup the job ends as if nothing had been. With an older one silos know more than the
coordinator: what they can repeat they repeat, and nothing is summed twice. Source: docs/protocol.md 10.11.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from chorale.runtime import audit
from coordinator.phase_machine import PhaseState
from coordinator.storage.store import JobRow, Store
from tests.faults.conftest import MakeFederation
from tests.support.federation import COORDINATOR, LocalFederation
from tests.support.halting import Halt
from tests.support.history import check_finished, check_one_answer, check_votes, read_history
from tests.support.processes import Record, run_cli
from tests.support.soak import cases

RESTORED = "they know later sums of this job than this coordinator"


def backup(federation: LocalFederation) -> Path:
    """As an operator makes one, of a coordinator that runs or stands still."""
    path = federation.folder / "backup.tar"
    done = run_cli("coordinator", "backup", "--config", config(federation), "--out", path)
    assert done.returncode == 0, done.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    return path


def lose_disk_and_restore(federation: LocalFederation, path: Path) -> None:
    """Everything that the coordinator kept is gone; what the backup holds is in a new, empty directory."""
    federation.hub.kill()
    shutil.rmtree(federation.folder / COORDINATOR)
    done = run_cli("coordinator", "restore", "--config", config(federation), "--from", path)
    assert done.returncode == 0, done.stderr
    entries = list(audit.read_entries(federation.folder / COORDINATOR / "audit.jsonl"))
    assert entries[-1]["event"] == "restored"


def config(federation: LocalFederation) -> Path:
    return federation.folder / f"{COORDINATOR}.yaml"


def run_until(federation: LocalFederation, halt: Halt, **job: object) -> str:
    federation.start_coordinator(halt=halt)
    for name in federation.names:
        federation.start_silo(name)
    job_id = federation.submit(values=federation.silos, **job)
    federation.hub.wait_halted()
    return job_id


def in_round(round: int, state: PhaseState) -> Halt:
    return Halt(at={"event": "stage", "state": state.value, "round": round, "phase": "train"})


@pytest.mark.gate
def test_job_ends_with_the_same_model_when_the_disk_is_lost_after_the_backup(
    make_federation: MakeFederation, tmp_path: Path
) -> None:
    """The restore drill: backup in UNMASK, everything lost, restored, ended; beside a run without faults."""
    federation = make_federation(folder=tmp_path / "drill", records_sent=True)
    job_id = run_until(federation, in_round(1, PhaseState.UNMASK))
    lose_disk_and_restore(federation, backup(federation))
    federation.start_coordinator()

    history = check_finished(federation, job_id)

    assert history.record(1).attempts == 1, "the session that was backed up is the one that was ended"
    assert history.cohorts() == [federation.names, federation.names]
    check_one_answer(federation)
    calm = make_federation(folder=tmp_path / "calm")
    calm.start()
    undisturbed = calm.submit(values=calm.silos)
    assert calm.finish()["status"] == "done"
    assert model_digest(federation, job_id) == model_digest(calm, undisturbed)


OLDER = {
    f"backup in {state.value}, lost in {lost.value} of round {round}": (state, round, lost)
    for state, round, lost in (
        (PhaseState.WAITING, 1, PhaseState.REVEALED),
        (PhaseState.MASKED, 1, PhaseState.REVEALED),
        (PhaseState.UNMASK, 3, PhaseState.REVEALED),
        (PhaseState.REVEALED, 4, PhaseState.REVEALED),
        (PhaseState.APPLIED, 2, PhaseState.APPLIED),
    )
}


@pytest.mark.gate
@pytest.mark.parametrize(
    "state, round, lost", cases(OLDER, always=["backup in unmask, lost in revealed of round 3"])
)
def test_no_sum_comes_twice_when_the_backup_is_older_than_what_silos_know(
    make_federation: MakeFederation, state: PhaseState, round: int, lost: PhaseState
) -> None:
    federation = make_federation(records_sent=True)
    job_id = run_until(federation, in_round(1, state), rounds=5)
    path = backup(federation)
    federation.hub.thaw()
    wanted = in_round(round, lost).at
    federation.hub.wait_for(lambda line: wanted.items() <= line.items())
    lose_disk_and_restore(federation, path)
    federation.start_coordinator()

    ended = federation.finish()

    assert ended["status"] == "failed", federation.hub.tail()
    assert RESTORED in ended["reason"]
    check_one_answer(federation)
    check_votes(
        federation, job_id, read_history(federation)
    )  # the model so far is that of its sums, once each
    assert finish_from_its_model(federation, job_id)["status"] == "done"


def finish_from_its_model(federation: LocalFederation, job_id: str) -> Record:
    """What the sentence asks for: the fetched model is the first state of another job."""
    model = federation.folder / "fetched.safetensors"
    federation.fetch(job_id)
    again = federation.submit_spec(federation.job_spec(name="again", rounds=1), model)
    return federation.hub.wait_for(lambda line: line["event"] == "job ended" and line["job"] == again)


@pytest.mark.soak
def test_a_backup_of_any_moment_restores_and_its_job_ends(
    make_federation: MakeFederation, tmp_path: Path
) -> None:
    """Made one after the other while rounds are applied and their files removed; the job is over since."""
    federation = make_federation(records_sent=True)
    federation.start()
    job_id = federation.submit(values=federation.silos, rounds=12)
    made: list[Path] = []
    while not any(line["event"] == "job ended" for line in federation.hub.records()):
        made.append(backup(federation).rename(tmp_path / f"{len(made)}.tar"))
    check_finished(federation, job_id, rounds=12)
    assert len(made) > 2
    for number, path in enumerate(made[:: len(made) // 3]):
        lose_disk_and_restore(federation, path)
        if not read_jobs(federation):
            continue  # it is from before the job
        federation.hub.log.rename(federation.folder / f"{number}.log")
        federation.start_coordinator()
        ended = federation.finish()
        assert ended["status"] == "done" or RESTORED in ended["reason"], ended
        check_votes(federation, job_id, read_history(federation))
    check_one_answer(federation)


def read_jobs(federation: LocalFederation) -> list[JobRow]:
    with closing(Store(federation.folder / COORDINATOR / "coordinator.sqlite")) as store:
        return store.jobs()


def model_digest(federation: LocalFederation, job_id: str) -> str:
    arrays = federation.fetch(job_id)
    hashed = hashlib.sha256()
    for name in sorted(arrays):
        hashed.update(name.encode() + b"\0" + np.asarray(arrays[name]).tobytes())
    return hashed.hexdigest()


def test_backup_holds_all_that_a_coordinator_keeps_and_no_private_key(
    make_federation: MakeFederation,
) -> None:
    federation = make_federation()
    run_until(federation, in_round(1, PhaseState.UNMASK))
    path = backup(federation)
    directory = federation.folder / COORDINATOR
    there = {each.relative_to(directory).as_posix() for each in directory.rglob("*") if each.is_file()}
    with tarfile.open(path) as archive:
        left_out = there - set(archive.getnames())
    assert left_out == {
        "coordinator.sqlite-wal",
        "coordinator.sqlite-shm",
        "endpoint.json",
        "newest-backup",  # when it was made
    }
    held = path.read_bytes()
    for key in federation.ceremony.folder.glob("*.key"):
        lines = [line for line in key.read_bytes().splitlines() if not line.startswith(b"--")]
        assert lines
        assert not any(line in held for line in lines)
    assert b"PRIVATE KEY" not in held


def test_a_coordinator_that_lost_its_database_alone_does_not_begin_again(
    make_federation: MakeFederation,
) -> None:
    """A restore that was killed between two files leaves that, too; an empty coordinator knew no roster."""
    federation = make_federation()
    federation.start_coordinator()
    path = backup(federation)
    federation.hub.kill()
    database = federation.folder / COORDINATOR / "coordinator.sqlite"
    for each in database.parent.glob(f"{database.name}*"):
        each.unlink()
    done = run_cli("coordinator", "run", "--config", config(federation))
    assert done.returncode == 2
    assert f"{database}: missing beside the audit log" in done.stderr
    assert not database.exists()

    words = ("restore", "--config", config(federation), "--from", path, "--set-aside")
    assert run_cli("coordinator", *words).returncode == 0

    federation.start_coordinator()
    assert federation.hub.is_running
