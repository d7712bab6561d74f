"""docs/deploy-kubernetes.md as a script: its files and commands in the order in which a reader meets them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "deploy-kubernetes.md"
HUB, SILOS = "hub", ("clinic-a", "clinic-b", "clinic-c")
# a section that says so is done by every hospital; what it shows is clinic-a's
_EVERYWHERE = re.compile(r"\beach\s+hospital\b", re.IGNORECASE)
_BLOCK = re.compile(
    r"^`(?P<name>[\w.-]+)`:\n\n```\w+\n(?P<file>.*?)^```$|^```console\n(?P<console>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A file that is written (name, text), or a command (text) where there is no name."""

    section: str
    name: str
    text: str


def steps(page: str) -> Iterator[Step]:
    """Every file and command, in order, those of each hospital for every one."""
    for chapter in page.split("\n## ")[1:]:
        section = chapter.partition("\n")[0]
        silos = SILOS if _EVERYWHERE.search(chapter) else SILOS[:1]
        for block in _BLOCK.finditer(chapter):
            if block["name"]:
                shown = [Step(section=section, name=block["name"], text=block["file"])]
            else:
                commands = re.findall(r"^\$ (.+)$", block["console"], re.MULTILINE)
                shown = [Step(section=section, name="", text=command) for command in commands]
            for step in shown:
                is_every = SILOS[0] in (step.name or step.text)
                yield from (_at(step, silo) for silo in (silos if is_every else SILOS[:1]))


def _at(step: Step, silo: str) -> Step:
    first = SILOS[0]
    return Step(
        section=step.section, name=step.name.replace(first, silo), text=step.text.replace(first, silo)
    )
