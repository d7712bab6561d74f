"""Jinja as every page uses it. Texts of peers are hostile: escaped, printable, and short."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from crypto.errors import printable

MAX_TEXT = 1000  # characters of one text on a page


def plain(value: object) -> object:
    """Text as it may stand on a page: no control characters, none that turn its direction, not too long.

    Every expression of a template passes here before it is escaped.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    cut = value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "..."
    return printable(cut)


def environment(*folders: Path) -> Environment:
    """Templates of these folders and of this one."""
    made = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["moment"] = moment
    made.filters["size"] = size
    made.filters["figure"] = figure
    return made


def moment(unix_seconds: float) -> str:
    """A time in UTC; a dash for what is none."""
    try:
        return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d %H:%M} UTC" if unix_seconds > 0 else "-"
    except (ValueError, OverflowError, OSError):
        return "-"


def size(count_bytes: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count_bytes >= factor:
            return f"{count_bytes / factor:.3g} {unit}"
    return f"{count_bytes:.0f} bytes"


def figure(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}f}"
