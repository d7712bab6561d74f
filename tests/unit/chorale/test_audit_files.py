"""An audit log in several files: one that was closed, and one that went."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import Gauge

from chorale.observability import audit_head
from chorale.observability.audit_head import LOST, AuditHead
from chorale.runtime.audit import (
    CONTINUED,
    AuditLog,
    chain_of,
    read_entries,
    verify_file,
)
from chorale.runtime.database import Database
from cli.main import run
from crypto.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def write(path: Path, *events: str) -> None:
    with closing(AuditLog(path)) as log:
        for event in events:
            log.append(event)


def rotate(path: Path) -> Path:
    with closing(AuditLog(path)) as log:
        return log.rotate()


def events(path: Path) -> list[str]:
    return [entry["event"] for entry in read_entries(path)]


@pytest.fixture
def three(path: Path) -> tuple[Path, Path, Path]:
    """Two closed files and the log behind them."""
    write(path, "a", "b")
    first = rotate(path)
    write(path, "c")
    second = rotate(path)
    write(path, "d")
    return first, second, path


def test_a_closed_file_is_continued_by_the_next(three: tuple[Path, Path, Path]) -> None:
    first, second, path = three
    assert (first.name, second.name) == ("audit.1-2.jsonl", "audit.3-4.jsonl")
    assert chain_of(path) == [first, second, path]
    assert events(path) == ["a", "b", CONTINUED, "c", CONTINUED, "d"]
    assert next(read_entries(second))["closed"] == first.name
    assert verify_file(path) == 6
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_crash_between_two_files_loses_nothing(path: Path) -> None:
    write(path, "a", "b")
    path.rename(path.with_name("audit.1-2.jsonl"))  # and no next one was begun
    write(path, "c")
    assert events(path) == ["a", "b", CONTINUED, "c"]


def test_a_closed_file_is_on_disk_before_the_next_begins(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = list[int]()
    with closing(AuditLog(path)) as log:
        log.append_unflushed("a")
        monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
        closed = log.rotate()
    assert flushed[0] == closed.stat().st_ino


def test_a_closed_file_is_not_replaced(path: Path) -> None:
    write(path, "a", "b")
    path.with_name("audit.1-2.jsonl").write_text("an older copy\n")
    with pytest.raises(ConfigError, match=r"audit\.1-2\.jsonl: expected no such file"):
        rotate(path)
    path.with_name("audit.1-2.jsonl").unlink()
    assert events(path) == ["a", "b"]


def test_files_that_the_log_does_not_continue_are_not_of_it(three: tuple[Path, Path, Path]) -> None:
    first, second, path = three
    path.with_name("audit.900-901.jsonl").touch()
    second.rename(path.with_name("elsewhere"))
    assert chain_of(path) == [path]  # the older one tells nothing without what came between
    assert first.exists()
    assert events(path) == [CONTINUED, "d"]


def test_a_closed_file_that_was_cut_is_not_continued(path: Path) -> None:
    write(path, "a", "b")
    closed = rotate(path)
    path.unlink()
    closed.write_bytes(closed.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(ConfigError, match=r"audit\.1-2\.jsonl: expected its last entry to be 2, got 1"):
        AuditLog(path)


Verify = Callable[..., tuple[int, str]]


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    """`chorale audit verify`: its exit status and what it prints."""

    def call(*files: Path) -> tuple[int, str]:
        status = run(["audit", "verify", *map(str, files)])
        said = capsys.readouterr()
        return status, said.out + said.err

    return call


def test_verify_reads_many_files_and_names_where_one_is_missing(
    three: tuple[Path, Path, Path], verify: Verify
) -> None:
    first, second, path = three
    whole = f"{path}: 6 entries in 3 files, chain intact\n"
    assert verify(path) == verify(first, second, path) == (0, whole)
    away = path.parent / "away"
    away.mkdir()
    for file in (first, second):
        file.rename(away / file.name)
    begins = "2 entries, chain intact; entries 1 to 4 stand in files that were not given"
    assert begins in verify(path)[1]
    code, said = verify(away / first.name, path)
    assert code != 0
    assert f"{path}: a file is missing before it: entries 3 to 4" in said
    code, said = verify(away / second.name, away / first.name, path)
    assert code != 0
    assert f"{away / first.name}: begins at entry 1, and {away / second.name} ends at 4" in said


@pytest.mark.parametrize("cut", [1, 2])
def test_a_file_without_its_beginning_is_found_out(path: Path, verify: Verify, cut: int) -> None:
    write(path, "a", "b", "c")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[cut:]))
    assert f"{path}: entry 1: expected this number, got {cut + 1}" in verify(path)[1]


def test_a_file_of_another_log_does_not_continue_one(
    three: tuple[Path, Path, Path], verify: Verify, tmp_path: Path
) -> None:
    first, _, path = three
    other = tmp_path / "other" / "audit.jsonl"
    other.parent.mkdir()
    write(other, "x", "y")
    rotate(other).replace(first)
    assert "entry 3: the entry before it was changed, or is missing" in verify(path)[1]


class Party:
    """What a coordinator or a silo does with its log at a start and an end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = Database(path.with_name("state.sqlite"), ((*audit_head.TABLES,),))
        self.lost = Gauge("lost", "Lost.", registry=None)

    def run(self, *events: str, is_killed: bool = False) -> None:
        with closing(AuditLog(self._path)) as log:
            head = AuditHead(self._database)
            head.check(self._path, log, self.lost)
            for event in events:
                log.append(event)
            if not is_killed:
                head.keep(log)

    def rotate(self) -> Path:
        """As `chorale audit rotate`."""
        with closing(AuditLog(self._path)) as log:
            head = AuditHead(self._database)
            head.check(self._path, log, self.lost)
            closed = log.rotate()
            head.keep(log)
            return closed

    def lost_entries(self) -> float:
        return float(self.lost._value.get())

    def close(self) -> None:
        self._database.close()


@pytest.fixture
def party(path: Path) -> Iterator[Party]:
    with closing(Party(path)) as party:
        party.run("a", "b")
        yield party


def move(path: Path) -> None:
    path.rename(path.with_name("audit.jsonl.1"))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


def rewrite(path: Path) -> None:
    path.unlink()
    write(path, "a", "another")


def put_back(path: Path) -> None:
    path.unlink()
    write(path, "a")


@pytest.mark.parametrize("lose", [move, empty, cut, rewrite, put_back])
def test_entries_that_were_there_are_missed(
    party: Party, path: Path, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    lose(path)
    kept = len(path.read_bytes().splitlines()) if path.exists() else 0
    with caplog.at_level(logging.WARNING, logger="chorale"):
        party.run("c")
    added = [json.loads(line) for line in path.read_bytes().splitlines()][kept:]
    assert [each["event"] for each in added] == [LOST, "c"]
    assert added[0]["last_known_entry"] == 2
    assert party.lost_entries() == 1
    assert "audit log lacks entries that it had" in caplog.text
    verify_file(path)


def cut_and_close(path: Path) -> None:
    cut(path)
    for _ in range(3):
        rotate(path).rename(path.with_name("elsewhere"))


def forge(path: Path) -> None:
    entry = {"entry": 3, "time": "2026-01-01", "event": CONTINUED, "previous": "ab" * 32}
    path.write_text(json.dumps(entry) + "\n")


@pytest.mark.parametrize("hide", [cut_and_close, forge])
def test_a_closed_file_hides_no_entries(party: Party, path: Path, hide: Callable[[Path], None]) -> None:
    hide(path)
    party.run("c")
    assert party.lost_entries() == 1
    assert LOST in events(path)


def nothing(party: Party) -> None: ...


def close_one(party: Party) -> None:
    party.rotate()


def close_and_archive(party: Party) -> None:
    for number in range(2):
        closed = party.rotate()
        closed.rename(closed.with_name(f"archived-{number}"))


@pytest.mark.parametrize("keep", [nothing, close_one, close_and_archive])
@pytest.mark.parametrize("is_killed", [False, True])
def test_entries_that_are_there_or_in_a_closed_file_are_not(
    party: Party, path: Path, keep: Callable[[Party], None], is_killed: bool
) -> None:
    party.run("c", is_killed=is_killed)
    keep(party)
    party.run("d")
    party.run("e")
    assert party.lost_entries() == 0
    assert LOST not in events(path)
    assert events(path)[-2:] == ["d", "e"]
