"""Which declared parts of a column are published as one.

Which part another one joins follows from their places, or from counts that are published: were it the smaller
one by hidden counts, 10 beside a merged 19 would say that the 19 are 9 and 10. Counts are of the declared
parts, missing values last. Source: docs/decisions/0041-analysis.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence


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
