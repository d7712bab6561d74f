"""The table of a survival curve: which bins are published, and that readers solve for no cell of merged ones.

Source: docs/decisions/0041-analysis.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from strategies.analysis import merging, model_state
from strategies.analysis.counts import FEW_RECORDS, IMPLAUSIBLE, PART_COUNTS, PARTS, ROW_COUNTS
from strategies.analysis.joint import joint_rows
from strategies.analysis.merging import added, coarser_parts, first_at_risk
from strategies.analysis.model_state import MODEL_PARTS, Status, status_in
from strategies.analysis.partition import Family, Model, Partition, Survival, Tables
from strategies.analysis.survival import IS_SHOWN, SURVIVAL_COUNTS
from strategies.base import Array
from tests.support.analysis_records import Published, counted, pinned_sums, published


def timed(bins: int) -> Partition:
    edges = tuple(map(float, range(bins + 1)))
    return Partition(parts=bins, edges=edges, has_missing=False, by_ending=True)


def curves(bins: int, groups: int = 0, *, min_cell: int = 10) -> Tables:
    """groups: 0 of one curve."""
    of_group = [Partition(parts=groups, has_missing=False)] if groups else []
    return Tables(
        partitions=(timed(bins), Partition(parts=2, has_missing=False), *of_group),
        group=None,
        min_cell=min_cell,
        survival=Survival(time=0, status=1, group=2 if groups else None),
    )


def cox(bins: int, parts: int, *, is_stratum: bool, min_cell: int) -> Tables:
    """Of one factor, which is a term, or a stratum beside a number that all records share a part of."""
    return Tables(
        partitions=(
            timed(bins),
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
    """Time by ending, then group or factor."""
    found = [
        (state[f"{PARTS}{place}"][axis] == part).ravel()
        for place, axis in zip(tables.joint, np.indices(tables.joint_shape), strict=True)
        for part in range(len(state[f"{PART_COUNTS}{place}"]))
    ]
    if state[IS_SHOWN] if tables.survival is not None else status_in(state) is Status.RUNNING:
        row_J = joint_rows(tables, {place: state[f"{MODEL_PARTS}{place}"] for place in tables.factors})
        found += [row_J == row for row in range(int(row_J.max()) + 1)]
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


def where_none_is_not_few(
    counts: Sequence[int], *, is_ordered: bool, least: int, has_missing: bool = True
) -> list[int]:
    """A rule that publishes bins which hold nobody."""
    steps = coarser_parts([*range(len(counts))], counts, is_ordered=True, missing=None)
    return next(step for step in steps if not {*added(np.array(counts), step)} & {*range(1, least)})


def test_the_enumeration_finds_a_rule_that_gives_cells_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_state, "bears", lambda records, parameters: True)
    monkeypatch.setattr(merging, "finest_parts", where_none_is_not_few)
    assert pinned_sums(curves(2, min_cell=2), 8, sets_of_published_cells)
    assert pinned_sums(cox(2, 1, is_stratum=True, min_cell=2), 8, sets_of_published_cells)


@pytest.mark.parametrize(
    ("censored", "events", "bins", "table"),
    [
        ([30, 10, 40], [20, 15, 10], [0, 1, 2, 3, 4, 5], [30, 10, 40, 20, 15, 10]),
        ([30, 9, 40], [20, 15, 10], [0, 1, 1, 2, 3, 4], [30, 49, 20, 15, 10]),
        ([30, 40, 9], [20, 9, 15], [0, 1, 1, 2, 3, 3], [30, 49, 20, 24]),
        ([0, 0, 49], [60, 15, 10], [0, 0, 0, 1, 2, 3], [49, 60, 15, 10]),  # all until the end
        ([0, 0, 9], [60, 15, 10], None, None),
        ([60, 15, 10], [0, 9, 0], None, None),
    ],
)
def test_bins_of_each_ending_are_merged_by_themselves(
    censored: list[int], events: list[int], bins: list[int] | None, table: list[int] | None
) -> None:
    seen = published(curves(3), np.array([*censored, *events]))
    assert seen[ROW_COUNTS].tolist() == [sum(censored) + sum(events)]
    if bins is None:
        assert seen[IS_SHOWN] == 0
        assert seen[PARTS + "0"].tolist() == [0] * 6
        assert not {MODEL_PARTS + "0", SURVIVAL_COUNTS} & set(seen)
    else:
        assert (seen[IS_SHOWN], seen[IS_SHOWN].dtype) == (1, np.uint8)
        assert seen[MODEL_PARTS + "0"].tolist() == bins
        assert seen[SURVIVAL_COUNTS][:, 0].tolist() == table


def test_bins_are_merged_until_each_group_holds_enough() -> None:
    """The third group is small and joins the last. Then the second bin has few events in the first."""
    censored, events = [[20, 30, 2, 10], [21, 31, 1, 11]], [[25, 35, 3, 8], [26, 36, 2, 12]]
    seen = published(curves(2, 4), np.array([*censored, *events]))
    assert seen[PARTS + "2"].tolist() == [0, 1, 2, 2]
    assert seen[SURVIVAL_COUNTS].tolist() == [[20, 30, 12], [21, 31, 12], [25, 35, 11], [26, 36, 14]]
    events[1][0] = 9
    seen = published(curves(2, 4), np.array([*censored, *events]))
    assert seen[MODEL_PARTS + "0"].tolist() == [0, 1, 2, 2]
    assert seen[SURVIVAL_COUNTS].tolist() == [[20, 30, 12], [21, 31, 12], [34, 71, 25]]


def test_a_group_with_few_events_joins_another() -> None:
    seen = published(curves(2, 3), np.array([[20, 20, 20], [20, 20, 20], [4, 30, 30], [5, 30, 30]]))
    assert seen[PARTS + "2"].tolist() == [0, 1, 2]
    assert seen[MODEL_PARTS + "2"].tolist() == [0, 0, 1]
    assert seen[SURVIVAL_COUNTS].tolist() == [[40, 20], [40, 20], [34, 30], [35, 30]]


def test_factors_of_a_cox_model_merge_on_until_two_bins_hold_events() -> None:
    """Of the two strata only one bin of events is left: were the model withheld, that would tell that each
    holds enough events and censored records."""
    seen = published(cox(2, 2, is_stratum=True, min_cell=10), np.array([[0, 0], [20, 20], [0, 20], [20, 2]]))
    assert seen[MODEL_PARTS + "2"].tolist() == [0, 0]
    assert seen[MODEL_PARTS + "0"].tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("bins", "first"),
    [([0, 0, 0, 1, 2, 3], [0, 0, 0]), ([0, 1, 2, 3, 3, 4], [0, 2]), ([0, 0, 1, 2, 3, 3], [0, 0])],
)
def test_those_censored_are_at_risk_in_each_bin_that_begins_before_theirs_ends(
    bins: list[int], first: list[int]
) -> None:
    assert first_at_risk(bins) == first


def test_each_table_is_summed_once() -> None:
    tables = curves(5, 3)
    assert (tables.cells, tables.summed) == (30, 1)


@pytest.mark.parametrize(
    ("cells", "reason"), [([[4, 3], [1, 1]], FEW_RECORDS), ([[40, 30], [-1, 20]], IMPLAUSIBLE)]
)
def test_sums_that_are_small_or_impossible_are_not_applied(cells: list[list[int]], reason: str) -> None:
    result = counted(curves(2), np.array(cells))
    assert (result.state, result.reason) == (None, reason)
