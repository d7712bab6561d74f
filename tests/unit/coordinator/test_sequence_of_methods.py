"""Which phase comes next, whatever became of the ones before."""

from __future__ import annotations

from collections.abc import Callable, Container

import pytest
from google.protobuf import json_format

from chorale.job import Job
from chorale.v1 import records_pb2
from coordinator.jobs.sequence import JobFailed, Step, model_since, next_step
from coordinator.phase_machine import PhaseState
from coordinator.storage.store import PhaseRow
from strategies.presets import PRESETS
from tests.unit.coordinator.job_phases import make_job, make_row

OPENING = [(0, "enrollment.0"), (0, "class-presence.0")]


def walk(
    job: Job, *, lost: Container[Step] = (), is_outdated: Callable[[PhaseRow], bool] = lambda _: False
) -> list[Step]:
    """Every phase of the job in turn; those in `lost` are used up, the others applied and move the state."""
    rows: list[PhaseRow] = []
    moved = json_format.MessageToJson(records_pb2.PhaseRecord(state_digest=b"next"))
    while (step := next_step(job, rows, is_outdated=is_outdated)) is not None:
        is_lost = step in lost
        state = PhaseState.USED_UP if is_lost else PhaseState.APPLIED
        rows.append(make_row(1 + len(rows), step, state, record_json=None if is_lost else moved))
    return [(row.round, row.phase) for row in rows]


def rounds(*numbers: int) -> list[Step]:
    return [(number, phase) for number in numbers for phase in ("prototypes", "train")]


def test_class_presence_runs_once_before_the_first_round_and_prototypes_before_every_training() -> None:
    assert walk(make_job("fedcsd")) == [*OPENING, *rounds(1, 2, 3), (3, "evaluate.0")]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_method_trains_in_every_round(preset: str) -> None:
    """Also where silos train alone, and no training moves the model of the global state."""
    job = make_job(preset, model={"name": "mlp", "hidden": [8]})
    kinds = job.strategy.round_phases
    in_rounds = [step for step in walk(job) if step[1] in kinds]
    assert in_rounds == [(number, kind) for number in (1, 2, 3) for kind in kinds]


def test_class_presence_that_was_used_up_is_repeated_under_its_next_number() -> None:
    steps = walk(make_job("fedcsd"), lost=[(0, "class-presence.0")])
    assert steps == [*OPENING, (0, "class-presence.1"), *rounds(1, 2, 3), (3, "evaluate.0")]


def test_class_presence_that_is_used_up_every_time_ends_the_job() -> None:
    with pytest.raises(JobFailed, match="presence: used up 2 times"):
        walk(make_job("fedcsd"), lost=[(0, "class-presence.0"), (0, "class-presence.1")])


@pytest.mark.parametrize(
    ("reason", "following"), [("few-values", None), ("too-few-silos", "column-moments.1")]
)
def test_a_column_with_few_values_ends_the_job_at_once(reason: str, following: str | None) -> None:
    # the same sum was opened max_attempts times, in a private job with other noise each
    age = {"name": "age", "standardize": "computed", "plausible": [0.0, 120.0]}
    job = make_job("fedavg", columns=[age], label_column="ill", input_shape=[1], model={"name": "mlp"})
    record = json_format.MessageToJson(records_pb2.PhaseRecord(reason=reason))
    rows = [
        make_row(1, (0, "enrollment.0"), PhaseState.APPLIED),
        make_row(2, (0, "column-moments.0"), PhaseState.USED_UP, record_json=record),
    ]
    if following is not None:
        assert next_step(job, rows, is_outdated=lambda _: False) == (0, following)
        return
    with pytest.raises(JobFailed, match="moments: few-values: a column .* fewer than 10 values in all silos"):
        next_step(job, rows, is_outdated=lambda _: False)


def test_an_opening_enrollment_that_was_used_up_is_repeated_before_class_presence() -> None:
    steps = walk(make_job("fedcsd"), lost=[(0, "enrollment.0")])
    assert steps[:3] == [(0, "enrollment.0"), (0, "enrollment.1"), (0, "class-presence.0")]


def test_a_repeated_enrollment_between_rounds_repeats_no_class_presence() -> None:
    steps = walk(make_job("fedcsd"), is_outdated=lambda enrollment: enrollment.round == 0)
    assert steps == [*OPENING, *rounds(1), (1, "enrollment.1"), *rounds(2, 3), (3, "evaluate.0")]


def test_prototypes_that_were_used_up_use_up_their_round() -> None:
    """Training against the prototypes of the round before would be another method."""
    steps = walk(make_job("fedcsd"), lost=[(2, "prototypes")])
    assert steps == [*OPENING, *rounds(1), (2, "prototypes"), *rounds(3), (3, "evaluate.0")]


def test_the_last_rounds_prototypes_used_up_lead_to_the_closing_phase() -> None:
    assert walk(make_job("fedcsd"), lost=[(3, "prototypes")])[-2:] == [(3, "prototypes"), (3, "evaluate.0")]


def test_prototypes_of_a_model_that_stayed_are_not_summed_again() -> None:
    """Silos refuse to be asked the same over and over: a job whose trainings came to nothing ended by it."""
    steps = walk(make_job("fedcsd"), lost=[(1, "train"), (2, "train")])
    assert steps == [*OPENING, *rounds(1), (2, "train"), (3, "train"), (3, "evaluate.0")]
    steps = walk(make_job("fedcsd"), lost=[(1, "train"), (2, "prototypes")])
    assert steps == [*OPENING, *rounds(1), (2, "train"), *rounds(3), (3, "evaluate.0")]


def test_an_enrollment_after_a_lost_training_leads_on_to_training() -> None:
    outdated = walk(
        make_job("fedcsd"), lost=[(1, "train")], is_outdated=lambda enrollment: enrollment.round == 0
    )
    assert outdated == [
        *OPENING,
        *rounds(1),
        (1, "enrollment.1"),
        (2, "train"),
        *rounds(3),
        (3, "evaluate.0"),
    ]


def test_phases_since_the_present_model_begin_where_one_moved_it() -> None:
    """What became of phases since then has to be proven; prototypes make no other model of it."""
    job, moved = make_job("fedcsd"), json_format.MessageToJson(records_pb2.PhaseRecord(state_digest=b"next"))
    steps = [*OPENING, *rounds(1), (2, "prototypes")]
    rows = [
        make_row(1 + place, step, PhaseState.APPLIED, record_json=moved) for place, step in enumerate(steps)
    ]
    assert model_since(job, rows) == 4
    assert model_since(job, rows[:3]) == 0


def test_training_that_was_used_up_leads_to_the_next_round() -> None:
    steps = walk(make_job("fedavg"), lost=[(1, "train")])
    assert steps == [(0, "enrollment.0"), (1, "train"), (2, "train"), (3, "train"), (3, "evaluate.0")]


def test_opening_and_closing_phases_name_every_silo_and_phases_of_rounds_their_share() -> None:
    job = make_job("fedcsd", silos=[f"s-{place}" for place in range(8)], fraction=0.5)
    assert [job.names_everyone(phase) for _, phase in walk(job)] == [
        *(True, True),
        *[False] * 6,
        True,
    ]
