"""One-hot jobs on the cluster, and the oracle of the fault tests over what each left on the volumes."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from chorale.spec.state import state_to_bytes
from coordinator.phase_machine import PhaseState
from coordinator.storage.store import Store
from silo_agent.training.models.starting import initial_state as first_state
from tests.cluster import recording
from tests.cluster.page import HUB, SILOS
from tests.cluster.walk import Walk, namespace, pod_name
from tests.support.processes import Record
from tests.support.schedules.agents import sent_path
from tests.support.schedules.oracle import Run
from tests.support.schedules.schedule import Fault, Kind

ROUNDS = 2
# of the records that each trains on: whole numbers of quarters, so every state is exact
SHARES = np.array([0.25, 0.25, 0.5], np.float32)
DATABASES = ("coordinator.sqlite", "ledger.sqlite")
ENDED_SECONDS = 120.0


@dataclass(kw_only=True)
class Evidence:
    """A job's end, copied from the volumes and the logs (tests.support.schedules.oracle.Witness).

    since: where in each log the job's begins.
    """

    folder: Path
    walk: Walk
    job_id: str
    since: dict[str, int]
    names: list[str]
    away: set[str]

    @property
    def federation(self) -> Evidence:
        return self

    @property
    def records(self) -> Path:
        return self.folder / recording.RECORDS

    @cached_property
    def coordinator_log(self) -> list[Record]:
        return self._since(HUB)

    @cached_property
    def lives(self) -> Counter[str]:
        """One that ran before the job, and each that was started since."""
        return Counter({silo: 1 + _count(self._since(silo), "started") for silo in self.names})

    @cached_property
    def begun(self) -> list[Fault]:
        """A fault for each time that the coordinator was started during the job."""
        fields: dict[str, Any] = {"round": 0, "stage": PhaseState.WAITING, "lines": 0, "seconds": 0.0}
        return [Fault(kind=Kind.KILL, target=HUB, **fields)] * _count(self.coordinator_log, "listening")

    def process_name(self, target: str) -> str:
        return target

    def _since(self, member: str) -> list[Record]:
        return self.walk.logs.records[member][self.since[member] :]


def job(name: str) -> dict[str, Any]:
    """Two rounds over three silos; the columns are those of the guide's table."""
    return {
        "name": name,
        "federation": "heart",
        "silos": list(SILOS),
        "rounds": ROUNDS,
        "not_after": "2099-12-31T00:00:00Z",
        "model": {"name": "custom"},
        "classes": 2,
        "input_shape": [1],
        "columns": [{"name": "age", "mean": 54, "scale": 9}],
        "label_column": "num",
        "training": {"learning_rate": 0.1},
        "max_attempts": 50,
    }


def initial_state() -> bytes:
    return state_to_bytes({"model/votes": np.zeros(len(SILOS), np.float32)})


@contextmanager
def during(walk: Walk, what: str, *, at: str, held: str = SILOS[2]) -> Iterator[str]:
    """A job that stands still while the block runs; then it ends, and the oracle judges. Yields its id.

    at: `train` or `unmask`, where it stands. held: the silo that keeps it there.
    """
    wait = walk.state(held) / (recording.GATE if at == "train" else recording.HOLD)
    wait.touch()
    try:
        since, job_id = submit(walk, what)
        stands = {"event": "stage", "job": job_id}
        stands |= {"state": "waiting", "phase": "train"} if at == "train" else {"state": "unmask"}
        walk.logs.wait(HUB, lambda line: stands.items() <= line.items(), str(stands), since=since[HUB])
        yield job_id
    finally:
        wait.unlink()
    finish(walk, what, job_id, since)


def submit(walk: Walk, name: str) -> tuple[dict[str, int], str]:
    """Where each log was, and the job's id."""
    since = {member: walk.logs.mark(member) for member in (HUB, *SILOS)}
    for path in (each for silo in SILOS for each in (walk.state(silo) / recording.RECORDS).iterdir()):
        path.unlink()  # of a job that was not judged
    (walk.folder / "initial.safetensors").write_bytes(initial_state())
    (walk.folder / "one-hot.yaml").write_text(yaml.safe_dump(job(re.sub(r"[^a-z0-9]+", "-", name.lower()))))
    out = walk.shell("chorale job submit one-hot.yaml --config operator.yaml --init initial.safetensors")
    job_id = out.split()[0]
    if walk.values[SILOS[0]]["policy"].get("approval") != "automatic":
        for silo in SILOS:
            walk.wait_for_offer(silo, job_id)
            approve(walk, silo, job_id)
    return since, job_id


def approve(walk: Walk, silo: str, job_id: str) -> None:
    command = f"chorale silo approve --config /etc/chorale/settings/silo.yaml {job_id} --yes"
    walk.shell(f"kubectl --namespace {namespace(silo)} exec {pod_name(silo)} -- {command}")


def finish(walk: Walk, what: str, job_id: str, since: dict[str, int], *, is_one_hot: bool = True) -> Path:
    """Wait for the end at every member, then compare all that was kept. Returns where it was copied."""
    for member in (HUB, *SILOS):
        with walk.report.progress(f"waiting for the end of {job_id} at {member}"):
            walk.logs.wait(
                member,
                lambda line: line["event"] == "job ended" and line["job"] == job_id,
                "the job's end",
                since=since[member],
                seconds=ENDED_SECONDS,
            )
    evidence = gather(walk, job_id, since)
    run = Run(evidence, job_id)
    if not is_one_hot:
        started = state_to_bytes(first_state(run.job.spec, base=run.job.signed.base))
        (evidence.folder / "initial.safetensors").write_bytes(started)
    run.check()
    if is_one_hot:
        expected = ROUNDS * SHARES
        assert np.array_equal(run.final["model/votes"], expected), f"{run.final['model/votes']}: {expected}"
    applied = sum(row.state is PhaseState.APPLIED for row in run.history.phases)
    walk.report.passed(
        f"{what}: {applied} sums of exactly the recorded inputs, each once, over {len(SILOS)} silos"
    )
    return evidence.folder


def final_digest(evidence: Path) -> str:
    """Of the state that the job ended in."""
    store = Store(evidence / HUB / DATABASES[0])
    with closing(store):
        (found,) = (each for each in store.jobs() if each.digest.hex().startswith(evidence.name))
        return found.state_digest.hex()


def gather(walk: Walk, job_id: str, since: dict[str, int]) -> Evidence:
    """Copies of the volumes, databases by SQLite's own backup; the records are moved."""
    folder = walk.folder / "evidence" / job_id
    for member in (HUB, *SILOS):
        state = walk.state(member) / "state"
        shutil.copytree(state, folder / member, ignore=shutil.ignore_patterns("*.sqlite*", "lock", "*.sock"))
        for name in DATABASES:
            if (state / name).exists():
                with (
                    closing(sqlite3.connect(f"file:{state / name}?mode=ro", uri=True)) as live,
                    closing(sqlite3.connect(folder / member / name)) as copy,
                ):
                    live.backup(copy)
    evidence = Evidence(folder=folder, walk=walk, job_id=job_id, since=since, names=list(SILOS), away=set())
    evidence.records.mkdir()
    for silo in SILOS:
        for path in (walk.state(silo) / recording.RECORDS).iterdir():
            shutil.move(path, evidence.records)
        assert sent_path(evidence.records, silo).exists(), f"{silo} wrote nothing down"
    (folder / "initial.safetensors").write_bytes(initial_state())
    return evidence


def _count(records: list[Record], event: str) -> int:
    return sum(line["event"] == event for line in records)
