from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bench.rows import Row, table

AT_MOST = Row(name="masking / key streams", target=1.5, value=1.0)
AT_LEAST = Row(name="upload / bare stream", target=0.7, value=1.0, is_at_most=False)


@pytest.mark.parametrize(
    ("row", "value", "holds"),
    [
        (AT_MOST, 1.5, True),
        (AT_MOST, 1.501, False),
        (AT_LEAST, 0.7, True),
        (AT_LEAST, 0.699, False),
        (AT_MOST, math.nan, False),
        (AT_LEAST, math.nan, False),
    ],
)
def test_a_row_holds_up_to_its_target_and_never_without_a_number(row: Row, value: float, holds: bool) -> None:
    assert replace(row, value=value).holds is holds


@pytest.mark.parametrize(
    ("row", "value", "is_worse"),
    [
        (AT_MOST, 1.29, False),
        (AT_MOST, 1.31, True),
        (AT_MOST, 0.1, False),
        (AT_LEAST, 1 / 1.29, False),
        (AT_LEAST, 1 / 1.31, True),
        (AT_LEAST, 10.0, False),
        (AT_MOST, math.nan, True),
        (AT_LEAST, math.inf, True),
    ],
)
def test_a_ratio_is_worse_from_31_percent_on_and_not_at_29(row: Row, value: float, is_worse: bool) -> None:
    assert replace(row, value=value).is_worse_than(1.0) is is_worse


@pytest.mark.parametrize("row", [AT_MOST, AT_LEAST, replace(AT_MOST, unit="s")])
def test_a_row_travels_as_json_with_its_verdict(row: Row) -> None:
    fields = row.to_json()
    assert fields["holds"] is row.holds
    assert Row.from_json(fields) == row


def test_the_table_says_which_row_does_not_hold() -> None:
    lines = table([AT_MOST, replace(AT_LEAST, value=0.5)]).splitlines()
    assert lines[2] == "| masking / key streams | <= 1.5 x | 1 x | yes |"
    assert lines[3] == "| upload / bare stream | >= 0.7 x | 0.5 x | **no** |"
