"""The documentation as a site: every link leads somewhere, no page asks another host for anything, every
command that it shows exists, and what it says of the methods is what was measured."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

from cli.main import COMMANDS, chorale
from tools.site import in_fours

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OWN = ("index", "concepts/index", "choosing-a-method", "security-in-plain-words", "faq")
TUTORIALS = sorted(f"tutorials/{path.stem}" for path in (DOCS / "tutorials").glob("*.md"))
FETCHED = {"src", "srcset", "data", "poster", "href"}  # an `a` is followed by a person, and fetched by nobody
ELSEWHERE = re.compile(r"\s*(?:[a-z]+:)?//")


def build(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """The site of a copy of the documentation."""
    settings = docs.parent / "mkdocs.yml"
    settings.write_text(
        (ROOT / "mkdocs.yml").read_text().replace("tools/site.py", str(ROOT / "tools/site.py"))
    )
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(settings)]
    return subprocess.run(
        [*command, "--site-dir", str(site)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    done = build(folder / "docs", folder / "site")
    assert done.returncode == 0, done.stderr
    return folder / "site"


class Fetches(HTMLParser):
    """What a browser asks for when it shows a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" or (tag == "link" and given.get("rel") in ("canonical", "next", "prev")):
            return
        self.found += [value for name, value in given.items() if name in FETCHED and value]
        self.found += re.findall(r"url\(['\"]?([^'\")]+)", given.get("style") or "")


def fetched_elsewhere(folder: Path) -> list[str]:
    found = []
    for path in folder.rglob("*.html"):
        found += [f"{path.name}: {each}" for each in Fetches(path.read_text()).found if ELSEWHERE.match(each)]
    for path in folder.rglob("*.css"):
        asked = re.findall(r"(?:url\(|@import )['\"]?([^'\")]+)", path.read_text())
        found += [f"{path.name}: {each}" for each in asked if ELSEWHERE.match(each)]
    return found


def test_every_page_is_built_and_asks_no_other_host_for_anything(site: Path) -> None:
    assert {path.stem for path in DOCS.glob("*.md")} <= {path.stem for path in site.glob("*.html")}
    assert fetched_elsewhere(site) == []
    # the theme's script would fetch these two of other hosts where a page has them
    pages = "".join(path.read_text() for path in site.rglob("*.html"))
    assert 'class="mermaid"' not in pages
    assert 'data-md-component="source"' not in pages


def test_a_page_that_asks_another_host_is_seen(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<a href="https://x.example">x</a><script src="//x.example/a.js"></script>'
        '<link rel="stylesheet" href="https://x.example/a.css"><img src="own.svg">'
    )
    (tmp_path / "own.css").write_text("@import 'https://x.example/b.css'; a { background: url(own.png) }")
    assert fetched_elsewhere(tmp_path) == [
        "page.html: //x.example/a.js",
        "page.html: https://x.example/a.css",
        "own.css: https://x.example/b.css",
    ]


@pytest.mark.gate
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("simulation.md", "[a](faq.md#gone)", "does not contain an anchor '#gone'"),
        ("forgotten.md", "# Forgotten", "forgotten.md"),
    ],
)
def test_a_dead_link_and_a_page_without_its_line_end_the_build(
    tmp_path: Path, name: str, text: str, expected: str
) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    with (tmp_path / "docs" / name).open("a") as file:
        file.write(f"\n{text}\n")
    done = build(tmp_path / "docs", tmp_path / "site")
    assert done.returncode == 1
    assert expected in done.stderr


def test_lists_in_lists_are_indented_as_the_site_reads_them() -> None:
    """MkDocs took an item at three spaces for one of the outer list."""
    page = "5. One\n   1. two\n      three\n\n- four\n  ```\n  - five\n  ```\nsix\n```\n  - seven\n```"
    site = (
        "5. One\n    1. two\n        three\n\n- four\n    ```\n    - five\n    ```\nsix\n```\n  - seven\n```"
    )
    assert in_fours(page) == site


def shown(page: str) -> list[list[str]]:
    """Every command of Chorale on a page, alone on its line or within a sentence."""
    text = (DOCS / f"{page}.md").read_text()
    lines = re.findall(r"^\$ (chorale .+)$", text, re.MULTILINE) + re.findall(r"`(chorale [^`\n]+)`", text)
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.parametrize("page", [*OWN, *TUTORIALS])
def test_every_command_that_a_page_shows_exists_with_its_options(page: str) -> None:
    for arguments in shown(page):
        command: click.Command = chorale
        while isinstance(command, click.Group) and arguments:
            name, *arguments = arguments
            found = command.get_command(click.Context(command), name)
            assert found is not None, f"no command {name} in {list(COMMANDS)}"
            command = found
        known = {option for parameter in command.params for option in parameter.opts}
        assert {each for each in arguments if each.startswith("--")} <= known, command.name
