"""docs/deploy-one-machine.md: which machine does what, and the files that move between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.page import HUB, SILOS
from tests.host.machine import HOME

PAGE = Path(__file__).parents[2] / "docs" / "deploy-one-machine.md"
OFFICE = "office"  # the authority's and the operator's
NEW = "new-hub"
MEMBERS = (HUB, *SILOS)

Group = tuple[str, ...]
# by section, in the order of the page: groups of machines, one group after the other
WHO: Mapping[str, tuple[Group, ...]] = {
    "Install": ((OFFICE, *MEMBERS),),
    "The federation": ((OFFICE,),),
    "Keys": (MEMBERS,),
    "Signatures": ((OFFICE,),),
    "The coordinator": ((HUB,),),
    "A silo": (SILOS,),
    "Update": ((HUB,), SILOS),
    "Rotate": ((HUB,), SILOS),
    "Back up and restore": ((HUB,),),
    "A new machine": ((NEW,),),
    "Remove": (SILOS, (NEW,), (OFFICE,)),
}
# sections that have a test of their own
OTHERS = frozenset({"With Podman", "Without a network"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A file from a machine and a folder of it to another's."""

    file: str
    source: tuple[str, str]
    target: tuple[str, str]


def sections(page: str) -> dict[str, str]:
    """Those with commands."""
    parts = (part.partition("\n") for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:])
    return {name: text for name, _, text in parts if re.search(r"^\$ ", text, re.MULTILINE)}


def commands(section: str, text: str, machine: str) -> list[str]:
    """The section's that this machine does, under its own name."""
    shown = re.findall(r"^\$ (.+)$", text, re.MULTILINE)
    if WHO[section] == ((OFFICE,),):
        return shown
    return [own for command in shown if (own := _of(machine, command, text))]


def _of(machine: str, command: str, text: str) -> str:
    """Empty for a command of another one."""
    is_hub = machine in (HUB, NEW)
    if f"/chorale-{HUB}" in command or f" chorale-{HUB}" in command:
        return command if is_hub else ""
    if SILOS[0] in command:
        if machine in SILOS:
            return command.replace(SILOS[0], machine)
        is_alike = is_hub and "likewise at the coordinator" in " ".join(text.split())
        return command.replace(SILOS[0], HUB).replace("silo.yaml", "coordinator.yaml") if is_alike else ""
    return command


def moves(page: str) -> Iterator[Move]:
    """What the page's table of files says, for every hospital."""
    table = re.findall(r"^\| (`.+`) \| (\S+) \| (\S+) \|$", sections(page)["Signatures"], re.MULTILINE)
    for files, source, target in table:
        silos = SILOS if SILOS[0] in files else SILOS[:1]
        for silo in silos:
            for file in re.findall(r"`([^`]+)`", files):
                yield Move(
                    file=file.replace(SILOS[0], silo),
                    source=_place(source.replace(SILOS[0], silo)),
                    target=_place(target.replace(SILOS[0], silo)),
                )


def _place(cell: str) -> tuple[str, str]:
    """Machine and folder."""
    folder = cell.strip("`")
    return (OFFICE, HOME) if folder == "authority" else (folder.removeprefix("/etc/chorale-"), folder)
