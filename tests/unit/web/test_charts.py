"""What a chart shows: whole rounds, an axis that follows the data, and the start of training."""

from __future__ import annotations

import re

import pytest

from strategies.figure import Figure
from web.shared.charts import MOST_DOTS, MOST_POINTS, ROUNDS, chart, charts


def drawn(values: dict[int, float]) -> str:
    return str(chart({round: Figure(value=value) for round, value in values.items()}, "accuracy"))


def labels(svg: str, anchor: str) -> list[str]:
    return re.findall(rf'text-anchor="{anchor}">([^<]*)</text>', svg)


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("more", [1, 2, 7, 10, 99, 500, 10_000])
def test_labels_of_rounds_are_few_and_whole_and_begin_with_the_first(first: int, more: int) -> None:
    *rounds, axis = labels(drawn({first: 0.1, first + more: 0.9}), "middle")
    assert axis == "rounds trained"
    assert rounds[0] == str(first)
    assert 2 <= len(rounds) <= ROUNDS + 1
    assert all(first <= int(each) <= first + more for each in rounds)


@pytest.mark.parametrize(
    ("low", "high", "levels"),
    [
        (0.1, 0.98, ["0", "0.25", "0.5", "0.75", "1"]),
        (0.971, 0.974, ["0.971", "0.972", "0.973", "0.974"]),
        (-3.0, 41.0, ["-20", "0", "20", "40", "60"]),
        (0.5, 0.5, ["0.4", "0.6"]),
    ],
)
def test_axis_has_round_numbers_around_the_data(low: float, high: float, levels: list[str]) -> None:
    assert labels(drawn({0: low, 1: high}), "end") == levels


def test_every_point_is_inside_and_has_a_dot_while_they_can_be_told() -> None:
    svg = drawn({round: 0.5 + round / 100 for round in range(40)})
    assert svg.count("<circle") == 40
    (path,) = re.findall(r'<polyline points="([^"]*)"', svg)
    places = [tuple(map(float, each.split(","))) for each in path.split()]
    assert all(0 < x < 640 and 0 < y < 250 for x, y in places)
    assert drawn(dict.fromkeys(range(MOST_DOTS + 1), 0.5)).count("<circle") == 0


def test_name_of_a_figure_is_escaped_and_nothing_measured_is_no_chart() -> None:
    svg = str(chart({0: Figure(value=0.5)}, '"><script>'))
    assert "<script>" not in svg
    assert chart({0: None, 1: Figure(value=float("nan"))}, "accuracy") is None


HOSTILE = [1e308, -1e308, 5e-324, -5e-324, 1e300, 1.0000000000000002e300, 1.79e308, 0.0, 0.5, float("inf")]


@pytest.mark.parametrize("first", HOSTILE)
@pytest.mark.parametrize("second", HOSTILE)
def test_no_pair_of_numbers_breaks_a_chart(first: float, second: float) -> None:
    """A coordinator may send any: a report was not written, and the console's page of the job not shown."""
    wide = Figure(value=0.5, noise=(min(first, second), max(first, second)))
    for figures in ({0: Figure(value=first), 1: Figure(value=second)}, {0: wide, 1: Figure(value=0.5)}):
        svg = str(chart(figures, "loss") or "")
        places = re.findall(r'(?:x1|x2|y1|y2|cx|cy|points)="([^"]*)"', svg)
        assert not re.search("nan|inf", " ".join(places))


def test_a_long_job_is_thinned_to_its_width_and_keeps_both_ends() -> None:
    points = [
        {"round": round, "silos": 3, "data_share": None, "loss": 1.0 / (1 + round)}
        for round in range(100_001)
    ]
    (one,) = charts({"all_silos": points, "drawn_silos": []}, "loss", silos=3)
    (path,) = re.findall(r'<polyline points="([^"]*)"', one["svg"])
    assert MOST_POINTS / 2 < len(path.split()) <= MOST_POINTS + 1
    assert [path.split()[place].split(",")[0] for place in (0, -1)] == ["66.0", "624.0"]


def test_what_stands_behind_a_point_is_shown_whatever_a_coordinator_sends() -> None:
    points = [{"round": 1, "silos": 3, "data_share": None, "loss": 0.5, "tested": float("inf")}]
    words = [each["words"] for each in charts({"all_silos": points, "drawn_silos": points}, "loss", silos=3)]
    assert all(each.startswith("Behind a point: 3 of 3 silos") for each in words)
