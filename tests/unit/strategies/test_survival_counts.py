"""The table of a survival curve: which bins are published, and that readers solve for no cell of merged ones.

Source: docs/decisions/0041-analysis.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from strategies.analysis import joint, model_state, survival
from strategies.analysis.counts import FEW_RECORDS, IMPLAUSIBLE, PART_COUNTS, PARTS, ROW_COUNTS
from strategies.analysis.joint import joint_rows
from strategies.analysis.model_state import MODEL_PARTS, Status, status_in
from strategies.analysis.partition import Family, Model, Partition, Survival, Tables
from strategies.analysis.survival import BINS, IS_SHOWN, SURVIVAL_COUNTS
from strategies.base import Array
from tests.support.analysis_records import Published, counted, pinned_sums, published


def curves(bins: int, groups: int = 0, *, min_cell: int = 10) -> Tables:
    """groups: 0 of one curve."""
    time = Partition(parts=bins, edges=tuple(map(float, range(bins + 1))), has_missing=False)
    of_group = [Partition(parts=groups, has_missing=False)] if groups else []
    return Tables(
        partitions=(time, Partition(parts=2, has_missing=False), *of_group),
        group=None,
        min_cell=min_cell,
        survival=Survival(time=0, status=1, group=2 if groups else None),
    )


def cox(bins: int, parts: int, *, is_stratum: bool, min_cell: int) -> Tables:
    """Of one factor, which is a term, or a stratum beside a number that all records share a part of."""
    time = Partition(parts=bins, edges=tuple(map(float, range(bins + 1))), has_missing=False)
    return Tables(
        partitions=(
            time,
            Partition(parts=2, has_missing=False),
            Partition(parts=parts, has_missing=False),
            *([Partition(parts=1, edges=(0.0, 1.0), has_missing=False)] if is_stratum else []),
        ),
        group=None,
        min_cell=min_cell,
        model=Model(
            outcome=1,
            family=Family.COX,
            time=0,
            terms=((3,),) if is_stratum else ((2,),),
            strata=(2,) if is_stratum else (),
        ),
    )


def sets_of_published_cells(tables: Tables, state: Published) -> list[Array]:
    places = np.indices(tables.joint_shape)
    found = [
        (state[f"{PARTS}{place}"][axis] == part).ravel()
        for place, axis in enumerate(places)
        for part in range(len(state[f"{PART_COUNTS}{place}"]))
    ]
    if tables.model is not None and status_in(state) is Status.RUNNING:
        row_J = joint_rows(tables, {place: state[f"{MODEL_PARTS}{place}"] for place in tables.factors})
        found += [row_J == row for row in range(int(row_J.max()) + 1)]
    if tables.survival is not None and state[IS_SHOWN]:
        group = state[f"{PARTS}2"][places[2]] if len(places) > 2 else np.zeros_like(places[0])
        cell_of = (state[BINS][places[0]], places[1], group)
        found += [
            np.logical_and.reduce([axis == part for axis, part in zip(cell_of, cell, strict=True)]).ravel()
            for cell in np.ndindex(state[SURVIVAL_COUNTS].shape)
        ]
    return found


CASES = [
    (curves(2, min_cell=2), 12),
    (curves(2, min_cell=3), 20),
    (curves(3, min_cell=2), 12),
    (curves(3, min_cell=3), 14),
    (curves(2, 2, min_cell=2), 9),
]


@pytest.mark.parametrize(("tables", "records"), CASES)
def test_no_sum_of_cells_that_is_not_published_has_fewer_values_than_min_cell(
    tables: Tables, records: int
) -> None:
    assert pinned_sums(tables, records, sets_of_published_cells) == []


COX_CASES = [
    (cox(2, 2, is_stratum=False, min_cell=2), 8),
    (cox(2, 2, is_stratum=True, min_cell=2), 9),
    (cox(3, 1, is_stratum=True, min_cell=3), 13),
]


@pytest.mark.parametrize(("tables", "records"), COX_CASES)
def test_a_cox_model_that_gives_its_joint_table_away_pins_no_other_sum(
    tables: Tables, records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few its records are."""
    monkeypatch.setattr(model_state, "bears", lambda records, parameters: True)
    assert pinned_sums(tables, records, sets_of_published_cells) == []


def by_hidden_counts(
    parts: Sequence[int], counts: Sequence[int], *, is_ordered: bool, missing: int | None
) -> Iterator[list[int]]:
    """A rule that would publish the declared bins: those below min_cell are seen where two are merged."""
    yield list(range(len(parts)))
    yield [0, 0, 1]
    yield [0, 1, 1]
    yield [0] * len(parts)


def test_the_enumeration_finds_a_rule_that_gives_cells_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survival, "coarser_parts", by_hidden_counts)
    assert pinned_sums(curves(3, min_cell=2), 12, sets_of_published_cells)
    monkeypatch.setattr(model_state, "bears", lambda records, parameters: True)
    monkeypatch.setattr(joint, "coarser_parts", by_hidden_counts)
    assert pinned_sums(cox(3, 1, is_stratum=True, min_cell=2), 12, sets_of_published_cells)


@pytest.mark.parametrize(
    ("cells", "bins", "table"),
    [
        ([[30, 20], [10, 15], [40, 10]], [0, 1, 2], [[30, 20], [10, 15], [40, 10]]),
        ([[30, 20], [9, 15], [40, 10]], [0, 0, 1], [[39, 35], [40, 10]]),  # of equal ones the lower
        ([[30, 20], [40, 10], [9, 15]], [0, 1, 1], [[30, 20], [49, 25]]),
        ([[0, 60], [9, 15], [40, 10]], [0, 0, 0], [[49, 85]]),
        ([[4, 3], [30, 20], [40, 10]], [0, 0, 1], [[34, 23], [40, 10]]),  # 7 are no part of time by itself
        ([[0, 60], [0, 15], [9, 10]], None, None),
    ],
)
def test_bins_are_merged_until_each_ending_holds_enough(
    cells: list[list[int]], bins: list[int] | None, table: list[list[int]] | None
) -> None:
    seen = published(curves(3), np.array(cells))
    assert seen[ROW_COUNTS].tolist() == [np.sum(cells)]
    if bins is None:
        assert seen[IS_SHOWN] == 0
        assert not {BINS, SURVIVAL_COUNTS} & set(seen)
    else:
        assert (seen[IS_SHOWN], seen[IS_SHOWN].dtype) == (1, np.uint8)
        assert seen[BINS].tolist() == bins
        assert seen[SURVIVAL_COUNTS][:, :, 0].tolist() == table


def test_a_group_keeps_its_parts_while_bins_are_merged() -> None:
    """Time, then status, then group: the third group is small and joins the last."""
    cells = np.zeros((2, 2, 4), np.int64)
    cells[0] = [[20, 30, 2, 10], [25, 35, 3, 8]]
    cells[1] = [[21, 31, 1, 11], [26, 36, 2, 12]]
    seen = published(curves(2, 4), cells)
    assert seen[PARTS + "2"].tolist() == [0, 1, 2, 2]
    assert seen[SURVIVAL_COUNTS].tolist() == [[[20, 30, 12], [25, 35, 11]], [[21, 31, 12], [26, 36, 14]]]
    cells[0, 1, 0] = 9
    seen = published(curves(2, 4), cells)
    assert seen[SURVIVAL_COUNTS].tolist() == [[[41, 61, 24], [35, 71, 25]]]


def test_each_table_is_summed_once() -> None:
    tables = curves(5, 3)
    assert (tables.cells, tables.summed) == (30, 1)


@pytest.mark.parametrize(
    ("cells", "reason"), [([[4, 3], [1, 1]], FEW_RECORDS), ([[40, 30], [-1, 20]], IMPLAUSIBLE)]
)
def test_sums_that_are_small_or_impossible_are_not_applied(cells: list[list[int]], reason: str) -> None:
    result = counted(curves(2), np.array(cells))
    assert (result.state, result.reason) == (None, reason)
