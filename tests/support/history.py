"""What must hold after any fault, read from what the processes left behind.

Silo i votes with p e_i, so a round over a cohort adds exactly 1/|cohort| to the entry of each of
its members: anything else is a sum that was lost, applied twice, or holds a silo that was dropped.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from chorale.runtime import audit
from chorale.v1.records_pb2 import PhaseRecord
from coordinator.phase_machine import PhaseState
from coordinator.storage.store import JobRow, PhaseRow, Store
from crypto import encoding
from tests.support.federation import COORDINATOR, LocalFederation

VOTE_ERROR = 1e-6  # fixed point: below 2^-20 at bound 8 and word 32 for ten silos, over two rounds


@dataclass(frozen=True, kw_only=True)
class History:
    """A job as the coordinator's store has it."""

    job: JobRow
    phases: tuple[PhaseRow, ...]

    def row(self, round: int, phase: str = "train") -> PhaseRow:
        return next(row for row in self.phases if (row.round, row.phase) == (round, phase))

    def record(self, round: int, phase: str = "train") -> PhaseRecord:
        record = self.row(round, phase).record
        assert record is not None, f"round {round} {phase} has no record"
        return record

    def cohorts(self) -> list[list[str]]:
        """Of the train phases that were applied, in order."""
        return [
            list(row.record.cohort)
            for row in self.phases
            if row.phase == "train" and row.state is PhaseState.APPLIED and row.record is not None
        ]


class Kept(Protocol):
    """A folder for each member, with what it kept."""

    @property
    def folder(self) -> Path: ...


def read_history(federation: Kept, job_id: str = "") -> History:
    """The job of that id, or the only one, also while the coordinator runs or is halted."""
    store = Store(federation.folder / COORDINATOR / "coordinator.sqlite")
    try:
        (job,) = (each for each in store.jobs() if each.digest.hex().startswith(job_id))
        return History(job=job, phases=tuple(store.phases(job.digest)))
    finally:
        store.close()


def check_finished(federation: LocalFederation, job_id: str, *, rounds: int = 2) -> History:
    """The job is done, every sum counted once, no mask used twice, nothing crashed."""
    assert federation.finish()["status"] == "done", federation.hub.tail()
    history = read_history(federation)
    train = [row for row in history.phases if row.phase == "train"]
    assert [row.round for row in train] == list(range(1, rounds + 1))
    assert all(row.is_ended and row.record is not None for row in history.phases)
    check_votes(federation, job_id, history)
    check_statements(federation, history)
    check_attempts(federation)
    check_logs(federation)
    return history


def check_votes(federation: LocalFederation, job_id: str, history: History) -> None:
    votes = federation.fetch(job_id)["model/votes"]
    expected = np.zeros_like(votes)
    for cohort in history.cohorts():
        for name in cohort:
            expected[federation.names.index(name)] += 1 / len(cohort)
    np.testing.assert_allclose(votes, expected, atol=VOTE_ERROR, rtol=0)


def statements(federation: LocalFederation, name: str) -> dict[tuple[int, str], bytes]:
    """Of which global state a silo signed that it follows from the sum of a phase, by round and phase."""
    ledger = f"file:{federation.folder / name / 'ledger.sqlite'}?mode=ro"
    with closing(sqlite3.connect(ledger, uri=True)) as connection:
        rows = connection.execute("SELECT round, phase, body FROM next_states").fetchall()
    found = {}
    for round, phase, body in rows:
        *_, next_digest, _draw_seed = encoding.decode("next-state", body)
        found[round, phase] = next_digest
    return found


def check_statements(federation: LocalFederation, history: History) -> None:
    """Every phase whose sum moves the state has enough statements, all of the state that is stored."""
    signed = {name: statements(federation, name) for name in federation.names}
    for row in history.phases:
        if row.state is not PhaseState.APPLIED or row.phase.startswith("evaluate"):
            continue
        record = history.record(row.round, row.phase)
        found = [each[row.round, row.phase] for each in signed.values() if (row.round, row.phase) in each]
        assert 3 <= record.threshold <= record.verified_by <= len(found), (row.round, row.phase)
        assert set(found) == {record.state_digest}, (row.round, row.phase)


def check_attempts(federation: LocalFederation) -> None:
    """No attempt of a phase was begun twice, by the coordinator or in one life of a silo."""
    stages = [record for record in federation.hub.records() if record["event"] == "stage"]
    begun = Counter(_attempt(record) for record in stages if record["state"] == PhaseState.WAITING)
    assert begun, "the coordinator's log names no attempt"
    assert max(begun.values()) == 1, begun.most_common(1)
    for name in federation.names:
        log = federation.services[name].records()
        lives = sum(record["event"] == "started" for record in log)
        entries = audit.read_entries(federation.folder / name / "audit.jsonl")
        adverted = Counter(_attempt(entry) for entry in entries if entry["event"] == "advertised")
        # one that died before its advert was heard adverts again, with other keys
        assert max(adverted.values()) <= lives, f"{name}: {adverted.most_common(1)}"


def check_logs(federation: LocalFederation) -> None:
    """No traceback at any party, and audit chains unbroken."""
    for service in federation.services.values():
        text = service.own_text()
        assert "Traceback" not in text, f"{service.name}\n{text}"
        audit.verify_file(federation.folder / service.name / "audit.jsonl")


def sent(federation: LocalFederation, name: str, kind: str) -> list[dict[str, Any]]:
    """Messages of a kind that left a silo, over all its lives; the federation records what is sent."""
    lines = (federation.folder / f"{name}.sent").read_text().splitlines()
    return [message for message in map(json.loads, lines) if message["kind"] == kind]


def check_one_answer(federation: LocalFederation) -> None:
    """No silo ever gave two different answers for a phase, in one attempt or in two."""
    for name in federation.names:
        for kind in ("unmask_shares", "next_state"):
            answers = defaultdict(set)
            for given in sent(federation, name, kind):
                answers[given["round"], given["phase"]].add((given["attempt"], given["sha256"]))
            # a silo that was killed before it signed takes the state that t others prove
            assert answers or kind == "next_state", f"{name} sent no {kind} at all"
            assert all(len(given) == 1 for given in answers.values()), f"{name}: {kind}: {answers}"


def _attempt(fields: dict[str, object]) -> tuple[object, ...]:
    return tuple(fields[name] for name in ("job", "round", "phase", "attempt"))
