"""Tables and marks of Markdown, as the generated pages use them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NOTHING = "-"  # an empty cell


def code(text: str) -> str:
    return f"`{text}`"


def codes(texts: Iterable[str]) -> str:
    return ", ".join(map(code, texts))


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows under their titles; an empty cell holds a dash."""
    lines = [titles, ["---"] * len(titles), *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(title: str, *blocks: str) -> str:
    """A whole page: what it is called, that no hand writes it, and its blocks apart from one another."""
    note = "<!-- written by `python -m tools.reference`: change what it is made from, not this page -->"
    return "\n\n".join([f"# {title}", note, *blocks]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|") or NOTHING
