"""What a job would do, before it is submitted: phases, bytes, epsilon, and the time by past rounds.

Bytes are those of masked vectors and sums and of the messages of their sessions, where no silo drops out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from chorale.job import Job
from chorale.privacy.job_releases import planned_rungs
from chorale.privacy.products import DEVIATION, are_worth_it
from chorale.privacy.promise import Promise, promise_of
from chorale.privacy.quantity_noise import solved
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec
from chorale.spec.state import GlobalState, buffer_names, float32_bytes, state_from_bytes, trained_names
from chorale.transport.wire import PhaseKey
from client.history import JobHistory, kind_of
from client.operations import Operations
from client.row_figures import class_rows
from client.submission import Submission
from strategies.base import MODEL, TOTAL
from strategies.phases.arms import with_arms, without_arm
from strategies.phases.training import TRAIN
from strategies.phases.trees import GROWN, at_widest

# what one silo sends and receives in the messages of a session: first, and for each silo that it names.
# tests/unit/client/test_planning.py measures it: keys, signatures and ciphertexts have fixed sizes
SENT_BYTES = (2_250, 2_075)
RECEIVED_BYTES = (-2_900, 6_000)
MOST_NAMED = 4  # parameters
JOBS_LOOKED_AT = 20  # the newest of a coordinator that are like the planned one

WIDEST_LEVEL = "sizes of train are those of the widest level of a tree: other rounds send less"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPhase:
    """kind: enrollment, train ... times: how often, if no attempt is lost. silos: that each time names.

    sent_bytes, received_bytes: of one silo, each time: its masked vector, and the part of the sum that it
    checks and computes the next model from, each with the session's messages, of the mean silo.
    quantities: what is summed, with the number of values of each. arms: how many arms of a search sum that.
    """

    kind: str
    times: int
    silos: int
    arms: int
    sent_bytes: int
    received_bytes: int
    quantities: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """seconds: an estimate for the job once all silos approved it. rounds, jobs: what it is the median of."""

    seconds: float
    rounds: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """unusual: rules that the job's parts break and that it passes over. promise: of a private job.
    gradients: which a silo multiplies out for each record in DP-SGD, as a sentence; "" where none.
    model_bytes: of its parameters as float32; state_bytes: of the whole global
    state, which a silo downloads once where it was away. timing: by past rounds, None where nobody asked a
    coordinator or it ran no such job."""

    name: str
    strategy: str
    silos: int
    rounds: int
    learning_rate: float
    phases: tuple[PlannedPhase, ...]
    model_bytes: int
    state_bytes: int
    promise: Promise | None
    notes: tuple[str, ...]
    gradients: str = ""
    search: str = ""
    timing: Timing | None = None
    unusual: tuple[str, ...] = ()

    @property
    def sent_bytes(self) -> int:
        """By a silo that takes part in everything."""
        return sum(phase.times * phase.sent_bytes for phase in self.phases)

    @property
    def received_bytes(self) -> int:
        return sum(phase.times * phase.received_bytes for phase in self.phases)

    def facts(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            **asdict(self),
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
        }


def plan_of(submission: Submission[JobSpec]) -> Plan:
    """Of a job that is complete but for its signature."""
    spec = submission.spec
    # enrollment writes the total; it decides no size
    state = at_widest({**state_from_bytes(submission.state), TOTAL: np.array(1)})
    return Plan(
        name=spec.name,
        strategy=spec.strategy.name,
        silos=len(spec.silos),
        rounds=spec.rounds,
        learning_rate=spec.learning_rate_at(1),
        search="" if spec.search is None else spec.search.in_words(spec.rounds),
        phases=phases_of(spec, state),
        model_bytes=float32_bytes(state),
        state_bytes=len(submission.state) * max(1, len(spec.arms)),
        promise=None if spec.privacy is None else promise_of(spec, state),
        gradients=_gradients(spec, state),
        notes=(*submission.notes, *([WIDEST_LEVEL] if GROWN in state else [])),
        unusual=spec.method.passed_over,
    )


def phases_of(spec: AnySpec, state: GlobalState) -> tuple[PlannedPhase, ...]:
    """state: any of its global states, for the shapes."""
    job, method, phases = Job.unsigned(spec), spec.method, []
    for kind, silos, times, arms in planned_rungs(spec):
        if times == 0:  # of rounds: 0
            continue
        round = 1 if kind in method.round_phases else 0 if kind in method.opening else spec.rounds
        key = PhaseKey(job_digest=job.digest, round=round, phase=kind, attempt=1)
        layout = job.layout(key, with_arms(state, range(arms)), silos)
        tagged_bytes = 0 if layout.tagged is None else layout.tagged.total_bytes
        phases.append(
            PlannedPhase(
                kind=kind,
                times=times,
                silos=silos,
                arms=arms,
                sent_bytes=layout.total_bytes + message_bytes(SENT_BYTES, silos),
                received_bytes=tagged_bytes + message_bytes(RECEIVED_BYTES, silos),
                quantities={
                    quantity.name: quantity.size
                    for quantity in layout.quantities
                    if without_arm(quantity.name) == quantity.name
                },
            )
        )
    return tuple(phases)


def _gradients(spec: JobSpec, state: GlobalState) -> str:
    """By the shapes of our own networks, whose matrices are those of dense layers that are used once."""
    records = None if spec.privacy is None else spec.privacy.records
    if records is None or spec.rounds == 0:
        return ""
    if records.noise == "silo" and not (spec.model.is_built_in and spec.adapters is None):
        return "gradients: each record's is multiplied out, but of dense layers that a record passes once"
    trained, _ = spec.method.summed(trained_names(state), buffer_names(state))
    arrays = {name: state[MODEL + name] for name in trained}
    values = sum(array.size for array in arrays.values())
    dense = sum(array.size for array in arrays.values() if array.ndim == 2)
    clip_units = DEVIATION / solved(records.noise_multiplier, "records.noise_multiplier")
    if records.noise == "sum" or not are_worth_it(dense, clip_units=clip_units):
        return "gradients: each record's is multiplied out"
    others = [name for name, array in arrays.items() if array.ndim > 2]
    share = f"{dense / values:.0%}"
    dense_alone = (
        f"gradients: {share} of a record's values, of dense layers, are multiplied out for data.unit alone"
    )
    if not others:
        return dense_alone
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    return f"{dense_alone}; {', '.join(others[:MOST_NAMED])}{more} are in any case"


def message_bytes(measured: tuple[int, int], silos: int) -> int:
    """measured: SENT_BYTES or RECEIVED_BYTES."""
    first, each = measured
    return first + each * silos


def with_timing(plan: Plan, operations: Operations) -> Plan:
    """The plan with an estimate of its time, by what its coordinator ran before."""
    alike = [
        summary.job_digest
        for summary in operations.jobs()
        if (summary.strategy, summary.float32_bytes) == (plan.strategy, plan.model_bytes)
    ]
    past = [operations.history(digest) for digest in alike[-JOBS_LOOKED_AT:]]
    return replace(plan, timing=timing_of(plan, past), notes=(*plan.notes, *row_notes(plan, past)))


def row_notes(plan: Plan, histories: Sequence[JobHistory]) -> list[str]:
    """What the newest job with as many silos sent of its class rows, if there is one."""
    for history in reversed(histories):
        rows = class_rows(history.records)
        if rows is not None and len(history.summary.silos) == plan.silos:
            job = history.summary.job_digest.hex()[:12]
            return [f"job {job}, of the same method, model size and number of silos: {rows}"]
    return []


def timing_of(plan: Plan, histories: Iterable[JobHistory]) -> Timing | None:
    """By the rounds of past jobs with the same method, model size and number of silos; None without any.

    The median round times the number of rounds, and the median of what came around them. The opening
    enrollment is left out: most of it is the wait for people who approve.
    """
    rounds, around, jobs = list[float](), list[float](), list[str]()
    for history in histories:
        summary = history.summary
        if (summary.strategy, summary.float32_bytes, len(summary.silos)) != (
            plan.strategy,
            plan.model_bytes,
            plan.silos,
        ):
            continue
        applied = [record for record in history.records if record.result == "applied"]
        trained = [record.wall_seconds for record in applied if kind_of(record) == TRAIN]
        if not trained:
            continue
        jobs.append(summary.job_digest.hex()[:12])
        rounds += trained
        around.append(sum(each.wall_seconds for each in applied if each.round > 0) - sum(trained))
    if not rounds:
        return None
    seconds = plan.rounds * median(rounds) + median(around)
    return Timing(seconds=seconds, rounds=len(rounds), jobs=tuple(jobs))
