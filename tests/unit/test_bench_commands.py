"""The benchmark of commands: what counts of its runs, and a desk at which commands do their work."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bench import commands
from bench.commands import PLAIN, Command, Desk
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.ledger.reveals import Decision
from silo_agent.settings import LEDGER

SECONDS = {"job list": (1.5, 0.5, 2.0), "silo show": (1.0, 1.25, 1.5)}


class Clerk:
    """In place of a desk: each run takes what SECONDS says."""

    def __init__(self, folder: Path) -> None:
        self._taken: dict[str, Iterator[float]] = {name: iter(each) for name, each in SECONDS.items()}

    def __enter__(self) -> Clerk:
        return self

    def __exit__(self, *of_an_error: object) -> None: ...

    def commands(self) -> Mapping[str, Command]:
        return {name: Command(arguments=(name,)) for name in SECONDS}

    def cpu_seconds(self, command: Command) -> float:
        return next(self._taken[command.arguments[0]])


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert commands.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_least_run_counts_and_stands_beside_that_of_an_earlier_commit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(commands, "Desk", Clerk)
    before = tmp_path / "before.json"
    before.write_text('{"commands": {"job list": {"before": 9.0, "after": 0.75}}}')
    found = printed(capsys, "--runs", "3", "--before", str(before))
    assert found["commands"] == {
        "job list": {"before": 0.75, "after": 0.5},
        "silo show": {"before": None, "after": 1.0},
    }
    assert [(row["name"], row["value"], row["unit"], row["holds"]) for row in found["rows"]] == [
        ("chorale job list", 0.5, "s", True),
        ("chorale silo show", 1.0, "s", True),
    ]
    assert printed(capsys, "--only", "silo", "--runs", "1")["commands"].keys() == {"silo show"}


def test_a_command_decides_at_a_desk_where_nothing_stays_decided_and_one_that_fails_ends_it(
    tmp_path: Path,
) -> None:
    with Desk(tmp_path) as desk:
        job = bytes.fromhex(desk._waiting[PLAIN])
        for _ in range(2):
            assert desk.cpu_seconds(desk.commands()["silo approve JOB"]) > 0
            with closing(Ledger(tmp_path / "silo" / LEDGER)) as ledger:
                assert ledger.decision(job) is not Decision.APPROVED
        with pytest.raises(RuntimeError, match="(?s)chorale silo show nowhere .*: error: job nowhere"):
            desk.cpu_seconds(Command(arguments=("silo", "show", "nowhere", "--config", "silo.yaml")))
