"""Which parts of a table are published: readers who know the rules solve for no cell of what is merged.

Source: docs/decisions/0041-analysis.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import product

import numpy as np
import pytest

from strategies.analysis import counts
from strategies.analysis.counts import (
    CELL_COUNTS,
    CELL_PARTS,
    FEW_RECORDS,
    IMPLAUSIBLE,
    PART_COUNTS,
    PARTS,
    ROW_COUNTS,
    ROWS,
)
from strategies.analysis.merging import coarser_parts, finest_parts, numbered
from strategies.analysis.partition import Partition, Tables
from strategies.base import Array
from tests.support.analysis_records import Published, all_cells, counted, key_of, pinned_sums, published


def column(parts: int, *, is_ordered: bool = False) -> Partition:
    return Partition(parts=parts, edges=tuple(map(float, range(parts + 1))) if is_ordered else ())


def by_group(group: Partition, *columns: Partition, min_cell: int = 10) -> Tables:
    return Tables(partitions=(group, *columns), group=0, min_cell=min_cell)


def alone(one: Partition, *, min_cell: int = 10) -> Tables:
    return Tables(partitions=(one,), group=None, min_cell=min_cell)


def sets_of_published_cells(tables: Tables, state: Published) -> list[Array]:
    """Of one table: the declared cells that each published count adds up."""
    place = str(tables.described[0])
    rows_G, parts_P, cell_parts_P = state[ROWS], state[PARTS + place], state[CELL_PARTS + place]
    cells = [
        np.outer(rows_G == row, cell_parts_P == part).ravel()
        for row, part in product(set(rows_G.tolist()), set(cell_parts_P.tolist()))
    ]
    return cells + [np.outer(rows_G >= 0, parts_P == part).ravel() for part in set(parts_P.tolist())]


CASES = [
    (tables, records)
    for is_ordered in (False, True)
    for tables, records in [
        (alone(column(4, is_ordered=is_ordered), min_cell=3), 9),
        (alone(column(4, is_ordered=is_ordered), min_cell=4), 12),
        (by_group(column(1), column(2, is_ordered=is_ordered), min_cell=3), 12),
        (by_group(column(1), column(3, is_ordered=is_ordered), min_cell=3), 9),
        (by_group(column(2, is_ordered=is_ordered), column(2, is_ordered=is_ordered), min_cell=2), 6),
    ]
]


@pytest.mark.parametrize(("tables", "records"), CASES)
def test_no_sum_of_cells_that_is_not_published_has_fewer_values_than_min_cell(
    tables: Tables, records: int
) -> None:
    assert pinned_sums(tables, records, sets_of_published_cells) == []


def smallest_joins_smallest(
    counts: Sequence[int], *, is_ordered: bool, least: int, has_missing: bool
) -> list[int]:
    """The rule that a draft had: which part is joined follows from hidden counts."""
    blocks = {place: (count, [place]) for place, count in enumerate(counts)}
    while min(blocks.values())[0] < least:
        first, second = sorted(blocks, key=lambda place: (blocks[place][0], place))[:2]
        one, other = blocks.pop(first), blocks.pop(second)
        blocks[min(first, second)] = (one[0] + other[0], one[1] + other[1])
    return numbered([next(key for key, block in blocks.items() if n in block[1]) for n in range(len(counts))])


def table_by_itself(table_RP: Array, parts: Sequence[int], partition: Partition, least: int) -> list[int]:
    """Another rule of a draft: a table does not begin with the parts of its column alone."""
    declared = table_RP.sum(axis=0).tolist()
    for step in coarser_parts(range(len(declared)), declared, is_ordered=False, missing=None):
        if all((table_RP[:, np.array(step) == part].sum(axis=1) >= least).all() for part in set(step)):
            return step
    raise AssertionError("one part holds all records")


@pytest.mark.parametrize(
    ("name", "rule", "tables", "records"),
    [
        ("finest_parts", smallest_joins_smallest, alone(column(3), min_cell=3), 8),
        ("finest_parts", smallest_joins_smallest, by_group(column(1), column(2), min_cell=3), 9),
        ("chained", table_by_itself, by_group(column(1), column(2), min_cell=3), 12),
    ],
)
def test_the_enumeration_finds_rules_that_give_cells_away(
    monkeypatch: pytest.MonkeyPatch, name: str, rule: Callable[..., list[int]], tables: Tables, records: int
) -> None:
    monkeypatch.setattr(counts, name, rule)
    assert pinned_sums(tables, records, sets_of_published_cells)


def test_a_second_column_of_the_same_group_pins_no_cell_either() -> None:
    """All pairs of tables of 8 records with the same rows."""
    tables = by_group(column(1), column(1), column(1), min_cell=2)
    worlds: dict[bytes, list[tuple[int, ...]]] = defaultdict(list)
    for first, second in product(all_cells(8, 4), repeat=2):
        if first[0] + first[1] == second[0] + second[1]:
            worlds[key_of(published(tables, np.array([first, second])))].append((*first, *second))
    assert len(worlds) > 50
    for alike in worlds.values():
        of_cells = [set(values) for values in zip(*alike, strict=True)]
        assert all(len(values) >= 2 or min(values) >= 2 for values in of_cells)


def moved(table: Sequence[Sequence[int]], steps: Iterable[int]) -> list[Array]:
    """Tables with the same margins as a table whose missing row and part are its last."""
    change = np.array([[1, -1, 0], [-1, 1, 0], [0, 0, 0]])
    tables = (np.array(table) + step * change for step in steps)
    return [each for each in tables if (each >= 0).all()]


@pytest.mark.parametrize("small", [0, 1, 5, 9])
def test_a_small_cell_has_ten_values_although_its_margins_are_published(small: int) -> None:
    tables = by_group(column(2), column(2))
    table = [[small, 60 - small, 0], [70 - small, 40, 0], [0, 0, 0]]
    seen = published(tables, np.array(table))
    assert seen[ROW_COUNTS].tolist() == [60, 110 - small]
    assert seen[PART_COUNTS + "1"].tolist() == [70, 100 - small]
    assert seen[CELL_PARTS + "1"].tolist() == [0, 0, 0]
    alike = [each for each in moved(table, range(-9, 10)) if key_of(published(tables, each)) == key_of(seen)]
    assert len({each[0, 0] for each in alike}) >= 10


def test_a_cell_of_ten_is_published() -> None:
    seen = published(by_group(column(2), column(2)), np.array([[10, 50, 0], [60, 40, 0], [0, 0, 0]]))
    assert seen[CELL_COUNTS + "1"].tolist() == [[10, 50], [60, 40]]
    assert seen[ROWS].tolist() == [0, 1, 1]


def test_three_men_with_missing_values_are_not_seen_beside_twelve_women() -> None:
    tables = by_group(column(2), column(2))
    seen = published(tables, np.array([[100, 80, 12], [90, 70, 3], [0, 0, 0]]))
    assert seen[PART_COUNTS + "1"].tolist() == [190, 150, 15]
    assert seen[CELL_PARTS + "1"].tolist() == [0, 1, 1]
    as_many = published(tables, np.array([[100, 80, 12], [90, 63, 10], [0, 0, 0]]))
    assert as_many[CELL_COUNTS + "1"].tolist() == [[100, 80, 12], [90, 63, 10]]


def test_a_group_of_identifiers_is_one_part_and_a_column_of_them_is_another() -> None:
    parts = 25
    seen = published(by_group(column(parts), column(1)), np.array([[1, 0]] * parts + [[0, 0]]))
    assert (seen[ROW_COUNTS].tolist(), seen[CELL_COUNTS + "1"].tolist()) == ([25], [[25]])
    alone_seen = published(alone(column(parts)), np.array([1] * parts + [0]))
    assert alone_seen[PART_COUNTS + "0"].tolist() == [25]


@pytest.mark.parametrize(("isolated", "parts"), [(1, [0, 1, 2, 2, 0]), (10, [0, 1, 2, 3, 0])])
def test_an_edge_beside_one_value_is_not_published(isolated: int, parts: list[int]) -> None:
    seen = published(alone(column(4, is_ordered=True)), np.array([30, 40, 50, isolated, 2]))
    assert seen[PARTS + "0"].tolist() == parts


@pytest.mark.parametrize(
    ("declared", "is_ordered", "expected"),
    [
        ([50, 3, 60, 12, 30], True, [0, 1, 1, 2, 3]),  # upwards, missing values alone
        ([4, 3, 60, 12, 2], True, [0, 0, 0, 1, 0]),  # missing values are below the lowest
        ([4, 30, 60, 6, 30], True, [0, 0, 1, 1, 2]),  # the highest joins the one below
        ([1, 2, 1, 1, 30], True, [0, 0, 0, 0, 0]),
        ([50, 3, 60, 12, 30], False, [0, 1, 2, 1, 3]),  # rare ones join the last, which holds enough
        ([50, 3, 60, 2, 5], False, [0, 1, 2, 1, 1]),  # and so do few missing values
        ([50, 3, 60, 2, 4], False, [0, 1, 1, 1, 1]),  # these are 9: the one before joins
        ([50, 40, 60, 70, 0], False, [0, 1, 2, 3, 3]),
        ([1, 2, 1, 1, 30], False, [0, 0, 0, 0, 0]),
    ],
)
def test_parts_are_merged_as_the_page_says(
    declared: list[int], is_ordered: bool, expected: list[int]
) -> None:
    assert finest_parts(declared, is_ordered=is_ordered, least=10) == expected


@pytest.mark.parametrize(
    ("counts", "is_ordered", "missing", "expected"),
    [
        ([30, 20, 25], True, None, [[0, 1, 2], [0, 1, 1], [0, 0, 0]]),  # the smaller neighbor
        ([30, 20, 40, 25], False, None, [[0, 1, 2, 3], [0, 1, 2, 1], [0, 1, 0, 1], [0, 0, 0, 0]]),
        ([20, 20, 20], False, None, [[0, 1, 2], [0, 0, 1], [0, 0, 0]]),  # of equal ones the lowest
        ([30, 40, 50, 10], True, 3, [[0, 1, 2, 3], [0, 1, 2, 0], [0, 0, 1, 0], [0, 0, 0, 0]]),
        ([30, 40, 50, 35], True, 3, [[0, 1, 2, 3], [0, 0, 1, 2], [0, 0, 1, 0], [0, 0, 0, 0]]),
        ([40, 20, 30], True, 2, [[0, 1, 2], [0, 0, 1], [0, 0, 0]]),  # values before missing ones
    ],
)
def test_a_chain_joins_the_smallest_published_part(
    counts: list[int], is_ordered: bool, missing: int | None, expected: list[list[int]]
) -> None:
    steps = coarser_parts(range(len(counts)), counts, is_ordered=is_ordered, missing=missing)
    assert list(steps) == expected


def test_published_counts_add_up_to_those_of_all_records() -> None:
    rng = np.random.default_rng(41)
    tables = Tables(
        partitions=(column(6), column(3), column(9, is_ordered=True), column(2, is_ordered=True)),
        group=1,
        min_cell=10,
    )
    for _ in range(50):
        records = int(rng.integers(20, 3000))
        group_N = rng.choice(4, records, p=rng.dirichlet([1.0] * 4))
        state_of: dict[int, Array] = {}
        for place in tables.described:
            size = tables.partitions[place].size
            part_N = rng.choice(size, records, p=rng.dirichlet([0.7] * size))
            state_of[place] = np.zeros((4, size), np.int64)
            np.add.at(state_of[place], (group_N, part_N), 1)
        seen = published(tables, np.concatenate([table.ravel() for table in state_of.values()]))
        assert all(array.dtype == np.int64 for array in seen.values())
        by_column = (PARTS, PART_COUNTS, CELL_PARTS, CELL_COUNTS)
        names = {name + str(place) for name in by_column for place in tables.described}
        assert set(seen) == {ROWS, ROW_COUNTS} | names
        for place, table_GP in state_of.items():
            parts_P, cell_parts_P = seen[PARTS + str(place)], seen[CELL_PARTS + str(place)]
            counts_RT = seen[CELL_COUNTS + str(place)]
            for row, part in np.ndindex(counts_RT.shape):
                assert (
                    counts_RT[row, part] == table_GP[seen[ROWS] == row][:, cell_parts_P == part].sum() >= 10
                )
            for part, count in enumerate(seen[PART_COUNTS + str(place)]):
                assert count == table_GP[:, parts_P == part].sum() >= 10
                assert len(set(cell_parts_P[parts_P == part])) == 1
            assert counts_RT.sum(axis=1).tolist() == seen[ROW_COUNTS].tolist()
            assert numbered(parts_P.tolist()) == parts_P.tolist()


def test_the_same_cells_lead_to_the_same_bytes() -> None:
    tables = by_group(column(2), column(3, is_ordered=True))
    cells = np.array([[20, 30, 5, 2], [40, 20, 30, 11], [1, 2, 3, 4]])
    assert key_of(published(tables, cells)) == key_of(published(tables, cells.copy()))
    assert key_of(published(tables, cells)) != key_of(published(tables, cells + 1))


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ([[4, 3, 0, 2, 0, 0], [4, 3, 0, 2, 0, 0]], FEW_RECORDS),
        ([[40, 30, 0, 20, 0, 0], [41, 30, 0, 20, 0, 0]], IMPLAUSIBLE),
        ([[40, 30, 0, 20, 0, 0], [40, 30, 0, 0, 20, 0]], ""),
        ([[40, 30, 0, 20, 0, 0], [40, 31, -1, 20, 0, 0]], IMPLAUSIBLE),
    ],
)
def test_tables_that_are_small_or_do_not_fit_together_are_not_applied(
    cells: list[list[int]], reason: str
) -> None:
    result = counted(by_group(column(1), column(2), column(2)), np.array(cells))
    assert (result.state is None, result.reason) == (bool(reason), reason)
