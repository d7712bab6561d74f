"""Shares that fall in steps over time as inline SVG, a line a group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from crypto.errors import printable

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 44, 130, 12, 40  # in units of the drawing
MOST_LINES, MOST_NAME = 8, 16  # names, and their characters
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
DASHES = ("", "8 4", "2 3", "12 3 2 3")  # groups differ without color, too
PALEST = 0.4  # of the last group's line


def step_chart(
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]], *, axis: str, label: str
) -> Markup | None:
    """A line: its name, and times, rising, with the share from each on. None of none, or of more.

    axis: what the times are. Units: shares from 0 to 1. Security: names are escaped.
    """
    if not 0 < len(lines) <= MOST_LINES:
        return None
    end = max(points[-1][0] for _, points in lines)
    drawn = Markup()
    for level in LEVELS:
        y = _y(level)
        drawn += Markup('<line x1="{}" y1="{:.1f}" x2="{}" y2="{:.1f}"/>').format(LEFT, y, WIDTH - RIGHT, y)
        drawn += Markup('<text x="0" y="{:.1f}">{:g}</text>').format(y + 4, level)
    for number, (name, points) in enumerate(lines):
        corners = [*points]
        between = [[(time, before), (time, share)] for (_, before), (time, share) in pairwise(corners)]
        places = " ".join(
            f"{LEFT + (WIDTH - LEFT - RIGHT) * time / end:.1f},{_y(share):.1f}"
            for time, share in [corners[0], *(corner for pair in between for corner in pair)]
        )
        opacity = 1 - (1 - PALEST) * number / max(len(lines) - 1, 1)
        style = Markup('stroke-dasharray="{}" stroke-opacity="{:.2f}"').format(
            DASHES[number % len(DASHES)] or "none", opacity
        )
        drawn += Markup('<polyline points="{}" {}/>').format(places, style)
        y = TOP + 14 + 22 * number
        drawn += Markup('<polyline points="{},{} {},{}" {}/><text x="{}" y="{}">{}</text>').format(
            *(WIDTH - RIGHT + 8, y, WIDTH - RIGHT + 34, y, style, WIDTH - RIGHT + 40, y + 4, _cut(name))
        )
    for x, anchor, text in ((LEFT, "start", "0"), (WIDTH - RIGHT, "end", f"{end:g}")):
        drawn += Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(x, HEIGHT - 22, anchor, text)
    middle = (LEFT + WIDTH - RIGHT) / 2
    drawn += Markup('<text x="{:.0f}" y="{}" text-anchor="middle">{}</text>').format(
        middle, HEIGHT - 4, printable(axis)
    )
    head = Markup('<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    return head.format(WIDTH, HEIGHT, printable(label)) + drawn + Markup("</svg>")


def _y(share: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)


def _cut(text: str) -> str:
    return printable(text if len(text) <= MOST_NAME else f"{text[: MOST_NAME - 3]}...")
