"""docs/protocol.md is normative: its tables and lists are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crypto.errors import Refusal
from crypto.session.coordinator_session import TRANSITIONS as COORDINATOR
from crypto.session.silo_session import TRANSITIONS as SILO

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "protocol.md").read_text()


def rows(name: str) -> list[list[str]]:
    table = TEXT.split(f"<!-- {name} table -->\n")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_silo_table_is_that_of_the_code():
    written = {(row[0], row[1], row[2]) for row in rows("silo")}
    coded = {(state.value, kind.__name__, after.value) for (state, kind), after in SILO.items()}
    assert written == coded | {("ready", "(advertise)", "advertised")}


def test_coordinator_table_is_that_of_the_code():
    written = {tuple(row) for row in rows("coordinator")}
    assert written == {
        (state.value, event.value, after.value) for (state, event), after in COORDINATOR.items()
    }


def test_refusals_are_those_of_the_code():
    listed = TEXT.split("A silo's refusal is one code: ")[1].split(".\n")[0]
    assert re.findall(r"`([a-z-]+)`", listed) == [code.value for code in Refusal]


PURPOSES = [
    purpose
    for line in TEXT.split("| purpose | use | fields |")[1].split("\n\n")[0].splitlines()[2:]
    for purpose in re.findall(r"`([a-z-]+)`", line.split("|")[1])
]


@pytest.mark.parametrize("purpose", PURPOSES)
def test_documented_purpose_stands_in_the_code(purpose):
    inner = [
        ROOT / "chorale" / "evidence.py",
        ROOT / "chorale" / "job.py",
        ROOT / "chorale" / "runtime" / "distributions.py",
        ROOT / "strategies" / "methods.py",
        ROOT / "strategies" / "parts" / "closing" / "ccvr.py",
    ]
    sources = [*(ROOT / "crypto").rglob("*.py"), *inner, ROOT / "chorale" / "spec" / "first_state.py"]
    assert any(f'"{purpose}"' in path.read_text() for path in sources)


def test_purposes_of_the_session_are_documented():
    calls = re.compile(r'(?:(?:sign|encode|digest)\(\s*|PURPOSE: ClassVar\[str\] = )"([a-z-]+)"')
    used = {found for path in (ROOT / "crypto").rglob("*.py") for found in calls.findall(path.read_text())}
    assert used <= set(PURPOSES)


def test_every_cited_clause_exists():
    headings = set(re.findall(r"^#{2,3} (\d+(?:\.\d)?) ", TEXT, re.MULTILINE))
    assert headings >= {"1", "2", "3.1", "3.2", "5.1", "5.8", "6", "10"}
    for folder in (
        "crypto",
        "strategies",
        "chorale_models",
        "chorale",
        "coordinator",
        "silo_agent",
        "simulation",
        "client",
        "cli",
    ):
        for path in (ROOT / folder).rglob("*.py"):
            for cited in re.findall(r"docs/protocol\.md (\d+(?:\.\d)?)", path.read_text()):
                assert cited in headings or cited.split(".")[0] in headings, f"{path.name} cites {cited}"
