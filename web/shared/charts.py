"""A figure over rounds as inline SVG: no script, sharp at any width, in the colors of the page's style."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from chorale.results import finite
from strategies.figure import TESTED, Figure, Interval, figure_in
from web.shared.templating import plain

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 250, 66, 16, 12, 50  # in units of the drawing
MOST_DOTS, MOST_POINTS = 60, 640  # closer ones would be a thick line, or one place of the drawing
MOST, LEAST, LEAST_SPAN = 1e100, 1e-100, 1e-9  # what is drawn: a coordinator may send any number
LEVELS, ROUNDS = 4, 8  # lines of the grid, labels below it
NAME = 18  # units from one name of a line to the next
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # of an axis, times a power of ten

Curve = dict[str, Any]  # title, svg, words


def charts(points: Mapping[str, Sequence[dict[str, Any]]], figure: str, *, silos: int) -> list[Curve]:
    """One of all hold-outs; where rounds draw their silos another one, which is of the drawn ones alone; of a
    search one of its arms.

    points: of client.history.curves_facts. silos: of the job.
    """
    drawn = [("all_silos", "Over the hold-outs of all silos")]
    if points["drawn_silos"]:
        drawn.append(("drawn_silos", "Over the hold-outs of the silos that each round drew"))
    found: list[Curve] = [
        {
            "title": title if len(drawn) > 1 else "",
            "svg": chart({each["round"]: figure_in(each, figure) for each in _thinned(points[name])}, figure),
            "words": _behind(points[name], silos=silos) if len(drawn) > 1 else "",
        }
        for name, title in drawn
    ]
    return [*found, *([_of_arms(points["arms"], figure)] if points["arms"] else [])]


def _of_arms(points: Sequence[dict[str, Any]], figure: str) -> Curve:
    by_arm: dict[int, list[dict[str, Any]]] = {}
    for each in points:
        by_arm.setdefault(each["arm"], []).append(each)
    lines = {
        arm: _drawable({each["round"]: figure_in(each, figure) for each in _thinned(of_arm)})
        for arm, of_arm in sorted(by_arm.items())
    }
    return {
        "title": "Arms of the search",
        "svg": _drawing(lines, f"{plain(figure)} of each arm's model after each round", has_names=True),
        "words": f"{len(lines)} arms, numbered from 0 in the order of search.values in the job.",
    }


def chart(by_round: Mapping[int, Figure | None], figure: str) -> Markup | None:
    """by_round: of the model after the round; 0: of the one that training starts from. None where no round
    measured it."""
    found = _drawable(by_round)
    last = max(found, default=0)
    label = f"{plain(figure)} of the model after each round, with its interval of 95 %; "
    return _drawing({0: found}, f"{label}{found.get(last)} after round {last}")


def _drawable(by_round: Mapping[int, Figure | None]) -> dict[int, Figure]:
    found = sorted(by_round.items())
    return {round: each for round, each in found if each is not None and abs(each.value) <= MOST}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    """levels: round numbers around the data."""

    first: int
    last: int
    levels: Sequence[float]

    def x(self, round: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (round - self.first) / max(self.last - self.first, 1)

    def y(self, value: float) -> float:
        low, high = self.levels[0], self.levels[-1]
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    def parts(self) -> list[str]:
        """Lines of the grid, and what stands beside them."""
        parts = [
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{self.y(level):.1f}" y2="{self.y(level):.1f}"/>'
            f'<text x="{LEFT - 8}" y="{self.y(level) + 4:.1f}" text-anchor="end">{level:.6g}</text>'
            for level in self.levels
        ]
        parts += [
            f'<text x="{self.x(round):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{round}</text>'
            for round in _rounds(self.first, self.last)
        ]
        middle = (LEFT + WIDTH - RIGHT) / 2
        return [*parts, f'<text x="{middle:.1f}" y="{HEIGHT - 6}" text-anchor="middle">rounds trained</text>']


def _drawing(
    lines: Mapping[int, Mapping[int, Figure]], label: str, *, has_names: bool = False
) -> Markup | None:
    """Figures by line and round. has_names: a line's number stands at its end. None without any figure."""
    rounds = [round for found in lines.values() for round in found]
    if not rounds:
        return None
    bands = {name: _bands(found) for name, found in lines.items()}
    ends = [each.value for found in lines.values() for each in found.values()]
    ends += [end for of_line in bands.values() for band in of_line.values() for end in band]
    axes = _Axes(first=min(rounds), last=max(rounds), levels=_levels(min(ends), max(ends)))
    places = {
        name: [(axes.x(round), axes.y(each.value)) for round, each in found.items()]
        for name, found in lines.items()
        if found
    }
    parts = axes.parts()
    for name, of_line in places.items():
        parts += _band_parts(bands[name], axes)
        dashes = f' stroke-dasharray="{3 * name} 3"' if name else ""  # so that lines that cross differ
        parts.append(f'<polyline points="{_path(of_line)}"{dashes}/>')
        if len(of_line) <= MOST_DOTS:
            parts += [f'<circle cx="{left:.1f}" cy="{height:.1f}" r="3"/>' for left, height in of_line]
    if has_names:
        parts += _names({name: of_line[-1] for name, of_line in places.items()})
    head = Markup('<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    drawing = Markup("".join(parts))  # numbers of ours alone
    return head.format(WIDTH, HEIGHT, label) + drawing + Markup("</svg>")


def _bands(found: Mapping[int, Figure]) -> dict[int, Interval]:
    return {
        round: each.band
        for round, each in found.items()
        if each.band is not None and max(map(abs, each.band)) <= MOST
    }


def _band_parts(bands: dict[int, Interval], axes: _Axes) -> list[str]:
    if len(bands) > 1:
        edge = [(round, top) for round, (_, top) in bands.items()]
        edge += [(round, bottom) for round, (bottom, _) in reversed(bands.items())]
        return [f'<polygon points="{_path([(axes.x(round), axes.y(value)) for round, value in edge])}"/>']
    return [
        f'<line class="interval" x1="{axes.x(round):.1f}" x2="{axes.x(round):.1f}" '
        f'y1="{axes.y(bottom):.1f}" y2="{axes.y(top):.1f}"/>'
        for round, (bottom, top) in bands.items()
    ]


def _names(ends: Mapping[int, tuple[float, float]]) -> list[str]:
    """Beside the ends of lines; of those that end in one round none covers another."""
    parts = []
    for left in {left for left, _ in ends.values()}:
        heights = sorted((height, name) for name, (x, height) in ends.items() if x == left)
        for place, (_, name) in enumerate(heights):
            below = enumerate(height for height, _ in heights[place:])
            height = max(TOP + NAME * place, min(height - NAME * more for more, height in below))
            parts.append(f'<text x="{left + 5:.1f}" y="{height + 4:.1f}">{name}</text>')
    return parts


def _thinned(points: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """At most about MOST_POINTS, with the first and the last."""
    every = -(-len(points) // MOST_POINTS) or 1
    return [*points[:-1:every], *points[-1:]]


def _path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{left:.1f},{height:.1f}" for left, height in places)


def _levels(low: float, high: float) -> list[float]:
    """Round numbers around the data, some LEVELS of them."""
    size = max(abs(low), abs(high), LEAST)
    span = max(high - low, LEAST_SPAN * size) if high > low else size if size > LEAST else 1.0
    power = 10.0 ** math.floor(math.log10(span / LEVELS))
    step = next(each * power for each in STEPS if each * power * LEVELS >= span * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * place for place in range(first, max(last, first + 1) + 1)]


def _rounds(first: int, last: int) -> list[int]:
    """Whole ones: the first, then steps of 1, 2 or 5 times a power of ten."""
    span, power = max(last - first, 1), 1
    while 10 * power * ROUNDS < span:
        power *= 10
    step = next(each * power for each in (1, 2, 5, 10) if each * power * ROUNDS >= span)
    marks = {first, *range(-(-first // step) * step, last + 1, step)}
    return sorted(round for round in marks if round == first or round - first >= step / 2)


def _behind(points: Sequence[dict[str, Any]], *, silos: int) -> str:
    """How much stands behind the points of a curve."""
    if not points:
        return "No sum measured it."
    shares = [each["data_share"] for each in points if finite(each["data_share"]) is not None]
    tested = [found for each in points if (found := figure_in(each, TESTED)) is not None]
    ends = [end for each in tested for end in each.noise or (each.value,)]
    parts = [f"{_span([each['silos'] for each in points])} of {silos} silos"]
    if ends:
        noise = " with noise (95 %)" if any(each.noise for each in tested) else ""
        parts.append(f"{_span(ends)} samples{noise}")
    if shares:
        parts.append(f"{_span([round(100 * each) for each in shares])} % of the training data")
    return f"Behind a point: {', '.join(parts)}."


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
