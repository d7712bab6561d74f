"""What sums of personal accuracies tell of single silos to a coordinator that knows all hold-outs' sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout
from strategies.base import PhaseContext
from strategies.parts.closing.fine_tuning import FINE_TUNE_PHASE
from strategies.phases.evaluation import ACCURACY, SQUARE
from strategies.tasks.classification import CLASSIFICATION
from tests.support.objectives import summed

TESTED = (40, 50, 70, 90)  # multiples of the default count_granularity
CORRECT = (31, 44, 52, 81)
CONTEXT = PhaseContext(round=3, members=4, classes=10, state={}, trained=())


@pytest.mark.parametrize(
    ("is_rounded", "ring_bits", "least", "most"),
    [
        (True, 16, 10, 1_000_000),
        (True, 64, 10, 1_000_000),  # what the mean of many rounds comes to
        (
            False,
            64,
            1,
            1,
        ),  # the control: the only fractions with such denominators and sums are the silos' own
    ],
)
def test_sums_of_four_silos_leave_many_sets_of_accuracies(
    is_rounded: bool, ring_bits: int, least: int, most: int
) -> None:
    quantities = tuple(
        each if each.is_count else replace(each, ring_bits=ring_bits)
        for each in FINE_TUNE_PHASE.quantities(CONTEXT)
    )
    layout = Layout(quantities=quantities, members=len(TESTED))
    total = ring.zeros(layout)
    for correct, tested in zip(CORRECT, TESTED, strict=True):
        sums = summed(correct, tested).personal_quantities(CLASSIFICATION.score)
        if not is_rounded:
            exact = np.asarray(correct / tested)
            sums |= {ACCURACY: exact, SQUARE: exact**2}
        ring.add_into(total, Encoder(sums, layout=layout).encode().vectors)
    revealed = ring.decode(total, layout=layout)
    unit = 1.0 / min(each.scale(len(TESTED)) for each in quantities if not each.is_count)
    found = consistent(
        float(revealed[ACCURACY]),
        float(revealed[SQUARE]),
        within=len(TESTED) * unit + 1e-13,
        is_rounded=is_rounded,
    )
    assert least <= found <= most


def test_the_released_quantities_have_16_bits() -> None:
    quantities = FINE_TUNE_PHASE.quantities(CONTEXT)
    assert {each.ring_bits for each in quantities if not each.is_count} == {16}


def consistent(accuracy_sum: float, square_sum: float, *, within: float, is_rounded: bool) -> int:
    """Sets of correct answers, one a silo, whose two sums are as revealed, but for rounding."""
    fractions = [np.arange(tested + 1) / tested for tested in TESTED]
    first, *others = [each.round(2) for each in fractions] if is_rounded else fractions
    grids = np.meshgrid(*others, indexing="ij")
    sums = np.add.reduce(grids)
    squares = np.add.reduce([grid**2 for grid in grids])
    return sum(
        int(
            np.count_nonzero(
                (np.abs(sums + each - accuracy_sum) <= within)
                & (np.abs(squares + each**2 - square_sum) <= within)
            )
        )
        for each in first
    )
