"""Many faults in one job, drawn from a seed: killed, stopped and restarted processes, lines that are cut,
delayed and throttled, full disks, busy databases, skewed clocks, renewed certificates.

A schedule that fails is printed whole; `python -m pytest tests/faults/test_schedules.py --schedule-seed 137`
runs the one of a seed again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.schedules import oracle
from tests.support.schedules.director import Director
from tests.support.schedules.federation import ScheduledFederation
from tests.support.schedules.machine import unusable_clock, unusable_disk
from tests.support.schedules.schedule import Kind, Schedule, draw

SEEDS = 200
ALWAYS = (102, 138, 162)  # of few silos, and every kind of fault is in one of them
GATES = 3  # of about 25 s each; the others are for `make soak`


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" not in metafunc.fixturenames:
        return
    asked = metafunc.config.getoption("--schedule-seed", default=None)
    if asked is not None:
        metafunc.parametrize("seed", [asked])
        return
    marks = [*([pytest.mark.gate] * GATES), *([pytest.mark.soak] * (SEEDS - GATES))]
    seeds = [pytest.param(seed, marks=() if seed in ALWAYS else mark) for seed, mark in enumerate(marks)]
    metafunc.parametrize("seed", seeds)


@pytest.mark.timeout(600)
def test_job_is_exact_after_a_schedule_of_faults(seed: int, tmp_path: Path) -> None:
    schedule = draw(seed)
    skip_what_this_machine_lacks(schedule)
    settings = {"unmask_hard_cap_seconds": 60.0, **schedule.patience}
    with ScheduledFederation(
        folder=tmp_path, silos=schedule.silos, schedule=schedule, coordinator=settings
    ) as federation:
        federation.start()
        federation.submit(
            values=schedule.values, rounds=schedule.rounds, enrollment_every=1, train_deadline_seconds=20.0
        )
        director = Director(federation)
        try:
            director.run()
            director.settle()
            oracle.check(director)
        except AssertionError as error:
            error.add_note(f"{schedule}\n{director}")
            raise


def skip_what_this_machine_lacks(schedule: Schedule) -> None:
    for kind, reason in ((Kind.FULL_DISK, unusable_disk), (Kind.SKEWED_CLOCK, unusable_clock)):
        if schedule.targets(kind) and reason():
            pytest.skip(reason())
