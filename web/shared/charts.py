"""A figure over rounds as inline SVG: no script, sharp at any width, in the colors of the page's style."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from chorale.results import finite
from strategies.figure import TESTED, Figure, figure_in
from web.shared.templating import plain

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 250, 66, 16, 12, 50  # in units of the drawing
MOST_DOTS, MOST_POINTS = 60, 640  # closer ones would be a thick line, or one place of the drawing
MOST, LEAST, LEAST_SPAN = 1e100, 1e-100, 1e-9  # what is drawn: a coordinator may send any number
LEVELS, ROUNDS = 4, 8  # lines of the grid, labels below it
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # of an axis, times a power of ten

Curve = dict[str, Any]  # title, svg, words


def charts(points: Mapping[str, Sequence[dict[str, Any]]], figure: str, *, silos: int) -> list[Curve]:
    """One of all hold-outs; where rounds draw their silos another one, which is of the drawn ones alone.

    points: of client.history.curves_facts. silos: of the job.
    """
    drawn = [("all_silos", "Over the hold-outs of all silos")]
    if points["drawn_silos"]:
        drawn.append(("drawn_silos", "Over the hold-outs of the silos that each round drew"))
    return [
        {
            "title": title if len(drawn) > 1 else "",
            "svg": chart({each["round"]: figure_in(each, figure) for each in _thinned(points[name])}, figure),
            "words": _behind(points[name], silos=silos) if len(drawn) > 1 else "",
        }
        for name, title in drawn
    ]


def chart(by_round: Mapping[int, Figure | None], figure: str) -> Markup | None:
    """by_round: of the model after the round; 0: of the one that training starts from. None where no round
    measured it."""
    found = {
        round: each
        for round, each in sorted(by_round.items())
        if each is not None and abs(each.value) <= MOST
    }
    if not found:
        return None
    bands = {
        round: each.band
        for round, each in found.items()
        if each.band is not None and max(map(abs, each.band)) <= MOST
    }
    ends = [each.value for each in found.values()] + [end for band in bands.values() for end in band]
    heights = _levels(min(ends), max(ends))
    low, high, first, last = heights[0], heights[-1], min(found), max(found)

    def x(round: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (round - first) / max(last - first, 1)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    parts = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(level):.1f}" y2="{y(level):.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y(level) + 4:.1f}" text-anchor="end">{level:.6g}</text>'
        for level in heights
    ]
    parts += [
        f'<text x="{x(round):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{round}</text>'
        for round in _rounds(first, last)
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - 6}" text-anchor="middle">rounds trained</text>')
    if len(bands) > 1:
        edge = [(round, band[1]) for round, band in bands.items()]
        edge += [(round, band[0]) for round, band in reversed(bands.items())]
        parts.append(f'<polygon points="{_path([(x(round), y(value)) for round, value in edge])}"/>')
    for round, (bottom, top) in bands.items() if len(bands) == 1 else ():
        parts.append(
            f'<line class="interval" x1="{x(round):.1f}" x2="{x(round):.1f}" '
            f'y1="{y(bottom):.1f}" y2="{y(top):.1f}"/>'
        )
    places = [(x(round), y(each.value)) for round, each in found.items()]
    parts.append(f'<polyline points="{_path(places)}"/>')
    if len(places) <= MOST_DOTS:
        parts += [f'<circle cx="{left:.1f}" cy="{height:.1f}" r="3"/>' for left, height in places]
    label = Markup("{} of the model after each round, with its interval of 95 %; {} after round {}")
    head = Markup('<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    drawing = Markup("".join(parts))  # numbers of ours alone
    return (
        head.format(WIDTH, HEIGHT, label.format(plain(figure), found[last], last))
        + drawing
        + Markup("</svg>")
    )


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
