"""Which phase comes next."""

from __future__ import annotations

import pytest
from google.protobuf import json_format

from chorale.v1 import records_pb2
from coordinator.jobs.sequence import JobFailed, next_step
from coordinator.phase_machine import PhaseState
from tests.unit.coordinator.job_phases import make_job, make_row


def rows(*phases):
    """(round, phase, state) of each, in order."""
    record_json = json_format.MessageToJson(records_pb2.PhaseRecord(reason="too-few-silos"))
    return [
        make_row(place, (round, phase), state, record_json=record_json)
        for place, (round, phase, state) in enumerate(phases)
    ]


def step_after(ended, is_outdated=False, **fields):
    return next_step(make_job(**fields), ended, is_outdated=lambda _: is_outdated)


DONE, LOST, BUSY = PhaseState.APPLIED, PhaseState.USED_UP, PhaseState.MASKED


@pytest.mark.parametrize(
    "ended, following",
    [
        ([], (0, "enrollment.0")),
        ([(0, "enrollment.0", BUSY)], (0, "enrollment.0")),
        ([(0, "enrollment.0", DONE)], (1, "train")),
        ([(0, "enrollment.0", LOST)], (0, "enrollment.1")),
        ([(0, "enrollment.0", DONE), (1, "train", LOST)], (2, "train")),
        ([(0, "enrollment.0", DONE), (3, "train", DONE)], (3, "evaluate.0")),
        ([(0, "enrollment.0", DONE), (3, "evaluate.0", LOST)], (3, "evaluate.1")),
        ([(0, "enrollment.0", DONE), (3, "evaluate.0", DONE)], None),
    ],
)
def test_next_phase_follows_from_what_has_ended(ended, following):
    assert step_after(rows(*ended)) == following


@pytest.mark.parametrize(
    ("ended", "following"),
    [
        ([(1, "train", DONE)], (2, "train")),
        ([(2, "train", DONE)], (2, "evaluate-all.0")),
        ([(2, "train", DONE), (2, "evaluate-all.0", BUSY)], (2, "evaluate-all.0")),
        ([(2, "train", DONE), (2, "evaluate-all.0", DONE)], (3, "train")),
        # it is not worth a second sum over the same model, nor the end of the job
        ([(2, "train", DONE), (2, "evaluate-all.0", LOST)], (3, "train")),
        # the model stayed as it was
        ([(2, "train", LOST)], (3, "train")),
        ([(4, "train", DONE)], (4, "evaluate.0")),
    ],
)
def test_all_silos_test_a_new_model_every_k_rounds(ended, following):
    job = {"rounds": 4, "evaluate_all_every": 2, "enrollment_every": 100}
    assert step_after(rows((0, "enrollment.0", DONE), *ended), **job) == following


def test_an_enrollment_is_repeated_after_the_evaluation_of_a_round():
    job = {"rounds": 4, "evaluate_all_every": 1, "enrollment_every": 1}
    ended = rows((0, "enrollment.0", DONE), (1, "train", DONE))
    assert step_after(ended, is_outdated=True, **job) == (1, "evaluate-all.0")
    later = [*ended, *rows((1, "evaluate-all.0", DONE))]
    assert step_after(later, is_outdated=True, **job) == (1, "enrollment.1")
    phases = ("train", "evaluate-all.0", "enrollment.1")
    positions = [make_job(**job).position(1, phase) for phase in phases]
    assert positions == sorted(positions)


SHARED_NOISE = {
    "delta": 1e-5,
    "records": {"clip_norm": 1.0, "sample_rate": 0.1, "noise": "sum"},
    "epsilon": 1,
}


def test_training_ends_with_its_steps_and_spare_ones_take_the_place_of_lost_ones():
    job = {"steps": 2, "spare_steps": 2, "privacy": SHARED_NOISE, "enrollment_every": 100}
    opened = (0, "enrollment.0", DONE)
    assert step_after(rows(opened, (1, "train", DONE)), **job) == (2, "train")
    assert step_after(rows(opened, (1, "train", DONE), (2, "train", DONE)), **job) == (4, "evaluate.0")
    once = rows(opened, (1, "train", DONE), (2, "train", LOST))
    assert step_after(once, **job) == (3, "train")
    assert step_after([*once, *rows((3, "train", DONE))], **job) == (4, "evaluate.0")
    # with all spare ones lost the job closes with what it has
    lost = [*once, *rows((3, "train", LOST), (4, "train", LOST))]
    assert step_after(lost, **job) == (4, "evaluate.0")


def test_opening_phase_that_is_used_up_too_often_ends_the_job():
    ended = rows((0, "enrollment.0", LOST), (0, "enrollment.1", LOST))
    with pytest.raises(JobFailed, match="enrollment: used up 2 times, the last time by too-few-silos"):
        step_after(ended)


OPENED, FIRST = (0, "enrollment.0", DONE), (1, "train", DONE)


@pytest.mark.parametrize(
    ("ended", "every", "following"),
    [
        # between rounds, under the number of the last
        ([OPENED, FIRST], 1, (1, "enrollment.1")),
        ([OPENED, FIRST, (1, "enrollment.1", DONE)], 1, (2, "train")),
        # not sooner than the job allows
        ([OPENED, FIRST], 2, (2, "train")),
        ([OPENED, FIRST, (2, "train", LOST)], 2, (2, "enrollment.1")),
        # not before the first round or the closing phase
        ([OPENED], 1, (1, "train")),
        ([OPENED, (3, "train", DONE)], 1, (3, "evaluate.0")),
    ],
)
def test_outdated_enrollment_is_repeated_between_rounds(ended, every, following):
    assert step_after(rows(*ended), is_outdated=True, enrollment_every=every) == following
