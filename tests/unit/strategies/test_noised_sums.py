"""Noise takes sums out of their ranges and off the whole numbers; every phase continues with what comes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from strategies.base import PRESENCE, TOTAL, Array, PhaseContext
from strategies.parts.closing.ffc import CalibratePhase
from strategies.parts.heads import HEAD
from strategies.parts.server_updates.mean import WeightedMean
from strategies.parts.statistics.logit_prototypes import PROTOTYPES, PrototypesPhase
from strategies.parts.statistics.soft_labels import KNOWN_ROWS, SOFT_LABELS, SoftLabels
from strategies.phases.enrollment import ClassPresencePhase, EnrollmentPhase
from strategies.phases.evaluation import Evaluation
from strategies.phases.training import TrainPhase

CLASSES = 3


def context(**options: float | bool | str) -> PhaseContext:
    state: dict[str, Array] = {HEAD: np.zeros((CLASSES, 2), np.float32), TOTAL: np.array(50)}
    return PhaseContext(
        round=1, members=4, classes=CLASSES, state=state, trained=("head.weight",), options=options
    )


@pytest.mark.parametrize(
    ("correct", "tested", "loss_sum", "accuracy", "loss"),
    [
        (8.25, 10.5, 21.0, 8.25 / 10.5, 2.0),
        (12.0, 10.0, -3.0, 1.0, 0.0),
        (-1.5, 10.0, 5.0, 0.0, 0.5),
        (3.0, -0.25, 5.0, math.nan, math.nan),
        (3.0, 0.0, 5.0, math.nan, math.nan),
    ],
)
def test_figures_of_an_evaluation_stay_in_their_ranges(
    correct: float, tested: float, loss_sum: float, accuracy: float, loss: float
) -> None:
    sums = {"correct": np.array(correct), "tested": np.array(tested), "loss_sum": np.array(loss_sum)}
    figures = Evaluation().figures(context(), sums)
    assert [figures["accuracy"], figures["loss"]] == pytest.approx([accuracy, loss], nan_ok=True)


def test_a_enrollment_rounds_the_noised_count() -> None:
    result = EnrollmentPhase().next_state(context(), {"samples": np.array(399.62)})
    assert result.state is not None
    assert result.state[TOTAL] == 400
    assert result.state[TOTAL].dtype == np.int64


def test_a_enrollment_of_less_than_nothing_has_no_data() -> None:
    result = EnrollmentPhase().next_state(context(), {"samples": np.array(-3.5)})
    assert (result.state, result.reason) == (None, "no-data")


def test_no_class_has_fewer_holders_than_none() -> None:
    result = ClassPresencePhase().next_state(context(), {"class_presence": np.array([-2.5, 0.4, 2.75])})
    assert result.state is not None
    assert result.state[PRESENCE].tolist() == [0, 0, 3]
    assert result.figures["classes_without_holder"] == 2


def test_a_round_without_clipped_is_applied() -> None:
    sums = {"delta": np.ones(6), "weight": np.array(1.0)}
    phase = TrainPhase(update=WeightedMean())
    assert phase.figures(context(), sums) == {}
    result = phase.next_state(context(), sums)
    assert result.state is not None
    assert result.state[HEAD].tolist() == [[1.0, 1.0]] * 3


def test_noised_soft_labels_become_distributions() -> None:
    sums = {
        "soft_labels": np.array([[6.0, 2.0, -1.0], [-1.0, -2.0, -3.0], [1.0, 1.0, 2.0]]),
        "class_counts": np.array([7.25, 0.5, -2.0]),
    }
    arrays = SoftLabels().arrays(context(), sums)
    np.testing.assert_allclose(arrays[SOFT_LABELS][:2], [[0.75, 0.25, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    assert arrays[KNOWN_ROWS].tolist() == [1, 1, 0]  # a class of less than nothing stays unknown
    assert arrays[SOFT_LABELS][2].tolist() == [0.0, 0.0, 0.0]


def test_exact_soft_labels_are_means_as_ever() -> None:
    sums = {"soft_labels": np.full((3, 3), 2.0), "class_counts": np.array([6, 6, 8])}
    assert SoftLabels().arrays(context(), sums)[SOFT_LABELS][2].tolist() == [0.25, 0.25, 0.25]


@pytest.mark.parametrize("count_weighted", [False, True])
def test_noised_prototypes_are_joined_without_clipped(count_weighted: bool) -> None:
    sums = {
        "prototypes": np.full((3, 3), -4.0),
        "prototype_sums": np.full((3, 3), 8.0),
        "class_counts": np.array([4.0, -2.5, 0.25]),
    }
    result = PrototypesPhase().next_state(context(count_weighted=count_weighted), sums)
    assert result.state is not None
    expected = [2.0, 8.0, 8.0] if count_weighted else [-1.0, -1.0, -1.0]
    assert result.state[PROTOTYPES][:, 0].tolist() == expected
    assert PrototypesPhase().figures(context(), sums) == {}


@pytest.mark.parametrize("ridge", [0.0, 30.0])
def test_a_noised_gram_matrix_gives_finite_heads(ridge: float) -> None:
    """Noise makes eigenvalues and whole diagonals negative."""
    sums = {"gram": np.array([5.0, -9.0, -1.0]), "moment": np.array([[3.0, 1.0, -2.0], [0.5, -0.5, 4.0]])}
    result = CalibratePhase(ridge=ridge).next_state(context(), sums)
    assert result.state is not None
    assert np.isfinite(result.state[HEAD]).all()


def test_logits_have_a_sensitivity_where_they_are_clipped() -> None:
    for options in ({}, {"count_weighted": True}):
        main, *_ = PrototypesPhase().quantities(context(**options))
        assert main.sensitivity_l2 is None
        main, *_ = PrototypesPhase().quantities(context(logit_clip=7.0, **options))
        assert main.sensitivity_l2 == 7.0
