"""Shares of groups as inline SVG: bars that lie below one another, each with its number."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from crypto.errors import printable

WIDTH, RIGHT, TOP = 640, 250, 6  # in units of the drawing; RIGHT: for a bar's number and name
TITLE, BAR, GAP = 24, 22, 8  # heights of a part's name, of a bar with its distance, and between parts
MOST_BARS = 120  # more are no picture
MOST_TITLE, MOST_NAME = 80, 24  # characters
PALEST = 0.35  # of the last group's bars


def bars(
    parts: Sequence[str], groups: Sequence[str], percent_GP: Sequence[Sequence[float]], *, label: str
) -> Markup | None:
    """A block of bars a part, a bar in it a group. None of more than MOST_BARS. label: what they are of.

    Units: percent, from 0 to 100. Security: names are escaped.
    """
    if len(parts) * len(groups) > MOST_BARS:
        return None
    most = max(max(percent_P) for percent_P in percent_GP) or 1.0
    drawn, y = Markup(), TOP
    for place, part in enumerate(parts):
        drawn += Markup('<text x="0" y="{}">{}</text>').format(y + 15, _cut(part, MOST_TITLE))
        y += TITLE
        for number, group in enumerate(groups):
            percent = percent_GP[number][place]
            width = (WIDTH - RIGHT) * percent / most
            opacity = 1 - (1 - PALEST) * number / max(len(groups) - 1, 1)
            name = f"{percent:.1f} % {_cut(group, MOST_NAME)}" if len(groups) > 1 else f"{percent:.1f} %"
            drawn += Markup(
                '<rect x="0" y="{}" width="{:.1f}" height="{}" fill-opacity="{:.2f}"/>'
                '<text x="{:.1f}" y="{}">{}</text>'
            ).format(y, width, BAR - 6, opacity, width + 6, y + 13, name)
            y += BAR
        y += GAP
    head = Markup('<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    return head.format(WIDTH, y, printable(label)) + drawn + Markup("</svg>")


def _cut(text: str, most: int) -> str:
    return printable(text if len(text) <= most else f"{text[: most - 3]}...")
