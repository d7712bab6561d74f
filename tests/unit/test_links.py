"""Links between the pages lead somewhere: to a file that exists, and to a heading in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.reference.pages import SITE

ROOT = Path(__file__).parents[2]
PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MADE = {ROOT / "docs" / path for path in SITE}  # with the site, whose build looks at these links
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)")
# pages and files that are named and not linked
NAMED = re.compile(r"`((?:docs|helm|deploy)/[\w./-]+)`")


def prose(path: Path) -> str:
    """A page without its blocks of code, whose # are no headings."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead(page: Path) -> list[str]:
    """What the page points to and is not there."""
    found = []
    text = re.sub(r"`[^`\n]*`", "`...`", prose(page))
    for file, anchor in LINK.findall(text):
        target = page.parent / file if file else page
        if target.resolve() in MADE:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(f"{file}#{anchor}" if anchor else file)
    return found + [name for name in NAMED.findall(prose(page)) if not (ROOT / name).exists()]


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_lead_somewhere(name: str) -> None:
    assert dead(ROOT / name) == []


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One, two\n[a](#one-two) [b](#three) [c](page.md#one-two) [d](gone.md) `docs/gone.md`, `x[e](f)`\n"
        "```\n# Three\n```\n[web](https://example.org/x)\n"
    )
    assert dead(page) == ["#three", "gone.md", "docs/gone.md"]
