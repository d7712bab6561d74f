"""Which pages are written from the code, and which of them are stale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tools.reference.commands import cli_page
from tools.reference.metrics import metrics_page
from tools.reference.settings import settings_page
from tools.reference.sources import CHARTS, ROOT
from tools.reference.values import chart_page, values_page

COMMAND = "python -m tools.reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "docs/metrics.md": metrics_page,
    "docs/reference/settings.md": settings_page,
    "docs/reference/values.md": values_page,
    "docs/reference/cli.md": cli_page,
    **{f"helm/{chart}/README.md": partial(chart_page, chart) for chart in CHARTS.values()},
}


def stale() -> dict[str, str]:
    """Pages that differ from what the code says, each with what should stand there."""
    pages = {path: page() for path, page in PAGES.items()}
    return {path: text for path, text in pages.items() if _read(ROOT / path) != text}


def write() -> list[str]:
    """Bring the stale ones up to date; gives their paths."""
    changed = stale()
    for path, text in changed.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text)
    return list(changed)


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None
