"""Numbers that a paper prints, as a text that is easy to compare with the paper's table.

The first line names the columns, every other line a row; `|` stands between. `-` is a number that the paper
does not have. Percent; `36.63±0.22` has a deviation.
"""

from __future__ import annotations

from collections.abc import Iterator

from research.papers.cells import Printed

NONE = "-"


def numbers(text: str) -> Iterator[tuple[str, str, Printed | None]]:
    """Row, column and number, line by line. Raises ValueError for a line of another length."""
    heading, *lines = text.strip().splitlines()
    _, *columns = _split(heading)
    for line in lines:
        row, *values = _split(line)
        for column, value in zip(columns, values, strict=True):
            yield row, column, _printed(value)


def rows(text: str) -> list[str]:
    """Names of the rows."""
    return [_split(line)[0] for line in text.strip().splitlines()[1:]]


def _split(line: str) -> list[str]:
    return [part.strip() for part in line.split("|")]


def _printed(value: str) -> Printed | None:
    if value == NONE:
        return None
    mean, _, deviation = value.partition("±")
    return Printed(mean=float(mean), deviation=float(deviation) if deviation else None)
