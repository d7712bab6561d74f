"""The comparison of noise in the sum: the same records in every arm, rates that no test sample chose."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from research.accuracy.trials import Split
from research.accuracy.tuning import Choice
from research.private_sum import central, words
from research.private_sum.arms import ARMS, NONE, SETTINGS, SILO, SUM, Setting
from research.private_sum.images import images
from research.private_sum.runs import run
from research.private_sum.words import Line
from tests.support.shared_data import shared_folder

FIRST = Setting(data="mnist", silos=20, records=200, epsilon=1.0)


def _line(setting: Setting, **accuracy: float) -> Line:
    return Line(
        setting=setting,
        accuracy={arm: (mean - 0.01, mean + 0.01) for arm, mean in accuracy.items()},
        choices={
            arm: Choice(setting="", arm=arm, point=(1.0, None), validation={(1.0, None): 0.5})
            for arm in accuracy
        },
    )


def test_arms_differ_in_privacy_and_in_how_steps_are_counted_alone() -> None:
    jobs = {arm: dict(FIRST.job(arm)) for arm in ARMS}
    for fields in jobs.values():
        for name in ("privacy", "rounds", "steps", "spare_steps"):
            fields.pop(name, None)
    assert all(fields == jobs[NONE] for fields in jobs.values())
    assert FIRST.job(SUM)["steps"] == 5 * FIRST.job(SILO)["rounds"]  # a round of a silo's own has five


def test_without_privacy_a_trial_is_the_same_at_every_epsilon() -> None:
    keys = {
        setting.trials(NONE, tested=Split.TEST, seeds=[1], rates=[1.0])[0].key
        for setting in SETTINGS
        if (setting.data, setting.silos, setting.records) == ("mnist", 20, 200)
    }
    assert len(keys) == 1


def test_curator_has_the_least_noise_that_keeps_epsilon() -> None:
    asked = {"delta": 1e-5, "sample_rate": 0.2, "steps": 50}
    found = central.noise_multiplier(1.0, **asked)
    assert central.epsilon_of(found, **asked) <= 1.0 < central.epsilon_of(0.998 * found, **asked)


def test_no_validation_record_is_at_a_silo_and_no_record_at_two() -> None:
    found = images(shared_folder("mnist"))
    assert (len(found.own), len(found.validation), len(found.test)) == (50_000, 10_000, 10_000)
    silos = found.silos(20, records=200, seed=1)
    rows = [row.tobytes() for silo in silos for row in silo.train.features]
    own = {row.tobytes() for row in found.own.features}
    assert len(rows) == 4_000
    assert set(rows) <= own
    everywhere = np.concatenate([silo.train.labels for silo in silos])
    assert np.bincount(everywhere, minlength=10).min() > 300


def test_targets_are_told_by_what_was_measured() -> None:
    good = words.rows([_line(FIRST, sum=0.82, silo=0.67, central=0.85, none=0.9)])
    assert [row.holds for row in good] == [True, True, True]
    bad = words.rows([_line(FIRST, sum=0.75, silo=0.76, central=0.85, none=0.9)])
    assert [row.holds for row in bad] == [False, False, False]
    text = words.table([_line(FIRST, sum=0.82, silo=0.67, central=0.85, none=0.9)])
    assert "| MNIST | 20 x 200 | 1 | 67.0 +- 1.4 | 82.0 +- 1.4 | 85.0 +- 1.4 | 90.0 +- 1.4 | +15.0" in text


@pytest.mark.soak
def test_noise_in_the_sum_is_ten_points_above_noise_at_every_silo() -> None:
    """MNIST, 20 silos of 200 records, epsilon 1, at the rates that validation records chose."""
    folder = shared_folder("mnist").parent
    found = {}
    for arm, rate in ((SUM, 2.0), (SILO, 1.0)):
        (trial,) = FIRST.trials(arm, tested=Split.TEST, seeds=[1], rates=[rate])
        outcome = run(trial, folder)
        assert not outcome.failed, asdict(outcome)
        found[arm] = outcome.final
    assert found[SUM] > found[SILO] + 0.1
