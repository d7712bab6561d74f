"""Figures by subgroup from sums: which parts are published, and what does not follow from them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from strategies.analysis.partition import Partition
from strategies.analysis.subgroups import FINEST_RECORDS, PARTS, RECORDS, SUBGROUPS, SubgroupsPhase
from strategies.base import PhaseContext
from strategies.tasks.base import DeclaredTask, TaskSizes
from strategies.tasks.classification import Classification
from strategies.tasks.regression import Regression, RegressionOptions

CONTEXT = PhaseContext(round=0, members=4, classes=2, state={}, trained=())
NUMBERS = Regression(TaskSizes(), RegressionOptions(low=0.0, high=100.0))
CLASSES = Classification(TaskSizes(classes=2))


def phase_of(task: DeclaredTask, parts: int, **fields: Any) -> SubgroupsPhase:
    return SubgroupsPhase(task=task, partition=Partition(parts=parts, **fields), min_cell=10)


def classified(records_PC: list[list[int]], correct_P: list[int]) -> dict[str, Any]:
    return {RECORDS: np.array(records_PC), "subgroup_correct": np.array(correct_P)}


@pytest.mark.parametrize(
    ("records_PC", "parts"),
    [
        ([[20, 10], [30, 15], [0, 0]], [0, 1, 1]),
        ([[20, 9], [30, 15], [0, 0]], [0, 0, 0]),  # of one class there are nine
        ([[20, 10], [30, 15], [4, 3]], [0, 1, 1]),  # missing values join the last
        ([[20, 10], [30, 15], [14, 13]], [0, 1, 2]),
    ],
)
def test_parts_with_few_records_of_a_class_are_merged(records_PC: list[list[int]], parts: list[int]) -> None:
    sums = classified(records_PC, [sum(row) for row in records_PC])
    tables = phase_of(CLASSES, 2).tables(CONTEXT, sums)
    assert tables[PARTS].tolist() == parts
    assert int(tables[RECORDS].min()) >= 10
    assert int(tables[RECORDS].sum()) == int(np.sum(records_PC))  # the overall figure leaves no rest
    assert set(tables["subgroup_accuracy"].tolist()) == {1.0}


@pytest.mark.parametrize(
    "records_PC",
    [[[200, 9], [30, 0], [0, 0]], [[4, 5], [0, 0], [0, 0]], [[-5, 30], [60, 30], [0, 0]]],
    ids=["rare class", "few records", "a lie"],
)
def test_all_is_withheld_where_no_step_holds_enough_or_no_records_give_the_sums(
    records_PC: list[list[int]],
) -> None:
    phase, sums = phase_of(CLASSES, 2), classified(records_PC, [0, 0, 0])
    assert phase.tables(CONTEXT, sums) == {}
    assert phase.figures(CONTEXT, sums) == {SUBGROUPS: 0.0}


def test_lies_beside_honest_records_are_figures_in_range() -> None:
    sums = classified([[20, 10], [30, 15], [0, 0]], [-7, 900, 3])
    accuracy_S = phase_of(CLASSES, 2).tables(CONTEXT, sums)["subgroup_accuracy"]
    assert accuracy_S.tolist() == [0.0, 1.0]


def test_no_count_of_a_merged_part_follows_from_what_is_published() -> None:
    """All tables of two classes by two parts and missing values with up to 5 records a cell, at 2."""
    phase = SubgroupsPhase(task=CLASSES, partition=Partition(parts=2), min_cell=2)
    worlds: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
    for cells in product(range(6), repeat=6):
        if sum(cells) != 8:
            continue
        records_PC = np.array(cells).reshape(3, 2)
        tables = phase.tables(CONTEXT, {RECORDS: records_PC, "subgroup_correct": np.zeros(3, np.int64)})
        key = tuple(
            (name, *tables[name].ravel().tolist()) for name in (PARTS, RECORDS, FINEST_RECORDS) if tables
        )
        worlds.setdefault(key, []).append(cells)
    assert len(worlds) > 20
    for alike in worlds.values():
        for values in map(set, zip(*alike, strict=True)):
            assert len(values) >= 2 or min(values) >= 2


def test_an_error_that_stands_out_is_rounded_away() -> None:
    """Eleven errors of 1 and one of 90: exact, their mean would give the last to one who knows the others."""
    errors = np.array([0.01] * 11 + [0.9])
    sums = {
        RECORDS: np.array([[12], [40], [0]]),
        "subgroup_absolute_error": np.array([errors.sum(), 4.0, 0.0]),
        "subgroup_squared_error": np.array([(errors**2).sum(), 0.5, 0.0]),
    }
    tables = phase_of(NUMBERS, 2).tables(CONTEXT, sums)
    assert tables[PARTS].tolist() == [0, 1, 1]
    assert tables["subgroup_mae"].tolist() == [8.0, 10.0]  # 8.42 and 10
    assert not any("rmse" in name or "loss" in name for name in tables)
