"""Which declared parts of a column are published as one.

Which part another one joins follows from their places, or from counts that are published: were it the smaller
one by hidden counts, 10 beside a merged 19 would say that the 19 are 9 and 10. Counts are of the declared
parts, missing values last. Source: docs/decisions/0041-analysis.md.

R = rows of a table, P = parts of its column.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from strategies.analysis.partition import Partition
from strategies.base import Array


def finest_parts(
    counts: Sequence[int], *, is_ordered: bool, least: int, has_missing: bool = True
) -> list[int]:
    """The published part of each declared one, where all of them together hold `least` records.

    A declared part that is not published by itself may have any of 0 to least - 1 records, or that many fewer
    than the part that it is in, as far as the published counts tell. has_missing: the last count is of
    missing values; a part that cannot occur is not merged.
    """
    merged = _in_order if is_ordered else _around_the_last
    return merged(counts, least, has_missing=has_missing)


def coarser_parts(
    parts: Sequence[int], counts: Sequence[int], *, is_ordered: bool, missing: int | None
) -> Iterator[list[int]]:
    """The published parts of declared ones, then with the smallest joined to another one, until there is one.

    counts: of published parts. missing: the one that holds no values at all, which is the last. Of numbers
    the smaller neighbor is joined; missing values are below the lowest, and are joined where nothing else is.
    """
    blocks = [[part] for part in range(len(counts))]
    held = list(counts)
    while True:
        of_block = {part: place for place, block in enumerate(blocks) for part in block}
        yield numbered([of_block[part] for part in parts])
        if len(blocks) == 1:
            return
        smallest = min(range(len(blocks)), key=held.__getitem__)
        values = [place for place, block in enumerate(blocks) if block != [missing]]
        if not is_ordered:
            near = [place for place in range(len(blocks)) if place != smallest]
        elif smallest not in values:
            near = [0]
        else:
            near = [place for place in values if abs(place - smallest) == 1] or [len(blocks) - 1]
        joined, gone = sorted((smallest, min(near, key=held.__getitem__)))
        blocks[joined] += blocks.pop(gone)
        held[joined] += held.pop(gone)


def chained(table_RP: Array, parts: Sequence[int], partition: Partition, least: int) -> list[int]:
    """The first parts of a column, from its finest ones on, of which each cell of its table holds enough, as
    each of its rows does."""
    counts = added(added(table_RP, [0] * len(table_RP))[0], parts).tolist()
    missing = parts[-1] if partition.has_missing and parts.count(parts[-1]) == 1 else None
    steps = coarser_parts(parts, counts, is_ordered=partition.is_ordered, missing=missing)
    return next(step for step in steps if (added(table_RP.T, step) >= least).all())


def finest_bins(counts: Sequence[int], least: int) -> list[int]:
    """As `finest_parts` of a time by ending: of those censored, then of events. One part where either are too
    few."""
    half = len(counts) // 2
    if (added(np.array(counts), [0] * half + [1] * half) < least).any():
        return [0] * len(counts)
    return side_by_side(
        finest_parts(run, is_ordered=True, least=least, has_missing=False)
        for run in (counts[:half], counts[half:])
    )


def chained_bins(table_RP: Array, bins: Sequence[int], partition: Partition, least: int) -> list[int]:
    """As `chained` of a time by ending: those censored, and events, each by themselves."""
    half = len(bins) // 2
    return side_by_side(
        chained(table_RP[:, run], numbered(bins[run]), partition, least)
        for run in (slice(half), slice(half, None))
    )


def side_by_side(runs: Iterable[Sequence[int]]) -> list[int]:
    """Parts of a time by ending. runs: of those censored, and of events, each numbered from 0 on."""
    return numbered([(ending, part) for ending, run in enumerate(runs) for part in run])


def split_bins(bins: Sequence[int]) -> tuple[list[int], list[int]]:
    """Of each declared part of a time the bin of those censored, and of events, each numbered from 0 on."""
    half = len(bins) // 2
    return [*bins[:half]], [each - bins[half] for each in bins[half:]]


def are_bins(bins: Sequence[int]) -> bool:
    """Whether they are neighbors, numbered in their order, and none is of both endings."""
    half = len(bins) // 2
    steps = [after - before for before, after in pairwise(bins)]
    return bins[0] == 0 and steps[half - 1] == 1 and all(step in (0, 1) for step in steps)


def first_at_risk(bins: Sequence[int]) -> list[int]:
    """Of each bin of events the first bin of those censored that does not end before it begins: they are at
    risk in it, as are those of all later ones."""
    censored, events = split_bins(bins)
    found: dict[int, int] = {}
    for event, each in zip(events, censored, strict=True):
        found.setdefault(event, each)
    return [*found.values()]


def added(numbers_N: Array, parts: Sequence[int] | Array) -> Array:
    """Numbers added by the part that each place of the first axis is in. Shapes: (N, ...) -> (parts, ...)."""
    part_N = np.asarray(parts)
    found = np.zeros((int(part_N.max()) + 1, *numbers_N.shape[1:]), numbers_N.dtype)
    np.add.at(found, part_N, numbers_N)
    return found


def numbered(labels: Sequence[Hashable]) -> list[int]:
    """The same parts, numbered in the order of their lowest declared ones."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(label, len(numbers)) for label in labels]


def _in_order(counts: Sequence[int], least: int, *, has_missing: bool) -> list[int]:
    """From missing values over the lowest part upwards: a part is complete as soon as it holds enough. What
    is left over joins the last complete one."""
    last = len(counts) - 1
    labels, complete, held = [0] * len(counts), 0, 0
    for place in (last, *range(last)) if has_missing else range(len(counts)):
        labels[place] = complete
        held += counts[place]
        if held >= least:
            complete, held = complete + 1, 0
    return numbered([min(label, complete - 1) for label in labels])


def _around_the_last(counts: Sequence[int], least: int, *, has_missing: bool) -> list[int]:
    """Categories with too few records, and missing values if they are too few, join the last category. As
    long as these are too few together the one before joins, missing values at the end."""
    last = len(counts) - 1 - has_missing
    joined = {last, *(place for place, count in enumerate(counts) if count < least)}
    held = 0
    for place in joined:
        held += counts[place]
    for place in (*reversed(range(last)), *range(last + 1, len(counts))):
        if held < least and place not in joined:
            joined.add(place)
            held += counts[place]
    return numbered([last if place in joined else place for place in range(len(counts))])
