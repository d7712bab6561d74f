"""The audit finds nothing where noise is right, and finds what is wrong where it is not.

Noise of single quantities is drawn under fixed keys, so these tests pass or fail for good: under fresh ones a
right mechanism is refuted once in some hundred runs of five quantities.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import stats

from chorale.privacy.job_releases import JobReleases
from crypto.fixed_point import encoder
from crypto.noise.gaussian import GaussianStream
from research.privacy_audit import canaries, collusion, quantities
from research.privacy_audit.bounds import CONFIDENCE, by_counting, by_guessing, noise_at_most
from research.privacy_audit.quantities import Audit, audited_job, audits

RUNS = 1 << 15
TWO = {"skipped": frozenset({"correct", "tested", "loss_sum"})}  # leaves a count and the gradient


def _audits(**options: Any) -> dict[str, Audit]:
    random, spec = np.random.default_rng(6).bytes, audited_job("fedavg")
    return {each.quantity: each for each in audits(spec, runs=RUNS, random=random, **options)}


def test_bound_by_counting_is_below_the_true_epsilon_and_not_far() -> None:
    """Two coins of which one lies with a chance of e^-2, read through noise that changes nothing."""
    rng = np.random.default_rng(4)
    lies = math.exp(2.0) / (1.0 + math.exp(2.0))
    with_N, without_N = ((rng.random(RUNS) < chance).astype(float) for chance in (lies, 1.0 - lies))
    assert 1.8 < by_counting(without_N, with_N, delta=0.0) <= 2.0
    assert by_counting(without_N, without_N.copy(), delta=0.0) == 0.0


def test_bound_by_guessing_is_clopper_and_pearsons_without_delta() -> None:
    """Each guess is then a coin that is right with a chance of e^epsilon / (1 + e^epsilon)."""
    least = stats.binomtest(90, 100, alternative="greater").proportion_ci(CONFIDENCE).low
    found = by_guessing(90, 100, canaries=1_000, delta=0.0)
    assert found == pytest.approx(math.log(least / (1.0 - least)), rel=1e-6)
    assert by_guessing(90, 100, canaries=1_000, delta=1e-4) < found
    assert by_guessing(50, 100, canaries=1_000, delta=0.0) == 0.0


def test_width_of_noise_is_bounded_from_above() -> None:
    """False alarm 1e-3, under a fixed seed."""
    noise_N = np.random.default_rng(5).normal(0.0, 3.0, RUNS)
    assert 3.0 < noise_at_most(noise_N) < 3.1


def test_no_claim_is_refuted_where_the_noise_is_right() -> None:
    found = _audits()
    assert found.keys() == {"samples", "gradient", "correct", "tested", "loss_sum"}
    for each in found.values():
        assert 0.94 * each.claim < each.gaussian < each.claim
        assert 0.1 * each.claim < each.counted < each.claim


def test_noise_that_was_counted_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The silos draw half the variance that their layout says."""

    def thin(variance: float, *arguments: Any, **named: Any) -> GaussianStream:
        return GaussianStream(variance / 2.0, *arguments, **named)

    monkeypatch.setattr(encoder, "GaussianStream", thin)
    assert all(each.is_refuted for each in _audits(**TWO).values())


def test_a_tenth_of_the_noise_is_missed() -> None:
    assert all(each.is_refuted for each in _audits(missing=0.1, **TWO).values())


def test_noise_of_silos_that_may_collude_is_noticed_where_it_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Accounting that counts on all silos, not on the h that are honest."""
    everyone = partial(JobReleases, honest=quantities.SILOS)
    monkeypatch.setattr(quantities, "JobReleases", everyone)
    assert all(each.is_refuted for each in _audits(**TWO).values())


def test_colluders_with_every_sum_key_leave_the_noise_of_the_others() -> None:
    """Six silos, two of which take their words off the sum of a whole session. Its width is known to 0.5 %:
    alarm at some six standard deviations over the bound's own three."""
    found = collusion.measure()
    honest = audited_job("fedavg", silos=found.silos).rule(found.silos).min_honest
    left = math.sqrt((found.silos - found.colluders) / honest)
    assert found.measured > found.promised
    assert found.measured == pytest.approx(left * found.promised, rel=0.05)


@pytest.mark.gate
def test_one_run_with_canaries_notices_what_its_stated_power_says() -> None:
    """A right run's bound is below the claim but for a chance of 1e-3; noise of a twentieth is noticed."""
    right, thin = canaries.measure(), canaries.measure(noise_share=0.05)
    assert right.bound < right.claim < thin.bound <= right.best
    assert 0.05 < right.noticed < 0.5
