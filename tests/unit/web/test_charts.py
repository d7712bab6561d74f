"""What a chart shows: whole rounds, an axis that follows the data, and the start of training."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from strategies.figure import Figure
from web.shared.charts import MOST_DOTS, MOST_POINTS, NAME, ROUNDS, chart, charts


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
    (one,) = charts({"all_silos": points, "drawn_silos": [], "arms": []}, "loss", silos=3)
    (path,) = re.findall(r'<polyline points="([^"]*)"', one["svg"])
    assert MOST_POINTS / 2 < len(path.split()) <= MOST_POINTS + 1
    assert [path.split()[place].split(",")[0] for place in (0, -1)] == ["66.0", "624.0"]


def test_what_stands_behind_a_point_is_shown_whatever_a_coordinator_sends() -> None:
    points = [{"round": 1, "silos": 3, "data_share": None, "loss": 0.5, "tested": float("inf")}]
    given = {"all_silos": points, "drawn_silos": points, "arms": []}
    words = [each["words"] for each in charts(given, "loss", silos=3)]
    assert all(each.startswith("Behind a point: 3 of 3 silos") for each in words)


def of_arms(arms: int, rounds: int, loss: Callable[[int, int], float | None]) -> dict[str, Any]:
    """The drawing of a search. loss: of an arm after a round."""
    points = [
        {"round": round, "arm": arm, "loss": loss(arm, round)}
        for round in range(rounds)
        for arm in range(arms)
    ]
    *_, found = charts({"all_silos": [], "drawn_silos": [], "arms": points}, "loss", silos=3)
    return found


def names(svg: str) -> list[tuple[float, float, str]]:
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)">(\d+)</text>', svg)
    return [(float(x), float(y), name) for x, y, name in found]


def test_each_arm_of_a_search_has_a_line_with_its_number_at_the_end() -> None:
    """Arm 1 falls away after round 1, and no round measured arm 3."""
    found = of_arms(
        4, 4, lambda arm, round: None if arm == 3 or (arm == 1 and round > 1) else 1.0 + arm - round / 10
    )
    assert found["title"] == "Arms of the search"
    assert found["words"].startswith("4 arms, numbered from 0 in the order of search.values")
    ends = [path.split()[-1].split(",") for path in re.findall(r'<polyline points="([^"]*)"', found["svg"])]
    assert len(ends) == 3
    assert len({float(x) for x, _ in ends}) == 2  # arm 1 ends before the others
    beside = {name: (x - 5, y - 4) for x, y, name in names(found["svg"])}
    assert beside == {str(arm): pytest.approx([*map(float, end)], abs=0.11) for arm, end in enumerate(ends)}


@pytest.mark.parametrize("rounds", [390, 640, 1280])
def test_lines_of_arms_are_thinned_one_by_one(rounds: int) -> None:
    paths = re.findall(r'<polyline points="([^"]*)"', of_arms(8, rounds, lambda arm, round: arm)["svg"])
    assert [path.split()[0].split(",")[0] for path in paths] == ["66.0"] * 8
    assert [path.split()[-1].split(",")[0] for path in paths] == ["624.0"] * 8
    assert all(min(rounds, MOST_POINTS) / 2 < len(path.split()) <= MOST_POINTS + 1 for path in paths)


@pytest.mark.parametrize("low", [0.0, 0.5, 1.0])
def test_numbers_of_arms_that_end_together_cover_neither_each_other_nor_the_axis(low: float) -> None:
    """All of them but one end in one place, at the bottom, in the middle or at the top."""
    svg = of_arms(8, 2, lambda arm, round: low if arm else 0.5 if round else 1.0 - round)["svg"]
    heights = sorted(y for _, y, _ in names(svg))
    assert len(heights) == 8
    assert all(below - above > NAME - 0.2 for above, below in pairwise(heights))
    assert all(0 < height < 210 for height in heights)


@pytest.mark.parametrize("value", [*HOSTILE, float("nan"), None])
def test_no_number_of_an_arm_breaks_its_chart(value: float | None) -> None:
    svg = str(of_arms(3, 3, lambda arm, round: value if arm == 1 else 0.5)["svg"])
    assert svg.count("<polyline") == 2 + (value is not None and abs(value) <= 1e100)
    assert not re.search("nan|inf", svg)
    only = of_arms(2, 2, lambda arm, round: value)["svg"]
    assert only is None or not re.search("nan|inf", str(only))
