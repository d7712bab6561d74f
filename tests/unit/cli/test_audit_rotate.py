"""`chorale audit rotate`: what is entered, checked and remembered when a file of a log is closed."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from chorale.runtime.audit import CONTINUED, AuditLog, chain_of, read_entries
from tests.unit.cli.conftest import Calls, Desk


def write(path: Path, *events: str) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with closing(AuditLog(path)) as log:
        for event in events:
            log.append(event)


def events(path: Path) -> list[str]:
    return [entry["event"] for entry in read_entries(path)]


@pytest.mark.parametrize("role", ["silo", "coordinator"])
def test_a_stopped_process_goes_on_in_the_next_file(desk: Desk, chorale: Calls, role: str) -> None:
    config = desk.silo() if role == "silo" else desk.coordinator()
    folder = desk.folder / ("silo-0" if role == "silo" else "hub")
    path = folder / "audit.jsonl"
    write(path, "a", "b")
    ended = chorale("audit", "rotate", "--config", config)
    assert (ended.code, ended.out) == (0, f"closed: {folder / 'audit.1-2.jsonl'}\n"), ended.err
    assert events(path) == ["a", "b", CONTINUED]
    chain_of(path)[0].unlink()  # it is kept elsewhere, and the database knows where the log ended
    again = chorale("audit", "rotate", "--config", config)
    assert (again.code, events(path)) == (0, [CONTINUED, CONTINUED]), again.err
    path.unlink()
    (folder / "audit.3-3.jsonl").unlink()
    write(path, "begun")
    chorale("audit", "rotate", "--config", config)
    assert events(path) == ["begun", "audit.entries_lost", CONTINUED]


def test_a_log_that_is_in_use_or_of_another_user_or_empty_is_not_closed(
    desk: Desk, chorale: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, path = desk.silo(), desk.folder / "silo-0" / "audit.jsonl"
    missing = chorale("audit", "rotate", "--config", config)
    assert (missing.code, f"{path}: no such file or directory" in missing.err) == (2, True)
    write(path)
    empty = chorale("audit", "rotate", "--config", config)
    assert f"{path}: expected entries, got none" in empty.err
    write(path, "a")
    with closing(AuditLog(path)):
        used = chorale("audit", "rotate", "--config", config)
    assert "the audit log is in use by another process" in used.err
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    foreign = chorale("audit", "rotate", "--config", config)
    assert f"{path}: belongs to user {path.stat().st_uid}: run the command as that user" in foreign.err
    assert [file.name for file in path.parent.glob("audit*")] == ["audit.jsonl"]
