"""The comparison on four hospitals: what is trained on, what is tested on, and how it is reported."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from chorale.spec.job_spec import JobSpec
from research.heart_disease import runs, words
from research.heart_disease.__main__ import write_page
from research.heart_disease.arms import ARMS, Arm
from research.heart_disease.book import Book
from research.heart_disease.hospitals import Split, job, splits
from research.heart_disease.runs import Outcome, most_frequent
from silo_agent.training.data.base import Samples, SiloData
from tests.support.shared_data import shared_folder

ALONE, _, FEDAVG, *_ = ARMS
EVERY_ROW = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}


def _rows(samples: Samples) -> set[bytes]:
    return {row.tobytes() for row in samples.features}


def _outcome(seed: int, share: float, arm: str = "fedavg") -> Outcome:
    own = dict.fromkeys(words.HOSPITALS, share)
    return Outcome(
        arm=arm, seed=seed, own=own, everyone=share, balanced=share, rates=dict.fromkeys(own, 0.03)
    )


def test_every_record_is_on_one_side_and_validation_records_are_none_of_the_hold_out() -> None:
    spec = job(FEDAVG, seed=3, rate=0.03)
    found = splits(spec, shared_folder("heart_disease"), seed=3)
    for name, split in found.items():
        assert len(split.final.train) + len(split.test) == EVERY_ROW[name]
        assert len(split.tuning.train) + len(split.tuning.holdout) == len(split.final.train)
        assert _rows(split.tuning.train) | _rows(split.tuning.holdout) == _rows(split.final.train)


def test_another_seed_holds_out_other_records() -> None:
    spec, folder = job(FEDAVG, seed=1, rate=0.03), shared_folder("heart_disease")
    first, second = (splits(spec, folder, seed=seed)["va"].test for seed in (1, 2))
    assert _rows(first) != _rows(second)


def _halves(values: list[int]) -> SiloData:
    """The feature is the label."""
    labels = np.array(values, dtype=np.int64)
    samples = Samples(features=labels[:, np.newaxis].astype(np.float32), labels=labels)
    return SiloData(train=samples, holdout=samples, name="made")


def test_own_everyone_and_balanced_are_of_the_records_that_they_name() -> None:
    data = {"a": _halves([0, 0, 0, 1]), "b": _halves([1, 1])}
    found = {name: Split(final=own, tuning=own) for name, own in data.items()}
    constant = {"a": 0, "b": 1}
    outcome = runs.tested(
        found, lambda name, samples: np.full(len(samples), constant[name]), "constant", 1, rates={}
    )
    assert outcome.own == {"a": 0.75, "b": 1.0}
    assert outcome.everyone == 0.5
    assert outcome.balanced == 0.5
    unbalanced = runs.tested(
        found, lambda name, samples: np.zeros(len(samples), np.int64), "zeros", 1, rates={}
    )
    assert unbalanced.own == {"a": 0.75, "b": 0.0}
    assert unbalanced.balanced == 0.5


@pytest.mark.parametrize(
    ("arm", "chosen"),
    [(ALONE, {"a": 0.03, "b": 0.3}), (FEDAVG, {"a": 0.1, "b": 0.1})],
    ids=["alone", "fedavg"],
)
def test_rate_is_chosen_on_validation_records_by_each_hospital_or_by_all(
    arm: Arm, chosen: Mapping[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = {0.01: (1, 0), 0.03: (4, 0), 0.1: (4, 1), 0.3: (0, 2)}
    data = {"a": _halves([0, 1]), "b": _halves([0, 1])}
    found = {name: Split(final=own, tuning=own) for name, own in data.items()}
    if arm is FEDAVG:
        right[0.3] = (3, 2)  # as good as 0.1 in the sum: the smaller one is taken

    def counted(arm: Arm, seed: int, data: Mapping[str, SiloData], rate: float) -> Mapping[str, int]:
        assert all(own is found[name].tuning for name, own in data.items())
        return dict(zip(data, right[rate], strict=True))

    monkeypatch.setattr(runs, "_right", counted)
    assert runs._chosen(arm, 1, found, runs.RATES) == chosen


def test_usual_answer_is_that_of_a_hospitals_own_training_records() -> None:
    outcome = most_frequent(FEDAVG, 1, shared_folder("heart_disease"))
    assert outcome.own["switzerland"] == pytest.approx(34 / 36)
    assert outcome.everyone == 0.5  # two hospitals call every patient ill, two none


def test_finished_runs_are_found_again_and_only_under_their_own_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, outcome = tmp_path / "book.jsonl", _outcome(4, 0.5)
    Book(path).write(outcome, FEDAVG, (0.03,))
    with path.open("a") as torn:
        torn.write('{"key": "fedavg-5')
    Book(path).write(_outcome(5, 0.6), FEDAVG, (0.03,))
    assert Book(path).find(FEDAVG, 4, (0.03,)) == outcome
    assert Book(path).find(FEDAVG, 5, (0.03,)) == _outcome(5, 0.6)
    assert Book(path).find(FEDAVG, 6, (0.03,)) is None
    assert Book(path).find(ALONE, 4, (0.03,)) is None
    assert Book(path).find(FEDAVG, 4, (0.1,)) is None


def test_difference_says_mean_error_of_overlapping_splits_wins_and_what_follows() -> None:
    found = {
        "alone": [_outcome(1, 0.70, "alone"), _outcome(2, 0.80, "alone"), _outcome(3, 0.75, "alone")],
        "fedavg": [_outcome(1, 0.80), _outcome(2, 0.91), _outcome(3, 0.84)],
    }
    line = words.difference_table(found, "alone").splitlines()[2]
    # deviation 1 point, plain error 1 / sqrt(3) = 0.58, times sqrt(1 + 3 * 3/7) = 1.51
    assert line.startswith("| FedAvg | +10.0 +- 0.9, 3/3, better |")


def test_reference_parties_train_the_same_number_of_steps_as_a_silo() -> None:
    """Alone is one silo's part of the same job, so that what differs is the company alone."""
    spec: JobSpec = job(ALONE, seed=1, rate=0.03)
    assert spec.rounds == job(FEDAVG, seed=1, rate=0.03).rounds
    assert spec.training == job(FEDAVG, seed=1, rate=0.03).training


def test_page_holds_the_tables_that_it_was_given(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench:heart-disease -->\nstale\n<!-- /bench:heart-disease -->\nafter\n")
    outcomes = [_outcome(1, 0.7), _outcome(2, 0.8)]
    found = dict.fromkeys((words.USUAL, "alone", "pooled", "fedavg"), outcomes)
    write_page(found, today=date(2026, 11, 21), path=page)
    text = page.read_text()
    assert words.page(found) in text
    assert "stale" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "`python -m research.heart_disease --seeds 2`, 2026-11-21: " in text
