"""What must hold after any schedule: computed again from what went in, and compared with all that was kept.

Sums are those of the recorded inputs of exactly the silos that the coordinator's record names; global states
follow from them by the job's own server step; ledgers, audit logs and statements agree with both; nothing
partial is left on a disk. Silo i contributes p e_i: a 2 is a replay, a 1 for a dropped silo a phantom.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from chorale.job import Job
from chorale.runtime import audit
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_digest, state_from_file, state_to_bytes
from chorale.transport.wire import PhaseKey
from chorale.v1.records_pb2 import PhaseRecord
from coordinator.phase_machine import PhaseState
from coordinator.reasons import Absent, FailureReason
from coordinator.storage.store import JobStatus, PhaseRow
from crypto import encoding
from crypto.errors import Refusal
from crypto.fixed_point import ring
from crypto.fixed_point.layout import Layout
from strategies.base import Array
from tests.support.federation import COORDINATOR
from tests.support.history import VOTE_ERROR, History, Kept, read_history
from tests.support.processes import Record
from tests.support.schedules.agents import INPUT_ID, input_path, sent_path
from tests.support.schedules.director import LEDGER, MAY_END, Director
from tests.support.schedules.schedule import MAX_SKEW_SECONDS, Fault, Kind

PARTIAL = ("*.part", "*.tmp", ".*.tmp", "*.sum")
# what a process may say where its disk or its database is not to be had
OF_THE_MACHINE = re.compile(
    "No space left on device|database or disk is full|disk I/O error|database is locked|unable to open"
)

# why a phase may be used up where everyone is honest; and what would say that someone is not
OF_FAULTS = {
    each.value
    for each in (
        FailureReason.TOO_FEW_SILOS,
        FailureReason.TRAIN_HARD_CAP,
        FailureReason.UNMASK_HARD_CAP,
        FailureReason.TOO_FEW_STATEMENTS,
        FailureReason.ROSTER,
        FailureReason.RESTARTED,
        FailureReason.REFUSED,
    )
}
OF_LIARS = {Absent.LIED.value, Absent.COMPLAINED.value, Refusal.SUM.value, Refusal.ENVELOPE.value}


def check(director: Director) -> None:
    """Once every process has stopped. Raises AssertionError that says what does not hold."""
    run = Run(director)
    run.check()
    run.check_votes()
    check_endings(director)
    check_logs(director)


class Federation(Kept, Protocol):
    """records: where what silos sent was written down. lives: how often each process was started."""

    @property
    def names(self) -> list[str]: ...
    @property
    def records(self) -> Path: ...
    @property
    def lives(self) -> Mapping[str, int]: ...
    def process_name(self, target: str) -> str: ...


class Witness(Protocol):
    """coordinator_log: its records over all its lives. begun: faults. away: who did not hear of the end."""

    @property
    def federation(self) -> Federation: ...
    @property
    def coordinator_log(self) -> list[Record]: ...
    @property
    def begun(self) -> list[Fault]: ...
    @property
    def away(self) -> set[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """A phase over the recorded inputs of its cohort. figures: what its record must hold of them."""

    digest: bytes
    state: Mapping[str, Array]
    figures: Mapping[str, float]


class Run:
    """What the processes left behind of one job. job_id: which, where there was more than one."""

    def __init__(self, witness: Witness, job_id: str = "") -> None:
        self.witness = witness
        self.federation = witness.federation
        self.history: History = read_history(self.federation, job_id)

    def check(self) -> None:
        """All that holds of any job. Raises AssertionError that says what does not."""
        self.check_phases()
        self.check_sums()
        self.check_coordinator_log()
        self.check_attempts()
        for silo in self.federation.names:
            self.check_reveals(silo)
            self.check_spends(silo)
            self.check_statements(silo)
            self.check_answers(silo)
        self.check_agreement()
        self.check_disks()
        for name in (COORDINATOR, *self.federation.names):
            audit.verify_file(self.federation.folder / name / "audit.jsonl")

    @cached_property
    def job(self) -> Job:
        signed = self.history.job.signed
        spec = JobSpec.from_yaml(signed.spec_bytes, source="job")
        return Job(spec=spec, signed=signed, operator="")

    # the coordinator

    def check_phases(self) -> None:
        """The job is done; every round has its training once, in order, and what was used up has a reason."""
        assert self.history.job.status is JobStatus.DONE, self.history.job.reason
        train = [row.round for row in self.history.phases if row.phase == "train"]
        assert train == list(range(1, self.job.spec.rounds + 1)), "rounds have a gap or come twice"
        for row in self.history.phases:
            assert row.is_ended, (row.round, row.phase)
            if row.state is PhaseState.USED_UP:
                assert _record(row).reason in OF_FAULTS, (row.round, row.phase, _record(row).reason)
            for left in _record(row).left_out:
                assert left.reason not in OF_LIARS, (row.round, row.phase, left.silo, left.reason)
        assert self.history.phases[-1].state is PhaseState.APPLIED, "the last phase of a job that is done"

    def check_sums(self) -> None:
        """Every global state follows from the one before and the recorded inputs of the record's cohort."""
        path = self.federation.folder / "initial.safetensors"
        state, digest = dict(state_from_file(path)), state_digest(path.read_bytes())
        for row in self.history.phases:
            what, record = f"round {row.round} {row.phase}", _record(row)
            assert row.state_digest == digest, f"{what} starts from another state than the last phase led to"
            if row.state is PhaseState.APPLIED:
                assert (record.attempts, list(record.cohort)) == (row.attempt, row.cohort), what
                result = self._recomputed(row, state)
                state, digest = dict(result.state), result.digest
                for name, figure in result.figures.items():
                    assert record.figures[name] == figure, f"{what}: {name}"
            assert record.state_digest == digest, f"{what}: not the sum of the inputs of {record.cohort}"
        assert self.history.job.state_digest == digest
        kept = self.federation.folder / COORDINATOR / "checkpoints" / self.job.digest.hex()
        assert state_digest((kept / f"{digest.hex()}.safetensors").read_bytes()) == digest
        self.final = state

    def _recomputed(self, row: PhaseRow, state: Mapping[str, Array]) -> Recomputed:
        key = PhaseKey(job_digest=row.job, round=row.round, phase=row.phase, attempt=row.attempt)
        members = len(self.federation.names)
        layout, context = self.job.layout(key, state, members), self.job.context(key, state, members)
        sums = self._decoded_sums(row, layout)
        figures = dict(self.job.figures(row.phase, context, sums))
        if layout.tagged is None:
            return Recomputed(digest=row.state_digest, state=state, figures=figures)
        tagged = {each.name: sums[each.name] for each in layout.tagged.quantities}
        result = self.job.next_state(row.phase, context, tagged, survivors=len(_record(row).cohort))
        assert result.state is not None, f"round {row.round} {row.phase}: {result.reason}"
        digest = state_digest(state_to_bytes(result.state))
        return Recomputed(digest=digest, state=result.state, figures={**result.figures, **figures})

    def _decoded_sums(self, row: PhaseRow, layout: Layout) -> dict[str, Array]:
        """Of the words that exactly the silos of the record put into the ring for this very attempt."""
        total = ring.zeros(layout)
        for silo in _record(row).cohort:
            words = self._input(silo, row)
            for ring_bits, sum_L in total.items():
                sum_L += words[str(ring_bits)]
        return {
            quantity.name: ring.decode_quantity(
                total[quantity.ring_bits][layout.slices(quantity.ring_bits)[quantity.name]],
                quantity=quantity,
                members=layout.members,
            )
            for quantity in layout.quantities
        }

    def _input(self, silo: str, row: PhaseRow) -> dict[str, Array]:
        path = input_path(self.federation.records, silo, row.round, row.phase, row.attempt)
        assert path.exists(), f"round {row.round} {row.phase}: {silo} is in the sum and sent nothing"
        return _arrays(path)

    def check_votes(self) -> None:
        """By hand: a round over a cohort adds 1/|cohort| to the entry of each of its members."""
        votes = np.zeros_like(self.final["model/votes"])
        for cohort in self.history.cohorts():
            votes[[self.federation.names.index(name) for name in cohort]] += 1 / len(cohort)
        np.testing.assert_allclose(self.final["model/votes"], votes, atol=VOTE_ERROR * len(votes), rtol=0)

    def check_coordinator_log(self) -> None:
        """The audit log tells every phase as the store has it, each once.

        An entry may be missing where the coordinator was killed, or its disk full, between both.
        """
        entries = list(self._entries(COORDINATOR, "phase_ended"))
        expected = {(row.round, row.phase): _record(row) for row in self.history.phases}
        assert max(Counter((each["round"], each["phase"]) for each in entries).values(), default=0) <= 1
        for each in entries:
            record = expected.pop((each["round"], each["phase"]))
            said = (each["attempts"], each["result"], each["reason"], each["cohort"], each["state_digest"])
            assert said == (
                record.attempts,
                record.result,
                record.reason,
                list(record.cohort),
                record.state_digest.hex(),
            )
        faults = [fault for fault in self.witness.begun if fault.target == COORDINATOR]
        assert len(expected) <= len(faults), f"not told: {sorted(expected)}"
        for event in ("job_submitted", "job_ended"):
            count = len(list(self._entries(COORDINATOR, event)))
            assert count == 1 or (count == 0 and faults), event

    def check_attempts(self) -> None:
        """No attempt of a phase was begun twice, by the coordinator or in one life of a silo."""
        begun = Counter(
            _attempt(each) for each in self.witness.coordinator_log if each.get("state") == PhaseState.WAITING
        )
        assert max(begun.values()) == 1, begun.most_common(1)
        for silo in self.federation.names:
            lives = self.federation.lives[self.federation.process_name(silo)]
            adverted = Counter(_attempt(each) for each in self._entries(silo, "advertised"))
            # one that died before its advert was heard adverts again, with other keys
            assert max(adverted.values(), default=0) <= lives, f"{silo}: {adverted.most_common(1)}"

    # silos

    def check_reveals(self, silo: str) -> None:
        """The ledger's reveals are the audit log's, one a phase, and of applied phases those of the sum."""
        logged = Counter(
            (each["round"], each["phase"], each["cohort"]) for each in self._entries(silo, "revealed")
        )
        rows = self._ledger(silo, "SELECT * FROM reveals WHERE status = 'revealed'")
        held = Counter((row["round"], row["phase"], row["cohort_digest"].hex()) for row in rows)
        assert logged == held, f"{silo}: reveals"
        phases = Counter((round, phase) for round, phase, _ in logged.elements())
        assert max(phases.values(), default=0) <= 1, f"{silo} revealed twice: {phases.most_common(1)}"
        for row in rows:
            phase = self.history.row(row["round"], row["phase"])
            assert row["state_digest"] == phase.state_digest, f"{silo}: {phase.round} {phase.phase}"
            if phase.state is PhaseState.APPLIED:
                revealed = (row["attempt"], row["survivors"].split("\n"))
                assert revealed == (phase.attempt, phase.cohort), f"{silo}: {phase.round} {phase.phase}"

    def check_spends(self, silo: str) -> None:
        """Each input was spent once, durably and told, before it left, and has one value."""
        names = ("input", "round", "phase")
        logged = Counter(tuple(each[name] for name in names) for each in self._entries(silo, "spent"))
        rows = self._ledger(silo, "SELECT * FROM releases WHERE status = 'spent'")
        held = Counter((row["input_id"].hex(), row["round"], row["phase"]) for row in rows)
        assert logged == held, f"{silo}: spends"
        assert max(logged.values(), default=0) <= 1, f"{silo} spent twice: {logged.most_common(1)}"
        for row in self.history.phases:
            if row.state is PhaseState.APPLIED and silo in _record(row).cohort:
                arrays = self._input(silo, row)
                spent = (arrays[INPUT_ID].tobytes().hex(), row.round, row.phase)
                assert spent in logged, (
                    f"{silo}: round {row.round} {row.phase}: an input left that was not spent"
                )
        self._check_one_value(silo)

    def _check_one_value(self, silo: str) -> None:
        """An input that left in several attempts is the same words in all of them."""
        seen: dict[bytes, dict[str, Array]] = {}
        for path in sorted(self.federation.records.glob(f"{silo}-*.npz")):
            try:
                arrays = _arrays(path)
            except (OSError, ValueError, EOFError, KeyError):
                continue  # its writer was killed, so nothing of it has left
            first = seen.setdefault(arrays[INPUT_ID].tobytes(), arrays)
            assert all(np.array_equal(first[name], arrays[name]) for name in first), (
                f"{path.name}: two values"
            )

    def check_statements(self, silo: str) -> None:
        """What the silo signed as the outcome of a phase is that of the chain; what it knows stands in it."""
        chain = {row.state_digest for row in self.history.phases} | {self.history.job.state_digest}
        for row in self._ledger(silo, "SELECT * FROM next_states"):
            phase = self.history.row(row["round"], row["phase"])
            fields: list[Any] = encoding.decode("next-state", row["body"])
            survivors, before, _, after = fields[4:8]
            if phase.state is PhaseState.APPLIED:
                said = (before, after, list(survivors))
                expected = (phase.state_digest, _record(phase).state_digest, phase.cohort)
                assert said == expected, f"{silo}: round {phase.round} {phase.phase}"
            else:
                chain.add(after)
        for row in self._ledger(silo, "SELECT * FROM known_states"):
            assert row["state_digest"] in chain, f"{silo} knows a state that no sum led to"

    def check_answers(self, silo: str) -> None:
        """No silo gave two different answers for a phase, in one attempt or in two."""
        path = sent_path(self.federation.records, silo)
        assert not list(self._entries(silo, "sum_refused")), f"{silo}: a sum failed its check"
        answers = defaultdict(set)
        for line in path.read_text().splitlines() if path.exists() else ():
            given = json.loads(line)
            if given["kind"] in ("unmask_shares", "next_state"):
                answers[given["kind"], given["round"], given["phase"]].add(
                    (given["attempt"], given["sha256"])
                )
        assert all(len(each) == 1 for each in answers.values()), f"{silo}: {answers}"

    def check_agreement(self) -> None:
        """All silos that revealed a phase revealed the same cohort of the same attempt."""
        seen = defaultdict(set)
        for silo in self.federation.names:
            for row in self._ledger(silo, "SELECT * FROM reveals WHERE status = 'revealed'"):
                seen[row["round"], row["phase"]].add((row["attempt"], row["cohort_digest"], row["survivors"]))
        assert all(len(each) == 1 for each in seen.values()), seen
        for phase in self.history.phases:
            record = _record(phase)
            if phase.state is PhaseState.APPLIED and record.threshold:
                assert 3 <= record.threshold <= record.verified_by, (phase.round, phase.phase)

    # everyone

    def check_disks(self) -> None:
        """No transfer, sum or half-written file is left of a job that has ended, where that is known."""
        hub = self.federation.folder / COORDINATOR
        left = [path for folder in ("spool", "sums") for path in (hub / folder).glob("**/*")]
        for name in (COORDINATOR, *self.federation.names):
            left += [path for pattern in PARTIAL for path in (self.federation.folder / name).rglob(pattern)]
        # who was away does not know of the end, and keeps what is here of a state for the next task
        resumed = {self.federation.folder / name / "cache" for name in self.witness.away}
        left = [path for path in left if path.suffix != ".part" or path.parent not in resumed]
        assert not left, (
            f"left on disk: {sorted({str(each.relative_to(self.federation.folder)) for each in left})}"
        )

    def _entries(self, silo: str, event: str) -> Iterator[dict[str, Any]]:
        """Of this job, which a silo's log names by its digest and the coordinator's by its id."""
        entries = audit.read_entries(self.federation.folder / silo / "audit.jsonl")
        job = self.history.job.digest.hex()
        return (each for each in entries if each["event"] == event and job.startswith(each["job"]))

    def _ledger(self, silo: str, query: str) -> list[sqlite3.Row]:
        path = self.federation.folder / silo / LEDGER
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            rows = connection.execute(query).fetchall()
        return [row for row in rows if row["job_digest"] == self.history.job.digest]


def check_endings(director: Director) -> None:
    """A process that ended by itself said why, and that it was its clock where nothing else was."""
    clocks = [each for each in director.begun if each.kind is Kind.SKEWED_CLOCK]
    far = {each.target for each in clocks if abs(each.amount) > MAX_SKEW_SECONDS}
    others = {
        director.federation.process_name(each.target) for each in director.begun if each.kind in MAY_END
    }
    for name, words in director.ended:
        last = words.splitlines()[-1]
        assert last.startswith("chorale: error: "), f"{name}\n{words}"
        if name not in others - far:
            assert far, f"{name}\n{words}"
            assert "clock" in last or "valid" in last, f"{name}: {last}"


def check_logs(director: Director) -> None:
    """No process had an error but of a disk or database that was taken from it."""
    taken = {
        director.federation.process_name(fault.target)
        for fault in director.begun
        if fault.kind in (Kind.FULL_DISK, Kind.BUSY_DATABASE)
    }
    for name, service in director.federation.services.items():
        for line in service.own_text().splitlines():
            if "Traceback" not in line:
                continue
            assert line.startswith("{"), f"{name} crashed: {service.tail()}"
            is_excused = name in taken and OF_THE_MACHINE.search(line)
            assert is_excused, f"{name}\n{json.loads(line).get('traceback')}"


def _record(row: PhaseRow) -> PhaseRecord:
    assert row.record is not None, (row.round, row.phase)
    return row.record


def _arrays(path: Path) -> dict[str, Array]:
    with np.load(path) as saved:
        return dict(saved)


def _attempt(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(fields[name] for name in ("job", "round", "phase", "attempt"))
