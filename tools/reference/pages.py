"""Which pages are made from the code: those of the site, and the charts' README.md, which are committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from research.papers import words
from tools.reference.commands import cli_page
from tools.reference.markdown import page
from tools.reference.methods import methods_page
from tools.reference.metrics import metrics_page
from tools.reference.parts import parts_page
from tools.reference.settings import settings_page
from tools.reference.sources import CHARTS, ROOT
from tools.reference.values import chart_page, values_page

COMMAND = "python -m tools.reference"
# below docs/, made whenever the site is built
SITE: Mapping[str, Callable[[], str]] = {
    "metrics.md": metrics_page,
    "reference/settings.md": settings_page,
    "reference/values.md": values_page,
    "reference/cli.md": cli_page,
    "reference/methods.md": methods_page,
    "reference/parts.md": parts_page,
    "reference/papers.md": lambda: page("Tables and figures of the five papers", words.page_text()),
}
COMMITTED: Mapping[str, Callable[[], str]] = {
    f"helm/{chart}/README.md": partial(chart_page, chart) for chart in CHARTS.values()
}


def stale() -> dict[str, str]:
    """Committed pages that differ from what the code says, each with what should stand there."""
    pages = {path: page() for path, page in COMMITTED.items()}
    return {path: text for path, text in pages.items() if _read(ROOT / path) != text}


def write() -> list[str]:
    """Bring the stale ones up to date; gives their paths."""
    changed = stale()
    for path, text in changed.items():
        (ROOT / path).write_text(text)
    return list(changed)


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None
