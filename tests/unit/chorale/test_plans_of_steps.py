"""What a job costs whose silos share their noise: steps, draws, cut batches, and silos that collude."""

from __future__ import annotations

import math
from typing import Any

import pytest

from chorale.privacy import solve as module_of_solve
from chorale.privacy.accountant import epsilon
from chorale.privacy.batch_cap import CUT_FAILURE
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.promise import promise_of
from chorale.privacy.quantity_noise import noise_deviations, noised
from chorale.privacy.releases import DpSgd, Gaussian, SampledGaussian
from chorale.privacy.solve import MIN_USED, solve
from chorale.spec.job_spec import JobSpec, phase_context
from crypto.fixed_point.layout import Side
from crypto.session.cohort import default_colluders, draw_risk
from tests.support.privacy_losses import epsilon_by_fft
from tests.unit.chorale.test_steps import RECORDS, SHARED, STATE, make

ALL = 10


def names(silos: int) -> list[str]:
    return [f"silo-{each:02d}" for each in range(silos)]


def shared(silos: int = ALL, **fields: object) -> JobSpec:
    return make(silos=names(silos), **fields)


def steps_of(spec: JobSpec) -> dict[SampledGaussian, int]:
    planned = JobReleases(spec, STATE).planned()
    return {each: times for each, times in planned.items() if isinstance(each, SampledGaussian)}


def test_a_plan_holds_every_step_and_every_spare_one() -> None:
    [(step, times)] = steps_of(shared()).items()
    assert times == 52
    assert (step.sample_rate, step.side, step.failure) == (0.2, Side.TRAIN, 0.0)
    assert 3.0 * (1 - 1e-10) < step.noise_multiplier <= 3.0
    assert times * step.distance == pytest.approx(CUT_FAILURE)
    planned = JobReleases(shared(), STATE).planned()
    held = [each for each in planned if each.side is Side.HOLDOUT]
    assert held
    assert all(isinstance(each, Gaussian) for each in held)


def test_a_plan_costs_what_losses_by_fft_say_of_its_dearer_side() -> None:
    """Training and hold-out were added up: the count of the opening is in both, and nothing else is."""
    spec = shared(enrollment_every=1_000)
    found = JobReleases(spec, STATE).epsilon()
    assert found == pytest.approx(epsilon_by_fft([(3.0, 0.2, 52), (5.0, 1.0, 1)], 1e-5), rel=0.01)
    together = epsilon(JobReleases(spec, STATE).planned(), 1e-5, sides_are_fixed=False)
    assert together > 1.02 * found


@pytest.mark.parametrize("silos", [5, 10, pytest.param(20, marks=pytest.mark.soak)])
def test_if_all_others_collude_a_silos_own_noise_is_all_there_is(silos: int) -> None:
    spec = shared(silos, enrollment_every=1_000)
    honest = spec.rule(silos).min_honest
    alone = epsilon_by_fft([(3.0 / math.sqrt(honest), 0.2, 52), (5.0 / math.sqrt(honest), 1.0, 1)], 1e-5)
    assert JobReleases(spec, STATE, honest=1).promised_epsilon() == pytest.approx(alone, rel=0.01)
    little = shared(20, privacy=SHARED | {"records": RECORDS | {"noise_multiplier": 0.8}})
    assert JobReleases(little, STATE, honest=1).promised_epsilon() == math.inf


def test_noise_of_each_silo_counts_on_no_other_silo() -> None:
    own = {name: value for name, value in RECORDS.items() if name != "noise"}
    spec = make(silos=names(ALL), steps=None, rounds=3, privacy={**SHARED, "records": own})
    planned, alone = JobReleases(spec, STATE).planned(), JobReleases(spec, STATE, honest=1).planned()
    [run] = [each for each in planned if isinstance(each, DpSgd)]
    assert run in alone  # its statistics are shared noise, as ever
    assert 3 * run.distance == pytest.approx(CUT_FAILURE)


def test_a_draw_that_names_too_many_colluders_is_paid_for_in_every_step() -> None:
    """Of 200 silos 48 are drawn: 16 of them may collude, and a tenth of all is assumed to."""
    spec = shared(200, fraction=0.24)
    [(step, times)] = steps_of(spec).items()
    assert times == 52
    risk, more = (
        draw_risk(200, 48, colluders=colluders, draws=1) for colluders in (default_colluders(200), 22)
    )
    assert 0 < risk < more
    assert step.failure == pytest.approx(float(risk))
    assert [each.failure for each in JobReleases(spec, STATE).cost("enrollment", 200)] == [
        0.0
    ]  # all are named
    first, *others = JobReleases(spec, STATE, colluders=22).cost("train", 48)
    assert first.failure == pytest.approx(float(more))
    assert all(each.failure == 0.0 for each in others)
    sure, risky = (JobReleases(spec, STATE, colluders=colluders).planned() for colluders in (0, 22))
    assert epsilon(sure, 1e-5) < epsilon(risky, 1e-5) < math.inf
    assert epsilon(JobReleases(spec, STATE, colluders=48).planned(), 1e-5) == math.inf


OWN = {name: value for name, value in RECORDS.items() if name != "noise"}
CSD = {"preset": "fedcsd", "options": {"logit_clip": 10.0}}


@pytest.mark.parametrize(
    "privacy",
    [{"records": OWN}, {"sums": {"clip_norm": 1.0, "noise_multiplier": 20.0}}],
    ids=["silo", "sums"],
)
def test_a_draw_is_paid_for_by_every_noise(privacy: dict[str, Any]) -> None:
    """Red before: statistics of drawn rounds, of training records and of held-out ones, counted on the noise
    of h silos without a charge, and of 48 drawn ones 17 may collude."""
    spec = shared(
        200,
        fraction=0.24,
        steps=None,
        rounds=3,
        strategy=CSD,
        privacy={"statistics_noise_multiplier": SHARED["statistics_noise_multiplier"], **privacy},
    )
    risk = float(draw_risk(200, 48, colluders=default_colluders(200), draws=1))
    for kind in ("prototypes", "train"):
        sure, risky = (
            JobReleases(spec, STATE, colluders=colluders).cost(kind, 48) for colluders in (0, None)
        )
        for side in (Side.TRAIN, Side.HOLDOUT):
            more = sum(
                after.failure - before.failure
                for before, after in zip(sure, risky, strict=True)
                if after.side in (side, Side.BOTH)
            )
            is_touched = any(each.side in (side, Side.BOTH) for each in risky)
            assert more == pytest.approx(risk if is_touched else 0.0, abs=1e-15), (kind, side)
    sure, risky = (JobReleases(spec, STATE, colluders=colluders).planned() for colluders in (0, None))
    assert epsilon(sure, 1e-5) < epsilon(risky, 1e-5) < math.inf


@pytest.mark.parametrize("target", [1.0, pytest.param(4.0, marks=pytest.mark.soak)])
def test_a_job_of_50_steps_is_solved_in_few_trials(target: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes up to a second of a CPU; halving took 20 and more."""
    tried: list[float] = []

    class Counted(JobReleases):
        def epsilon(self, *of: Any) -> float:
            tried.append(super().epsilon(*of))
            return tried[-1]

    monkeypatch.setattr(module_of_solve, "JobReleases", Counted)
    open_job = {"epsilon": target, "records": {**RECORDS, "noise_multiplier": None}}
    solved = solve(shared(20, privacy=open_job), STATE)
    assert MIN_USED * target <= JobReleases(solved, STATE).epsilon() <= target
    assert len(tried) <= 10
    assert solve(solved, STATE) is solved


def noise_of_all(silos: int, **fields: object) -> float:
    """Of a step's sum of all silos, in one curator's: the clip is 1."""
    spec = shared(silos, **fields)
    context = phase_context(spec, 1, STATE, silos, public_seed=bytes(32))
    (gradient,) = noised(spec.method.phase("train").quantities(context), spec, silos)
    return noise_deviations([gradient], silos)["gradient"] / RECORDS["noise_multiplier"]


@pytest.mark.parametrize(
    ("silos", "min_cohort", "room", "times", "then"),
    [(5, None, 1, 1.29, ""), (10, None, 3, 1.58, 1.29), (10, 9, 1, 1.29, ""), (20, None, 6, 1.58, 1.24)],
)
def test_a_plan_says_what_room_for_lost_silos_costs(
    silos: int, min_cohort: int | None, room: int, times: float, then: float | str
) -> None:
    """The noise of all silos as they draw it, over that of one curator."""
    spec = shared(silos, min_cohort=min_cohort)
    promise = promise_of(spec, STATE)
    assert noise_of_all(silos, min_cohort=min_cohort) == pytest.approx(times, rel=0.01)
    assert promise.reserve in promise.lines()
    lost = f"{room} lost silo{'' if room == 1 else 's'}"
    assert promise.reserve.startswith(
        f"privacy: room for {lost} makes the noise of all {silos} {times} times one curator's; "
    )
    assert promise.reserve.endswith("at last takes one of the 2 spare ones")
    if then:
        assert f"with min_cohort {silos - 1} it is {then} times" in promise.reserve
        tighter = promise_of(shared(silos, min_cohort=silos - 1), STATE)
        assert f" {then} times one curator's" in tighter.reserve
        assert tighter.epsilon == pytest.approx(promise.epsilon)
        assert tighter.epsilon_if_all_others_collude > promise.epsilon_if_all_others_collude
    else:
        assert "min_cohort" not in promise.reserve


def test_a_job_whose_silos_add_all_the_noise_has_no_room_to_name() -> None:
    own = shared(rounds=10, steps=None, privacy={**SHARED, "records": {**RECORDS, "noise": "silo"}})
    assert promise_of(own, STATE).reserve == ""
